"""How often something may be said: not more than so much a second, nor the same too often."""

import time
from collections.abc import Callable, Hashable

MOST_KNOWN = 4096


class Limiter:
    """Lets through so many things a second, and each of them once in a while.

    Args:
        most: In a second.
        apart: Seconds between two that are alike.
        clock: Seconds that never go back.

    Attributes:
        dropped: How many were not let through.

    Examples:
        >>> limiter = Limiter(most=100, apart=1.0)
        >>> limiter.lets_through("one"), limiter.lets_through("one"), limiter.dropped
        (True, False, 1)
    """

    def __init__(self, most: int, apart: float, clock: Callable[[], float] = time.monotonic):
        self._most, self._apart, self._clock = most, apart, clock
        self._left, self._since = float(most), clock()
        self._last: dict[Hashable, float] = {}
        self.dropped = 0

    def lets_through(self, thing: Hashable) -> bool:
        """Return whether it is not too early for another one; threads may race here, and let one more through."""
        now = self._clock()
        self._left = min(float(self._most), self._left + self._most * (now - self._since))
        self._since = now
        if self._left < 1 or now - self._last.get(thing, -self._apart) < self._apart:
            self.dropped += 1
            return False
        self._left -= 1
        if len(self._last) >= MOST_KNOWN:
            self._last.clear()
        self._last[thing] = now
        return True
