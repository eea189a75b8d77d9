"""What happened to a manager's choices: the last events with their times, and the counts at times.

Nothing is written where a plan is simply used. Listeners are called after the manager's lock is released; whatever
they raise, the call that they hear of goes on.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hpfracc_nn.selection.learning.model import Prediction, confidence
from hpfracc_nn.selection.observe.counts import ManagerCounts
from hpfracc_nn.selection.quarantine import is_from_signal
from hpfracc_nn.selection.timing import wall_time
from hpfracc_nn.selection.workload import Direction, Workload

_log = logging.getLogger("hpfracc_nn.selection")


def inform(listener: Callable[..., object], *given: Any) -> None:
    """Call a listener; what it raises is logged once for each class of error, and goes no further.

    What the handler of a signal raises meanwhile is not the listener's doing, and passes.
    """
    try:
        listener(*given)
    except Exception as error:
        if is_from_signal(error):
            raise
        _say_once(getattr(listener, "__qualname__", type(listener).__name__), type(error).__name__)


@cache
def _say_once(name: str, kind: str) -> None:
    _log.warning(
        "%s raised %s; the call goes on, what it was told is lost, and further ones are not logged.",
        name,
        kind,
        exc_info=True,
    )


MOST_EVENTS = 4096
MOST_LOOKS = 512
FIRST_INTERVAL = 0.05  # seconds between two looks at the counts; twice as many whenever there are too many looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to the choice of a kernel.

    Args:
        time: When, in seconds since 1970.
        workload: Of the call.
        kernel: "backend/algorithm".
    """

    time: float
    workload: Workload
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Event):
    """A kernel runs from now on, or for one call: the first here, another than before, or one that took long to choose.

    Args:
        site: Label of the site, its operation where it has none.
        previous: The kernel that ran before, or failed; "" where there was none, its own name where it only took long.
        reason: As in `Plan.reason`; "deterministic" where that is why measurements do not count.
        seconds: Predicted, forward and the backward pass that the workload asks for.
        uncertainty: The time is believed to lie in [seconds / uncertainty, seconds * uncertainty].
        alternatives: The other kernels that accept, with predicted seconds.
        doubts: The uncertainty of each of them.
        workspace: Bytes held beyond input and output.
        elapsed: Seconds that the choice took.
        direction: Of the pass.
        error: The class of what the kernel before raised, "" where it did not.
        message: Its text.
    """

    site: str
    previous: str
    reason: str
    seconds: float
    uncertainty: float
    alternatives: tuple[tuple[str, float], ...] = ()
    doubts: tuple[float, ...] = ()
    workspace: float = 0.0
    elapsed: float = 0.0
    direction: Direction = "forward"
    error: str = ""
    message: str = ""

    @property
    def candidates(self) -> dict[str, Prediction]:
        """What was predicted when the plan was made, by kernel."""
        others = zip(self.alternatives, self.doubts, strict=True)
        return {
            self.kernel: Prediction.within(self.seconds, self.uncertainty),
            **{name: Prediction.within(seconds, doubt) for (name, seconds), doubt in others},
        }

    @property
    def confidence(self) -> float:
        """The probability that no other kernel is faster; see `learning.model.confidence`."""
        return confidence(self.kernel, self.candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift(Event):
    """A kernel takes `factor` times as long as before, for good."""

    direction: Direction
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Event):
    """A kernel raised, or its result was wrong; `error` is the class."""

    direction: Direction
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(Event):
    """A kernel is left alone for `seconds`, infinite until something is configured."""

    seconds: float
    error: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Defeat(Event):
    """Every kernel failed, and the error of the first was raised."""

    direction: Direction
    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Look:
    """How often each kernel was consulted up to a time.

    Args:
        time: Seconds since 1970.
        uses: Forward and backward consultations by operation and kernel.
    """

    time: float
    uses: Mapping[tuple[str, str], int]


class EventLog:
    """The last events of a manager, and its counts at times.

    Callers hold the manager's lock where they write, and do not where they call `publish`.

    Args:
        counts: Of the manager.

    Attributes:
        listeners: Each is called with every event; what it raises is logged, and goes no further.
    """

    def __init__(self, counts: ManagerCounts):
        self.listeners: list[Callable[[Event], None]] = []
        self._counts = counts
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._waiting = _Waiting()
        self._looks: list[Look] = []
        self._interval = FIRST_INTERVAL
        self._next = 0.0

    def add(self, event: Event) -> None:
        """Keep an event."""
        self._events.append(event)
        if self.listeners:
            self._waiting.events.append(event)

    def publish(self) -> None:
        """Call the listeners with the events that this thread has added since the last time."""
        events = self._waiting.events
        while events:
            event = events.popleft()
            for listener in list(self.listeners):
                inform(listener, event)

    def look(self) -> None:
        """Keep the counts of now, if it is time; of too many every other one goes."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._interval
        self._looks.append(self._now())
        if len(self._looks) > MOST_LOOKS:
            del self._looks[1::2]
            self._interval *= 2

    def events(self) -> list[Event]:
        """Return the last events, oldest first."""
        return list(self._events)

    def looks(self) -> list[Look]:
        """Return the counts at times, the last of now."""
        return [*self._looks, self._now()]

    def after_fork(self) -> None:
        """Leave to the parent process what is not published yet."""
        self._waiting = _Waiting()

    def _now(self) -> Look:
        both = Counter[tuple[str, str]]()
        for (op, kernel, _), count in self._counts.totals().uses.items():
            both[op, kernel] += count
        return Look(wall_time(), dict(both))


class _Waiting(threading.local):
    """The events of each thread that are not published yet.

    They are kept by thread, because an OpenTelemetry span belongs to the thread that made the decision.
    """

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
