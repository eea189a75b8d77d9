"""Schemes that interpolate the samples on each cell and integrate the memory function exactly: L1, L1-2, trapezoid.

L1 takes x linear on each cell: Oldham & Spanier, The Fractional Calculus (1974), section 8.2. Above alpha = 1 it is
the scheme of order alpha - 1 on the two-step backward difference of x', and at the first step, which has no two behind
it, on the slope of the parabola that begins with the slope S: so t**2 is exact at every sample.

L1-2 takes a quadratic through the last three samples on every cell but the first: Gao, Sun & Zhang, J. Comput. Phys.
259 (2014) 33. Order 3 - alpha; above alpha = 1 order 2. The quadratic correction of cell k has weight q_k; the first
cell has no third sample, so the starting column takes its correction back (above alpha = 1 it also mends the first
slope, as in L1).

The trapezoid rule integrates: x linear on each cell, x - x(0) by the rule and the constant in closed form. Diethelm,
Ford & Freed, Numer. Algorithms 36 (2004) 31. It has no starting column, being exact for straight lines.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.powers import Polynomial, differences, multiply, power_weights

_BDF2_SLOPE = (1.5, -0.5)  # (3/2 - z/2)(1 - z) x / dt is the two-step backward difference of x'

_FIRST_SLOPE = (0.5, -0.5)  # what the start adds to the slope of u at sample 1, 3/2 d[1], times (1-z): 2 d[1] in all


def l1_weights(alpha: Array, taylor: int, m: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return the L1 weights at the given lags.

    They are the coefficients of b(z) (1-z)**(1 - m), above alpha = 1 of b(z) (3/2 - z/2) (1-z)**(2 - m), with b_k the
    mean of the memory function t**(p - 1) / Gamma(p) over cell k, p = `taylor` - alpha.

    Args:
        alpha: Shape [*c], inside (`taylor` - 1, `taylor`].
        taylor: Terms of the Taylor polynomial that are subtracted first: 1, or 2 above alpha = 1.
        m: Differences that the data have already seen, 0 to 2.
        lags: Increasing, shape [k].
        xp: The namespace of alpha.

    Returns:
        Shape [*c, k], for dt = 1.
    """
    return power_weights(taylor - xp.asarray(alpha), lags, xp, l1_cells(taylor, m))


def l1_start(alpha: Array, taylor: int, m: int, rows: np.ndarray, xp: Namespace) -> Array:
    """Return L1's starting column, which multiplies d[1] above alpha = 1, at the given rows.

    At sample k it is (b_(k-1) - b_(k-2)) / 2, with b as in `l1_weights`.

    Shapes: rows [k], increasing; result [*c, k].
    """
    return _from_first(alpha, taylor, rows, xp, multiply(differences(1), _FIRST_SLOPE))


def l1_start_index(taylor: int) -> int | None:
    """Return the index of the entry of d, the differenced data, that the starting column multiplies.

    It is 1 above alpha = 1, else None: there is no such column.
    """
    return 1 if taylor == 2 else None


def _from_first(
    alpha: Array, taylor: int, rows: np.ndarray, xp: Namespace, powers: Polynomial, moments: Polynomial = ()
) -> Array:
    """Return a column [*c, k] that is 0 at row 0 and at row k what `power_weights` is at lag k - 1.

    Args:
        alpha: Orders, [*c]; the exponent P is `taylor` - alpha.
        taylor: Terms of the Taylor polynomial, 1 or 2.
        rows: Numbers of samples, increasing, [k].
        xp: The namespace of alpha.
        powers: Coefficients of 1, z, z**2, ... of the polynomial in z that is applied to F, see `powers.py`.
        moments: Coefficients of the polynomial that is applied to Q.
    """
    exponent = taylor - xp.asarray(alpha)
    parts, later = [0 * exponent[..., None]] * int((rows < 1).sum()), rows[rows >= 1]
    if later.size:
        parts.append(power_weights(exponent, later - 1, xp, powers, moments))
    return xp.concat(parts, axis=-1)


def l1_cells(taylor: int, m: int) -> Polynomial:
    """Return the coefficients of the polynomial in z by which `l1_weights` are made of F_k = (k + 1)**p / Gamma(1 + p).

    The b of `l1_weights` is (1 - z) F.
    """
    slope = _BDF2_SLOPE if taylor == 2 else (1,)
    return multiply(differences(taylor + 1 - m), slope)


