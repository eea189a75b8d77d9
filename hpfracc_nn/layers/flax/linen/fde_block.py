"""`FDEBlock` as a linen module."""

from __future__ import annotations

from dataclasses import replace

from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import of_numpy
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.base import Layer
from hpfracc_nn.layers.flax.linen.field import taken_apart


class FDEBlock(Layer, core=functional.FDEBlock):
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

    def __call__(self, x: Array) -> Array:
        """Return z(t1); same shape and dtype as x."""
        x = of_numpy(x)
        f, variables = taken_apart(self, self.f, jnp.zeros((), x.dtype), x)
        return replace(self.core, f=f)(self.params(), x, variables, **self._drawing())
