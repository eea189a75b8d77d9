"""Equations as nnx modules: from the state at 0 to that at t1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flax import nnx
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import of_numpy
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.shell import Layer


class FDEBlock(Layer, core=functional.FDEBlock):
    """x to z(t1), where D^alpha z = f(t, z) and z(0) = x: see `functional.FDEBlock`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    f is an `nnx.Module` called as f(t, z), whose parameters are the block's under `f`, or a function without any. It
    may draw random numbers (dropout): new ones at each call of the block, the same in all its steps. It may not write
    to itself otherwise.

    Examples:
        >>> class Field(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.net = nnx.Linear(16, 16, rngs=rngs)
        ...
        ...     def __call__(self, t, z):
        ...         return jnp.tanh(self.net(z))
        >>> block = FDEBlock(Field(nnx.Rngs(0)), 0.7, n_steps=8, learn_alpha=True)
        >>> block(jnp.ones((4, 16))).shape
        (4, 16)
    """

    held = ("f",)

    def __call__(self, x: Array) -> Array:
        """Return z(t1); same shape and dtype as x."""
        x = of_numpy(x)
        f, state = self._as_pure("f", jnp.zeros((), x.dtype), x)
        return replace(self.core, f=f)(self.params(), x, state, **self._drawing())


class FSDEBlock(Layer, core=functional.FSDEBlock):
    """x to z(t1) of a stochastic equation, with memory below alpha = 1: see `functional.FSDEBlock`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    drift and diffusion are nnx modules called as drift(t, z), whose parameters are the block's under these names, or
    functions without any. Each call draws other paths, from the stream `noise` of the block's `rngs`, or from the key
    that it is given.

    Examples:
        >>> class Field(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.net = nnx.Linear(16, 16, rngs=rngs)
        ...
        ...     def __call__(self, t, z):
        ...         return jnp.tanh(self.net(z))
        >>> rngs = nnx.Rngs(0)
        >>> block = FSDEBlock(Field(rngs), Field(rngs), alpha=0.8, rngs=rngs)
        >>> block(jnp.ones((4, 16))).shape
        (4, 16)
    """

    held = ("drift", "diffusion")

    def _begin(self, rngs: nnx.Rngs | None) -> None:
        self.keys = nnx.data(None) if rngs is None else rngs.noise.fork()

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Return z(t1), one path for each state of x; same shape and dtype.

        Args:
            x: The states at 0.
            key: Randomness of the noise; None takes the next key of the block's stream.
        """
        x = of_numpy(x)
        t = jnp.zeros((), x.dtype)
        drift, of_drift = self._as_pure("drift", t, x)
        diffusion, of_diffusion = self._as_pure("diffusion", t, x)
        return replace(self.core, drift=drift, diffusion=diffusion)(
            self.params(),
            x,
            (of_drift, of_diffusion),
            # After the fields' keys, which linen draws from the same stream: so a key keeps its paths.
            noise_key=self._noise_key() if key is None else key,
            **self._drawing(),
        )

    def _noise_key(self) -> Array:
        """Return the next key of the stream "noise", by which paths are drawn; raise TypeError without that stream."""
        if self.keys is None:
            raise TypeError(
                "FSDEBlock(key=None): needs randomness; pass rngs=nnx.Rngs(0) to the constructor, or a key."
            )
        return self.keys()  # type: ignore[no-any-return]


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

    held = ("func",)

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
        func, state = self._as_pure("func", core.state_like(x), *graph.arrays)
        return replace(core, func=func)(self.params(), x, variables=state, **given)

    def longest_step(self) -> Any:
        """Return the longest step that is stable on every graph: see `functional.FractionalGraphConv`."""
        return self.core.longest_step(self.params())
