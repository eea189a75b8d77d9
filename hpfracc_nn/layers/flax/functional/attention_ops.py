"""The operation `attention` on JAX's arrays: its plan is made when a call is traced, from shapes and dtypes.

The kernel "dense" computes the weights of all queries at once, with memory for queries times keys in both passes.
"blocks" takes a block of queries at a time: a scan whose weights are computed again in the backward pass, inside a scan
over items of the batch, or over groups of items where these are short.

A distance is that between a query and a lifted key, one with another coordinate added, which gives all keys that a
query sees the same norm. `hidden` is a mask, True at keys that a query does not see, and broadcasts to [batch, heads,
queries, keys]. An item is one entry of the batch axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array, assumed, at_least_single, fits
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.layers.order import ATTENTION, NEGLIGIBLE
from hpfracc_nn.selection import (
    BackendManager,
    Cost,
    Kernel,
    Plan,
    Work,
    Workload,
    carried_out,
    given_manager,
    register,
)


def attended(attention: Attention, inputs: Inputs, manager: BackendManager | None) -> Averages:
    """Return the averages of the values, [batch, heads, queries, values], and the weights, or None if not wanted.

    Half precision is computed in float32. A kernel's `run(attention, inputs, items)` is a pure function that JAX
    differentiates; `items` are the positions of the items in the batch.
    """
    dtype = inputs.q.dtype
    wide = at_least_single(dtype)
    if wide != dtype:
        cast = inputs._replace(**{name: getattr(inputs, name).astype(wide) for name in ("q", "k", "v")})
        cast = cast._replace(bias=None if inputs.bias is None else inputs.bias.astype(wide))
        y, weights = attended(attention, cast, manager)
        return y.astype(dtype), None if weights is None else weights.astype(dtype)
    if 0 in inputs.q.shape or 0 in inputs.k.shape:
        return attention.formula(inputs, jnp.arange(inputs.q.shape[2]), jnp.arange(inputs.q.shape[0]))
    site = given_manager("FractionalAttention", manager).shared_site(ATTENTION, "jax", "FractionalAttention")
    facts = (inputs.q.shape, inputs.k.shape[2], str(dtype), attention.needs_weights)
    plan = site.pick_traced(facts, lambda: workload(*facts))
    found: Averages = carried_out(_TRACED, site, plan, attention, inputs)
    return found


def workload(shape: tuple[int, ...], keys: int, dtype: str, needs_weights: bool) -> Workload:
    """Return the Workload of a call.

    Its `rows` are batch times heads, `n` the queries, `width` the features of a head, `exponentials` the keys.

    Args:
        shape: The shape of the queries, (batch, heads, queries, features).
        keys: The number of keys.
        dtype: Name of the dtype.
        needs_weights: Whether the weights are returned.
    """
    batch, heads, queries, features = shape
    return Workload(
        ATTENTION,
        "jax",
        device=device_name(),
        dtype=dtype,
        rows=assumed(batch) * heads,
        n=queries,
        width=features,
        channels=heads,
        exponentials=keys,
        needs_gradient=True,  # a traced call does not know whether it will be differentiated
        learns_weights=needs_weights,
        threads=JaxProbe().threads(),
    )


def _run(plan: Plan, attention: Attention, inputs: Inputs) -> Averages:
    plan.kernel.calls["run"] += 1
    found: Averages = _computed(attention, plan.kernel, plan.chunk, inputs)
    return found


@partial(jax.jit, static_argnames=("attention", "kernel", "rows"))
def _computed(attention: Attention, kernel: Kernel, rows: int | None, inputs: Inputs) -> Averages:
    """Return the averages and weights of a call by a kernel, compiled.

    Args:
        attention: The options of the call.
        kernel: The kernel.
        rows: How many heads, counted over items, are computed at a time; None: all.
        inputs: The arrays of the call.
    """
    return unplaced(partial(_by, attention, kernel, rows), inputs)  # type: ignore[no-any-return]


def _by(attention: Attention, kernel: Kernel, rows: int | None, inputs: Inputs) -> Averages:
    items = jnp.arange(inputs.q.shape[0])
    if rows is None or fits(rows // inputs.q.shape[1], inputs.q.shape[0]):
        return kernel.run(attention, inputs, items)  # type: ignore[no-any-return]
    return by_items(inputs, items, rows // inputs.q.shape[1], lambda one, item: kernel.run(attention, one, item))


_TRACED = Work(_run, is_timed=False)  # tracing takes no representative time, and computation is asynchronous


class Inputs(NamedTuple):
    """The arrays of a call of the operation.

    Attributes:
        q: Queries, [batch, heads, queries, features].
        k: Keys, [batch, heads, keys, features].
        v: Values, [batch, heads, keys, values].
        bias: Added to the logarithms of the weights, [batch, heads, queries, keys], each axis of full length or 1; or
            None. A key is hidden where its bias is minus infinity, or `NEGLIGIBLE` or more below its query's greatest.
        alpha: Orders, [1] or [heads], None for alpha = 2.
        key: Randomness of dropout, or None.
    """

    q: Array
    k: Array
    v: Array
    bias: Array | None = None
    alpha: Array | None = None
    key: Array | None = None


@dataclass(frozen=True)
class Attention:
    """The options of a call of the operation, static in `jax.jit`.

    Attributes:
        dimension: D, the dimension of the space; weights fall with the exponent D + alpha.
        bandwidth: The square of the distance beyond which weights fall.
        is_causal: Whether query i sees keys up to i only.
        needs_weights: Whether the weights are returned.
        share: The share of the weights that dropout keeps.
    """

    dimension: float
    bandwidth: float
    is_causal: bool = False
    needs_weights: bool = False
    share: float = 1.0

    def formula(self, inputs: Inputs, queries: Array, items: Array) -> tuple[Array, Array | None]:
        """Return the averages of the values, [batch, heads, queries, values], and the weights, or None if not wanted.

        A query that sees no key has weights of zeros, and zeros as gradients.

        Args:
            inputs: The arrays of some items of the batch, and of some of their queries.
            queries: The positions of these queries in the sequence, [queries].
            items: The positions of these items in the batch, [batch].
        """
        q = inputs.q * (1 / self.bandwidth)
        products = jnp.einsum("bhqd,bhkd->bhqk", q, inputs.k)
        if not inputs.k.shape[2]:
            return jnp.einsum("bhqk,bhkd->bhqd", products, inputs.v), products if self.needs_weights else None
        hidden = self._hidden(inputs, queries)
        logarithms = self._logarithms(inputs, q, products, hidden)
        if hidden is None:
            weights = jax.nn.softmax(logarithms, axis=-1)
        else:
            is_blind = hidden.all(-1, keepdims=True)
            # Zeros first, because the softmax of a row of minus infinities is NaN, and so is its gradient.
            logarithms = jnp.where(is_blind, 0, jnp.where(hidden, -jnp.inf, logarithms))
            weights = jnp.where(is_blind, 0, jax.nn.softmax(logarithms, axis=-1))
        if inputs.key is not None:
            kept = self._kept(inputs.key, queries, items, weights.shape)
            weights = jnp.where(kept, weights / self.share if self.share else weights, 0)
        return jnp.einsum("bhqk,bhkd->bhqd", weights, inputs.v), weights if self.needs_weights else None

    def _logarithms(self, inputs: Inputs, q: Array, products: Array, hidden: Array | None) -> Array:
        """Return the logarithms of the weights up to a constant per query, [batch, heads, queries, keys].

        Args:
            inputs: The arrays of the call.
            q: Queries divided by the bandwidth.
            products: Their inner products with the keys, [batch, heads, queries, keys].
            hidden: Which keys a query does not see, or None.
        """
        if inputs.alpha is None:
            found = 2 * products
        else:
            exponent = (self.dimension + inputs.alpha)[None, :, None, None].astype(products.dtype)
            found = -exponent * jnp.log1p(self._distances(inputs, q, products, hidden))
        return found if inputs.bias is None else found + inputs.bias

    def _distances(self, inputs: Inputs, q: Array, products: Array, hidden: Array | None) -> Array:
        """Return the distances of queries and lifted keys divided by the square root of the bandwidth.

        Arguments and shape are those of `_logarithms`.
        """
        squares = jnp.square(inputs.k).sum(-1)[..., None, :] * (1 / self.bandwidth)  # [batch, heads, 1, keys]
        radius = (squares if hidden is None else jnp.where(hidden, 0, squares)).max(-1, keepdims=True)
        own = (q * inputs.q).sum(-1, keepdims=True)
        squared = own + radius - 2 * products
        # The square root has no finite slope at 0; values below 0 are rounding.
        return jnp.sqrt(jnp.maximum(squared, jnp.finfo(squared.dtype).eps))

    def _hidden(self, inputs: Inputs, queries: Array) -> Array | None:
        """Return the mask `hidden`, True at the keys that a query does not see; None where all keys are seen.

        `queries` are the positions of the queries in the sequence, [queries].
        """
        later = None
        if self.is_causal:
            later = jnp.arange(inputs.k.shape[2])[None] > queries[:, None]
        if inputs.bias is None:
            return None if later is None else later[None, None]
        bias = jax.lax.stop_gradient(inputs.bias)
        bias = bias if later is None else jnp.where(later[None, None], -jnp.inf, bias)
        return (bias == -jnp.inf) | (bias < bias.max(-1, keepdims=True) - NEGLIGIBLE)

    def _kept(self, key: Array, queries: Array, items: Array, shape: tuple[int, ...]) -> Array:
        """Return the dropout mask, bool of the shape `shape`, True at the weights that are kept.

        The mask is drawn for each item and query by their positions, so that it does not depend on the blocks.

        Args:
            key: Randomness.
            queries: The queries' positions in the sequence.
            items: The items' positions in the batch.
            shape: The shape of the weights, (batch, heads, queries, keys).
        """

        def of(item: Array, query: Array) -> Array:
            own = jax.random.fold_in(jax.random.fold_in(key, item), query)
            return jax.random.bernoulli(own, self.share, (shape[1], shape[3]))

        each = jax.vmap(jax.vmap(of, (None, 0)), (0, None))(items, queries)  # [batch, queries, heads, keys]
        return jnp.swapaxes(each, 1, 2)


Averages = tuple[Array, Array | None]


def by_items(inputs: Inputs, items: Array, together: int, run: Callable[[Inputs, Array], Averages]) -> Averages:
    """Return the averages and weights of all items of the batch, computed `together` items at a time.

    Args:
        inputs: The arrays of the call.
        items: The positions of the items in the batch, [batch].
        together: How many items are computed at a time, at least 1.
        run: Returns the averages and weights of one item, from its Inputs, with a batch of 1, and its position, [1].
    """
    bias = inputs.bias
    is_own = bias is not None and bias.shape[0] > 1  # one bias for each item, not one for all

    def of_item(one: tuple[Array, Array, Array, Array, Array | None]) -> Averages:
        item, q, k, v, own = one
        mask = own[None] if is_own and own is not None else bias
        y, weights = run(inputs._replace(q=q[None], k=k[None], v=v[None], bias=mask), item[None])
        return y[0], None if weights is None else weights[0]

    each = items, inputs.q, inputs.k, inputs.v, bias if is_own else None
    found: Averages = jax.lax.map(of_item, each, batch_size=min(items.size, max(1, together)))
    return found


_PASSES = 6  # passes over the weights, each read and written, after XLA's fusion
_BACK = 2  # a backward pass, in forward passes
_HELD = 4  # arrays of the weights' size that exist at once


def _run_dense(attention: Attention, inputs: Inputs, items: Array) -> Averages:
    return attention.formula(inputs, jnp.arange(inputs.q.shape[2]), items)


def _pairs(workload: Workload) -> float:
    """Return the number of pairs of a query and a key over all heads and the batch; `exponentials` counts the keys."""
    return float(workload.rows * workload.n * workload.exponentials)


def _cost_dense(workload: Workload) -> Cost:
    times, found = 1 + _BACK * workload.needs_gradient, _pairs(workload)
    weights = found * workload.itemsize
    return Cost(
        flops={"matmul": 4.0 * found * workload.width * times, "elementwise": _PASSES * found * times},
        bytes=2.0 * _PASSES * weights * times + 4.0 * workload.bytes * times,
        launches=times,
        workspace=weights * _HELD * (1 + workload.needs_gradient),
    )


register(Kernel(ATTENTION, "jax", "xla", "dense", _run_dense, cost=_cost_dense))


BLOCK = 1 << 18  # weights: 1 MiB in float32
_CALLS = 8  # calls of XLA's in a step of the scan


def _run_blocks(attention: Attention, inputs: Inputs, items: Array) -> Averages:
    _, heads, queries, _ = inputs.q.shape
    rows = _rows_of(heads, queries, inputs.k.shape[2])
    together = BLOCK // (heads * rows * inputs.k.shape[2])
    return by_items(inputs, items, together, lambda one, item: _in_blocks(attention, one, item, rows))


def _rows_of(heads: int, queries: int, keys: int) -> int:
    """Return how many queries of one item make a block, so that their weights are at most `BLOCK` numbers.

    Arguments are the numbers of the item's heads, queries and keys.
    """
    return max(1, min(queries, BLOCK // (heads * keys)))


def _in_blocks(attention: Attention, one: Inputs, item: Array, rows: int) -> Averages:
    """Return the averages of one item of the batch, by a scan over blocks of queries.

    Args:
        attention: The options of the call.
        one: The arrays of the call for this item, batch axes of length 1.
        item: The item's position in the batch, which dropout's randomness depends on.
        rows: Queries of a block.
    """
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
    """Return an array cut along its queries into `count` blocks of `rows`, for a scan.

    [1, heads, queries, width] becomes [count, 1, heads, rows, width], with zeros behind the last query.
    """
    x = jnp.pad(x, ((0, 0), (0, 0), (0, count * rows - x.shape[2]), (0, 0)))
    return jnp.moveaxis(x.reshape(1, x.shape[1], count, rows, x.shape[3]), 2, 0)


def _joined(x: Array) -> Array:
    """Return the results of a scan over blocks, joined along the queries.

    [count, 1, heads, rows, width] becomes [1, heads, count * rows, width].
    """
    count, _, heads, rows, width = x.shape
    return jnp.moveaxis(x, 0, 2).reshape(1, heads, count * rows, width)


def _cost_blocks(workload: Workload) -> Cost:
    whole, gradient = _cost_dense(workload), workload.needs_gradient
    heads, rows = workload.channels, _rows_of(workload.channels, workload.n, workload.exponentials)
    items = max(1, workload.rows // heads)
    block = float(heads * rows * workload.exponentials)
    together = max(1, min(items, BLOCK // int(block)))
    blocks = math.ceil(items / together) * math.ceil(workload.n / rows)
    more = (2.0 + _BACK) / (1.0 + _BACK) if gradient else 1.0  # the forward pass once more
    times = 1 + _BACK * gradient
    # Of several blocks the weights stay in the cache; keys and values are read again by every block of their item.
    again = 2.0 * blocks * together * heads * workload.exponentials * workload.width * workload.itemsize
    return Cost(
        flops={unit: flops * more for unit, flops in whole.flops.items()},
        bytes=whole.bytes * more if blocks == 1 else times * (4.0 * workload.bytes + again),
        launches=_CALLS * blocks * times,
        workspace=4.0 * block * together * workload.itemsize * (1 + gradient),
    )


register(Kernel(ATTENTION, "jax", "xla", "blocks", _run_blocks, cost=_cost_blocks))
