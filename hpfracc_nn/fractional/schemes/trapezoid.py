"""Product trapezoid rule for the Riemann-Liouville integral: x linear on each cell, the memory function exact.

Diethelm, Ford & Freed, Numer. Algorithms 36 (2004) 31, for x - x(0); the constant is integrated in closed form.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.powers import differences, power_weights

start = None  # no column: the rule is exact for straight lines as it is


def left(alpha: Array, taylor: int, order: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return a(z) (1-z)**-order at the given lags, a_k the second difference of k**(1 + alpha) / Gamma(2 + alpha).

    `order` is 0, or -1 when the data are cumulative sums. Other arguments as in `l1.left`.
    """
    return power_weights(1 + xp.asarray(alpha), lags, xp, differences(2 - order))


def pieces(samples: Array, steps: Array, xp: Namespace) -> list[Array]:
    """Return the mean of x on each cell of any times and half its increase; shapes as in `l1.pieces`."""
    before, after = samples[..., :-1], samples[..., 1:]
    return [(before + after) / 2, (after - before) / 2]


def power(alpha: Array, taylor: int) -> Array:
    """Return the order of the integral."""
    return alpha


def rate(alpha: float) -> float:
    """Order of convergence on smooth data, at a fixed time."""
    return 2.0


def uniform_rate(alpha: float, subtracts: bool = False) -> float:
    """The same of the largest error; see `Scheme`."""
    return 2.0
