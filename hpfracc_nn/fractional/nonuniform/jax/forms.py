"""The weights as a kernel for JAX arrays takes them, and the product; `torch/forms.py` is the twin.

Data are [sets, rows, inputs, cells], results [sets, rows, cells]. Every product is linear in the data and made of
operations that all transforms of JAX follow. The forms are pytrees: of other times they are other arguments of what is
compiled, and no other program.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.namespace import Array, widest
from hpfracc_nn.fractional.nonuniform.weights import LENGTH

_EXACT = lax.Precision.HIGHEST


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MatrixForm:
    """All weights, [sets, cells, inputs * cells]."""

    weights: Array

    def product(self, z: Array) -> Array:
        """Return the integral at the cells' ends."""
        sets, rows, inputs, cells = z.shape
        return jnp.matmul(z.reshape(sets, rows, inputs * cells), self.weights.mT, precision=_EXACT)

    def adjoint(self, g: Array) -> Array:
        """Return the transpose of `product` on g."""
        return _transposed(self, g, self.weights.shape[-1] // self.weights.shape[-2])


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ChunkForm:
    """Weights inside chunks, and states between them; see `nonuniform/weights.py`.

    Attributes:
        near: [sets, C, L, inputs * L].
        into: [grids, C, inputs * L, Q], or None where there is one chunk.
        out: [sets, C, L, Q], times the coefficients.
        decays: Over 1, 2, 4, ... chunks, each [grids, C, 1, Q].
    """

    near: Array
    into: Array | None = None
    out: Array | None = None
    decays: tuple[Array, ...] = ()

    def product(self, z: Array) -> Array:
        """Return the integral at the cells' ends."""
        chunks = self._chunked(z)
        y = jnp.matmul(chunks, self.near.mT, precision=_EXACT)
        if self.into is not None and self.out is not None:
            states = self._scanned(jnp.matmul(chunks, self.into, precision=_EXACT))
            y = y + jnp.matmul(states, self.out.mT, precision=_EXACT)
        return y.swapaxes(1, 2).reshape(*z.shape[:2], -1)[..., : z.shape[-1]]

    def adjoint(self, g: Array) -> Array:
        """Return the transpose of `product` on g."""
        return _transposed(self, g, self.near.shape[-1] // LENGTH)

    def _chunked(self, z: Array) -> Array:
        """Return data [sets, rows, inputs, cells] as [sets, C, rows, inputs * L]."""
        sets, rows, inputs, cells = z.shape
        count = self.near.shape[1]
        padded = jnp.pad(z, ((0, 0), (0, 0), (0, 0), (0, count * LENGTH - cells)))
        chunks = padded.reshape(sets, rows, inputs, count, LENGTH).transpose(0, 3, 1, 2, 4)
        return chunks.reshape(sets, count, rows, inputs * LENGTH)

    def _scanned(self, brought: Array) -> Array:
        """Return the states before each chunk from what each one brings, by doubling, in the widest dtype there is."""
        states = _later(brought.astype(widest()), 1)
        for k, decay in enumerate(self.decays):
            states = states + decay * _later(states, 1 << k)
        return states.astype(brought.dtype)


Form = MatrixForm | ChunkForm


def _transposed(form: Form, g: Array, inputs: int) -> Array:
    sets, rows, cells = g.shape
    data = jax.ShapeDtypeStruct((sets, rows, inputs, cells), g.dtype)
    return jax.linear_transpose(form.product, data)(g)[0]  # type: ignore[no-any-return]


def _later(states: Array, step: int) -> Array:
    """Move states [sets, C, rows, Q] by `step` chunks; zeros come in."""
    return jnp.pad(states[:, : states.shape[1] - step], ((0, 0), (step, 0), (0, 0), (0, 0)))
