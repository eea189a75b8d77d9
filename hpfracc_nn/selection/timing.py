"""When a live call is timed, what its times say, and the clocks that time calls and blocks.

The period doubles from 1 to 256 calls, so that a plan which runs often is timed often at first
and hardly ever later. The first sample is dropped: it paid for compilation, page faults and
cold caches.

A call on a device that computes while the host goes on is put between two marks in the device's own order of work.
Later calls look whether the device has passed them; nobody ever waits for it. What a framework marks with is its own
affair: it registers a marker, as CUDA events are for torch.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from hpfracc_nn.selection.workload import Direction, Measurement, Workload

LONGEST_PERIOD = 256
KEPT_SAMPLES = 16
PREEMPTED = 0.9  # of its time a call of one thread must have had the processor
MOST_DROPPED = 3  # samples in a row: from then on the call itself is what waits
NEVER = 1 << 62  # a countdown that no process lives to see


def quantile(seconds: Sequence[float]) -> float | None:
    """Return the 20 % quantile of `seconds` (an order statistic), or None where there are none.

    A busy machine only ever adds time: a low quantile sees past the spikes, and is not as
    easily fooled as the minimum.
    """
    return sorted(seconds)[len(seconds) // 5] if seconds else None


class Stopwatch:
    """Times one call, and tells whether the processor was taken away meanwhile.

    Args:
        threads: That the call may use; of a call that uses several the processor time says nothing.

    Examples:
        >>> watch = Stopwatch(threads=1)
        >>> seconds, tells = watch.stop()  # with `tells` False the processor was elsewhere
        >>> 0 <= seconds < 60
        True
    """

    __slots__ = ("_processor", "_started")

    def __init__(self, threads: int):
        self._processor = time.thread_time() if threads == 1 else None
        self._started = time.perf_counter()

    def stop(self) -> tuple[float, bool]:
        """Return the seconds, and whether they say how long the call takes."""
        seconds = time.perf_counter() - self._started
        if self._processor is None:
            return seconds, True
        return seconds, time.thread_time() - self._processor >= PREEMPTED * seconds


class Samples:
    """One direction of one plan: when to time it next, and how long it took.

    Args:
        sample: Whether calls are timed by themselves; otherwise only after `request`.
    """

    __slots__ = ("countdown", "dropped", "period", "seconds", "warm")

    def __init__(self, sample: bool = True):
        self.countdown = 1 if sample else NEVER
        self.period = 1 if sample else NEVER
        self.seconds: deque[float] = deque(maxlen=KEPT_SAMPLES)
        self.warm = False
        self.dropped = 0

    def due(self) -> bool:
        """Return whether this call shall be timed, and count it.

        Threads may race here: the worst is a call timed twice or one call later.
        """
        self.countdown -= 1
        if self.countdown > 0:
            return False
        self.restart()
        return True

    def restart(self) -> None:
        """Count down to the next call to time, because one is timed now."""
        if self.period != NEVER:
            self.period = min(2 * self.period, LONGEST_PERIOD)
        self.countdown = self.period

    def request(self) -> None:
        """Let the next call be timed."""
        self.countdown = 1

    def keeps(self, keep: bool) -> bool:
        """Return whether a sample is to be kept after all, and count those in a row that were not.

        One during which the processor was taken away says nothing. But a kernel that waits, for a thread of its own or
        for a lock, looks like that at every call; then the time by the clock is what it takes.
        """
        if keep:
            self.dropped = 0
            return True
        self.dropped += 1
        return self.dropped > MOST_DROPPED

    def add(self, seconds: float) -> bool:
        """Keep one sample; return False for the first, which is dropped."""
        if not self.warm:
            self.warm = True
            return False
        self.seconds.append(seconds)
        return True


class Block:
    """What `BackendManager.profile` hands out: it has begun when it is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._compiling = self._transferring = 0.0

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Count what happens inside as compilation."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._compiling += time.perf_counter() - began

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Count what happens inside as moving data between devices."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._transferring += time.perf_counter() - began

    def measured(self, workload: Workload, succeeded: bool) -> Measurement:
        """Return what was measured until now."""
        return Measurement(
            workload,
            "block",
            time.perf_counter() - self._began,
            "forward",
            succeeded=succeeded,
            compile_seconds=self._compiling,
            transfer_seconds=self._transferring,
        )


