"""The weights as a kernel for NumPy arrays takes them, and the product; `torch/forms.py` is the twin.

Data are [sets, rows, inputs, cells], results [sets, rows, cells].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpfracc_nn.fractional.nonuniform.weights import LENGTH


@dataclass(frozen=True, eq=False)
class MatrixForm:
    """All weights, [sets, cells, inputs * cells]."""

    weights: np.ndarray

    @property
    def nbytes(self) -> int:
        """Of the weights."""
        return self.weights.nbytes

    def product(self, z: np.ndarray) -> np.ndarray:
        """Return the integral at the cells' ends."""
        sets, rows, inputs, cells = z.shape
        return z.reshape(sets, rows, inputs * cells) @ self.weights.swapaxes(1, 2)

    def adjoint(self, g: np.ndarray) -> np.ndarray:
        """Return the transpose of `product` on g."""
        sets, rows, cells = g.shape
        return (g @ self.weights).reshape(sets, rows, -1, cells)


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """Weights inside chunks, and states between them; see `nonuniform/weights.py`.

    Attributes:
        near: [sets, C, L, inputs * L].
        into: [grids, C, inputs * L, Q], or None where there is one chunk.
        out: [sets, C, L, Q], times the coefficients.
        decays: Over 1, 2, 4, ... chunks, float64, each [grids, C, 1, Q].
    """

    near: np.ndarray
    into: np.ndarray | None
    out: np.ndarray | None
    decays: list[np.ndarray]

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        arrays = [self.near, *(a for a in (self.into, self.out) if a is not None), *self.decays]
        return sum(array.nbytes for array in arrays)

    def product(self, z: np.ndarray) -> np.ndarray:
        """Return the integral at the cells' ends."""
        chunks = self._chunked(z)
        y = chunks @ self.near.swapaxes(-1, -2)
        if self.into is not None and self.out is not None:
            y += self._scanned(chunks @ self.into) @ self.out.swapaxes(-1, -2)
        return y.swapaxes(1, 2).reshape(*z.shape[:2], -1)[..., : z.shape[-1]]

    def adjoint(self, g: np.ndarray) -> np.ndarray:
        """Return the transpose of `product` on g."""
        chunks = self._chunked(g[:, :, None])
        z = chunks @ self.near
        if self.into is not None and self.out is not None:
            z += self._scanned_back(chunks @ self.out) @ self.into.swapaxes(-1, -2)
        count, length = self.near.shape[1:3]
        z = z.reshape(*z.shape[:3], -1, length).transpose(0, 2, 3, 1, 4)
        return z.reshape(*z.shape[:3], count * length)[..., : g.shape[-1]]

    def _chunked(self, z: np.ndarray) -> np.ndarray:
        """Return data [sets, rows, inputs, cells] as [sets, C, rows, inputs * L]."""
        sets, rows, inputs, cells = z.shape
        count = self.near.shape[1]
        padded = np.zeros((sets, rows, inputs, count * LENGTH), z.dtype)
        padded[..., :cells] = z
        chunks = padded.reshape(sets, rows, inputs, count, LENGTH).transpose(0, 3, 1, 2, 4)
        return chunks.reshape(sets, count, rows, inputs * LENGTH)

    def _scanned(self, brought: np.ndarray) -> np.ndarray:
        """Return the states before each chunk from what each one brings, by doubling, in float64."""
        states = np.zeros(brought.shape)
        states[:, 1:] = brought[:, :-1]
        step = 1
        for decay in self.decays:
            states[:, step:] += decay[:, step:] * states[:, :-step].copy()
            step *= 2
        return states.astype(brought.dtype)

    def _scanned_back(self, grads: np.ndarray) -> np.ndarray:
        """Return the transpose of `_scanned` on gradients."""
        states = grads.astype(np.float64)
        for k, decay in reversed(list(enumerate(self.decays))):
            step = 1 << k
            states[:, :-step] += (decay * states)[:, step:]
        brought = np.zeros(grads.shape, grads.dtype)
        brought[:, :-1] = states[:, 1:]
        return brought


Form = MatrixForm | ChunkForm
