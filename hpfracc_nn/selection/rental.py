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
    """What each compilation would have gained in the calls so far, at what is believed now.

    Adding up the gains of the past as they were believed then would wait as long again after a
    change that makes an arm worth its price at once.
    """

    def __init__(self) -> None:
        self._worth: dict[Hashable, dict[Key, float]] = defaultdict(dict)

    def weigh(self, code: Hashable, key: Key, seconds: float) -> float:
        """Set what `code` would have gained at one key, and return what it would have gained at all."""
        self._worth[code][key] = seconds
        return sum(self._worth[code].values())

    def bought(self, code: Hashable) -> None:
        """Begin anew, after a purchase."""
        self._worth.pop(code, None)

    def forget(self, key: Key) -> None:
        """Drop what it would have gained at one key."""
        for worth in self._worth.values():
            worth.pop(key, None)


def _normal(d: float) -> float:
    return 0.5 * math.erfc(-d / math.sqrt(2))
