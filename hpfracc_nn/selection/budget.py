"""What trials may cost: a fraction of all time, and a little besides so that a short process may learn."""

import math


class Budget:
    """The seconds that were spent.

    Args:
        fraction: Most of all time that trials may cost.
        allowance: Seconds that they may cost besides.

    Attributes:
        total: Seconds that all calls took, as far as is known.
        explored: Seconds that trials took longer than the incumbent would have.
        compiled: Seconds of calls that compiled.

    Raises:
        ValueError: The fraction is not in [0, 1) or the allowance is negative or not finite.
    """

    def __init__(self, fraction: float, allowance: float):
        if not 0 <= fraction < 1:
            raise ValueError(f"explore_fraction={fraction!r}: needs 0 <= explore_fraction < 1.")
        if not 0 <= allowance < math.inf:
            raise ValueError(f"allowance={allowance!r}: needs finite seconds >= 0.")
        self.fraction = fraction
        self.allowance = allowance
        self.total = self.explored = self.compiled = 0.0

    def allows(self, extra: float) -> bool:
        """Return whether a trial that is expected to cost `extra` seconds more than the incumbent is within a third
        of what is left.

        The rest is for one that takes longer than expected.
        """
        return 3 * extra <= self.fraction * self.total + self.allowance - self.explored
