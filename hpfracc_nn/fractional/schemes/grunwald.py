"""Grunwald's weights: the binomial series of (1 - z)**beta.

Oldham & Spanier (1974), section 3.4. The recurrence g_k = g_(k-1) (k - 1 - beta) / k up to lag 64, then the asymptotic
series of the Gamma ratio in g_k / g_64, which stays accurate at any lag and costs the same at scattered ones.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import comb

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace

HEAD = 64
_TERMS = 13  # (3 / 64)**13 < 1e-17, |beta| <= 3

start = None  # no column


def left(alpha: Array, taylor: int, order: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return (1-z)**(alpha - order) at the given lags; arguments as in `l1.left`."""
    return binomial(xp.asarray(alpha) - order, lags, xp)


def rate(alpha: float) -> float:
    """Order of convergence on smooth data that vanish at the start, at a fixed time."""
    return 1.0


def uniform_rate(alpha: float, subtracts: bool = True) -> float:
    """The same of the largest error; see `Scheme`. The first power that is left of the data is missed by O(1) of it."""
    return min(1.0, (2 if subtracts and alpha > 1 else 1) - alpha)


def binomial(beta: Array, lags: np.ndarray, xp: Namespace) -> Array:
    """Return the coefficients of (1-z)**beta, -3 <= beta <= 3: shape [*c, k]."""
    beta = beta[..., None]
    j = np.arange(1.0, HEAD + 1)
    ratios = (xp.constant(j - 1, beta) - beta) / xp.constant(j, beta)
    table = xp.concat([0 * beta + 1, xp.cumulative_prod(ratios, axis=-1)], axis=-1)
    near, far = lags[lags < HEAD], lags[lags >= HEAD].astype(np.float64)
    parts = [xp.take(table, near, axis=-1)] if near.size else []
    if far.size:
        ratio = xp.exp(fall(-beta, far, xp) - (beta + 1) * xp.constant(np.log(far / HEAD), beta))
        parts.append(xp.take(table, np.array([HEAD]), axis=-1) * ratio)
    return xp.concat(parts, axis=-1)


def fall(a: Array, far: np.ndarray, xp: Namespace) -> Array:
    """Return log Gamma(k + a) - log Gamma(k + 1) - (a - 1) log k at `far` lags k, less its value at lag 64.

    Shapes: a [*c, 1], |a| <= 3; far [k]; result [*c, k].
    """
    inverse, bernoulli = _gamma_ratio()
    steps = far ** -inverse[:, None] - HEAD ** -inverse[:, None]
    powers = [0 * a + 1]
    for _ in range(_TERMS + 1):
        powers.append(powers[-1] * a)
    return xp.matmul(xp.concat(powers, axis=-1), xp.constant(bernoulli @ steps, a))


@lru_cache(maxsize=1)
def _gamma_ratio() -> tuple[np.ndarray, np.ndarray]:
    """Exponents r and the matrix [power of a, r] of (-1)**(r+1) (B_(r+1)(a) - B_(r+1)(1)) / (r (r+1)).

    These are the coefficients of k**-r in log Gamma(k + a) - log Gamma(k + 1) - (a - 1) log k (DLMF 5.11.8).
    """
    numbers = [Fraction(1)]
    for m in range(1, _TERMS + 2):
        numbers.append(-sum((comb(m + 1, i) * numbers[i] for i in range(m)), Fraction(0)) / (m + 1))
    matrix = np.zeros((_TERMS + 2, _TERMS))
    for r in range(1, _TERMS + 1):
        coefficients = [comb(r + 1, p) * numbers[r + 1 - p] for p in range(r + 2)]  # of a**p in B_(r+1)(a)
        coefficients[0] -= sum(coefficients, Fraction(0))
        matrix[: r + 2, r - 1] = [float(c * (-1) ** (r + 1) / (r * (r + 1))) for c in coefficients]
    return np.arange(1.0, _TERMS + 1), matrix
