"""The weights of fixed orders, cached by value, and the part of state space models that exponentials alone determine.

The letters A, B, C and intra are those of `linear.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpfracc_nn.fractional.cache import ByteCache
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.stencil import Stencil

CACHE = ByteCache(1 << 28)  # weights of operators, of every framework; tables and solvers have caches of their own

_NEGLIGIBLE = 1e-20  # parts of a row's largest entry that are zero: subnormal numbers slow a float32 product tenfold


def forget() -> None:
    """Empty the cache of operators' weights. Calls that run go on with theirs; the next call computes its own anew."""
    CACHE.clear()
    fixed_stencil.cache_clear()


@lru_cache(maxsize=64)
def fixed_stencil(definition: Definition, n: int, dt: float) -> Stencil:
    """Return the cached NumPy stencil of a definition whose alpha is a number or numbers: formulas without arrays.

    All callers share the stencil: call `start_column(rows)` and do not read `start`, which the stencil would keep.
    """
    return definition.stencil(n, dt, NUMPY)


def without_negligible(values: Array, xp: Namespace) -> Array:
    """Return weights with 0 where they are negligible beside the largest one of their row, the last axis.

    Each row has its own threshold, because channels differ by dt to the power of the difference of their orders.
    """
    size = xp.abs(values)
    return xp.where(size < _NEGLIGIBLE * xp.max(size, axis=-1)[..., None], 0.0, values)


@dataclass(frozen=True, eq=False)
class Transitions:
    """The part of a state space model over chunks of L samples that its Q exponentials alone determine, in NumPy.

    There are K = Q + first - 1 states: those of the exponentials, and the samples whose lags are exact.

    Attributes:
        nodes: The exponentials: their rates s [Q], and `first`, the first lag whose weight they stand for.
        lags: The lags at which the weights are needed, increasing; the first L are 0 to L - 1.
        fitted: Indices of those lags to whose weights the exponentials are fitted.
        C: The exponentials' rows of C without the coefficients: exp(-s (l + 1 - first)), [Q, L].
        B: From the samples to the states, [L, K].
        A: Decay of each state from chunk to chunk, [K].
    """

    nodes: Nodes
    lags: np.ndarray
    fitted: np.ndarray
    C: np.ndarray
    B: np.ndarray
    A: np.ndarray

    def matrices(self, values: Array, xp: Namespace) -> tuple[Array, Array]:
        """Return intra [*c, L, L] and C [*c, K, L] for weights `values` at `lags`, [*c, lags]."""
        coefficients = self.nodes.fit(xp.take(values, self.fitted, axis=-1), xp)
        slow = coefficients[..., None] * xp.constant(self.C, values)
        C = xp.concat([slow, self._correction(values, coefficients, xp)], axis=-2)
        length = self.C.shape[1]
        return xp.toeplitz(xp.part(values, 0, length, axis=values.ndim - 1), length), C

    def _correction(self, values: Array, coefficients: Array, xp: Namespace) -> Array:
        """Return the rows of C for the states that are samples, [*c, K - Q, L].

        They are the weights at the exact lags less the exponentials, which act on these samples too.

        Args:
            values: The weights at `lags`, [*c, lags].
            coefficients: Coefficients of the exponentials, [*c, Q].
            xp: The namespace of both.
        """
        nodes, exact = self.nodes, self.nodes.first - 1
        reach = np.exp(-nodes.rates[:, None] * (np.arange(nodes.first) - nodes.first))
        wrong = xp.take(values, np.arange(nodes.first), axis=-1) - xp.matmul(
            coefficients, xp.constant(reach, coefficients)
        )
        r, at = np.arange(1, nodes.first)[:, None], np.arange(self.C.shape[1])[None, :]
        inside = xp.constant((r + at <= exact).astype(np.float64), values)
        return xp.take(wrong, np.minimum(r + at, exact), axis=-1) * inside


@lru_cache(maxsize=64)
def transitions(nodes: Nodes, length: int) -> Transitions:
    """Return the Transitions of a model over chunks of `length` samples, at least 8, with these exponentials."""
    s, at, exact = nodes.rates, np.arange(length), nodes.first - 1
    C = np.exp(-np.outer(s, at + 1 - nodes.first))
    B = np.concatenate([np.exp(-np.outer(length - 1 - at, s)), np.eye(length)[:, : length - 1 - exact : -1]], axis=1)
    A = np.concatenate([np.exp(-s * length), np.zeros(exact)])
    for matrix in (C, B, A):
        matrix[np.abs(matrix) < _NEGLIGIBLE] = 0
    lags = np.union1d(at, nodes.lags)
    return Transitions(nodes, lags, np.searchsorted(lags, nodes.lags), C, B, A)
