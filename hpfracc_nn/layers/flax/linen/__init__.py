"""The layers as linen modules. See `layers.flax.functional.core` for the conventions."""

from hpfracc_nn.layers.flax.linen.fractional import FractionalLayer
from hpfracc_nn.layers.flax.linen.order import Alpha

__all__ = ["Alpha", "FractionalLayer"]
