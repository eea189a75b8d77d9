"""From a definition to the form of its weights that a kernel for NumPy arrays wants, kept by value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.fft import next_fast_len, rfft

from hpfracc_nn.fractional.boundary import Boundary, boundary_of
from hpfracc_nn.fractional.cache import cached_property, nbytes
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numba import kernel
from hpfracc_nn.fractional.schemes.exponentials import SHORTEST, Nodes, exponentials
from hpfracc_nn.fractional.weights import (
    CACHE,
    chunk_matrices,
    fixed_stencil,
    toeplitz,
    transitions,
    without_negligible,
)


class Weights:
    """The stencil of one fixed definition on `n` samples, and the forms that kernels asked for.

    Args:
        definition: With alpha a number, or as many as there are channels.
        n: Samples, at least 1.
        dt: Their spacing.
        dtype: What the product is computed in.
    """

    def __init__(self, definition: Definition, n: int, dt: float, dtype: np.dtype):
        self.n, self.dtype = n, dtype
        self.stencil = fixed_stencil(definition, n, dt)
        short = n <= SHORTEST
        self.nodes: Nodes | None = None if short else exponentials(definition.in_steps(dt), n, dtype.name)
        self.kept: dict[Any, Any] = {}  # what callers make of them, with the same life
        self._chunks: dict[int, ChunkForm] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all that was made so far."""
        return nbytes(vars(self))

    @property
    def states(self) -> int:
        """What a recurrence would carry; 0 where none can stand for these weights."""
        return 0 if self.nodes is None else self.nodes.states

    @cached_property
    def column(self) -> ColumnForm:
        """The whole column, [channels, n]."""
        return ColumnForm(self._cast(self._at(np.arange(self.n))))

    def chunks(self, length: int) -> ChunkForm:
        """The chunk matrices for chunks of `length`; with more than one chunk `nodes` may not be None."""
        if length not in self._chunks:
            self._chunks[length] = self._in_chunks(length)
        return self._chunks[length]

    @cached_property
    def boundary(self) -> Boundary:
        """What stands around the product: boundary columns are those of d[start_index], x(0) and dt x'(0)."""
        stencil, n, rows = self.stencil, self.n, np.arange(self.n)
        columns = []
        if stencil.starts and stencil.start_column is not None:
            columns.append(np.reshape(stencil.start_column(rows), (1, -1, n)))
        if stencil.analytic_columns is not None:
            columns.append(np.reshape(stencil.analytic_columns(rows), (-1, stencil.terms, n)).swapaxes(0, 1))
        return boundary_of(stencil, self._cast(np.concatenate(columns)) if columns else None, self.dtype)

    def _in_chunks(self, length: int) -> ChunkForm:
        nodes = self.nodes if self.n > length else None
        if nodes is None:
            assert self.n <= length, "the kernel accepts sums of exponentials only"
            column = np.pad(self._at(np.arange(self.n)), ((0, 0), (0, length - self.n)))
            near = toeplitz(column)
            zeros = np.zeros((near.shape[0], 1, length), self.dtype), np.zeros((length, 1), self.dtype)
            return ChunkForm(self._cast(near), *zeros, np.zeros(1))
        form = transitions(nodes, length)
        near, far = chunk_matrices(self._at(form.lags), form)
        return ChunkForm(self._cast(near), self._cast(far), form.into.astype(self.dtype), form.decay)

    def _at(self, lags: np.ndarray) -> np.ndarray:
        return np.reshape(self.stencil.column(lags), (-1, lags.size))

    def _cast(self, values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(without_negligible(values, NUMPY), self.dtype)


def weights_of(definition: Definition, n: int, dt: float, dtype: np.dtype) -> Weights:
    """Return the weights of a fixed definition: those that are kept, or new ones."""
    key = "numpy", definition, n, dt, dtype
    return CACHE.get(key, lambda: Weights(definition, n, dt, dtype))


MATRIX_KEPT = 1 << 21  # bytes: a larger matrix is built at every product, or the kept ones would fill the memory


@dataclass(frozen=True, eq=False)
class ColumnForm:
    """The weights as they are, [channels, n]."""

    column: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of the column and of what was made of it."""
        return nbytes(vars(self))

    @property
    def matrix(self) -> np.ndarray:
        """The lower triangular matrices [channels, n, n] with these first columns."""
        channels, n = self.column.shape
        is_small = channels * n * n * self.column.itemsize <= MATRIX_KEPT
        return self._kept_matrix if is_small else toeplitz_matrices(self.column)

    @cached_property
    def _kept_matrix(self) -> np.ndarray:
        return toeplitz_matrices(self.column)

    @cached_property
    def spectrum(self) -> np.ndarray:
        """The column's transform in double precision, [channels, padded // 2 + 1, 1]."""
        return transform(self.column[:, :, None], padded_length(self.column.shape[1]))


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """The weights as a state space model over chunks of L samples; see `weights.py`.

    Attributes:
        near: Lags inside the chunk, [channels, L, L].
        far: From the states to the samples, [channels, K, L].
        into: From the samples to the states, [L, K].
        decay: Factor of each state from chunk to chunk, [K], float64.
    """

    near: np.ndarray
    far: np.ndarray
    into: np.ndarray
    decay: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of the four and of what was made of them."""
        return nbytes(vars(self))

    @cached_property
    def forward(self) -> kernel.Operands:
        """What the compiled product takes."""
        return kernel.forward(self.near, self.far, self._entries[0], self._decays)

    @cached_property
    def backward(self) -> kernel.Operands:
        """What its compiled transpose takes."""
        return kernel.backward(self.near, self.far, self._entries[1], self._decays)

    @cached_property
    def _entries(self) -> tuple[np.ndarray, np.ndarray]:
        return kernel.entries(self.into)

    @cached_property
    def _decays(self) -> tuple[np.ndarray, np.ndarray]:
        return kernel.decays(self.decay, self.near.dtype)


def toeplitz_matrices(column: np.ndarray) -> np.ndarray:
    """Return the lower triangular matrices [channels, n, n] with first columns [channels, n]."""
    channels, n = column.shape
    backwards = np.concatenate([column[:, ::-1], np.zeros((channels, n - 1), column.dtype)], axis=1)
    # contiguous, or NumPy multiplies it without BLAS
    return np.ascontiguousarray(sliding_window_view(backwards, n, axis=-1)[:, ::-1])


def transform(x: np.ndarray, length: int) -> np.ndarray:
    """Return the transform along axis -2, padded to `length`, in double precision."""
    return rfft(x.astype(np.float64, copy=False), length, axis=-2)


def padded_length(n: int) -> int:
    """Return a length of at least 2n - 1, so that nothing wraps round, that is fast to transform."""
    return next_fast_len(max(2 * n - 1, 1), real=True)
