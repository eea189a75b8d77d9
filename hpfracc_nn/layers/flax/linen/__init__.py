"""The layers as linen modules. See `layers.flax.functional.core` for the conventions."""

from hpfracc_nn.layers.flax.linen.conv1d import FractionalConv1d
from hpfracc_nn.layers.flax.linen.conv2d import FractionalConv2d
from hpfracc_nn.layers.flax.linen.difference import FractionalDifference
from hpfracc_nn.layers.flax.linen.fractional import FractionalLayer
from hpfracc_nn.layers.flax.linen.linear import FractionalLinear
from hpfracc_nn.layers.flax.linen.order import Alpha, ProbabilisticAlpha

__all__ = [
    "Alpha",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
]
