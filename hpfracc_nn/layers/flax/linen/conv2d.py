"""`FractionalConv2d` as a linen module."""

from __future__ import annotations

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.base import Layer


class FractionalConv2d(Layer, core=functional.FractionalConv2d):
    """A convolution of images' fractional derivatives: see `functional.FractionalConv2d`."""

    def __call__(self, x: Array) -> Array:
        """Return the convolution of the derivatives of x, [..., height, width, in_features]."""
        return self._run(x)
