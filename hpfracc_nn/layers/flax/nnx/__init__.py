"""The layers as nnx modules. See `layers.flax.functional.core` for the conventions."""

from hpfracc_nn.layers.flax.nnx.conv1d import FractionalConv1d
from hpfracc_nn.layers.flax.nnx.conv2d import FractionalConv2d
from hpfracc_nn.layers.flax.nnx.difference import FractionalDifference
from hpfracc_nn.layers.flax.nnx.fractional import FractionalLayer
from hpfracc_nn.layers.flax.nnx.linear import FractionalLinear
from hpfracc_nn.layers.flax.nnx.order import Alpha, ProbabilisticAlpha

__all__ = [
    "Alpha",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
]
