"""What a manager keeps of live calls: counts, events, times and failures; and what it learns of them.

Counts are made by the usages of plans (`plan.py`) and added up where somebody reads them. An event is written where a
choice changes, never where a plan is simply used. Listeners are called after the manager's lock is released; whatever
they raise, the call that they hear of goes on.
"""

import logging
import math
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypedDict

from hpfracc_nn.selection.learning.model import Prediction, confidence
from hpfracc_nn.selection.learning.policy import Budget
from hpfracc_nn.selection.plan import Counts, DeviceTimes, Plan, Usage, Use
from hpfracc_nn.selection.planner import Planner
from hpfracc_nn.selection.quarantine import cause_of, is_from_signal, kind_of, text_of
from hpfracc_nn.selection.workload import DIRECTIONS, Direction, Measurement, Workload, wall_time

MOST_ENDED = 64
MOST_EVENTS = 4096
MOST_LOOKS = 512
FIRST_INTERVAL = 0.05  # seconds between two looks at the counts; twice as many whenever there are too many looks
MOST_MEASUREMENTS = 4096
OPENTELEMETRY = "opentelemetry.trace"  # joined once the process has imported it
SLOW = 1e-3  # seconds: a choice that took longer is noted, though it changed nothing

_log = logging.getLogger("hpfracc_nn.selection")
_SCOPES = {
    "kernel": "for workloads like it",
    "memory": "for calls of this size and above",
    "environment": "at all",
}


class Counters(TypedDict):
    """Consultations so far, by direction, and forward ones by the name of the kernel picked."""

    forward: int
    backward: int
    picks: dict[str, int]


@dataclass(frozen=True)
class ReportRow:
    """One plan of one site.

    Times are in milliseconds: `forward_ms` and `backward_ms` are 20 % quantiles of sampled
    calls, None before there are any; `predicted_ms` is forward and backward together. `share`
    is this row's part of all consultations in the report. `speed_up` compares predictions with
    the second best kernel, None where there is no other; a forced plan may be below 1. `confidence`
    is the probability that no other kernel is faster. `trials` are forward calls that only tried
    the kernel, `switches` how often it took over from another one, `failures` what it raised.

    Examples:
        >>> manager = BackendManager()
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> (row,) = manager.report()
        >>> row.op, row.workload, row.dtype, row.forwards
        ('toeplitz', '4 x 64 x 1', 'float64', 1)
    """

    label: str
    op: str
    workload: str
    dtype: str
    device: str
    backend: str
    algorithm: str
    forwards: int
    backwards: int
    share: float
    forward_ms: float | None
    backward_ms: float | None
    predicted_ms: float
    speed_up: float | None
    reason: str
    confidence: float = 1.0
    trials: int = 0
    switches: int = 0
    failures: int = 0

    @property
    def counts(self) -> Counts:
        return Counts(self.forwards, self.backwards, self.trials, self.switches, self.failures)

    @property
    def explored(self) -> float | None:
        """The part of the forward calls that only tried the kernel, None where there were none."""
        return self.trials / self.forwards if self.forwards else None


def shared(found: Sequence[ReportRow]) -> list[ReportRow]:
    """Return the rows with `share` filled in: each row's part of all consultations in the report."""
    whole = sum(row.counts.calls for row in found)
    return [replace(row, share=row.counts.calls / whole if whole else 0.0) for row in found]


def row_of(label: str, plan: Plan, counts: Counts) -> ReportRow:
    """Return the report's row of one plan at the site with that label; its `share` is still 0."""
    work, others = plan.workload, plan.alternatives
    return ReportRow(
        label=label,
        op=work.op,
        workload=summary(work),
        dtype=work.dtype,
        device=work.device,
        backend=plan.backend,
        algorithm=plan.algorithm,
        share=0.0,
        forward_ms=milliseconds(plan.quantile("forward")),
        backward_ms=milliseconds(plan.quantile("backward")),
        predicted_ms=1e3 * plan.seconds,
        speed_up=others[0][1] / plan.seconds if others and plan.seconds else None,
        reason=plan.reason,
        confidence=plan.confidence,
        **counts._asdict(),
    )


def summary(workload: Workload) -> str:
    """Return the sizes of a workload as text: rows x n x width."""
    return f"{workload.rows} x {workload.n} x {workload.width}"


def milliseconds(seconds: float | None) -> float | None:
    """Return `seconds` in milliseconds; None stays None."""
    return None if seconds is None else 1e3 * seconds


