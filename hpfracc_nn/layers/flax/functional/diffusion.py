"""What flows along the edges of a graph, a list or a matrix: messages weighted by attention, or as they are.

A graph is either a list of edges, whose messages are added up by `jax.ops.segment_sum`, or its matrix W, W[i, j] the
weight of the edge from j to i, which is one GEMM. Both are pytrees, and both flows are linear in the features.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import at_least_single
from hpfracc_nn.fractional.jax.sharding import unplaced

Array = jax.Array


class Edges(NamedTuple):
    """A graph as a list.

    Attributes:
        source: Where each edge begins, [edges].
        target: Where it ends, [edges].
        weight: Not negative, [edges]; None is 1. An edge of weight 0 is as one that is not there, and pads a list.
    """

    source: Array
    target: Array
    weight: Array | None = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What a user's right-hand side is given: pairs [2, edges], and the weights if there are any."""
        pairs = jnp.stack([self.source, self.target])
        return (pairs,) if self.weight is None else (pairs, self.weight)

    def factors(self, dtype: Any) -> Array:
        """The weights, [edges, 1]."""
        if self.weight is None:
            return jnp.ones((self.source.shape[0], 1), dtype)
        return self.weight.astype(dtype)[:, None]

    def products(self, query: Array, key: Array) -> Array:
        """Return <query at the target, key at the source> of [nodes, heads, d]: [edges, heads]."""
        return (query[self.target] * key[self.source]).sum(-1)

    def total(self, values: Array, nodes: int) -> Array:
        """Return what arrives at each node, [nodes, heads]."""
        return arrived(values, self.target, nodes)

    def peak(self, values: Array, nodes: int) -> Array:
        """Return the largest that arrives at each node, [nodes, heads]; minus infinity where nothing does."""
        return unplaced(partial(jax.ops.segment_max, num_segments=nodes), values, self.target)  # type: ignore[no-any-return]

    def at_targets(self, values: Array) -> Array:
        """Return those of each edge's target."""
        return values[self.target]

    def flow(self, weights: Array, share: Array) -> Flow:
        """Return the flow of edges that have these weights, [edges]."""
        return EdgeFlow(weights, share, self.source, self.target)


class Adjacency(NamedTuple):
    """A graph as a matrix.

    Attributes:
        weight: W[i, j] >= 0 of the edge from j to i, [nodes, nodes]; 0 where there is none.
    """

    weight: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What a user's right-hand side is given: the matrix."""
        return (self.weight,)

    def factors(self, dtype: Any) -> Array:
        """The weights, [nodes, nodes, 1]."""
        return self.weight.astype(dtype)[..., None]

    def products(self, query: Array, key: Array) -> Array:
        """Return <query at i, key at j> of [nodes, heads, d]: [nodes, nodes, heads]."""
        return jnp.einsum("ihd,jhd->ijh", query, key)

    def total(self, values: Array, nodes: int) -> Array:
        """Return what arrives at each node, [nodes, heads]."""
        return values.sum(1)

    def peak(self, values: Array, nodes: int) -> Array:
        """Return the largest that arrives at each node, [nodes, heads]."""
        return values.max(1, initial=-jnp.inf)

    def at_targets(self, values: Array) -> Array:
        """Return those of each edge's target."""
        return values[:, None]

    def flow(self, weights: Array, share: Array) -> Flow:
        """Return the flow of edges that have these weights, [nodes, nodes]."""
        return MatrixFlow(weights, share)


class EdgeFlow(NamedTuple):
    """x to (A - D) x, edge by edge.

    Attributes:
        weights: A's entries, [edges].
        share: Their sum at each node, D's entries: 1, or 0 where no edge arrives, [nodes, 1].
        source: Where each edge begins, [edges].
        target: Where it ends, [edges].
    """

    weights: Array
    share: Array
    source: Array
    target: Array

    def __call__(self, x: Array) -> Array:
        """Return the right-hand side for features x [nodes, channels]."""
        messages = self.weights[:, None] * x[self.source]
        return arrived(messages, self.target, x.shape[0]) - self.share * x


class MatrixFlow(NamedTuple):
    """x to (A - D) x, as a product with a matrix.

    Attributes:
        weights: A, [nodes, nodes].
        share: Its row sums, 1 or 0, [nodes, 1].
    """

    weights: Array
    share: Array

    def __call__(self, x: Array) -> Array:
        """Return the right-hand side for features x [nodes, channels]."""
        return jnp.matmul(self.weights, x, precision=jax.lax.Precision.HIGHEST) - self.share * x


Graph = Edges | Adjacency
Flow = EdgeFlow | MatrixFlow


def arrived(values: Array, target: Array, nodes: int) -> Array:
    """Return the sum of the edges' values at each node, [nodes, ...]."""
    return unplaced(partial(jax.ops.segment_sum, num_segments=nodes), values, target)  # type: ignore[no-any-return]


def mean_flow(graph: Graph, x: Array) -> Flow:
    """Return the flow along edges as they are: A = D_in**-1 W, the random walk's matrix.

    Args:
        graph: Whose weights count.
        x: Whose dtype is that of the flow, float32 at least, [nodes, channels].
    """
    dtype = at_least_single(x.dtype)
    return normalised(graph, graph.factors(dtype), x.shape[0])


def attention_flow(query: Array, key: Array, graph: Graph) -> Flow:
    """Return the flow along the edges, weighted by scaled dot products of the nodes: GRAND's attention.

        A[i, j] = mean over heads of w_ij exp(s_ij) / sum over edges from l to i of w_il exp(s_il),

    s_ij = <q_i, k_j> / sqrt(d).

    Args:
        query: Of the nodes, [nodes, heads, d].
        key: Of the nodes, [nodes, heads, d].
        graph: Whose weights are w.

    Source: Chamberlain et al., GRAND, ICML 2021 (arXiv:2106.10934).
    """
    nodes, _, d = query.shape
    dtype = at_least_single(query.dtype)  # exponentials and sums are not those of half precision
    scores = graph.products(query.astype(dtype), key.astype(dtype)) / math.sqrt(d)
    factor = graph.factors(dtype)
    sizes, is_some = jax.lax.stop_gradient(scores), jax.lax.stop_gradient(factor) > 0
    # Beside a far larger score of weight 0 those that count would all be 0.
    sizes = jnp.where(is_some, sizes + jnp.log(jnp.where(is_some, jax.lax.stop_gradient(factor), 1)), -jnp.inf)
    peak = jnp.maximum(graph.peak(sizes, nodes), jnp.finfo(dtype).min)
    # Those of weight 0 may lie far above the peak; they have a gradient in their weight.
    exponents = jnp.minimum(scores - graph.at_targets(peak), math.log(jnp.finfo(dtype).max) / 2)
    return normalised(graph, factor * jnp.exp(exponents), nodes)


def normalised(graph: Graph, weights: Array, nodes: int) -> Flow:
    """Return the flow of which what arrives at a node has weights that add up to 1, or to 0 where nothing arrives.

    Args:
        graph: The edges.
        weights: Not negative, one for each of them and each head, of which the mean is taken.
        nodes: How many there are.
    """
    total = graph.total(weights, nodes)
    share = (total > 0).astype(weights.dtype)
    found = weights / graph.at_targets(total + (1 - share))
    return graph.flow(found.mean(-1), share.mean(-1, keepdims=True))
