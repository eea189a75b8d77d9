"""One step of a cell: the ordinary cells, but for the memory in the place of what was held before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array


class Weights(NamedTuple):
    """What a cell multiplies its outputs with.

    Attributes:
        kernel: [outputs, gates * units].
        bias: What is added to the last gate's part of that product, [units], or None.
        projection: From units to outputs, [units, outputs], or None.
    """

    kernel: Array
    bias: Array | None
    projection: Array | None


class Cell(Protocol):
    """A kind of cell.

    Attributes:
        gates: How many gates a unit has.
    """

    gates: ClassVar[int]

    def step(self, weights: Weights, x: Array, h: Array, m: Array) -> tuple[Array, Array]:
        """Return the output and what is remembered.

        Args:
            weights: Of the cell.
            x: The input's part of the gates, [batch, gates * units].
            h: The output before, [batch, outputs].
            m: The memory, [batch, units].
        """
        ...


class LSTM:
    """c = f * m + i * g and h = o * tanh(c), with gates i, f, g, o as in `flax.nnx.OptimizedLSTMCell`."""

    gates: ClassVar[int] = 4

    def step(self, weights: Weights, x: Array, h: Array, m: Array) -> tuple[Array, Array]:
        """See `Cell`."""
        i, f, g, o = jnp.split(x + h @ weights.kernel, 4, axis=-1)
        c = jax.nn.sigmoid(f) * m + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h if weights.projection is None else h @ weights.projection), c


class GRU:
    """h = (1 - z) * n + z * m, with gates r, z, n as in `flax.linen.GRUCell`."""

    gates: ClassVar[int] = 3

    def step(self, weights: Weights, x: Array, h: Array, m: Array) -> tuple[Array, Array]:
        """See `Cell`."""
        of_r, of_z, of_n = jnp.split(x, 3, axis=-1)
        r, z, q = jnp.split(h @ weights.kernel, 3, axis=-1)
        r, z = jax.nn.sigmoid(of_r + r), jax.nn.sigmoid(of_z + z)
        n = jnp.tanh(of_n + r * (q if weights.bias is None else q + weights.bias[None]))
        h = n + z * (m - n)
        return h, h


CELLS: Mapping[str, Cell] = {"lstm": LSTM(), "gru": GRU()}
