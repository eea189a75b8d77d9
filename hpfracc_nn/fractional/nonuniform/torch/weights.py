"""The weights at given times as tensors: of fixed orders kept by value, of learned ones traced in float64."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.nonuniform import weights
from hpfracc_nn.fractional.nonuniform.times import Times
from hpfracc_nn.fractional.nonuniform.torch.forms import ChunkForm, Form, MatrixForm
from hpfracc_nn.fractional.shelf import Charge, free
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.slopes import slopes
from hpfracc_nn.fractional.weights import SHELF

_NAMES = {torch.float32: "float32", torch.float64: "float64"}


class Grid:
    """What weights take from the times alone, kept by value: tensors on a device."""

    def __init__(self, times: Times, inputs: int, dtype: torch.dtype, device: torch.device, charge: Charge):
        self.times, self.inputs, self.dtype, self.device, self._charge = times, inputs, dtype, device, charge
        self.chunks = weights.Chunks(times, inputs, _NAMES[dtype])

    @cached_property
    def into(self) -> Tensor:
        """See `weights.Chunks`."""
        return self._charge(torch.as_tensor(self.chunks.into, device=self.device).to(self.dtype))  # type: ignore[no-any-return]

    @cached_property
    def out(self) -> Tensor:
        """See `weights.Chunks`; float64."""
        return self._charge(torch.as_tensor(self.chunks.out, device=self.device))  # type: ignore[no-any-return]

    @cached_property
    def decays(self) -> tuple[Tensor, ...]:
        """See `weights.Chunks`; float64."""
        return self._charge(tuple(torch.as_tensor(d, device=self.device) for d in self.chunks.decays))  # type: ignore[no-any-return]


class CellWeights:
    """An integral at given times.

    Args:
        power: Its order p, [a, 1], or each row its own, [a, cells]: NumPy's where it is fixed, else a tensor, float64.
        grid: The times.
        largest: The largest value that p may take.
        charge: What is told of every tensor that is made.
    """

    def __init__(self, power: np.ndarray | Tensor, grid: Grid, largest: float, charge: Charge = free):
        self.power, self.grid, self._largest, self._charge = power, grid, largest, charge
        self._forms: dict[str, Form] = {}

    @property
    def states(self) -> int:
        """What the exponentials carry; 0 where the order may be above 1, or where one chunk holds all cells."""
        return self.grid.chunks.states if self._largest <= 1 else 0

    def matrix(self) -> MatrixForm:
        """All weights at once."""
        return self._kept("matrix")  # type: ignore[return-value]

    def chunks(self) -> ChunkForm:
        """Weights inside chunks and states between them."""
        return self._kept("chunks")  # type: ignore[return-value]

    def at(self, power: Tensor) -> CellWeights:
        """Return the weights of other orders at the same times, made anew."""
        return CellWeights(power, self.grid, self._largest)

    def slopes(self, power: Tensor) -> Slopes:
        """Return the derivative of the weights in p at `power`."""
        return Slopes(power, self.grid, self._largest)

    def _kept(self, name: str) -> Form:
        found = self._forms.get(name)
        if found is None:
            found = self._forms[name] = self._charge(self._made(name))
        return found

    def _made(self, name: str) -> Form:
        if isinstance(self.power, Tensor):
            return self._placed(name, self._formulas(name, self.power))
        found = _formulas(name, self.power, self.grid, NUMPY)
        return self._placed(name, [torch.as_tensor(each, device=self.grid.device) for each in found])

    def _formulas(self, name: str, power: Tensor) -> list[Tensor]:
        return list(_formulas(name, power, self.grid, TORCH))

    def _placed(self, name: str, found: list[Tensor]) -> Form:
        grid = self.grid
        first = found[0].to(grid.dtype)
        if name == "matrix":
            return MatrixForm(first)
        if len(found) == 1:
            return ChunkForm(first, None, None, ())
        return ChunkForm(first, grid.into, (grid.out * found[1]).to(grid.dtype), grid.decays)


class Slopes(CellWeights):
    """The derivative of weights in p, each row's in its own: in place of the weights they give the result's."""

    def _formulas(self, name: str, power: Tensor) -> list[Tensor]:
        return slopes(lambda p: _formulas(name, p, self.grid, TORCH), power)


def _formulas(name: str, power, grid: Grid, xp) -> tuple:  # type: ignore[no-untyped-def]
    """Return what depends on p, float64: the matrix, or the chunks' near weights and, of several, coefficients."""
    if name == "matrix":
        return (weights.matrix(power, grid.times, grid.inputs, xp),)
    near = grid.chunks.near(power, xp)
    return (near,) if grid.chunks.nodes is None else (near, grid.chunks.coefficients(power, xp))


def grid_of(times: Times, inputs: int, dtype: torch.dtype, device: torch.device) -> Grid:
    """Return what is kept of given times, or a new one."""
    key = "nonuniform grid", times, inputs, dtype, device
    return SHELF.get(key, lambda charge: Grid(times, inputs, dtype, device, charge))


def weights_of(power: np.ndarray | Tensor, grid: Grid, largest: float) -> CellWeights:
    """Return the weights at given times: those that are kept where the orders are fixed, else new ones."""
    if isinstance(power, Tensor):
        return CellWeights(power, grid, largest)
    key = "nonuniform", power.shape, power.tobytes(), grid.times, grid.inputs, grid.dtype, grid.device
    return SHELF.get(key, lambda charge: CellWeights(power, grid, largest, charge))
