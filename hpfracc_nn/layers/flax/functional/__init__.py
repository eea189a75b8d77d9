"""The cores of the layers for Flax: values and pure functions. See `core` for the conventions."""

from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer
from hpfracc_nn.layers.flax.functional.order import Alpha

__all__ = ["Alpha", "FractionalLayer"]
