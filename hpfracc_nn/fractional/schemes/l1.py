"""The L1 scheme: interpolate x linearly on each cell, integrate the memory function exactly.

Oldham & Spanier, The Fractional Calculus (1974), section 8.2. Above alpha = 1 it is the scheme of
order alpha - 1 on the two-step backward difference of x', and at the first step, which has no two behind it, on the
slope of the parabola that begins with the slope S: so t**2 is exact at every sample.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.powers import Polynomial, differences, multiply, power_weights

bdf2_slope = (1.5, -0.5)  # (3/2 - z/2)(1 - z) x / dt is the two-step backward difference of x'

first_slope = (0.5, -0.5)  # what the start adds to the slope of u at sample 1, 3/2 d[1], times (1-z): 2 d[1] in all


def left(alpha: Array, taylor: int, order: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return b(z) (1-z)**(1 - order), above alpha = 1 b(z) (3/2 - z/2) (1-z)**(2 - order), at the given lags.

    b_k is the mean of the memory function t**(p - 1) / Gamma(p) over cell k, p = `taylor` - alpha.

    Args:
        alpha: Shape [*c], inside (`taylor` - 1, `taylor`].
        taylor: Terms of the Taylor polynomial that are subtracted first: 1, or 2 above alpha = 1.
        order: Differences that the data have already seen, 0 to 2.
        lags: Increasing, shape [k].
        xp: The namespace of alpha.

    Returns:
        Shape [*c, k], for dt = 1.
    """
    return power_weights(taylor - xp.asarray(alpha), lags, xp, cells(taylor, order))


def start(alpha: Array, taylor: int, order: int, rows: np.ndarray, xp: Namespace) -> Array:
    """Return the column that acts on d[1] above alpha = 1, at the given rows: (b_(k-1) - b_(k-2)) / 2 at sample k.

    Shapes: rows [k], increasing; result [*c, k].
    """
    return from_first(alpha, taylor, rows, xp, multiply(differences(1), first_slope))


def start_index(taylor: int) -> int | None:
    """The column acts on d[1]; up to alpha = 1 there is none."""
    return 1 if taylor == 2 else None


def from_first(
    alpha: Array, taylor: int, rows: np.ndarray, xp: Namespace, powers: Polynomial, moments: Polynomial = ()
) -> Array:
    """Return `power_weights` one row late, 0 at row 0; rows [k], increasing, result [*c, k]."""
    exponent = taylor - xp.asarray(alpha)
    parts, later = [0 * exponent[..., None]] * int((rows < 1).sum()), rows[rows >= 1]
    if later.size:
        parts.append(power_weights(exponent, later - 1, xp, powers, moments))
    return xp.concat(parts, axis=-1)


def cells(taylor: int, order: int) -> Polynomial:
    """The polynomial that makes `left` of F; b is (1 - z) F."""
    slope = bdf2_slope if taylor == 2 else (1,)
    return multiply(differences(taylor + 1 - order), slope)


def pieces(samples: Array, steps: Array, xp: Namespace) -> list[Array]:
    """Return the slope on each cell of any times: samples [..., n], steps [..., n - 1], result [..., n - 1]."""
    return [(samples[..., 1:] - samples[..., :-1]) / steps]


def power(alpha: Array, taylor: int) -> Array:
    """Return the order of the integral that is taken of the slopes."""
    return taylor - alpha


def rate(alpha: float) -> float:
    """Order of convergence on smooth data, at a fixed time."""
    return uniform_rate(alpha)


def uniform_rate(alpha: float, subtracts: bool = True) -> float:
    """The same of the largest error; see `Scheme`. The first samples' error is no larger than the others'."""
    return 2 - alpha if alpha <= 1 else 3 - alpha
