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

    def allows(self, expected: float, most: float) -> bool:
        """Return whether there is enough left for a trial.

        Args:
            expected: Seconds that it is expected to take longer than the incumbent; a quarter of what is left is enough
                for that, since it may take longer than expected.
            most: Seconds that it may take longer; all that is left must be enough for that.
        """
        left = self.fraction * self.total + self.allowance - self.explored
        return 4 * expected <= left and most <= left
