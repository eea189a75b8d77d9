"""The weights at given times as tensors: of fixed orders kept by value, of learned ones traced in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.complex_step import slope
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.nonuniform import weights
from hpfracc_nn.fractional.nonuniform.times import Times
from hpfracc_nn.fractional.nonuniform.torch.forms import ChunkForm, Form, MatrixForm
from hpfracc_nn.fractional.shelf import Charge, free
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.probe import is_traced
from hpfracc_nn.fractional.torch.slopes import slopes
from hpfracc_nn.fractional.torch.streams import follow, kept, on
from hpfracc_nn.fractional.weights import SHELF

Formula = Callable[[Any, Any], Any]  # of p and its namespace
_NAMES = {torch.float32: "float32", torch.float64: "float64"}


class Grid:
    """What weights take from the times alone, kept by value: tensors on a device."""

    def __init__(self, times: Times, inputs: int, dtype: torch.dtype, device: torch.device, charge: Charge):
        self.times, self.inputs, self.dtype, self.device, self.charge = times, inputs, dtype, device, charge
        self.chunks = weights.Chunks(times, inputs, _NAMES[dtype])

    @cached_property
    def into(self) -> Tensor:
        """See `weights.Chunks`."""
        return self.charge(torch.as_tensor(self.chunks.into, device=self.device).to(self.dtype))  # type: ignore[no-any-return]

    @cached_property
    def out(self) -> Tensor:
        """See `weights.Chunks`; float64."""
        return self.charge(torch.as_tensor(self.chunks.out, device=self.device))  # type: ignore[no-any-return]

    @cached_property
    def decays(self) -> tuple[Tensor, ...]:
        """See `weights.Chunks`; float64."""
        return self.charge(tuple(torch.as_tensor(d, device=self.device) for d in self.chunks.decays))  # type: ignore[no-any-return]


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
        found: Form = kept(self._charge, self._forms, name, partial(self._made, name))
        return found

    def _made(self, name: str) -> Form:
        if name == "matrix":
            return MatrixForm(self._joined(_rows(self.grid)))
        grid = self.grid
        near = self._joined(_chunks(grid))
        if grid.chunks.nodes is None:
            return ChunkForm(near, None, None, ())
        into, out, decays = grid.into, grid.out, grid.decays
        follow(grid.charge)
        return ChunkForm(near, into, (out * self._evaluated(grid.chunks.coefficients)).to(grid.dtype), decays)

    def _joined(self, formulas: list[Formula]) -> Tensor:
        """Return what formulas give, in the product's dtype, one after the other along axis 1."""
        return torch.cat([self._evaluated(formula).to(self.grid.dtype) for formula in formulas], dim=1)

    def _evaluated(self, formula: Formula) -> Tensor:
        """Return what a formula gives, float64: by NumPy where nobody follows."""
        if _is_followed(self.power):
            return formula(self.power, TORCH)
        return torch.as_tensor(formula(_values(self.power), NUMPY), device=self.grid.device)


class Slopes(CellWeights):
    """The derivative of weights in p, each row's in its own: in place of the weights they give the result's."""

    power: Tensor

    def _evaluated(self, formula: Formula) -> Tensor:
        if _is_followed(self.power):
            return slopes(lambda p: [formula(p, TORCH)], self.power)[0]
        return torch.as_tensor(slope(formula, _values(self.power)), device=self.grid.device)


def _is_followed(power: np.ndarray | Tensor) -> bool:
    """Whether autograd, a transform or a device has to see how weights are made."""
    if isinstance(power, np.ndarray):
        return False
    return (power.requires_grad and torch.is_grad_enabled()) or is_traced(power, ()) or power.device.type != "cpu"


def _values(power: np.ndarray | Tensor) -> np.ndarray:
    return power.detach().resolve_neg().numpy() if isinstance(power, Tensor) else power


def _rows(grid: Grid) -> list[Formula]:
    """Return the matrix's formulas, each of so many rows that what autograd keeps of one is small."""
    times, inputs = grid.times, grid.inputs
    return [
        partial(weights.matrix_rows, times=times, inputs=inputs, rows=rows)
        for rows in weights.blocks_of(times.cells, weights.ROWS)
    ]


def _chunks(grid: Grid) -> list[Formula]:
    """The same of the weights inside chunks."""
    blocks = weights.blocks_of(grid.chunks.count, weights.CHUNKS)
    return [partial(grid.chunks.near, chunks=chunks) for chunks in blocks]


def grid_of(times: Times, inputs: int, x: Tensor, dtype: torch.dtype) -> Grid:
    """Return what is kept of given times, or a new one."""
    if is_traced(x, ()):
        return Grid(times, inputs, dtype, x.device, free)  # what a tracer sees is not kept
    key = "nonuniform grid", times, inputs, dtype, x.device
    return SHELF.get(key, lambda charge: Grid(times, inputs, dtype, x.device, on(x.device, charge)))


def weights_of(power: np.ndarray | Tensor, grid: Grid, x: Tensor, largest: float) -> CellWeights:
    """Return the weights at given times: those that are kept where the orders are fixed and nobody traces, else new."""
    if isinstance(power, Tensor) or is_traced(x, ()):
        return CellWeights(power, grid, largest)
    key = "nonuniform", power.shape, power.tobytes(), grid.times, grid.inputs, grid.dtype, grid.device
    return SHELF.get(key, lambda charge: CellWeights(power, grid, largest, on(grid.device, charge)))