def l1_pieces(samples: Array, steps: Array, xp: Namespace) -> list[Array]:
    """Return the slope on each cell: samples [..., n], steps of any lengths [..., n - 1], result [..., n - 1]."""
    return [(samples[..., 1:] - samples[..., :-1]) / steps]


def l1_power(alpha: Array, taylor: int) -> Array:
    """Return the order of the integral that is taken of the slopes."""
    return taylor - alpha


def l1_rate(alpha: float) -> float:
    """Order of convergence on smooth data, at a fixed time."""
    return l1_uniform_rate(alpha)


def l1_uniform_rate(alpha: float, subtracts: bool = True) -> float:
    """Order of convergence of the largest error, see `Scheme.uniform_rate`."""
    return 2 - alpha if alpha <= 1 else 3 - alpha


def l1_2_weights(alpha: Array, taylor: int, m: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return the L1-2 weights: `l1_weights` with b + q (1-z) in place of b, q_k of the quadratic correction of cell k.

    Arguments as in `l1_weights`.
    """
    slope = _BDF2_SLOPE if taylor == 2 else (1,)
    moments = multiply(differences(taylor + 1 - m), slope)
    return power_weights(taylor - xp.asarray(alpha), lags, xp, l1_cells(taylor, m), moments)


def l1_2_start(alpha: Array, taylor: int, m: int, rows: np.ndarray, xp: Namespace) -> Array:
    """Return L1-2's starting column, which multiplies d[1], at the given rows.

    At sample k it is -q_(k-1), with q as in `l1_2_weights`; above alpha = 1 it is `l1_start` with b + q (1-z) in place
    of b, less 2 q_(k-1).

    Shapes: rows [k], increasing; result [*c, k].
    """
    if taylor == 1:
        return _from_first(alpha, taylor, rows, xp, (0,), (-1,))
    powers = multiply(differences(1), _FIRST_SLOPE)
    return _from_first(alpha, taylor, rows, xp, powers, (powers[0] - 2, *powers[1:]))


def l1_2_pieces(samples: Array, steps: Array, xp: Namespace) -> list[Array]:
    """Return the mean slope on each cell, and half its increase, 0 on the first cell; shapes as in `l1_pieces`.

    The increase is that of the quadratic through the cell's samples and the one before.
    """
    (slope,) = l1_pieces(samples, steps, xp)
    bend = (slope[..., 1:] - slope[..., :-1]) * (steps[..., 1:] / (steps[..., 1:] + steps[..., :-1]))
    return [slope, xp.concat([0 * slope[..., :1], bend], axis=-1)]


l1_2_power = l1_power


def l1_2_start_index(taylor: int) -> int:
    """Return the index of the entry of d, the differenced data, that the starting column multiplies: 1."""
    return 1


def l1_2_rate(alpha: float) -> float:
    """Order of convergence on smooth data, at a fixed time."""
    return 3 - alpha if alpha <= 1 else 2.0


# On the first cell x is linear, above alpha = 1 its slope: t**2, or t**3, is not exact there.
l1_2_uniform_rate = l1_uniform_rate


def trapezoid_weights(alpha: Array, taylor: int, m: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return the trapezoid rule's weights at the given lags: the coefficients of a(z) (1-z)**-m.

    a_k is the second difference of k**(1 + alpha) / Gamma(2 + alpha). `m` is 0, or -1 when the data are cumulative
    sums. Other arguments as in `l1_weights`.
    """
    return power_weights(1 + xp.asarray(alpha), lags, xp, differences(2 - m))


def trapezoid_pieces(samples: Array, steps: Array, xp: Namespace) -> list[Array]:
    """Return the mean of x on each cell, and half its increase over the cell; shapes as in `l1_pieces`."""
    before, after = samples[..., :-1], samples[..., 1:]
    return [(before + after) / 2, (after - before) / 2]


def trapezoid_power(alpha: Array, taylor: int) -> Array:
    """Return the order of the integral that is taken of x: alpha."""
    return alpha


def trapezoid_rate(alpha: float) -> float:
    """Order of convergence on smooth data, at a fixed time."""
    return 2.0


def trapezoid_uniform_rate(alpha: float, subtracts: bool = False) -> float:
    """Order of convergence of the largest error, see `Scheme.uniform_rate`."""
    return 2.0
