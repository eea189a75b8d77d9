"""A cell with a memory over a series: a scan over blocks of steps, and inside of each a scan over its steps.

These functions are compiled once for each shape, so that calls outside of `jax.jit` are fast too.

A cell's state c (c of an LSTM, h of a GRU) is called `value` in code. The memory m_t is an average of the past cell
states by a power law, m_t = sum over k >= 1 of a_k c_(t-k), taken block by block of L steps. Between two blocks the
past is a few numbers per unit: the last K cell states, whose lags are exact, newest first, and Q sums

    S_q = sum over k > K of exp(-s_q (k - K - 1)) c_(t+1-k)

for the exponentials exp(-s_q k), q = 1 ... Q, that stand for the weights of older lags (`layers/order.py`). None of
them depends on alpha. Their part of the memories of the next block is one product. Inside a block each cell state adds
a_1 c, a_2 c, ... to the memories that follow: for a gradient in alpha only the cell states are kept.
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
    """The carry of a recurrence between two steps, from which the next step is computed.

    Attributes:
        h: The last output, [batch, outputs].
        value: The last cell state, [batch, units].
        past: All cell states so far, as the memory keeps them.
    """

    h: Array
    value: Array
    past: Past


class Record(NamedTuple):
    """The outputs of a recurrence over n steps, and all that `after` needs for the carry after any step.

    Attributes:
        out: The outputs, [n, batch, outputs].
        values: The cell states, [n, batch, units].
        pasts: The past at the beginning of each block, [blocks, batch, ...].
    """

    out: Array
    values: Array
    pasts: Past


def block_of(n: int) -> int:
    """Return how many steps a block has in a series of n steps: at most `BLOCK`."""
    return min(n, BLOCK)


def spread(before: Before, x: Array, others: Any) -> Before:
    """Return an initial carry sharded like the carries of later steps, as a scan requires of its carry.

    Args:
        before: The initial carry, which may not be sharded.
        x: The inputs of one step, [batch, ...], whose batch may be sharded.
        others: Arrays that may differ from device to device inside of `jax.shard_map`.
    """
    zero = jnp.zeros_like(x[:, :1])
    for each in jax.tree.leaves(others):
        zero = zero + jnp.zeros_like(each, x.dtype, shape=())
    past = Past(*(each + zero[:, None] for each in before.past))
    return Before(before.h + zero, before.value + zero, past)


@partial(jax.jit, static_argnames=("cell", "lags"))
def recurrence(cell: Cell, weights: Weights, x: Array, before: Before, lags: Lags, taps: Taps) -> Record:
    """Return the Record of a recurrence over a series of n steps.

    Args:
        cell: An LSTM's or a GRU's formulas.
        weights: The cell's recurrent weights.
        x: The input's part of the gates, [n, batch, gates * units].
        before: The initial carry.
        lags: How the past is kept.
        taps: The memory's weights for blocks of `block_of(n)` steps.
    """
    return unplaced(partial(_taken, cell, lags), weights, x, before, taps)  # type: ignore[no-any-return]


def _taken(cell: Cell, lags: Lags, weights: Weights, x: Array, before: Before, taps: Taps) -> Record:
    n, length = x.shape[0], block_of(x.shape[0])
    blocks = -(-n // length)
    before = spread(before, x[0], (weights, taps))
    # Steps behind the end are computed too, and their results dropped.
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
    """Return the carry after the first `steps` of each series, [batch], where the recurrence began with `before`."""
    n, length = record.values.shape[0], block_of(record.values.shape[0])
    item, index = jnp.arange(steps.shape[0]), jnp.maximum(steps - 1, 0)
    number = index // length
    rows = number[None] * length + jnp.arange(length)[:, None]
    values = record.values[jnp.minimum(rows, n - 1), item[None]]  # `advanced` does not read those behind `steps`
    past = Past(*(each[number, item] for each in record.pasts))
    has_begun = (steps > 0)[:, None]
    return Before(
        jnp.where(has_begun, record.out[index, item], before.h),
        jnp.where(has_begun, record.values[index, item], before.value),
        lags.advanced(past, values, steps - number * length),
    )


@partial(jax.jit, static_argnames=("cell", "lags"))
def one_step(cell: Cell, weights: Weights, x: Array, before: Before, lags: Lags, taps: Taps) -> Before:
    """Return the carry after one step from `before`; arguments as in `recurrence`, but x [batch, gates * units]."""
    h, value = cell.step(weights, x, before.h, lags.memories(taps, before.past)[0])
    return Before(h, value, lags.advanced(before.past, value[None], 1))


class Weights(NamedTuple):
    """The recurrent weights of a cell.

    Attributes:
        kernel: The matrix from outputs to gates, [outputs, gates * units].
        bias: Added to the last gate's part of the product with the kernel, [units]; or None.
        projection: The matrix from units to outputs, [units, outputs], or None.
    """

    kernel: Array
    bias: Array | None
    projection: Array | None


class Cell(Protocol):
    """What distinguishes an LSTM from a GRU: the number of gates, and how a step makes output and cell state from them.

    Attributes:
        gates: How many gates a unit has.
    """

    gates: ClassVar[int]

    def step(self, weights: Weights, x: Array, h: Array, m: Array) -> tuple[Array, Array]:
        """Return the output, [batch, outputs], and the cell state, [batch, units], of one step.

        Args:
            weights: The recurrent weights.
            x: The input's part of the gates, [batch, gates * units].
            h: The output of the previous step, [batch, outputs].
            m: The memory, [batch, units].
        """
        ...


class LSTM:
    """An LSTM: c = f * m + i * g and h = o * tanh(c), with gates i, f, g, o as in `flax.nnx.OptimizedLSTMCell`."""

    gates: ClassVar[int] = 4

    def step(self, weights: Weights, x: Array, h: Array, m: Array) -> tuple[Array, Array]:
        """Return h and c of one step; see `Cell.step`."""
        i, f, g, o = jnp.split(x + h @ weights.kernel, 4, axis=-1)
        c = jax.nn.sigmoid(f) * m + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h if weights.projection is None else h @ weights.projection), c


class GRU:
    """A GRU: h = (1 - z) * n + z * m, with gates r, z, n as in `flax.linen.GRUCell`; h is its cell state."""

    gates: ClassVar[int] = 3

    def step(self, weights: Weights, x: Array, h: Array, m: Array) -> tuple[Array, Array]:
        """Return h of one step twice, as output and as cell state; see `Cell.step`."""
        of_r, of_z, of_n = jnp.split(x, 3, axis=-1)
        r, z, q = jnp.split(h @ weights.kernel, 3, axis=-1)
        r, z = jax.nn.sigmoid(of_r + r), jax.nn.sigmoid(of_z + z)
        n = jnp.tanh(of_n + r * (q if weights.bias is None else q + weights.bias[None]))
        h = n + z * (m - n)
        return h, h


CELLS: Mapping[str, Cell] = {"lstm": LSTM(), "gru": GRU()}


_EXACTLY = jax.lax.Precision.HIGHEST


class Taps(NamedTuple):
    """The weights of a memory for a block of L steps, with one order (c = 1) or one for each unit (c = units).

    Attributes:
        past: The weights of the K last cell states and the Q sums before the block in each step's memory,
            [c, L, K + Q].
        within: The weights of cell states of the same block by lag, a_1, ..., a_L, [c, L].
    """

    past: Array
    within: Array

    def given(self, value: Array) -> Array:
        """Return what a cell state, [batch, units], adds to the memories of the next L steps, [L, batch, units]."""
        # A product and no multiplication, because of its transpose: XLA's sums over the first axis are no vector code.
        if self.within.shape[0] == 1:
            return jnp.einsum("l,bu->lbu", self.within[0], value)
        return jnp.einsum("ul,bu->lbu", self.within, value)


class Past(NamedTuple):
    """The past of a cell between two blocks: K cell states and Q sums that stand for all its cell states so far.

    Attributes:
        near: The last K cell states, newest first, [batch, K, units].
        far: The sums S_q over the older cell states, [batch, Q, units].
    """

    near: Array
    far: Array


@dataclass(frozen=True)
class Lags:
    """How a cell's past is kept: which lags are exact, and which exponentials replace the weights at the others.

    Attributes:
        exact: K, the largest exact lag.
        nodes: The exponentials for all older lags; None: older lags do not count.
        window: The largest lag that counts, or None.
    """

    exact: int
    nodes: Nodes | None
    window: int | None

    @property
    def rates(self) -> np.ndarray:
        """The decay rates s_q of the exponentials, per step, [Q]."""
        return np.empty(0) if self.nodes is None else self.nodes.rates

    def weights(self, length: int, alpha: Any, xp: Any) -> Taps:
        """Return the Taps for blocks of `length` steps and orders alpha, [c], in float64 arrays of the namespace xp."""
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
        """Return the Taps for blocks of `length` steps in `dtype`; alpha is a learned order, None the definition's."""
        if alpha is None:
            return Taps(*(jnp.asarray(each, dtype) for each in _fixed(self, definition.orders, length)))
        return in_float64(lambda orders: self.weights(length, orders, JAX), alpha.reshape(-1), dtype)

    def begun(self, value: Array) -> Past:
        """Return the Past of a cell with a single cell state so far, `value`, [batch, units]."""
        batch, units = value.shape
        near = jnp.pad(value[:, None], ((0, 0), (0, self.exact - 1), (0, 0)))
        return Past(near, jnp.zeros((batch, self.rates.size, units), value.dtype))

    def memories(self, taps: Taps, past: Past) -> Array:
        """Return what the past adds to the memories of the next block's L steps, [L, batch, units]."""
        kept = jnp.concatenate([past.near, past.far], axis=1)
        weights = taps.past
        if weights.shape[0] == 1:
            return jnp.einsum("lk,bku->lbu", weights[0], kept, precision=_EXACTLY)
        return jnp.einsum("ulk,bku->lbu", weights, kept, precision=_EXACTLY)

    def advanced(self, past: Past, values: Array, steps: Any) -> Past:
        """Return the past after more cell states: the first `steps` of `values`, [L, batch, units].

        `steps` is a number, or an array with one for each series, [batch].
        """
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
    """Return how the past of a series of up to n steps is kept.

    Args:
        definition: The difference whose weights the memory has.
        n: Steps of the series.
        dtype: The dtype of the computation.
        window: The largest lag that counts, or None.
        is_learned: Whether the order is learned: the exponentials then serve all orders in the definition's bounds.
    """
    if window is not None:
        return Lags(window, None, window)
    # With an array as alpha the exponentials serve all orders in the bounds.
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
        The factors of the sums, exp(-s_q r), [L + 1, Q]; and the factors with which the cell states that grow older
        than K lags in these steps enter the sums, [L + 1, Q, L].
    """
    rates, steps = nodes.rates, np.arange(length + 1)
    ahead = steps[:, None] - 1 - np.arange(length)  # [r, j]
    gain = np.where(ahead[:, None] < 0, 0.0, np.exp(-rates[:, None] * np.maximum(ahead[:, None], 0)))
    return np.exp(-np.outer(steps, rates)), gain
