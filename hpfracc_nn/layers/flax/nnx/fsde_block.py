"""`FSDEBlock` as an nnx module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flax import nnx
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import of_numpy
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer
from hpfracc_nn.layers.flax.nnx.field import described, taken_apart

Coefficient = Callable[[Array, Array], Array]


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

    drift: Coefficient | None = None  # held by the module, and no field of its core
    diffusion: Coefficient | None = None

    def __init__(
        self,
        drift: Coefficient,
        diffusion: Coefficient,
        *arguments: Any,
        rngs: nnx.Rngs | None = None,
        **hyperparameters: Any,
    ):
        super().__init__(described(drift), described(diffusion), *arguments, rngs=rngs, **hyperparameters)
        self.drift, self.diffusion = drift, diffusion
        self.keys = nnx.data(None) if rngs is None else rngs.noise.fork()

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        """Return z(t1), one path for each state of x; same shape and dtype.

        Args:
            x: The states at 0.
            key: Where the noise is drawn; None takes the next key of the block's stream.
        """
        if key is None:
            if self.keys is None:
                raise TypeError(
                    "FSDEBlock(key=None): needs randomness; pass rngs=nnx.Rngs(0) to the constructor, or a key."
                )
            key = self.keys()
        x = of_numpy(x)
        t = jnp.zeros((), x.dtype)
        drift, of_drift = taken_apart("FSDEBlock", "drift", self.drift, t, x)
        diffusion, of_diffusion = taken_apart("FSDEBlock", "diffusion", self.diffusion, t, x)
        return replace(self.core, drift=drift, diffusion=diffusion)(
            self.params(),
            x,
            (of_drift, of_diffusion),
            noise_key=key,
            **self._drawing(),
        )
