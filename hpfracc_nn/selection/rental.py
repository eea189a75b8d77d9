"""When to buy what must be compiled first: after it would have gained its price."""

import math
from collections import defaultdict
from collections.abc import Hashable

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
    """What each compilation would have gained so far, as was believed at each time.

    Waiting until that is its price costs at most twice what knowing the future would, however long
    the process goes on and whatever changes (Karlin et al., 1988).
    """

    def __init__(self) -> None:
        self._gained: dict[Hashable, float] = defaultdict(float)

    def add(self, code: Hashable, seconds: float) -> float:
        """Add what `code` would have gained in the last calls, and return what it would have gained in all."""
        self._gained[code] += seconds
        return self._gained[code]

    def bought(self, code: Hashable) -> None:
        """Begin anew, after a purchase."""
        self._gained.pop(code, None)


def _normal(d: float) -> float:
    return 0.5 * math.erfc(-d / math.sqrt(2))
