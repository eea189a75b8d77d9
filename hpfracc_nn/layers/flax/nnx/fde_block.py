"""`FDEBlock` as an nnx module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import of_numpy
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer
from hpfracc_nn.layers.flax.nnx.field import described, taken_apart


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

    f: Callable[[Array, Array], Array] | None = None  # held by the module, and no field of its core

    def __init__(self, f: Callable[[Array, Array], Array], *arguments: Any, **hyperparameters: Any):
        super().__init__(described(f), *arguments, **hyperparameters)
        self.f = f

    def __call__(self, x: Array) -> Array:
        """Return z(t1); same shape and dtype as x."""
        x = of_numpy(x)
        f, state = taken_apart("FDEBlock", "f", self.f, jnp.zeros((), x.dtype), x)
        return replace(self.core, f=f)(self.params(), x, state, **self._drawing())
