"""The weights of power-law attention in JAX; see `layers.flax.functional.attention`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.layers.attention import NEGLIGIBLE


class Given(NamedTuple):
    """The arrays of a call.

    Attributes:
        q: Queries, [batch, heads, queries, features].
        k: Keys, [batch, heads, keys, features].
        v: Values, [batch, heads, keys, values].
        bias: What is added to the logarithms of the weights, each axis that of [batch, heads, queries, keys] or 1, or
            None. Minus infinity hides a key, and so does what lies `NEGLIGIBLE` below the greatest that the query sees.
        alpha: Orders, [1] or [heads], None for alpha = 2.
        key: For dropout, or None.
    """

    q: Array
    k: Array
    v: Array
    bias: Array | None = None
    alpha: Array | None = None
    key: Array | None = None


@dataclass(frozen=True)
class Attention:
    """What is computed, and of what.

    Attributes:
        dimension: The space's, to which alpha is added in the exponent.
        bandwidth: The square of the distance beyond which weights fall.
        is_causal: Whether query i sees keys up to i only.
        needs_weights: Whether the weights are returned.
        share: Of the weights that dropout keeps.
    """

    dimension: float
    bandwidth: float
    is_causal: bool = False
    needs_weights: bool = False
    share: float = 1.0

    def formula(self, given: Given, queries: Array, items: Array) -> tuple[Array, Array | None]:
        """Return averages [batch, heads, queries, values] and weights.

        The weights of a query that sees no key are zeros, and it has no slope.

        Args:
            given: Some of the items of a batch, and some of their queries.
            queries: The numbers of those queries, [queries].
            items: The numbers of those items, [batch].
        """
        q = given.q * (1 / self.bandwidth)
        products = jnp.einsum("bhqd,bhkd->bhqk", q, given.k)
        if not given.k.shape[2]:
            return jnp.einsum("bhqk,bhkd->bhqd", products, given.v), products if self.needs_weights else None
        hidden = self._hidden(given, queries)
        logarithms = self._logarithms(given, q, products, hidden)
        if hidden is None:
            weights = jax.nn.softmax(logarithms, axis=-1)
        else:
            is_blind = hidden.all(-1, keepdims=True)
            # Zeros first, because the softmax of a row of minus infinities is NaN, and so is its slope.
            logarithms = jnp.where(is_blind, 0, jnp.where(hidden, -jnp.inf, logarithms))
            weights = jnp.where(is_blind, 0, jax.nn.softmax(logarithms, axis=-1))
        if given.key is not None:
            kept = self._kept(given.key, queries, items, weights.shape)
            weights = jnp.where(kept, weights / self.share if self.share else weights, 0)
        return jnp.einsum("bhqk,bhkd->bhqd", weights, given.v), weights if self.needs_weights else None

    def _logarithms(self, given: Given, q: Array, products: Array, hidden: Array | None) -> Array:
        """Return those of the weights, up to a number for each query, from what was divided by the bandwidth."""
        if given.alpha is None:
            found = 2 * products
        else:
            exponent = (self.dimension + given.alpha)[None, :, None, None].astype(products.dtype)
            found = -exponent * jnp.log1p(self._distances(given, q, products, hidden))
        return found if given.bias is None else found + given.bias

    def _distances(self, given: Given, q: Array, products: Array, hidden: Array | None) -> Array:
        """Return the distances from queries to lifted keys, in square roots of the bandwidth."""
        squares = jnp.square(given.k).sum(-1)[..., None, :] * (1 / self.bandwidth)  # [batch, heads, 1, keys]
        radius = (squares if hidden is None else jnp.where(hidden, 0, squares)).max(-1, keepdims=True)
        own = (q * given.q).sum(-1, keepdims=True)
        squared = own + radius - 2 * products
        # The square root has no slope at 0; what is below is rounding.
        return jnp.sqrt(jnp.maximum(squared, jnp.finfo(squared.dtype).eps))

    def _hidden(self, given: Given, queries: Array) -> Array | None:
        """Return which keys a query does not see, of a shape that broadcasts; None where it sees all."""
        later = None
        if self.is_causal:
            later = jnp.arange(given.k.shape[2])[None] > queries[:, None]
        if given.bias is None:
            return None if later is None else later[None, None]
        bias = jax.lax.stop_gradient(given.bias)
        bias = bias if later is None else jnp.where(later[None, None], -jnp.inf, bias)
        return (bias == -jnp.inf) | (bias < bias.max(-1, keepdims=True) - NEGLIGIBLE)

    def _kept(self, key: Array, queries: Array, items: Array, shape: tuple[int, ...]) -> Array:
        """Return which weights are not dropped: drawn for each query of each item, whatever the blocks."""

        def of(item: Array, query: Array) -> Array:
            own = jax.random.fold_in(jax.random.fold_in(key, item), query)
            return jax.random.bernoulli(own, self.share, (shape[1], shape[3]))

        each = jax.vmap(jax.vmap(of, (None, 0)), (0, None))(items, queries)  # [batch, queries, heads, keys]
        return jnp.swapaxes(each, 1, 2)