LATEST = 9.2e9  # seconds since 1970, in the year 2261: dates and spans count nanoseconds in 64 bits


def wall_time() -> float:
    """Return the seconds since 1970, at least 0 and less than `LATEST`, whatever the clock is set to."""
    return min(max(time.time(), 0.0), LATEST - 1.0)


MOST_PENDING = 64  # calls; of more the oldest are given up


class Mark(Protocol):
    """A point in the work of a device."""

    def passed(self) -> bool:
        """Return whether the device has come so far, without waiting for it; False where it must not be asked now."""

    def seconds_since(self, earlier: Any) -> float:
        """Return the device's time between an earlier mark and this one; both are passed."""


Marker = Callable[[str], Mark | None]

_markers: dict[str, Marker] = {}


def register_marker(framework: str, marker: Marker) -> None:
    """Let `marker(device)` mark the present point of a device's work for `framework`, or return None if it cannot.

    Args:
        framework: Whose calls are timed so.
        marker: Of a device's name; what it returns has `passed()` and `seconds_since(earlier)`, which must not wait.

    Examples:
        >>> import time
        >>> class Now:  # of a device that is never behind
        ...     def __init__(self, device):
        ...         self.time = time.perf_counter()
        ...
        ...     def passed(self):
        ...         return True
        ...
        ...     def seconds_since(self, earlier):
        ...         return self.time - earlier.time
        >>> register_marker("mine", Now)
        >>> unregister_marker("mine")
    """
    _markers[framework] = marker


def unregister_marker(framework: str) -> None:
    """Forget the marker of `framework`.

    Raises:
        LookupError: None is registered.

    Examples:
        >>> register_marker("mine", lambda device: None)  # no device of it can be marked
        >>> unregister_marker("mine")
    """
    if framework not in _markers:
        raise LookupError(f"no marker for framework {framework!r}: registered are {', '.join(_markers) or 'none'}.")
    del _markers[framework]


class Timed(NamedTuple):
    """A call that a device has finished."""

    plan: Any
    direction: Direction
    seconds: float


class _Pending(NamedTuple):
    plan: Any
    direction: Direction
    begin: Mark
    end: Mark


class DeviceTimes:
    """Calls between two marks, until the device has passed the second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[_Pending] = deque(maxlen=MOST_PENDING)

    def begin(self, plan: Any) -> Mark | None:
        """Return a mark before a call of `plan`, None where its framework has none for the device."""
        marker = _markers.get(plan.workload.framework)
        return None if marker is None else marker(plan.workload.device)

    def end(self, plan: Any, direction: Direction, begin: Mark) -> None:
        """Mark the end of a call."""
        marker = _markers.get(plan.workload.framework)
        end = None if marker is None else marker(plan.workload.device)
        if end is not None:
            with self._lock:
                self._pending.append(_Pending(plan, direction, begin, end))

    def finished(self) -> list[Timed]:
        """Return the calls that the device has finished since the last time, oldest first, each once."""
        if not self._pending:
            return []
        with self._lock:
            done = [each for each in self._pending if each.end.passed()]
            self._pending = deque((each for each in self._pending if each not in done), MOST_PENDING)
        return [Timed(each.plan, each.direction, each.end.seconds_since(each.begin)) for each in done]

    def clear(self) -> None:
        """Give up all of them, in a child process, which has no device; another thread may hold the lock."""
        self._lock = threading.Lock()
        self._pending = deque(maxlen=MOST_PENDING)
