"""A cell with a memory over a series: a scan over blocks of steps, and inside of each a scan over its steps.

These functions are compiled once for each shape, so that calls outside of `jax.jit` are fast too.

The memory m_t is an average of the past values c by a power law, m_t = sum over k >= 1 of a_k c_(t-k), taken block by
block of L steps. Between two blocks the past is a few numbers per unit: the last K values, whose lags are exact, newest
first, and Q sums

    S_q = sum over k > K of exp(-s_q (k - K - 1)) c_(t+1-k)

for the exponentials exp(-s_q k), q = 1 ... Q, that stand for the weights of older lags (`layers/order.py`). None of
them depends on alpha. Their part of the memories of the next block is one product. Inside a block each value adds
a_1 c, a_2 c, ... to the memories that follow: for a gradient in alpha nothing is kept of a step but its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.schemes.differences import binomial
from hpfracc_nn.layers.order import memory_nodes

BLOCK = 16  # steps


class Before(NamedTuple):
    """The carry of a recurrence: the last output and value, and the past.

    Attributes:
        h: The last output, [batch, outputs].
        value: What was remembered last, [batch, units].
        past: All that was remembered.
    """

    h: Array
    value: Array
    past: Past


class Record(NamedTuple):
    """The outputs of a recurrence, and what its state after any step is made of.

    Attributes:
        out: The outputs, [n, batch, outputs].
        values: What is remembered, [n, batch, units].
        pasts: Those at the beginning of each block, [blocks, batch, ...].
    """

    out: Array
    values: Array
    pasts: Past


def block_of(n: int) -> int:
    """Return the steps of a block of a series of n."""
    return min(n, BLOCK)


def spread(before: Before, x: Array, others: Any) -> Before:
    """Return the start where the steps put what they make of it: a scan carries what lies on the same axes of a mesh.

    Args:
        before: The start, which may lie on none of them.
        x: One step, [batch, ...], whose batch may be sharded.
        others: Arrays that may differ from device to device inside of `jax.shard_map`.
    """
    zero = jnp.zeros_like(x[:, :1])
    for each in jax.tree.leaves(others):
        zero = zero + jnp.zeros_like(each, x.dtype, shape=())
    past = Past(*(each + zero[:, None] for each in before.past))
    return Before(before.h + zero, before.value + zero, past)


@partial(jax.jit, static_argnames=("cell", "lags"))
def recurrence(cell: Cell, weights: Weights, x: Array, before: Before, lags: Lags, taps: Taps) -> Record:
    """Take all steps.

    Args:
        cell: The kind of cell.
        weights: Of the cell.
        x: The input's part of the gates, [n, batch, gates * units].
        before: The start.
        lags: How the past is kept.
        taps: The weights for blocks of `block_of(n)` steps.
    """
    return unplaced(partial(_taken, cell, lags), weights, x, before, taps)  # type: ignore[no-any-return]


def _taken(cell: Cell, lags: Lags, weights: Weights, x: Array, before: Before, taps: Taps) -> Record:
    n, length = x.shape[0], block_of(x.shape[0])
    blocks = -(-n // length)
    before = spread(before, x[0], (weights, taps))
    # What is behind the end is computed and not looked at.
    x = jnp.pad(x, ((0, blocks * length - n), (0, 0), (0, 0))).reshape(blocks, length, *x.shape[1:])

    def step(carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        h, memories = carry
        h, value = cell.step(weights, x, h, memories[0])
        later = jnp.concatenate([memories[1:], jnp.zeros_like(memories[:1])])
        return (h, later + taps.given(value)), (h, value)

    def block(carry: tuple[Array, Past], x: Array) -> tuple[tuple[Array, Past], tuple[Array, Array, Past]]:
        h, past = carry
        (h, _), (out, values) = jax.lax.scan(step, (h, lags.memories(taps, past)), x)
        return (h, lags.advanced(past, values, length)), (out, values, past)

    _, (out, values, pasts) = jax.lax.scan(block, (before.h, before.past), x)
    out, values = (each.reshape(blocks * length, *each.shape[2:])[:n] for each in (out, values))
    return Record(out, values, pasts)


@partial(jax.jit, static_argnames=("lags",))
def after(record: Record, before: Before, lags: Lags, steps: Array) -> Before:
    """Return what the next step is computed from, after the first `steps` of each series, [batch]."""
    n, length = record.values.shape[0], block_of(record.values.shape[0])
    item, index = jnp.arange(steps.shape[0]), jnp.maximum(steps - 1, 0)
    number = index // length
    rows = number[None] * length + jnp.arange(length)[:, None]
    values = record.values[jnp.minimum(rows, n - 1), item[None]]  # what lies behind `steps` is not looked at
    past = Past(*(each[number, item] for each in record.pasts))
    has_begun = (steps > 0)[:, None]
    return Before(
        jnp.where(has_begun, record.out[index, item], before.h),
        jnp.where(has_begun, record.values[index, item], before.value),
        lags.advanced(past, values, steps - number * length),
    )


@partial(jax.jit, static_argnames=("cell", "lags"))
def one_step(cell: Cell, weights: Weights, x: Array, before: Before, lags: Lags, taps: Taps) -> Before:
    """Return what the step after next is computed from; arguments as in `recurrence`, x [batch, gates * units]."""
    h, value = cell.step(weights, x, before.h, lags.memories(taps, before.past)[0])
    return Before(h, value, lags.advanced(before.past, value[None], 1))


class Weights(NamedTuple):
    """The recurrent weights of a cell.

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


_EXACTLY = jax.lax.Precision.HIGHEST


