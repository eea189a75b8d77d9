"""Attention block of queries by block of queries: memory for a block, also in the backward pass.

A scan over blocks of queries whose weights are computed again in the backward pass, inside a scan over items of the
batch, or over groups of items where these are short. Keys and values are the same for all blocks of an item.
"""

from __future__ import annotations

import math

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.layers.attention import OP
from hpfracc_nn.layers.flax.attention.formula import Attention, Given
from hpfracc_nn.layers.flax.attention.parts import Averages, by_items
from hpfracc_nn.layers.flax.kernels import attention_dense as dense
from hpfracc_nn.selection import Cost, Kernel, Workload, register

BLOCK = 1 << 18  # weights: 1 MiB in float32
CALLS = 8  # of XLA's in a step of the scan


def run(attention: Attention, given: Given, items: Array) -> Averages:
    _, heads, queries, _ = given.q.shape
    rows = rows_of(heads, queries, given.k.shape[2])
    together = BLOCK // (heads * rows * given.k.shape[2])
    return by_items(given, items, together, lambda one, item: _in_blocks(attention, one, item, rows))


def rows_of(heads: int, queries: int, keys: int) -> int:
    """Return how many queries of an item a block has."""
    return max(1, min(queries, BLOCK // (heads * keys)))


def _in_blocks(attention: Attention, one: Given, item: Array, rows: int) -> Averages:
    """The averages of one item."""
    queries = one.q.shape[2]
    count = -(-queries // rows)
    is_cut = one.bias is not None and one.bias.shape[2] > 1

    def block(part: tuple[Array, Array, Array | None]) -> Averages:
        numbers, q, bias = part
        return attention.formula(one._replace(q=q, bias=bias if is_cut else one.bias), numbers, item)

    numbers = jnp.arange(count * rows).reshape(count, rows)
    bias = _cut(one.bias, count, rows) if is_cut and one.bias is not None else None
    found = jax.lax.map(jax.checkpoint(block, prevent_cse=False), (numbers, _cut(one.q, count, rows), bias))
    joined: Averages = jax.tree.map(lambda each: _joined(each)[:, :, :queries], found)
    return joined


def _cut(x: Array, count: int, rows: int) -> Array:
    """Return [1, heads, queries, ...] as [count, 1, heads, rows, ...], with zeros behind the last query."""
    x = jnp.pad(x, ((0, 0), (0, 0), (0, count * rows - x.shape[2]), (0, 0)))
    return jnp.moveaxis(x.reshape(1, x.shape[1], count, rows, x.shape[3]), 2, 0)


def _joined(x: Array) -> Array:
    """Return [count, 1, heads, rows, ...] as [1, heads, queries, ...]."""
    count, _, heads, rows, width = x.shape
    return jnp.moveaxis(x, 0, 2).reshape(1, heads, count * rows, width)


def cost(workload: Workload) -> Cost:
    whole, gradient = dense.cost(workload), workload.needs_gradient
    heads, rows = workload.channels, rows_of(workload.channels, workload.n, workload.exponentials)
    items = max(1, workload.rows // heads)
    block = float(heads * rows * workload.exponentials)
    together = max(1, min(items, BLOCK // int(block)))
    blocks = math.ceil(items / together) * math.ceil(workload.n / rows)
    more = (2.0 + dense.BACK) / (1.0 + dense.BACK) if gradient else 1.0  # the forward pass once more
    times = 1 + dense.BACK * gradient
    # Of several blocks the weights stay in the cache; keys and values are read again by every block of their item.
    again = 2.0 * blocks * together * heads * workload.exponentials * workload.width * workload.itemsize
    return Cost(
        flops={unit: flops * more for unit, flops in whole.flops.items()},
        bytes=whole.bytes * more if blocks == 1 else times * (4.0 * workload.bytes + again),
        launches=CALLS * blocks * times,
        workspace=4.0 * block * together * workload.itemsize * (1 + gradient),
    )


register(Kernel(OP, "jax", "xla", "blocks", run, cost=cost))
