"""`FractionalGraphConv` as a linen module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flax import linen

from hpfracc_nn.fractional.jax.arrays import of_numpy
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.base import Layer
from hpfracc_nn.layers.flax.linen.field import taken_apart


class FractionalGraphConv(Layer, core=functional.FractionalGraphConv):
    """A diffusion over a graph that remembers: see `functional.FractionalGraphConv`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    A module that is given as `func` is called as func(x, edge_index), func(x, edge_index, edge_weight) where weights
    are given, or func(x, adjacency), and its parameters are the layer's under `func`.

    Examples:
        >>> ring = jnp.stack([jnp.arange(10), (jnp.arange(10) + 1) % 10])
        >>> edges, layer = (
        ...     jnp.concatenate([ring, ring[::-1]], 1),
        ...     fjx.linen.FractionalGraphConv(5, 8, alpha=0.6),
        ... )
        >>> variables = layer.init(jax.random.key(0), jnp.ones((10, 5)), edges)
        >>> layer.apply(variables, jnp.ones((10, 5)), edges).shape
        (10, 8)
    """

    def __call__(
        self,
        x: Array,
        edge_index: Array | None = None,
        edge_weight: Array | None = None,
        *,
        adjacency: Array | None = None,
    ) -> Array:
        """Return the features of the nodes at t1; see `functional.FractionalGraphConv`."""
        x = of_numpy(x)
        given = {"edge_index": edge_index, "edge_weight": edge_weight, "adjacency": adjacency, **self._drawing()}
        core: functional.FractionalGraphConv = self.core
        if isinstance(self.func, str):
            return core(self.params(), x, **given)
        graph = core.graph_of(x, edge_index, edge_weight, adjacency)
        func, variables = taken_apart(self, self.func, core.state_like(x), *graph.arrays)
        return replace(core, func=func)(self.params(), x, variables=variables, **given)

    @linen.nowrap
    def longest_step(self, variables: Mapping[str, Any]) -> Any:
        """Return the longest step that is stable on every graph: see `functional.FractionalGraphConv`."""
        return self.core.longest_step(variables["params"])
