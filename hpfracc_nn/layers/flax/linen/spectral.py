"""`SpectralFractional` as a linen module."""

from __future__ import annotations

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.base import Layer


class SpectralFractional(Layer, core=functional.SpectralFractional):
    """A fractional derivative of a periodic field along `dim`: see `functional.SpectralFractional`."""

    def __call__(self, x: Array) -> Array:
        """Return the operator applied to the field x; same shape and dtype."""
        return self._run(x)
