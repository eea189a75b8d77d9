"""When a live call is timed, what its times say, and the clocks that time calls and blocks.

The period doubles from 1 to 256 calls, so that a plan which runs often is timed often at first
and hardly ever later. The first sample is dropped: it paid for compilation, page faults and
cold caches.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hpfracc_nn.selection.workload import Measurement, Workload

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
        left = self.countdown - 1
        self.countdown = left
        if left > 0:
            return False
        if self.period != NEVER:
            self.period = min(2 * self.period, LONGEST_PERIOD)
        self.countdown = self.period
        return True

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
