"""From a definition to the form that a kernel for NumPy arrays wants, cached by value.

`torch/weights.py` is the twin.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numpy.forms import ChunkForm, ColumnForm
from hpfracc_nn.fractional.numpy.frame import Frame
from hpfracc_nn.fractional.schemes.exponentials import SHORTEST, Nodes, exponentials
from hpfracc_nn.fractional.shelf import Charge, free
from hpfracc_nn.fractional.state_space import chunk_matrices, toeplitz, transitions
from hpfracc_nn.fractional.weights import SHELF, fixed_stencil, without_negligible


class Weights:
    """The stencil of one fixed definition on `n` samples, and the forms that kernels asked for.

    Args:
        definition: With alpha a number, or as many as there are channels.
        n: Samples, at least 1.
        dt: Their spacing.
        dtype: What the product is computed in.
        charge: What is told of every array that they make.
    """

    def __init__(self, definition: Definition, n: int, dt: float, dtype: np.dtype, charge: Charge = free):
        self.n, self.dtype, self._charge = n, dtype, charge
        self.stencil = fixed_stencil(definition, n, dt)
        short = n <= SHORTEST
        self.nodes: Nodes | None = None if short else exponentials(definition.in_steps(dt), n, dtype.name)
        self.kept: dict[Any, Any] = {}  # what callers make of them, with the same life
        self._chunks: dict[int, ChunkForm] = {}

    @property
    def states(self) -> int:
        """What a recurrence would carry; 0 where none can stand for these weights."""
        return 0 if self.nodes is None else self.nodes.states

    @cached_property
    def column(self) -> ColumnForm:
        """The whole column, [channels, n]."""
        return ColumnForm(self._cast(self._at(np.arange(self.n))), self._charge)

    def chunks(self, length: int) -> ChunkForm:
        """The chunk matrices for chunks of `length`; with more than one chunk `nodes` may not be None."""
        if length not in self._chunks:
            self._chunks[length] = self._in_chunks(length)
        return self._chunks[length]

    @cached_property
    def frame(self) -> Frame:
        """What stands around the product: boundary columns are those of d[start_index], x(0) and dt x'(0)."""
        stencil, n, rows = self.stencil, self.n, np.arange(self.n)
        columns = []
        if stencil.starts and stencil.start_column is not None:
            columns.append(np.reshape(stencil.start_column(rows), (1, -1, n)))
        if stencil.analytic_columns is not None:
            columns.append(np.reshape(stencil.analytic_columns(rows), (-1, stencil.terms, n)).swapaxes(0, 1))
        return Frame(stencil, self._cast(np.concatenate(columns) if columns else np.empty((0, 1, n))))

    def _in_chunks(self, length: int) -> ChunkForm:
        nodes = self.nodes if self.n > length else None
        if nodes is None:
            assert self.n <= length, "the kernel accepts sums of exponentials only"
            column = np.pad(self._at(np.arange(self.n)), ((0, 0), (0, length - self.n)))
            near = toeplitz(column)
            zeros = np.zeros((near.shape[0], 1, length), self.dtype), np.zeros((length, 1), self.dtype)
            return ChunkForm(self._cast(near), *zeros, np.zeros(1), self._charge)
        form = transitions(nodes, length)
        near, far = chunk_matrices(self._at(form.lags), form)
        into = self._charge(form.into.astype(self.dtype))
        return ChunkForm(self._cast(near), self._cast(far), into, form.decay, self._charge)

    def _at(self, lags: np.ndarray) -> np.ndarray:
        return np.reshape(self.stencil.column(lags), (-1, lags.size))

    def _cast(self, values: np.ndarray) -> np.ndarray:
        return self._charge(np.ascontiguousarray(without_negligible(values, NUMPY), self.dtype))


def weights_of(definition: Definition, n: int, dt: float, dtype: np.dtype) -> Weights:
    """Return the weights of a fixed definition: those that are kept, or new ones."""
    key = "numpy", definition, n, dt, dtype
    return SHELF.get(key, lambda charge: Weights(definition, n, dt, dtype, charge))
