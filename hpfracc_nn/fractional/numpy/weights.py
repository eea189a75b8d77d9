"""The weights of fixed definitions as NumPy kernels take them, cached by value."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn.fractional.boundary import Boundary, boundary_of
from hpfracc_nn.fractional.cache import cached_property, nbytes
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.exponentials import SHORTEST, Nodes, exponentials
from hpfracc_nn.fractional.linear import Column, StateSpace, powers
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import consecutive
from hpfracc_nn.fractional.weights import CACHE, fixed_stencil, transitions, without_negligible

MATRIX_KEPT = 1 << 21  # bytes: a larger matrix is built at every product, or the kept ones would fill the memory


class Weights:
    """The stencil of one fixed definition on `n` samples, and its weights as linear operators.

    Args:
        definition: The operator; its alpha is a number, or numbers, one for each channel.
        n: Number of samples, at least 1.
        dt: Spacing of the samples.
        dtype: The dtype that the product is computed in.
    """

    def __init__(self, definition: Definition, n: int, dt: float, dtype: np.dtype):
        self.n, self.dtype = n, dtype
        self.stencil = fixed_stencil(definition, n, dt)
        short = n <= SHORTEST
        self.nodes: Nodes | None = None if short else exponentials(definition.in_steps(dt), n, dtype.name)
        self.kept: dict[Any, Any] = {}  # a cache of what callers make of the weights, dropped with them
        self._column: Column | None = None
        self._chunks: dict[int, StateSpace] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that were made so far."""
        return nbytes(vars(self))

    @property
    def states(self) -> int:
        """How many states a recurrence with these weights has; 0 if no sum of exponentials fits them, or n is short."""
        return 0 if self.nodes is None else self.nodes.states

    def column(self) -> Column:
        """Return the whole column of weights, [channels, n], as a linear operator."""
        if self._column is None:
            self._column = Column(self._cast(self._at(np.arange(self.n))), largest=MATRIX_KEPT)
        return self._column

    def chunks(self, length: int) -> StateSpace:
        """Return the state space model over chunks of `length` samples; if n is above that, `nodes` may not be None."""
        if length not in self._chunks:
            self._chunks[length] = self._in_chunks(length)
        return self._chunks[length]

    @cached_property
    def boundary(self) -> Boundary:
        """The Boundary of the product, with the columns that multiply d[start_index], x(0) and dt x'(0)."""
        columns = self.stencil.boundary_columns(lambda column: consecutive(column, 0, self.n, NUMPY), NUMPY)
        if columns is not None:
            columns = self._cast(columns.reshape(-1, *columns.shape[-2:]).swapaxes(0, 1))
        return boundary_of(self.stencil, columns, self.dtype)

    def _in_chunks(self, length: int) -> StateSpace:
        nodes = self.nodes if self.n > length else None
        if nodes is None:
            assert self.n <= length, "the kernel accepts sums of exponentials only"
            intra = self._cast(NUMPY.toeplitz(self._at(np.arange(self.n)), length))
            zeros = np.zeros((intra.shape[0], 1, length), self.dtype), np.zeros((length, 1), self.dtype)
            return StateSpace(intra, *zeros, (np.zeros(1),))
        found = transitions(nodes, length)
        intra, C = map(self._cast, found.matrices(self._at(found.lags), NUMPY))
        return StateSpace(intra, C, found.B.astype(self.dtype), powers(found.A, -(-self.n // length)))

    def _at(self, lags: np.ndarray) -> np.ndarray:
        return np.reshape(self.stencil.column(lags), (-1, lags.size))

    def _cast(self, values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(without_negligible(values, NUMPY), self.dtype)


def weights_of(definition: Definition, n: int, dt: float, dtype: np.dtype) -> Weights:
    """Return the Weights of a fixed definition, from the cache or new."""
    key = "numpy", definition, n, dt, dtype
    return CACHE.get(key, lambda: Weights(definition, n, dt, dtype))
