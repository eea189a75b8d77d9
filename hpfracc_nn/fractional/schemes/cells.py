"""Exact integrals of the memory function over the cells of any times.

With c the middle of cell i, d half its length, u = t_n - c, r = d / u and x in [-1, 1] the place in the cell,

    M0 = u**p [(1 + r)**p - (1 - r)**p] / p                   the integral of (t_n - s)**(p - 1) over the cell,
    M1 = (M0 - u**p [(1 + r)**(p+1) - (1 - r)**(p+1)] / (p + 1)) / r        the same with x as a factor,

both over Gamma(p). The second cancels for small r, so that the cells that are far away take both as series in r. At
p = 0 the memory function is an impulse at t_n: 1 in the last cell, 0 in the others. In shapes rows are the n, cells the
i, and a the orders: one, or one for each set of weights.

Diethelm, Ford & Freed, Numer. Algorithms 36 (2004) 31, for the rule; graded meshes: Stynes, O'Riordan & Gracia,
SIAM J. Numer. Anal. 55 (2017) 1057.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace

_SMALL = 1 / 32  # ratios below it take the series
_TERMS = 6  # _SMALL**12 < 1e-18


def moments(power: Array, times: np.ndarray, rows: range, cells: range, xp: Namespace) -> tuple[Array, Array]:
    """Return M0 and M1 over Gamma(p): the memory function's integrals over cells, and those with the factor x.

    They are 0 for cells that end after t_n.

    Args:
        power: The exponents p, [a] or, one for each row, [a, rows]; not negative.
        times: Increasing times, [n + 1] or, a grid for each set of weights, [a, n + 1].
        rows: The n of the times t_n at which the memory ends.
        cells: The cells i, from times[i] to times[i + 1].
        xp: The namespace of `power`.

    Returns:
        Both of shape [a, rows, cells].
    """
    power = xp.asarray(power)
    power = power[..., None, None] if power.ndim < 2 else power[..., None]
    lag = np.arange(rows.start, rows.stop)[:, None] - np.arange(cells.start, cells.stop)
    distance, ratio = _places(times, rows, cells)
    first_near = _far_cells(lag, ratio)
    parts = []
    if first_near:
        parts.append(_far(power, distance[..., :first_near], ratio[..., :first_near], xp))
    if first_near < len(cells) or not parts:
        near = slice(first_near, None)
        parts.append(integrals(power, distance[..., near], ratio[..., near], lag[..., near], xp))
    zeroth, first = ([part[k] for part in parts] for k in range(2))
    return _joined(zeroth, xp), _joined(first, xp)


def integrals(
    power: Array, distance: np.ndarray, ratio: np.ndarray, lag: np.ndarray, xp: Namespace
) -> tuple[Array, Array]:
    """Return M0 and M1 over Gamma(p), as `moments` does, by their closed forms, entry by entry.

    Args:
        power: p, broadcast against the others.
        distance: u; not read where the lag is not positive.
        ratio: r; not read where the lag is not positive.
        lag: Number of cells from t_n back, 1 for the cell that ends at t_n.
        xp: The namespace of `power`.
    """
    is_past, is_last = lag > 0, lag == 1
    distance, ratio = np.where(is_past, distance, 1.0), np.where(is_past, ratio, 0.5)
    ratio = np.where(is_last, 1.0, ratio)
    # A rounding error of 1 - r would be raised to the power p in the last cell, where (1 - r)**p is 0, also for p = 0.
    last = xp.constant(1.0 * is_last, power)
    above = xp.constant(np.log1p(ratio), power)
    below = xp.constant(np.log1p(-np.where(is_last, 0.0, ratio)), power)

    def spread(exponent: Array) -> Array:
        return xp.expm1(exponent * above) - xp.expm1(exponent * below) + last

    scale = _scale(power, distance, xp) * xp.constant(1.0 * is_past, power)
    zeroth = spread(power)
    closed = (zeroth - spread(power + 1) * (power / (power + 1))) * xp.constant(1 / ratio, power)
    if (ratio < _SMALL).any():  # where the two terms cancel
        _, series = _series(power, np.minimum(ratio, _SMALL), xp)
        is_small = xp.constant(1.0 * (ratio < _SMALL), power)
        closed = closed * (1 - is_small) + series * is_small
    return scale * zeroth, scale * closed


def _far_cells(lag: np.ndarray, ratio: np.ndarray) -> int:
    """Return how many cells, from the first on, are far from every row, so that the series may serve them.

    Args:
        lag: Number of cells from t_n back, 1 for the cell that ends at t_n, [rows, cells].
        ratio: r, [..., rows, cells]; of no meaning where the lag is not positive.
    """
    is_near = (lag < 1) | ~(ratio < _SMALL)
    columns = is_near.reshape(-1, lag.shape[-1]).any(axis=0) if lag.size else np.zeros(0, bool)
    return int(np.argmax(columns)) if columns.any() else columns.size


def _far(power: Array, distance: np.ndarray, ratio: np.ndarray, xp: Namespace) -> tuple[Array, Array]:
    zeroth, first = _series(power, ratio, xp)
    scale = _scale(power, distance, xp)
    return scale * zeroth, scale * first


def _series(power: Array, ratio: np.ndarray, xp: Namespace) -> tuple[Array, Array]:
    """Return r p times the integrals over x in (-1, 1) of (1 - r x)**(p - 1) and of x times it, by their series in r.

    For powers p that broadcast against the ratios r, which are small.
    """
    square = xp.constant(ratio**2, power)
    binomials = [power]
    for k in range(2 * _TERMS - 1):
        binomials.append(binomials[-1] * (power - 1 - k) / (k + 1))
    zeroth = first = 0 * power
    for k in reversed(range(_TERMS)):
        zeroth = zeroth * square + binomials[2 * k] * (2 / (2 * k + 1))
        first = first * square - binomials[2 * k + 1] * (2 / (2 * k + 3))
    return zeroth * xp.constant(ratio, power), first * square


def _scale(power: Array, distance: np.ndarray, xp: Namespace) -> Array:
    """Return u**p / Gamma(1 + p) for powers p that broadcast against the distances u in time."""
    return xp.exp(power * xp.constant(np.log(distance), power) - xp.gammaln(1 + power))


def _places(times: np.ndarray, rows: range, cells: range) -> tuple[np.ndarray, np.ndarray]:
    """Return u, the time from the middle of a cell to t_n, and r = d / u, [..., rows, cells] each.

    `times` are [..., n + 1], `rows` the n and `cells` the i that are wanted. Entries of cells that end after t_n are
    meaningless.
    """
    left, right = times[..., cells.start : cells.stop], times[..., cells.start + 1 : cells.stop + 1]
    half = ((right - left) / 2)[..., None, :]
    distance = times[..., rows.start : rows.stop, None] - (left[..., None, :] + half)
    with np.errstate(divide="ignore", invalid="ignore"):
        return distance, half / distance


def _joined(parts: list[Array], xp: Namespace) -> Array:
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)


def constant_block(alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
    """Return the weights of the values f_j in the integral of order alpha up to t_n, with f taken as f_j on each cell.

    f_j is the value at the cell's left end.

    They are [a, rows, columns], `rows` the steps n and `columns` the j. The weight of f_n at step n is 0.
    """
    cells = range(columns.start, min(columns.stop, times.size - 1))
    zeroth, _ = moments(alpha, times, rows, cells, xp)
    return zeroth if len(cells) == len(columns) else xp.concat([zeroth, _nothing(alpha, rows, xp)], axis=-1)


def linear_block(alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
    """Return the weights of the values f_j in the integral of order alpha up to t_n, for f linear on each cell.

    They are [a, rows, columns], `rows` the steps n and `columns` the j: (M0 + M1) / 2 of the cell before t_j plus
    (M0 - M1) / 2 of the cell after t_j.
    """
    cells = range(max(columns.start - 1, 0), min(columns.stop, times.size - 1))
    zeroth, first = moments(alpha, times, rows, cells, xp)
    before, after = (zeroth + first) / 2, (zeroth - first) / 2
    pad = _nothing(alpha, rows, xp)
    if columns.start == 0:
        before = xp.concat([pad, before], axis=-1)
    else:
        after = after[..., 1:]
    if columns.stop == times.size:
        after = xp.concat([after, pad], axis=-1)
    else:
        before = before[..., :-1]
    return before + after


def _nothing(alpha: Array, rows: range, xp: Namespace) -> Array:
    """Return zeros [a, rows, 1] for orders alpha [a]: the weights of a cell before the first time or after the last."""
    alpha = xp.asarray(alpha)
    return 0 * alpha[..., None, None] + xp.constant(np.zeros((len(rows), 1)), alpha)
