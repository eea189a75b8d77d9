"""Schemes that are powers of a difference operator: Grünwald's, BDF2's and the centred one.

Grünwald's weights are the binomial series of (1 - z)**beta: Oldham & Spanier (1974), section 3.4. The recurrence
g_k = g_(k-1) (k - 1 - beta) / k up to lag 64, then the asymptotic series of the Gamma ratio in g_k / g_64, which stays
accurate at any lag and costs the same at scattered ones. No starting column.

BDF2 is convolution quadrature by the two-step backward difference formula, ((3/2)(1 - z/3)(1 - z))**alpha: Lubich,
SIAM J. Math. Anal. 17 (1986) 704. Second order; the starting column makes it exact for t (above alpha = 1 for
t**2), without which the order would fall to 1 - alpha (2 - alpha) at the first samples and stay below 2 near them.

Centred differences have the symbol |1 - z|**alpha, which is |2 sin(theta / 2)|**alpha on the circle: Ortigueira, Int.
J. Math. Math. Sci. (2006) 48391; Celik & Duman, J. Comput. Phys. 231 (2012) 1743, for the order 2. No starting column.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import comb

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace

_HEAD = 64
_RATIO_TERMS = 13  # (3 / 64)**13 < 1e-17, |beta| <= 3


def grunwald_weights(alpha: Array, taylor: int, m: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return Grünwald's weights, the coefficients of (1-z)**(alpha - m), at the given lags.

    Arguments as in `l1_weights`.
    """
    return binomial(xp.asarray(alpha) - m, lags, xp)


def grunwald_rate(alpha: float) -> float:
    """Order of convergence on smooth data that vanish at the start, at a fixed time."""
    return 1.0


def grunwald_uniform_rate(alpha: float, subtracts: bool = True) -> float:
    """Order of convergence of the largest error, see `Scheme.uniform_rate`.

    The lowest power of t in the data dominates: at the first samples its relative error does not fall with dt.
    """
    return min(1.0, (2 if subtracts and alpha > 1 else 1) - alpha)


def binomial(beta: Array, lags: np.ndarray, xp: Namespace) -> Array:
    """Return the coefficients of (1-z)**beta, -3 <= beta <= 3, at increasing lags [k]: shape [*c, k]."""
    beta = beta[..., None]
    j = np.arange(1.0, _HEAD + 1)
    ratios = (xp.constant(j - 1, beta) - beta) / xp.constant(j, beta)
    table = xp.concat([0 * beta + 1, xp.cumulative_prod(ratios, axis=-1)], axis=-1)
    near, far = lags[lags < _HEAD], lags[lags >= _HEAD].astype(np.float64)
    parts = [xp.take(table, near, axis=-1)] if near.size else []
    if far.size:
        ratio = xp.exp(_log_gamma_ratio(-beta, far, xp, _HEAD) - (beta + 1) * xp.constant(np.log(far / _HEAD), beta))
        parts.append(xp.take(table, np.array([_HEAD]), axis=-1) * ratio)
    return xp.concat(parts, axis=-1)


def _log_gamma_ratio(a: Array, far: np.ndarray, xp: Namespace, origin: float = np.inf) -> Array:
    """Return log Gamma(k + a) - log Gamma(k + 1) - (a - 1) log k at lags k >= 64, less its value at a lag `origin`.

    Shapes: a [*c, 1], |a| <= 3; far [k]; result [*c, k].
    """
    inverse, bernoulli = _gamma_ratio()
    steps = far ** -inverse[:, None] - origin ** -inverse[:, None]
    powers = [0 * a + 1]
    for _ in range(_RATIO_TERMS + 1):
        powers.append(powers[-1] * a)
    return xp.matmul(xp.concat(powers, axis=-1), xp.constant(bernoulli @ steps, a))


@lru_cache(maxsize=1)
def _gamma_ratio() -> tuple[np.ndarray, np.ndarray]:
    """Return the exponents r and coefficients of k**-r in log Gamma(k + a) - log Gamma(k + 1) - (a - 1) log k.

    The coefficient is (-1)**(r+1) (B_(r+1)(a) - B_(r+1)(1)) / (r (r+1)), B Bernoulli's polynomials (DLMF 5.11.8),
    written as a matrix [power of a, r].
    """
    numbers = [Fraction(1)]
    for m in range(1, _RATIO_TERMS + 2):
        numbers.append(-sum((comb(m + 1, i) * numbers[i] for i in range(m)), Fraction(0)) / (m + 1))
    matrix = np.zeros((_RATIO_TERMS + 2, _RATIO_TERMS))
    for r in range(1, _RATIO_TERMS + 1):
        coefficients = [comb(r + 1, p) * numbers[r + 1 - p] for p in range(r + 2)]  # of a**p in B_(r+1)(a)
        coefficients[0] -= sum(coefficients, Fraction(0))
        matrix[: r + 2, r - 1] = [float(c * (-1) ** (r + 1) / (r * (r + 1))) for c in coefficients]
    return np.arange(1.0, _RATIO_TERMS + 1), matrix


