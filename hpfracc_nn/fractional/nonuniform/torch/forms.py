"""The weights as a kernel for tensors takes them, and the product in plain aten; `numpy/forms.py` is the twin.

Data are [sets, rows, inputs, cells], results [sets, rows, cells]. Autograd and every transform follow all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.nonuniform.weights import LENGTH


@dataclass(frozen=True, eq=False)
class MatrixForm:
    """All weights, [sets, cells, inputs * cells]."""

    weights: Tensor

    @property
    def nbytes(self) -> int:
        """Of the weights."""
        return self.weights.nbytes

    def product(self, z: Tensor) -> Tensor:
        """Return the integral at the cells' ends."""
        sets, rows, inputs, cells = z.shape
        return torch.matmul(z.reshape(sets, rows, inputs * cells), self.weights.mT)

    def adjoint(self, g: Tensor) -> Tensor:
        """Return the transpose of `product` on g."""
        sets, rows, cells = g.shape
        return torch.matmul(g, self.weights).reshape(sets, rows, -1, cells)


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """Weights inside chunks, and states between them; see `nonuniform/weights.py`.

    Attributes:
        near: [sets, C, L, inputs * L].
        into: [grids, C, inputs * L, Q], or None where there is one chunk.
        out: [sets, C, L, Q], times the coefficients.
        decays: Over 1, 2, 4, ... chunks, float64, each [grids, C, 1, Q].
    """

    near: Tensor
    into: Tensor | None
    out: Tensor | None
    decays: Sequence[Tensor]

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        tensors = [self.near, *(a for a in (self.into, self.out) if a is not None), *self.decays]
        return sum(tensor.nbytes for tensor in tensors)

    def product(self, z: Tensor) -> Tensor:
        """Return the integral at the cells' ends."""
        chunks = self._chunked(z)
        y = torch.matmul(chunks, self.near.mT)
        if self.into is not None and self.out is not None:
            y = y + torch.matmul(self._scanned(torch.matmul(chunks, self.into)), self.out.mT)
        return y.transpose(1, 2).reshape(*z.shape[:2], -1)[..., : z.shape[-1]]

    def adjoint(self, g: Tensor) -> Tensor:
        """Return the transpose of `product` on g."""
        chunks = self._chunked(g.unsqueeze(2))
        z = torch.matmul(chunks, self.near)
        if self.into is not None and self.out is not None:
            z = z + torch.matmul(self._scanned_back(torch.matmul(chunks, self.out)), self.into.mT)
        sets, count, rows = z.shape[:3]
        z = z.reshape(sets, count, rows, -1, LENGTH).permute(0, 2, 3, 1, 4)
        return z.reshape(*z.shape[:3], count * LENGTH)[..., : g.shape[-1]]

    def _chunked(self, z: Tensor) -> Tensor:
        """Return data [sets, rows, inputs, cells] as [sets, C, rows, inputs * L]."""
        sets, rows, inputs, cells = z.shape
        count = self.near.shape[1]
        padded = F.pad(z, (0, count * LENGTH - cells))
        chunks = padded.reshape(sets, rows, inputs, count, LENGTH).permute(0, 3, 1, 2, 4)
        return chunks.reshape(sets, count, rows, inputs * LENGTH)

    def _scanned(self, brought: Tensor) -> Tensor:
        """Return the states before each chunk from what each one brings, by doubling, in float64."""
        states = _moved(brought.to(torch.float64), 1)
        for k, decay in enumerate(self.decays):
            states = states + decay * _moved(states, 1 << k)
        return states.to(brought.dtype)

    def _scanned_back(self, grads: Tensor) -> Tensor:
        """Return the transpose of `_scanned` on gradients."""
        states = grads.to(torch.float64)
        for k, decay in reversed(list(enumerate(self.decays))):
            states = states + _moved(decay * states, -(1 << k))
        return _moved(states, -1).to(grads.dtype)


Form = MatrixForm | ChunkForm


def _moved(states: Tensor, step: int) -> Tensor:
    """Move states [sets, C, rows, Q] by `step` chunks, later or, below 0, earlier; zeros come in."""
    count = states.shape[1]
    if step > 0:
        return F.pad(states.narrow(1, 0, count - step), (0, 0, 0, 0, step, 0))
    return F.pad(states.narrow(1, -step, count + step), (0, 0, 0, 0, 0, -step))
