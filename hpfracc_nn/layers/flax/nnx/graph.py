"""`FractionalGraphConv` as an nnx module."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpfracc_nn.fractional.jax.arrays import of_numpy
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer
from hpfracc_nn.layers.flax.nnx.field import described, taken_apart


class FractionalGraphConv(Layer, core=functional.FractionalGraphConv):
    """A diffusion over a graph that remembers: see `functional.FractionalGraphConv`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    A module that is given as `func` is called as func(x, edge_index), func(x, edge_index, edge_weight) where weights
    are given, or func(x, adjacency), and its parameters are the layer's under `func`.

    Examples:
        >>> ring = jnp.stack([jnp.arange(10), (jnp.arange(10) + 1) % 10])
        >>> layer = FractionalGraphConv(5, 8, alpha=0.6, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((10, 5)), jnp.concatenate([ring, ring[::-1]], 1)).shape
        (10, 8)
    """

    func: Any = None  # held by the module where it is one

    def __init__(self, in_features: int, out_features: int, *, func: Any = "attention", **hyperparameters: Any):
        super().__init__(in_features, out_features, func=described(func), **hyperparameters)
        self.func = func

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
        func, state = taken_apart("FractionalGraphConv", "func", self.func, core.state_like(x), *graph.arrays)
        return replace(core, func=func)(self.params(), x, variables=state, **given)

    def longest_step(self) -> Any:
        """Return the longest step that is stable on every graph: see `functional.FractionalGraphConv`."""
        return self.core.longest_step(self.params())