_BDF2_HEAD = 128  # summed directly below; beyond, the poles at z = 3 are gone (3**-128)
_BDF2_DIRECT = 60  # coefficients of (1 - z/3)**alpha: 3**-60 < 1e-28
_BDF2_TERMS = 14  # i! / (2 * 128)**i < 1e-23
_LOG_1_5 = float(np.log(1.5))


def bdf2_weights(alpha: Array, taylor: int, m: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return BDF2's weights, the coefficients of (3/2)**alpha (1 - z/3)**alpha (1-z)**(alpha - m), at the given lags.

    Arguments as in `l1_weights`.
    """
    alpha = xp.asarray(alpha)
    beta = alpha - m
    near, far = lags[lags < _BDF2_HEAD], lags[lags >= _BDF2_HEAD]
    parts = []
    if near.size:
        parts.append(_bdf2_direct(alpha, binomial(beta, np.arange(near[-1] + 1), xp), near, xp))
    if far.size:
        parts.append(binomial(beta, far, xp) * (1 + _bdf2_tail(alpha[..., None, None], beta[..., None, None], far, xp)))
    return xp.concat(parts, axis=-1)


def bdf2_start_index(taylor: int) -> int:
    """Return the index of the entry of d, the differenced data, that the starting column multiplies: 1."""
    return 1


def bdf2_start(alpha: Array, taylor: int, m: int, rows: np.ndarray, xp: Namespace) -> Array:
    """Return BDF2's starting column at the given rows, 0 at row 0.

    It multiplies d[1], with d the differenced data, and makes the scheme exact for t**taylor. `m` is not used: it is in
    the signature of `Scheme.start`.

    Shapes: rows [k], increasing; result [*c, k].
    """
    alpha = xp.asarray(alpha)
    parts, k = [0 * alpha[..., None]] * int((rows < 1).sum()), rows[rows >= 1]
    if k.size:
        parts.append(_bdf2_correction(alpha, taylor, k, xp))
    return xp.concat(parts, axis=-1)


def bdf2_rate(alpha: float) -> float:
    """Order of convergence on smooth data, at a fixed time."""
    return 2.0


def bdf2_uniform_rate(alpha: float, subtracts: bool = True) -> float:
    """Order of convergence of the largest error, see `Scheme.uniform_rate`.

    The lowest power of t that the starting column, if there is one, does not make exact dominates.
    """
    return min(2.0, (3 if alpha > 1 else 2) - alpha if subtracts else 1 - alpha)


def _bdf2_correction(alpha: Array, taylor: int, k: np.ndarray, xp: Namespace) -> Array:
    """Return the starting column of BDF2 at samples k >= 1, [*c, k], for dt = 1.

    It is the derivative of t**taylor less the scheme's result for it, because the column multiplies d[1], which is 1
    for t**taylor. alpha is [*c], and `taylor` the number of Taylor terms, 1 or 2.
    """
    power = taylor - alpha[..., None]

    def exact(rows: np.ndarray) -> Array:
        return float(taylor) * xp.exp(power * xp.constant(np.log(rows), power) - xp.gammaln(1 + power))

    near, far = k[k < _BDF2_HEAD + taylor], k[k >= _BDF2_HEAD + taylor]
    parts = [exact(near) - _bdf2_of_power(alpha, taylor, near, xp)] if near.size else []
    if far.size:
        parts.append(exact(far) * _bdf2_relative_error(alpha, taylor, far, xp))
    return xp.concat(parts, axis=-1)


def _bdf2_of_power(alpha: Array, taylor: int, k: np.ndarray, xp: Namespace) -> Array:
    """Return what BDF2 without its starting column makes of t**taylor at samples k >= 1, [*c, k]."""
    if taylor == 1:  # k = z / (1-z)**2
        return bdf2_weights(alpha, taylor, 2, k - 1, xp)
    # k**2 = z (1 + z) / (1-z)**3
    before = np.maximum(k - 2, 0)
    lags = np.union1d(k - 1, before)
    reached = bdf2_weights(alpha, taylor, 3, lags, xp)
    both = [xp.take(reached, np.searchsorted(lags, each), axis=-1) for each in (k - 1, before)]
    return both[0] + both[1] * xp.constant(1.0 * (k > 1), alpha)


def _bdf2_relative_error(alpha: Array, taylor: int, k: np.ndarray, xp: Namespace) -> Array:
    """Return the part of the derivative of t**taylor that BDF2 without its column misses, at large k: [*c, k].

    It falls as k**-2, and is a sum of terms that fall as 1 / k: differences of the values themselves would lose a digit
    for each factor of ten in k, and more.
    """
    power = taylor - alpha[..., None]
    missed = []
    for j in k - 1.0 - np.arange(taylor)[:, None]:
        ratio = power * xp.constant(np.log1p((j - k) / k), power) + _log_gamma_ratio(1 + power, j, xp)
        tail = _bdf2_tail(alpha[..., None, None], alpha[..., None, None] - taylor - 1, j, xp)
        missed.append(-xp.expm1(ratio) - xp.exp(ratio) * tail)
    return sum(missed[1:], missed[0]) / taylor


def _bdf2_direct(alpha: Array, grunwald: Array, lags: np.ndarray, xp: Namespace) -> Array:
    """Return BDF2's weights at lags [k] as a convolution of Grunwald's; by sums, as an FFT would lose the tail.

    Args:
        alpha: Orders, [*c].
        grunwald: The weights of (1-z)**(alpha - m) at all lags from 0 to the last, m the number of differences.
        lags: Increasing.
        xp: The namespace of alpha.
    """
    j = np.arange(1.0, _BDF2_DIRECT)
    alpha = alpha[..., None]
    ratios = (xp.constant(j - 1, alpha) - alpha) / xp.constant(3 * j, alpha)
    series = xp.concat([0 * alpha + 1, xp.cumulative_prod(ratios, axis=-1)], axis=-1)
    index = lags[:, None] - np.arange(_BDF2_DIRECT)
    inside = xp.constant((index >= 0).astype(np.float64), alpha)
    terms = xp.take(grunwald, np.maximum(index, 0), axis=-1) * inside * series[..., None, :]
    return xp.sum(terms, axis=-1) * xp.exp(alpha * _LOG_1_5)


def _bdf2_tail(alpha: Array, beta: Array, lags: np.ndarray, xp: Namespace) -> Array:
    """Return the quotient of BDF2's weights by Grunwald's less one at lags [k], [*c, k]: a series in about 1 / lag.

    BDF2 is (1-z)**beta times (1 + (1-z)/2)**alpha, whose binomial series is applied term by term.

    Args:
        alpha: Orders, [*c, 1, 1].
        beta: alpha less the number of differences, of the same shape.
        lags: From 128 on.
        xp: The namespace of alpha.
    """
    i = np.arange(1.0, _BDF2_TERMS + 1)
    factors = (alpha - xp.constant(i - 1, alpha)) * (-beta - xp.constant(i, alpha)) / xp.constant(2 * i, alpha)
    distance = xp.constant(lags[:, None] - i, alpha) - beta
    return xp.sum(xp.cumulative_prod(factors / distance, axis=-1), axis=-1)


def centred_weights(alpha: Array, taylor: int, m: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return the centred scheme's weights on one side: g_0 at lag 0, 2 g_k at lag k; the mean of both sides has g_|k|.

    g_k = (-1)**k Gamma(1 + alpha) / (Gamma(1 + alpha / 2 - k) Gamma(1 + alpha / 2 + k)), by their recurrence up to lag
    64 and then by the asymptotic series of the Gamma ratio. `m` is 0; other arguments as in `l1_weights`.
    """
    half = xp.asarray(alpha)[..., None] / 2
    j = xp.constant(np.arange(1.0, _HEAD + 1), half)
    first = xp.exp(xp.gammaln(1 + 2 * half) - 2 * xp.gammaln(1 + half))
    table = first * xp.concat([0 * half + 1, 2 * xp.cumulative_prod((j - 1 - half) / (j + half), axis=-1)], axis=-1)
    near, far = lags[lags < _HEAD], lags[lags >= _HEAD].astype(np.float64)
    parts = [xp.take(table, near, axis=-1)] if near.size else []
    if far.size:
        log = _log_gamma_ratio(-half, far, xp, _HEAD) - _log_gamma_ratio(1 + half, far, xp, _HEAD)
        ratio = xp.exp(log - (1 + 2 * half) * xp.constant(np.log(far / _HEAD), half))
        parts.append(xp.take(table, np.array([_HEAD]), axis=-1) * ratio)
    return xp.concat(parts, axis=-1)


def centred_rate(alpha: float) -> float:
    """Order of convergence on smooth data that vanish, with enough derivatives, at both ends; at a fixed time."""
    return 2.0


def centred_uniform_rate(alpha: float, subtracts: bool = False) -> float:
    """Order of convergence of the largest error, see `Scheme.uniform_rate`."""
    return 2.0
