"""Centred differences of any order: the symbol |1 - z|**alpha, which is |2 sin(theta / 2)|**alpha on the circle.

Ortigueira, Int. J. Math. Math. Sci. (2006) 48391; Celik & Duman, J. Comput. Phys. 231 (2012) 1743, for the order 2.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.grunwald import HEAD, fall

start = None  # no column


def left(alpha: Array, taylor: int, order: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return g_0 at lag 0 and 2 g_k at lag k: the mean of the two sides has the weights g_|k|.

    g_k = (-1)**k Gamma(1 + alpha) / (Gamma(1 + alpha / 2 - k) Gamma(1 + alpha / 2 + k)), by their recurrence up to lag
    64 and then by the asymptotic series of the Gamma ratio. `order` is 0; other arguments as in `l1.left`.
    """
    half = xp.asarray(alpha)[..., None] / 2
    j = xp.constant(np.arange(1.0, HEAD + 1), half)
    first = xp.exp(xp.gammaln(1 + 2 * half) - 2 * xp.gammaln(1 + half))
    table = first * xp.concat([0 * half + 1, 2 * xp.cumulative_prod((j - 1 - half) / (j + half), axis=-1)], axis=-1)
    near, far = lags[lags < HEAD], lags[lags >= HEAD].astype(np.float64)
    parts = [xp.take(table, near, axis=-1)] if near.size else []
    if far.size:
        log = fall(-half, far, xp) - fall(1 + half, far, xp)
        ratio = xp.exp(log - (1 + 2 * half) * xp.constant(np.log(far / HEAD), half))
        parts.append(xp.take(table, np.array([HEAD]), axis=-1) * ratio)
    return xp.concat(parts, axis=-1)


def rate(alpha: float) -> float:
    """Order of convergence on smooth data that vanish, with enough derivatives, at both ends; at a fixed time."""
    return 2.0


def uniform_rate(alpha: float, subtracts: bool = False) -> float:
    """The same of the largest error; see `Scheme`."""
    return 2.0
