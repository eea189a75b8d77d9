"""`FSDEBlock` as a linen module."""

from __future__ import annotations

from dataclasses import replace

from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import of_numpy
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.base import Layer
from hpfracc_nn.layers.flax.linen.field import taken_apart


class FSDEBlock(Layer, core=functional.FSDEBlock):
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

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Return z(t1), one path for each state of x; same shape and dtype.

        Args:
            x: The states at 0.
            key: Where the noise is drawn; None takes the stream `noise`.
        """
        x = of_numpy(x)
        t = jnp.zeros((), x.dtype)
        drift, of_drift = taken_apart(self, self.drift, t, x)
        diffusion, of_diffusion = taken_apart(self, self.diffusion, t, x)
        return replace(self.core, drift=drift, diffusion=diffusion)(
            self.params(),
            x,
            (of_drift, of_diffusion),
            noise_key=self.make_rng("noise") if key is None else key,
            **self._drawing(),
        )
