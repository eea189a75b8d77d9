"""`FractionalConv2d` as an nnx module."""

from __future__ import annotations

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer


class FractionalConv2d(Layer, core=functional.FractionalConv2d):
    """A convolution of images' fractional derivatives: see `functional.FractionalConv2d`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> layer = FractionalConv2d(3, 5, 3, dims=(-3, -2), alpha=(0.4, 0.8), rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((8, 28, 28, 3))).shape
        (8, 28, 28, 5)
    """

    def __call__(self, x: Array) -> Array:
        """Return the convolution of the derivatives of x, [..., height, width, in_features]."""
        return self._run(x)
