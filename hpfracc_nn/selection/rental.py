"""When to buy what must be compiled first: after it would have gained its price."""

from collections import defaultdict
from collections.abc import Hashable

from hpfracc_nn.selection.bucket import Key


class Rental:
    """What each compilation would have gained so far: as was believed at each call, and as is believed now.

    Waiting until the first is the price costs at most twice what knowing the future would, however
    long the process goes on and whatever changes (Karlin et al., 1988). The second keeps from
    buying by a belief that was corrected meanwhile. What is not bought at a decision is done without
    until the next one, so that the calls until then count as made.
    """

    def __init__(self) -> None:
        self._then: dict[Hashable, float] = defaultdict(float)
        self._now: dict[Hashable, dict[Key, float]] = defaultdict(dict)
        self._sums: dict[Hashable, float] = defaultdict(float)
        self._ahead: dict[Hashable, dict[Key, int]] = defaultdict(dict)

    def add(self, code: Hashable, key: Key, gain: float, calls: int, all_calls: int, coming: int) -> float:
        """Return what `code` would have gained by the next decision, at least.

        Args:
            code: What is compiled.
            key: Where it would have been used.
            gain: Seconds of each call, as is believed now.
            calls: Calls of the key since the last decision.
            all_calls: Calls of the key in all.
            coming: Calls of the key until the next decision.
        """
        ahead, worth = self._ahead[code], self._now[code]
        self._then[code] += (calls + coming - ahead.get(key, 0)) * gain
        ahead[key] = coming
        self._sums[code] += (all_calls + coming) * gain - worth.get(key, 0.0)
        worth[key] = (all_calls + coming) * gain
        return min(self._then[code], self._sums[code])

    def bought(self, code: Hashable) -> None:
        """Begin anew, after a purchase."""
        for kept in (self._then, self._now, self._sums, self._ahead):
            kept.pop(code, None)
