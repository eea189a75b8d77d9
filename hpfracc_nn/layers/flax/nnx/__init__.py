"""The layers as nnx modules. See `layers.flax.functional.core` for the conventions."""

from hpfracc_nn.layers.flax.nnx.fractional import FractionalLayer
from hpfracc_nn.layers.flax.nnx.order import Alpha

__all__ = ["Alpha", "FractionalLayer"]
