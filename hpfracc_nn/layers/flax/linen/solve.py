"""Equations as linen modules: from the state at 0 to that at t1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import linen

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.linen.shell import Layer
from hpfracc_nn.layers.flax.nnx import solve as modules


class FDEBlock(Layer, core=functional.FDEBlock, calls=modules.FDEBlock):
    """x to z(t1), where D^alpha z = f(t, z) and z(0) = x: see `functional.FDEBlock`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    f is a linen module called as f(t, z), whose parameters are the block's under `f`, or a function without any. It may
    draw random numbers (dropout): new ones at each call of the block, the same in all its steps. It may not write to
    variables: pass `use_running_average=True` to its normalisations.

    Examples:
        >>> class Field(linen.Module):
        ...     @linen.compact
        ...     def __call__(self, t, z):
        ...         return jnp.tanh(linen.Dense(16)(z))
        >>> block = fjx.linen.FDEBlock(Field(), 0.7, n_steps=8, learn_alpha=True)
        >>> variables = block.init(jax.random.key(0), jnp.ones((4, 16)))
        >>> block.apply(variables, jnp.ones((4, 16))).shape
        (4, 16)
    """


class FSDEBlock(Layer, core=functional.FSDEBlock, calls=modules.FSDEBlock):
    """x to z(t1) of a stochastic equation, with memory below alpha = 1: see `functional.FSDEBlock`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    drift and diffusion are linen modules called as drift(t, z), whose parameters are the block's under these names, or
    functions without any. Each call draws other paths, from `rngs={"noise": key}` of `apply`, or from the key that the
    call is given.

    Examples:
        >>> class Field(linen.Module):
        ...     @linen.compact
        ...     def __call__(self, t, z):
        ...         return jnp.tanh(linen.Dense(16)(z))
        >>> block = fjx.linen.FSDEBlock(Field(), Field(), alpha=0.8)
        >>> keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
        >>> variables = block.init(keys, jnp.ones((4, 16)))
        >>> block.apply(variables, jnp.ones((4, 16)), rngs={"noise": jax.random.key(2)}).shape
        (4, 16)
    """


class FractionalGraphConv(Layer, core=functional.FractionalGraphConv, calls=modules.FractionalGraphConv):
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

    @linen.nowrap
    def longest_step(self, variables: Mapping[str, Any]) -> Any:
        """Return the longest step that is stable on every graph: see `functional.FractionalGraphConv`."""
        return self.core.longest_step(variables["params"])
