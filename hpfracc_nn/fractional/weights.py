"""The weights of fixed orders, which are made once and kept by value, also as a state space model over chunks.

Over chunks of L samples, with X [L] a chunk and S [K] the states before it,

    Y = X near + S far,      S' = decay * S + X into.

The first states are the exponentials, the last few the samples just before the chunk, whose lags are exact. `near` and
`far` are linear in the weights, `into` and `decay` do not depend on them.

Dao & Gu, arXiv 2405.21060, for the state space model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpfracc_nn.fractional.cache import ByteCache
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.fractional.stencil import Stencil

CACHE = ByteCache(1 << 28)  # all weights, of every framework

_NEGLIGIBLE = 1e-20  # parts of a row's largest entry that are zero: subnormal numbers slow a float32 product tenfold


def forget() -> None:
    """Drop all weights that are kept; who still uses some goes on, and the next call makes its own anew."""
    CACHE.clear()
    fixed_stencil.cache_clear()


@lru_cache(maxsize=64)
def fixed_stencil(definition: Definition, n: int, dt: float) -> Stencil:
    """Return the NumPy stencil of a definition whose alpha is a number or numbers: formulas, of no size.

    It is shared: ask it for `start_column(rows)` and not for `start`, which it would keep.
    """
    return definition.stencil(n, dt, NUMPY)


def without_negligible(values: Array, xp: Namespace) -> Array:
    """Return weights with 0 where they are negligible beside the largest of their row, the last axis.

    Beside that row alone: channels differ by dt to the power of the difference of their orders.
    """
    size = xp.abs(values)
    return xp.where(size < _NEGLIGIBLE * xp.max(size, axis=-1)[..., None], 0.0, values)


@dataclass(frozen=True, eq=False)
class Transitions:
    """What a chunk form takes from its nodes alone.

    Attributes:
        lags: Where the weights are needed, increasing; the first L are 0 to L - 1.
        fitted: Which of them the exponentials are fitted to.
        far: exp(-s (l + 1 - first)), [Q, L].
        into: From the samples to the states, [L, K].
        decay: Factor of each state from chunk to chunk, [K].
    """

    nodes: Nodes
    lags: np.ndarray
    fitted: np.ndarray
    far: np.ndarray
    into: np.ndarray
    decay: np.ndarray

    @property
    def length(self) -> int:
        """L."""
        return self.far.shape[1]

    def coefficients(self, values: Array, xp: Namespace) -> Array:
        """Return those of the exponentials, [*c, Q], from the weights [*c, lags]."""
        return self.nodes.fit(xp.take(values, self.fitted, axis=-1), xp)

    def correction(self, values: Array, coefficients: Array, xp: Namespace) -> Array:
        """Return the rows of `far` for exact lags, [*c, K - Q, L]: what the exponentials leave wrong there."""
        nodes, exact = self.nodes, self.nodes.first - 1
        reach = np.exp(-nodes.rates[:, None] * (np.arange(nodes.first) - nodes.first))
        wrong = xp.take(values, np.arange(nodes.first), axis=-1) - xp.matmul(
            coefficients, xp.constant(reach, coefficients)
        )
        r, at = np.arange(1, nodes.first)[:, None], np.arange(self.length)[None, :]
        inside = xp.constant((r + at <= exact).astype(np.float64), values)
        return xp.take(wrong, np.minimum(r + at, exact), axis=-1) * inside


@lru_cache(maxsize=64)
def transitions(nodes: Nodes, length: int) -> Transitions:
    """Return what chunks of `length` samples, at least 8, take from the nodes."""
    s, at, exact = nodes.rates, np.arange(length), nodes.first - 1
    far = np.exp(-np.outer(s, at + 1 - nodes.first))
    into = np.concatenate([np.exp(-np.outer(length - 1 - at, s)), np.eye(length)[:, : length - 1 - exact : -1]], axis=1)
    decay = np.concatenate([np.exp(-s * length), np.zeros(exact)])
    for matrix in (far, into, decay):
        matrix[np.abs(matrix) < _NEGLIGIBLE] = 0
    lags = np.union1d(at, nodes.lags)
    return Transitions(nodes, lags, np.searchsorted(lags, nodes.lags), far, into, decay)


def chunk_matrices(values: np.ndarray, found: Transitions) -> tuple[np.ndarray, np.ndarray]:
    """Return near [c, L, L] and far [c, K, L] for the weights [c, lags]."""
    coefficients = found.coefficients(values, NUMPY)
    slow = coefficients[..., None] * found.far
    far = np.concatenate([slow, found.correction(values, coefficients, NUMPY)], axis=-2)
    return toeplitz(values[..., : found.length]), far


def toeplitz(column: np.ndarray) -> np.ndarray:
    """Return M [c, L, L] with M[j, l] = column[l - j], zero for l < j, for a column [c, L]."""
    length = column.shape[-1]
    lag = np.subtract.outer(np.arange(length), np.arange(length)).T
    return np.where(lag >= 0, column[..., np.maximum(lag, 0)], 0.0)
