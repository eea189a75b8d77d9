"""When a live call is timed, and what its times say: a countdown and the last few seconds.

The period doubles from 1 to 256 calls, so that a plan which runs often is timed often at first
and hardly ever later. The first sample is dropped: it paid for compilation, page faults and
cold caches.
"""

from collections import deque
from collections.abc import Sequence

LONGEST_PERIOD = 256
KEPT_SAMPLES = 16
NEVER = 1 << 62  # a countdown that no process lives to see


def quantile(seconds: Sequence[float]) -> float | None:
    """Return the 20 % quantile of `seconds` (an order statistic), or None where there are none.

    A busy machine only ever adds time: a low quantile sees past the spikes, and is not as
    easily fooled as the minimum.
    """
    return sorted(seconds)[len(seconds) // 5] if seconds else None


class Samples:
    """One direction of one plan: when to time it next, and how long it took."""

    __slots__ = ("countdown", "period", "seconds", "warm")

    def __init__(self, sample: bool = True):
        self.countdown = 1 if sample else NEVER
        self.period = 1
        self.seconds: deque[float] = deque(maxlen=KEPT_SAMPLES)
        self.warm = False

    def due(self) -> bool:
        """Return whether this call shall be timed, and count it.

        Threads may race here: the worst is a call timed twice or one call later.
        """
        left = self.countdown - 1
        self.countdown = left
        if left > 0:
            return False
        self.period = min(2 * self.period, LONGEST_PERIOD)
        self.countdown = self.period
        return True

    def add(self, seconds: float) -> bool:
        """Keep one sample; return False for the first, which is dropped."""
        if not self.warm:
            self.warm = True
            return False
        self.seconds.append(seconds)
        return True