def summed(parts: Iterable[Iterable[tuple[Use, Counts]]]) -> dict[Use, Counts]:
    """Return the sum of the counts in all parts, by operation and kernel."""
    found: dict[Use, Counts] = {}
    for part in parts:
        for use, counts in part:
            found[use] = counts if use not in found else counts.plus(found[use])
    return found


class ManagerCounts:
    """The counts of one manager, of usages that are alive and of those that are gone.

    Reading them takes no lock of the manager, and they outlive the manager where somebody still wants to read them.

    Args:
        budget: The budget of the manager's policy, which counts the seconds of trials.

    Attributes:
        failures: How often kernels failed, by operation, kernel and the class of the error.
        stand_ins: How often a kernel ran in place of one that failed, by operation and kernel.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self.failures = Counter[tuple[str, str, str]]()
        self.stand_ins = Counter[Use]()
        self._budget = budget
        self._alive: set[weakref.ref[Usage]] = set()
        self._ended = deque[tuple[Use, Counts]]()  # the last counts of usages, until they are added up
        self._past: dict[Use, Counts] = {}
        self._past_explored = 0.0
        self._begun = self._added_up = 0  # numbers of usages
        self._lock = threading.RLock()  # for adding up; the garbage collector may come while it is held

    def add(self, usage: Usage) -> Usage:
        """Count a usage from now on, and return it; the manager's lock is held."""
        if len(self._ended) > MOST_ENDED:  # not where a usage ends: the garbage collector must not wait for a lock
            self._add_up()
        self._begun += 1
        usage.ended = self._ended.append
        self._alive.add(weakref.ref(usage, self._alive.discard))
        return usage

    @property
    def is_final(self) -> bool:
        """Whether no usage is alive, so that the counts no longer change."""
        return self._begun == self._added_up + len(self._ended)

    @property
    def explored(self) -> float:
        """Seconds that trials took longer than the best kernel would have."""
        return self._past_explored + (0.0 if self._budget is None else self._budget.explored)

    def totals(self) -> dict[Use, Counts]:
        """Return the counts of all usages there were, by operation and kernel."""
        with self._lock:
            alive = [usage for ref in list(self._alive) if (usage := ref()) is not None]  # held: none ends meanwhile
            self._add_up()
            return summed([self._past.items(), [(usage.use, usage.counts()) for usage in alive]])

    def absorb(self, other: "ManagerCounts") -> None:
        """Add the counts of another manager, which must be final."""
        self._past = summed([self._past.items(), other.totals().items()])
        self._past_explored += other.explored
        self.failures.update(other.failures)

    def _add_up(self) -> None:
        """Add the counts of plans that no longer exist to the totals, once each."""
        with self._lock:
            while self._ended:
                use, counts = self._ended.popleft()
                self._past[use] = self._past.get(use, Counts()).plus(counts)
                self._added_up += 1

    def counters(self) -> Counters:
        """Return the totals as consultations by direction, and forward ones by kernel."""
        picks, backward = Counter[str](), 0
        for (_, kernel), counts in self.totals().items():
            backward += counts.backwards
            if counts.forwards:
                picks[kernel] += counts.forwards
        return {"forward": picks.total(), "backward": backward, "picks": dict(picks)}

    def after_fork(self) -> None:
        """Renew the lock, in a child process."""
        self._lock = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to the choice of a kernel.

    Args:
        time: When the event happened, in seconds since 1970.
        workload: Workload of the call.
        kernel: Name of the kernel, "backend/algorithm".
    """

    time: float
    workload: Workload
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Event):
    """A kernel runs from now on, or for one call: the first here, another than before, or one that took long to choose.

    Args:
        site: Label of the site, its operation where it has none.
        previous: The kernel that ran before, or failed; "" where there was none. `kernel` where the choice took long.
        reason: As in `Plan.reason`; "deterministic" where that is why measurements do not count.
        seconds: Predicted time, forward and the backward pass that the workload asks for.
        uncertainty: The time is believed to lie in [seconds / uncertainty, seconds * uncertainty].
        alternatives: The other kernels that accept, with predicted seconds.
        doubts: The uncertainty of the prediction for each alternative.
        workspace: Bytes held beyond input and output.
        elapsed: Seconds that the choice took.
        direction: Direction of the pass.
        error: The class of what the previous kernel raised, "" where it raised nothing.
        message: The text of that exception.
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
    """A kernel raised, or its result was wrong; `error` is the class of the exception, `message` its text."""

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
    """The last events of a manager, and its counts at several points in time.

    Callers hold the manager's lock where they write, and do not where they call `publish`.

    Args:
        counts: The counts of the manager.

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
        """Keep an event, and queue it for the listeners."""
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
        """Keep the counts of now, if the interval since the last time is over.

        Of more than `MOST_LOOKS` every other one is dropped, and the interval doubles.
        """
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
        """Return the counts at the points in time that were kept, and those of now."""
        return [*self._looks, self._now()]

    def after_fork(self) -> None:
        """Drop the events that are not published yet, in a child process: the parent publishes them."""
        self._waiting = _Waiting()

    def _now(self) -> Look:
        return Look(wall_time(), {use: counts.calls for use, counts in self._counts.totals().items()})


class _Waiting(threading.local):
    """The events that are not published yet, for each thread its own.

    An OpenTelemetry span belongs to the thread that made the decision.
    """

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)


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


class Recorder:
    """Records what sites choose and what their calls take, and lets the planner learn of it.

    Args:
        planner: The planner of the manager, which learns from the times.
        join: Called with this recorder when events are published, as long as nobody watches it and the process has
            imported OpenTelemetry.

    Attributes:
        counts: How often each kernel was consulted, and failed.
        log: The EventLog.
        history: The last measurements.
        device_times: Calls that a device has not finished.
        sites: The sites that are alive, by their numbers.
        telemetry: The Telemetry that watches this recorder; None as long as nobody in the process uses OpenTelemetry.
    """

    def __init__(self, planner: Planner, join: Callable[["Recorder"], None]):
        self.planner = planner
        self.counts = ManagerCounts(planner.learner.policy.budget)
        self.log = EventLog(self.counts)
        self.history: deque[Measurement] = deque(maxlen=MOST_MEASUREMENTS)
        self.device_times = DeviceTimes()
        self.sites: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.telemetry: Any = None
        self._join = join

    def after_fork(self) -> None:
        """Drop events and device calls that are on their way, in a child process, and renew the locks."""
        self.planner.after_fork()
        self.counts.after_fork()
        self.log.after_fork()
        self.device_times.clear()

    def join(self) -> None:
        """Let the process-wide Telemetry watch this recorder, once the process has imported OpenTelemetry."""
        if self.telemetry is None and OPENTELEMETRY in sys.modules:
            inform(self._join, self)

    def publish(self) -> None:
        """Pass new events to the listeners; the lock is not held, because a listener may be slow."""
        self.join()
        self.log.publish()

    def reconsider(self) -> None:
        """Let every site reconsider its choices at its next calls."""
        with self.planner.lock:
            for site in list(self.sites.values()):
                site.reconsider()

    def quarantined(self) -> Counter[tuple[str, str]]:
        """Return for how many workloads, sizes or devices each kernel is in quarantine, by operation and kernel."""
        with self.planner.lock:
            held = self.planner.quarantine.held(self.planner.candidates.clock())
            return Counter((kernel.op, kernel.name) for kernel in held)

    def chosen(
        self,
        label: str,
        before: Plan | None,
        plan: Plan,
        reason: str,
        elapsed: float,
        direction: Direction = "forward",
        error: BaseException | None = None,
    ) -> None:
        """Note that a site goes on with `plan`, if that is worth an event; the lock is held.

        Args:
            label: The site's label.
            before: The plan that ran before, None where none did.
            plan: The plan that runs now.
            reason: Why it runs.
            elapsed: Seconds that the choice took.
            direction: Direction of the pass.
            error: What the kernel of `before` raised, if it failed.
        """
        self.log.look()
        previous = before.kernel.name if before is not None and before.usage.announced else ""
        name, workload = plan.kernel.name, plan.workload
        if plan.usage.announced and previous in ("", name) and elapsed < SLOW:
            return
        plan.usage.announced = True
        is_fixed = reason == "prior" and not plan.learns and self.planner.settings.is_deterministic(workload.framework)
        self._add(
            Choice,
            plan,
            site=label,
            previous=previous,
            reason="deterministic" if is_fixed else reason,
            seconds=plan.seconds,
            uncertainty=plan.uncertainty,
            alternatives=plan.alternatives,
            doubts=tuple(each.uncertainty for other, each in plan.expected.items() if other != name),
            workspace=plan.workspace,
            elapsed=elapsed,
            direction=direction,
            error="" if error is None else type(error).__name__,
            message="" if error is None else text_of(error),
        )

    def harvest(self) -> None:
        """Record the calls that devices have finished since the last time; nothing is waited for."""
        for plan, direction, seconds in self.device_times.finished():
            self.record(plan, seconds, direction)

    def record(
        self,
        plan: Plan,
        seconds: float,
        direction: Direction = "forward",
        *,
        keep: bool = True,
        transfer_seconds: float = 0.0,
        peak_bytes: float | None = None,
    ) -> None:
        """Keep the time that a call of `plan` took, and learn from it; see `BackendManager.record`."""
        if direction not in DIRECTIONS:
            raise ValueError(f"record(direction={direction!r}): needs one of {', '.join(DIRECTIONS)}.")
        if not 0 <= seconds < math.inf:
            raise ValueError(f"record(seconds={seconds}): needs a finite time, not negative.")
        if not 0 <= transfer_seconds <= seconds:
            raise ValueError(f"record(transfer_seconds={transfer_seconds}): needs a part of the {seconds} seconds.")
        self.forgive(plan)
        samples = plan.usage.samples(direction)
        is_first, keep = not samples.warm, samples.keeps(keep)
        if keep and (samples.add(seconds) or (is_first and plan.usage.compiled_in(seconds))):
            self.history.append(
                Measurement(
                    plan.workload,
                    plan.kernel.name,
                    seconds,
                    direction,
                    compile_seconds=max(0.0, seconds - transfer_seconds - plan.seconds) if is_first else 0.0,
                    transfer_seconds=transfer_seconds,
                    peak_bytes=peak_bytes,
                )
            )
        if self.telemetry is not None and keep:
            inform(self.telemetry.timed, plan, seconds, direction)
        if plan.learns:
            self._learn(plan, seconds, direction, keep)

    def failed(self, plan: Plan, error: Exception, direction: Direction) -> None:
        """Record that the kernel of a plan raised `error`: in the counts, the event log and the history."""
        kind = type(error).__name__
        with self.planner.lock:
            plan.usage.failures += 1
            self.counts.failures[plan.workload.op, plan.kernel.name, kind] += 1
            self._add(Failure, plan, direction=direction, error=kind, message=text_of(error))
            self.history.append(
                Measurement(plan.workload, plan.kernel.name, math.nan, direction, succeeded=False, error=kind)
            )

    def quarantine(self, plan: Plan, error: Exception) -> None:
        """Put the kernel of a plan in quarantine after `error`, because another kernel can do what it failed at."""
        planner, workload, kind, cause = self.planner, plan.workload, kind_of(error), cause_of(error)
        candidates = planner.candidates
        with planner.lock:
            size = plan.workspace + workload.bytes
            seconds = planner.quarantine.add(plan.kernel, workload, kind, cause, size=size, now=candidates.clock())
            for site in list(self.sites.values()):
                site.expire(plan.kernel, candidates.is_quarantined)
            self._add(Quarantined, plan, seconds=seconds, error=type(error).__name__, message=text_of(error))
        self.publish()
        until = "until something is configured" if kind == "environment" else f"for {seconds:.0f} s"
        note = "; plans are not the deterministic ones meanwhile"
        _log.warning(
            "%s failed at %s, rows=%d n=%d width=%d: %s; not used %s %s%s.",
            *(plan.kernel.name, workload, workload.rows, workload.n, workload.width, cause, _SCOPES[kind], until),
            note if planner.settings.is_deterministic(workload.framework) else "",
        )

    def all_failed(self, plan: Plan, error: BaseException, direction: Direction) -> None:
        """Record that every kernel failed at a call, the one of `plan` first, and that its error is raised."""
        with self.planner.lock:
            self._add(Defeat, plan, direction=direction, error=type(error).__name__, message=text_of(error))
        self.publish()

    def forgive(self, plan: Plan, *, at_once: bool = False) -> None:
        """Forget earlier failures of a plan's kernel, because it works; `at_once` also while it is in quarantine."""
        quarantine = self.planner.quarantine
        if quarantine.holds:
            with self.planner.lock:
                now = math.inf if at_once else self.planner.candidates.clock()
                size = plan.workspace + plan.workload.bytes
                quarantine.forgive(plan.kernel, plan.workload, size=size, now=now)

    def _learn(self, plan: Plan, seconds: float, direction: Direction, keep: bool) -> None:
        planner = self.planner
        with planner.lock:
            change = planner.learner.observe(plan, seconds, direction, keep, planner.candidates.now)
            if change is not None:
                self.reconsider()
                self._add(Drift, plan, direction=change.direction, factor=change.factor)
            is_due = planner.learner.is_due
        if change is not None:
            self.publish()
        if is_due:
            planner.save(0.0)  # a computing thread waits for no other process, and no other thread for the disk

    def _add(self, kind: type[Event], plan: Plan, **facts: Any) -> None:
        self.log.add(kind(time=wall_time(), workload=plan.workload, kernel=plan.kernel.name, **facts))
