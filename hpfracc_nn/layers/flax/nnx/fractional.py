"""`FractionalLayer` as an nnx module."""

from __future__ import annotations

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer


class FractionalLayer(Layer, core=functional.FractionalLayer):
    """A fractional derivative or integral along `dim`: see `functional.FractionalLayer`."""

    def __call__(self, x: Array) -> Array:
        """Return the operator applied to x, [..., n, ...]; same shape and dtype."""
        return self._run(x)
