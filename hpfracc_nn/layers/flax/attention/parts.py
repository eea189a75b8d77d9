"""Attention item by item of the batch."""

from __future__ import annotations

from collections.abc import Callable

import jax

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.layers.flax.attention.formula import Given

Averages = tuple[Array, Array | None]


def by_items(given: Given, items: Array, together: int, run: Callable[[Given, Array], Averages]) -> Averages:
    """Return the averages of all items, so many of which are computed at a time.

    Args:
        given: The arrays of all.
        items: Their numbers, [batch].
        together: How many at a time.
        run: A function of the arrays of one item, whose batch is 1, and of its number, [1].
    """
    bias = given.bias
    is_own = bias is not None and bias.shape[0] > 1  # of each item, not of all

    def of_item(one: tuple[Array, Array, Array, Array, Array | None]) -> Averages:
        item, q, k, v, own = one
        mask = own[None] if is_own and own is not None else bias
        y, weights = run(given._replace(q=q[None], k=k[None], v=v[None], bias=mask), item[None])
        return y[0], None if weights is None else weights[0]

    each = items, given.q, given.k, given.v, bias if is_own else None
    found: Averages = jax.lax.map(of_item, each, batch_size=min(items.size, max(1, together)))
    return found
