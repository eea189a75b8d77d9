"""Exact integrals of the memory function over the cells of any mesh.

With c the middle of cell i, d half its length, u = t_n - c, r = d / u and x in [-1, 1] the place in the cell,

    M0 = u**a [(1 + r)**a - (1 - r)**a] / a                   the integral of (t_n - s)**(a - 1) over the cell,
    M1 = (M0 - u**a [(1 + r)**(a+1) - (1 - r)**(a+1)] / (a + 1)) / r        the same with x as a factor,

both over Gamma(a). The second cancels for small r, so that the cells that are far away take both as series in r.

Diethelm, Ford & Freed, Numer. Algorithms 36 (2004) 31, for the rule; graded meshes: Stynes, O'Riordan & Gracia,
SIAM J. Numer. Anal. 55 (2017) 1057.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace

_FAR = 26  # lag from which r < 1/51, where cells do not get shorter with time
_TERMS = 5  # r**10 < 1e-17
_VANISHES = -1e5  # in place of log(0): exp(a * this) is 0, and so is its derivative in a


def moments(alpha: Array, times: np.ndarray, rows: range, cells: range, xp: Namespace) -> tuple[Array, Array]:
    """Return M0 and M1 over Gamma(alpha), 0 for cells that end after t_n.

    Args:
        alpha: Orders, [a], positive.
        times: The mesh, whose cells do not get shorter with time; [n + 1].
        rows: Which n.
        cells: Which cells i, from times[i] to times[i + 1].
        xp: The namespace of alpha.

    Returns:
        Both of shape [a, rows, cells].
    """
    alpha = xp.asarray(alpha)[..., None, None]
    first_near = min(max(rows.start - _FAR + 1, cells.start), cells.stop)
    parts = []
    if first_near > cells.start:
        parts.append(_far(alpha, *_places(times, rows, range(cells.start, first_near)), xp))
    if first_near < cells.stop or not parts:
        parts.append(_near(alpha, times, rows, range(first_near, cells.stop), xp))
    zeroth, first = ([part[k] for part in parts] for k in range(2))
    scale = xp.exp(-xp.lgamma(alpha))
    return _joined(zeroth, xp) * scale, _joined(first, xp) * scale


def _joined(parts: list[Array], xp: Namespace) -> Array:
    return parts[0] if len(parts) == 1 else xp.concat(parts)


def _places(times: np.ndarray, rows: range, cells: range) -> tuple[np.ndarray, np.ndarray]:
    """Return u and r, [rows, cells]."""
    left, right = times[cells.start : cells.stop], times[cells.start + 1 : cells.stop + 1]
    distance = times[rows.start : rows.stop, None] - (left + (right - left) / 2)
    return distance, (right - left) / 2 / distance


def _far(alpha: Array, distance: np.ndarray, ratio: np.ndarray, xp: Namespace) -> tuple[Array, Array]:
    """The series of (1 - r x)**(a - 1), integrated over x from -1 to 1 with weights 1 and x."""
    power, square = alpha - 1, xp.constant(ratio**2, alpha)
    binomials = [1 + 0 * alpha]
    for k in range(2 * _TERMS - 1):
        binomials.append(binomials[-1] * (power - k) / (k + 1))
    zeroth = first = 0 * alpha
    for k in reversed(range(_TERMS)):
        zeroth = zeroth * square + binomials[2 * k] * (2 / (2 * k + 1))
        first = first * square - binomials[2 * k + 1] * (2 / (2 * k + 3))
    scale = xp.exp(alpha * xp.constant(np.log(distance), alpha)) * xp.constant(ratio, alpha)
    return scale * zeroth, scale * first * xp.constant(ratio, alpha)


def _near(alpha: Array, times: np.ndarray, rows: range, cells: range, xp: Namespace) -> tuple[Array, Array]:
    """The closed forms; expm1 keeps the digits of the difference of powers."""
    lag = np.arange(rows.start, rows.stop)[:, None] - np.arange(cells.start, cells.stop)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance, ratio = _places(times, rows, cells)
    distance = np.where(lag > 0, distance, 1.0)
    ratio = np.where(lag > 1, ratio, 1.0)  # exactly 1 beside t_n: a rounding error of 1 - r would be raised to alpha
    with np.errstate(divide="ignore"):
        below = np.maximum(np.log1p(-ratio), _VANISHES)
    above, below = xp.constant(np.log1p(ratio), alpha), xp.constant(below, alpha)
    inside = xp.constant((lag > 0).astype(np.float64), alpha)

    def spread(power: Array) -> Array:
        return (xp.expm1(power * above) - xp.expm1(power * below)) / power

    scale = xp.exp(alpha * xp.constant(np.log(distance), alpha)) * inside
    zeroth = spread(alpha)
    return scale * zeroth, scale * (zeroth - spread(alpha + 1)) * xp.constant(1 / ratio, alpha)


def constant_block(alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
    """Return the weights of a right-hand side that is constant on each cell, its value on the left; [a, rows, columns].

    That of f_n itself at step n is 0.
    """
    cells = range(columns.start, min(columns.stop, times.size - 1))
    zeroth, _ = moments(alpha, times, rows, cells, xp)
    return zeroth if len(cells) == len(columns) else xp.concat([zeroth, _nothing(alpha, rows, xp)])


def linear_block(alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
    """Return the weights of a right-hand side that is linear on each cell; [a, rows, columns].

    f_j gets a part of the cell before it, (M0 + M1) / 2, and one of the cell after it, (M0 - M1) / 2.
    """
    cells = range(max(columns.start - 1, 0), min(columns.stop, times.size - 1))
    zeroth, first = moments(alpha, times, rows, cells, xp)
    before, after = (zeroth + first) / 2, (zeroth - first) / 2
    pad = _nothing(alpha, rows, xp)
    if columns.start == 0:
        before = xp.concat([pad, before])
    else:
        after = after[..., 1:]
    if columns.stop == times.size:
        after = xp.concat([after, pad])
    else:
        before = before[..., :-1]
    return before + after


def _nothing(alpha: Array, rows: range, xp: Namespace) -> Array:
    """Return a column of zeros, [a, rows, 1]."""
    alpha = xp.asarray(alpha)
    return 0 * alpha[..., None, None] + xp.constant(np.zeros((len(rows), 1)), alpha)
