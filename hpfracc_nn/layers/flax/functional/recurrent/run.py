"""A cell with a memory over a series: a scan over blocks of steps, and inside of each a scan over its steps.

These functions are compiled once for each shape, so that calls outside of `jax.jit` are fast too.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.layers.flax.functional.recurrent.cells import Cell, Weights
from hpfracc_nn.layers.flax.functional.recurrent.memory import Lags, Past, Taps

BLOCK = 16  # steps


class Before(NamedTuple):
    """What a step is computed from besides its input.

    Attributes:
        h: The last output, [batch, outputs].
        value: What was remembered last, [batch, units].
        past: All that was remembered.
    """

    h: Array
    value: Array
    past: Past


class Made(NamedTuple):
    """What a recurrence has made.

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
def recurrence(cell: Cell, weights: Weights, x: Array, before: Before, lags: Lags, taps: Taps) -> Made:
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


def _taken(cell: Cell, lags: Lags, weights: Weights, x: Array, before: Before, taps: Taps) -> Made:
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
    return Made(out, values, pasts)


@partial(jax.jit, static_argnames=("lags",))
def after(made: Made, before: Before, lags: Lags, steps: Array) -> Before:
    """Return what the next step is computed from, after the first `steps` of each series, [batch]."""
    n, length = made.values.shape[0], block_of(made.values.shape[0])
    item, index = jnp.arange(steps.shape[0]), jnp.maximum(steps - 1, 0)
    number = index // length
    rows = number[None] * length + jnp.arange(length)[:, None]
    values = made.values[jnp.minimum(rows, n - 1), item[None]]  # what lies behind `steps` is not looked at
    past = Past(*(each[number, item] for each in made.pasts))
    has_begun = (steps > 0)[:, None]
    return Before(
        jnp.where(has_begun, made.out[index, item], before.h),
        jnp.where(has_begun, made.values[index, item], before.value),
        lags.advanced(past, values, steps - number * length),
    )


@partial(jax.jit, static_argnames=("cell", "lags"))
def one_step(cell: Cell, weights: Weights, x: Array, before: Before, lags: Lags, taps: Taps) -> Before:
    """Return what the step after next is computed from; arguments as in `recurrence`, x [batch, gates * units]."""
    h, value = cell.step(weights, x, before.h, lags.memories(taps, before.past)[0])
    return Before(h, value, lags.advanced(before.past, value[None], 1))
