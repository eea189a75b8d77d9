"""The weights of fixed orders at given times, in the form that a kernel asks for; kept by value."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.nonuniform import weights
from hpfracc_nn.fractional.nonuniform.numpy.forms import ChunkForm, Form, MatrixForm
from hpfracc_nn.fractional.nonuniform.times import Times
from hpfracc_nn.fractional.shelf import Charge
from hpfracc_nn.fractional.weights import SHELF


@dataclass(frozen=True, eq=False)
class CellWeights:
    """An integral at given times.

    Attributes:
        power: Its order p, [a, 1], or each row its own, [a, cells].
        times: More than one.
        inputs: Numbers on a cell.
        dtype: What the product is computed in.
        charge: What is told of every array that is made.
    """

    power: np.ndarray
    times: Times
    inputs: int
    dtype: np.dtype
    charge: Charge = field(repr=False)
    _forms: dict[str, Form] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def states(self) -> int:
        """What the exponentials carry; 0 where the order is above 1, or where one chunk holds all cells."""
        return self._chunks.states if self.power.max() <= 1 else 0

    def matrix(self) -> MatrixForm:
        """All weights at once."""
        if "matrix" not in self._forms:
            found = weights.matrix(self.power, self.times, self.inputs, NUMPY)
            self._forms["matrix"] = self.charge(MatrixForm(found.astype(self.dtype)))
        return self._forms["matrix"]  # type: ignore[return-value]

    def chunks(self) -> ChunkForm:
        """Weights inside chunks and states between them."""
        if "chunks" not in self._forms:
            self._forms["chunks"] = self.charge(self._chunked())
        return self._forms["chunks"]  # type: ignore[return-value]

    def _chunked(self) -> ChunkForm:
        chunks = self._chunks
        near = chunks.near(self.power, NUMPY).astype(self.dtype)
        if chunks.nodes is None:
            return ChunkForm(near, None, None, [])
        out = (chunks.out * chunks.coefficients(self.power, NUMPY)).astype(self.dtype)
        return ChunkForm(near, chunks.into.astype(self.dtype), out, chunks.decays)

    @cached_property
    def _chunks(self) -> weights.Chunks:
        return weights.Chunks(self.times, self.inputs, self.dtype.name)


def weights_of(power: np.ndarray, times: Times, inputs: int, dtype: np.dtype) -> CellWeights:
    """Return the weights of fixed orders: those that are kept, or new ones."""
    key = "nonuniform", power.shape, power.tobytes(), times, inputs, dtype
    return SHELF.get(key, lambda charge: CellWeights(power, times, inputs, dtype, charge))