class Taps(NamedTuple):
    """Weights for a block of L steps.

    Attributes:
        past: What each step has of the past, [c, L, K + Q], c one or the units.
        within: a_1, ..., a_L, [c, L].
    """

    past: Array
    within: Array

    def given(self, value: Array) -> Array:
        """Return what a value [batch, units] adds to the memories of the steps that follow it, [L, batch, units]."""
        # A product and no multiplication, because of its transpose: XLA's sums over the first axis are no vector code.
        if self.within.shape[0] == 1:
            return jnp.einsum("l,bu->lbu", self.within[0], value)
        return jnp.einsum("ul,bu->lbu", self.within, value)


class Past(NamedTuple):
    """The memory of a cell between two blocks.

    Attributes:
        near: The last values, newest first, [batch, K, units].
        far: The sums of the exponentials, [batch, Q, units].
    """

    near: Array
    far: Array


@dataclass(frozen=True)
class Lags:
    """Which lags are exact, and what stands for the others.

    Attributes:
        exact: K.
        nodes: The exponentials for all older lags, or None: then these do not count.
        window: The largest lag that counts, or None.
    """

    exact: int
    nodes: Nodes | None
    window: int | None

    @property
    def rates(self) -> np.ndarray:
        """s, [Q]."""
        return np.empty(0) if self.nodes is None else self.nodes.rates

    def weights(self, length: int, alpha: Any, xp: Any) -> Taps:
        """Return the weights for orders [c] of a namespace, its arrays in float64."""
        near = np.arange(1, length + self.exact)
        lags = near if self.nodes is None else np.union1d(near, self.nodes.lags)
        column = -binomial(alpha, lags, xp)
        if self.window is not None:
            column = column * xp.constant((lags <= self.window).astype(np.float64), column)
        index = np.arange(length)[:, None] + np.arange(self.exact)
        past = column[..., index]
        if self.nodes is not None:
            fitted = self.nodes.fit(xp.take(column, np.searchsorted(lags, self.nodes.lags), axis=-1), xp)
            decays = np.exp(-np.outer(np.arange(length), self.rates))
            past = xp.concat([past, fitted[..., None, :] * xp.constant(decays, fitted)], axis=-1)
        return Taps(past, column[..., :length])

    def taps(self, definition: GrunwaldLetnikov, alpha: Array | None, length: int, dtype: Any) -> Taps:
        """Return the weights in the dtype of the data; `alpha` is a learned order, None that of the definition."""
        if alpha is None:
            return Taps(*(jnp.asarray(each, dtype) for each in _fixed(self, definition.orders, length)))
        return in_float64(lambda orders: self.weights(length, orders, JAX), alpha.reshape(-1), dtype)

    def begun(self, value: Array) -> Past:
        """Return the past that is one value, [batch, units]."""
        batch, units = value.shape
        near = jnp.pad(value[:, None], ((0, 0), (0, self.exact - 1), (0, 0)))
        return Past(near, jnp.zeros((batch, self.rates.size, units), value.dtype))

    def memories(self, taps: Taps, past: Past) -> Array:
        """Return what the steps of a block have of the past, [L, batch, units]."""
        kept = jnp.concatenate([past.near, past.far], axis=1)
        weights = taps.past
        if weights.shape[0] == 1:
            return jnp.einsum("lk,bku->lbu", weights[0], kept, precision=_EXACTLY)
        return jnp.einsum("ulk,bku->lbu", weights, kept, precision=_EXACTLY)

    def advanced(self, past: Past, values: Array, steps: Any) -> Past:
        """Return the past after the first `steps` of the values [L, batch, units]: one number, or one for each item."""
        length, dtype = values.shape[0], values.dtype
        held = jnp.concatenate([jnp.flip(past.near, 1), jnp.moveaxis(values, 0, 1)], axis=1)  # oldest first
        newest = jnp.broadcast_to(steps, held.shape[:1])[:, None] + (self.exact - 1 - np.arange(self.exact))[None]
        near = jnp.take_along_axis(held, newest[..., None], axis=1)
        if self.nodes is None:
            return Past(near, past.far)
        decay, gain = (jnp.asarray(each, dtype)[steps] for each in _decays(self.nodes, length))
        item = "b" if gain.ndim == 3 else ""
        entered = jnp.einsum(f"{item}qj,bju->bqu", gain, held[:, :length], precision=_EXACTLY)
        return Past(near, past.far * jnp.broadcast_to(decay[..., None], past.far.shape) + entered)


def lags_of(definition: GrunwaldLetnikov, n: int, dtype: Any, window: int | None, *, is_learned: bool) -> Lags:
    """Return how the past of n steps is kept."""
    if window is not None:
        return Lags(window, None, window)
    # Of a learned order all of its bounds count.
    known = replace(definition, alpha=jnp.float32(definition.interval[1])) if is_learned else definition
    nodes = memory_nodes(known, n, jnp.dtype(dtype).name, window)
    return Lags(n, None, None) if nodes is None else Lags(nodes.first - 1, nodes, None)


@lru_cache(maxsize=256)
def _fixed(lags: Lags, orders: tuple[float, ...], length: int) -> Taps:
    return lags.weights(length, np.array(orders), NUMPY)


@lru_cache(maxsize=64)
def _decays(nodes: Nodes, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how the sums S_q change in r = 0 ... L steps.

    Args:
        nodes: The exponentials, with their rates s_q, [Q].
        length: L.

    Returns:
        The factors of the sums, exp(-s_q r), [L + 1, Q]; and the factors with which each value that goes over into the
        sums in these steps is added, [L + 1, Q, L].
    """
    rates, steps = nodes.rates, np.arange(length + 1)
    ahead = steps[:, None] - 1 - np.arange(length)  # [r, j]
    gain = np.where(ahead[:, None] < 0, 0.0, np.exp(-rates[:, None] * np.maximum(ahead[:, None], 0)))
    return np.exp(-np.outer(steps, rates)), gain
