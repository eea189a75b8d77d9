"""Convolution quadrature by the two-step backward difference formula: ((3/2)(1 - z/3)(1 - z))**alpha.

Lubich, SIAM J. Math. Anal. 17 (1986) 704. Second order; the starting column makes it exact for t (above alpha = 1 for
t**2), without which the order would fall to 1 - alpha (2 - alpha) at the first samples and stay below 2 near them.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.grunwald import binomial

_HEAD = 128  # summed directly below; beyond, the poles at z = 3 are gone (3**-128)
_DIRECT = 60  # coefficients of (1 - z/3)**alpha: 3**-60 < 1e-28
_TERMS = 14  # i! / (2 * 128)**i < 1e-23
_LOG_1_5 = float(np.log(1.5))


def left(alpha: Array, taylor: int, order: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return (3/2)**alpha (1 - z/3)**alpha (1-z)**(alpha - order) at the given lags; arguments as in `l1.left`."""
    alpha = xp.asarray(alpha)
    beta = alpha - order
    near, far = lags[lags < _HEAD], lags[lags >= _HEAD]
    parts = []
    if near.size:
        parts.append(_direct(alpha, binomial(beta, np.arange(near[-1] + 1), xp), near, xp))
    if far.size:
        parts.append(binomial(beta, far, xp) * _tail(alpha[..., None, None], beta[..., None, None], far, xp))
    return xp.concat(parts, axis=-1)


def start_index(taylor: int) -> int:
    """The column acts on d[1], which is that of u whatever m is."""
    return 1


def start(alpha: Array, taylor: int, order: int, rows: np.ndarray, xp: Namespace) -> Array:
    """Return the column on d[1] that makes the scheme exact for t**taylor, at the given rows; 0 at row 0.

    Shapes: rows [k], increasing; result [*c, k].
    """
    alpha = xp.asarray(alpha)
    parts, k = [0 * alpha[..., None]] * int((rows < 1).sum()), rows[rows >= 1]
    if k.size:
        parts.append(_correction(alpha, taylor, k, xp))
    return xp.concat(parts, axis=-1)


def rate(alpha: float) -> float:
    """Order of convergence on smooth data, at a fixed time."""
    return 2.0


def uniform_rate(alpha: float, subtracts: bool = True) -> float:
    """The same of the largest error; see `Scheme`. The first power that has no column is missed by O(1) of it."""
    return min(2.0, (3 if alpha > 1 else 2) - alpha if subtracts else 1 - alpha)


def _correction(alpha: Array, taylor: int, k: np.ndarray, xp: Namespace) -> Array:
    """The derivative of t**taylor at samples k >= 1, less what the scheme gives: d[1] is 1 there."""
    power = taylor - alpha[..., None]
    exact = float(taylor) * xp.exp(power * xp.constant(np.log(k), power) - xp.gammaln(1 + power))
    if taylor == 1:  # k = z / (1-z)**2
        return exact - left(alpha, taylor, 2, k - 1, xp)
    # k**2 = z (1 + z) / (1-z)**3
    before = np.maximum(k - 2, 0)
    lags = np.union1d(k - 1, before)
    reached = left(alpha, taylor, 3, lags, xp)
    both = [xp.take(reached, np.searchsorted(lags, each), axis=-1) for each in (k - 1, before)]
    return exact - both[0] - both[1] * xp.constant(1.0 * (k > 1), power)


def _direct(alpha: Array, grunwald: Array, lags: np.ndarray, xp: Namespace) -> Array:
    """The Cauchy product with the series of (1 - z/3)**alpha, summed term by term (an FFT would lose the tail)."""
    j = np.arange(1.0, _DIRECT)
    alpha = alpha[..., None]
    ratios = (xp.constant(j - 1, alpha) - alpha) / xp.constant(3 * j, alpha)
    series = xp.concat([0 * alpha + 1, xp.cumulative_prod(ratios, axis=-1)], axis=-1)
    index = lags[:, None] - np.arange(_DIRECT)
    inside = xp.constant((index >= 0).astype(np.float64), alpha)
    terms = xp.take(grunwald, np.maximum(index, 0), axis=-1) * inside * series[..., None, :]
    return xp.sum(terms, axis=-1) * xp.exp(alpha * _LOG_1_5)


def _tail(alpha: Array, beta: Array, lags: np.ndarray, xp: Namespace) -> Array:
    """(1 + (1-z)/2)**alpha on the Grunwald weights at large lags, where each (1-z) costs a factor about 1 / lag."""
    i = np.arange(1.0, _TERMS + 1)
    factors = (alpha - xp.constant(i - 1, alpha)) * (-beta - xp.constant(i, alpha)) / xp.constant(2 * i, alpha)
    distance = xp.constant(lags[:, None] - i, alpha) - beta
    return 1 + xp.sum(xp.cumulative_prod(factors / distance, axis=-1), axis=-1)
