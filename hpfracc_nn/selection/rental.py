"""When to buy what must be compiled first: after it would have gained its price."""

import math
from collections import defaultdict
from collections.abc import Hashable

from hpfracc_nn.selection.bucket import Key
from hpfracc_nn.selection.decision import Prediction


def expected_gain(seconds: float, arm: Prediction) -> float:
    """Return the expectation of max(0, seconds - time of `arm`), what a call gains once both are there.

    The arm's time is taken as lognormal, with its median at the prediction and two standard
    deviations to either bound. So an arm that is believed to be slower is worth something too, as
    long as little is known of it.

    Source: Mockus (1975), expected improvement; the formula is that of Black & Scholes (1973).
    """
    deviation = math.log(arm.high / arm.seconds) / 2
    if deviation < 1e-6:
        return max(0.0, seconds - arm.seconds)
    d = math.log(seconds / arm.seconds) / deviation
    return max(0.0, seconds * _normal(d) - arm.seconds * math.exp(deviation**2 / 2) * _normal(d - deviation))


class Rental:
    """What each compilation would have gained so far: as was believed at each call, and as is believed now.

    Waiting until the first is the price costs at most twice what knowing the future would, however
    long the process goes on and whatever changes (Karlin et al., 1988). The second keeps from
    buying by a belief that was corrected meanwhile.
    """

    def __init__(self) -> None:
        self._then: dict[Hashable, float] = defaultdict(float)
        self._now: dict[Hashable, dict[Key, float]] = defaultdict(dict)
        self._sums: dict[Hashable, float] = defaultdict(float)

    def add(self, code: Hashable, key: Key, gain: float, calls: int, all_calls: int) -> float:
        """Return what `code` would have gained by now, at least.

        Args:
            code: What is compiled.
            key: Where it would have been used.
            gain: Seconds of each call, as is believed now.
            calls: Calls of the key since the last time.
            all_calls: Calls of the key in all.
        """
        self._then[code] += calls * gain
        worth = self._now[code]
        self._sums[code] += all_calls * gain - worth.get(key, 0.0)
        worth[key] = all_calls * gain
        return min(self._then[code], self._sums[code])

    def bought(self, code: Hashable) -> None:
        """Begin anew, after a purchase."""
        for kept in (self._then, self._now, self._sums):
            kept.pop(code, None)


def _normal(d: float) -> float:
    return 0.5 * math.erfc(-d / math.sqrt(2))
