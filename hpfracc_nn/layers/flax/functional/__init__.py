"""The cores of the layers for Flax: values and pure functions. See `core` for the conventions."""

from hpfracc_nn.layers.flax.functional.attention import FractionalAttention
from hpfracc_nn.layers.flax.functional.conv1d import FractionalConv1d
from hpfracc_nn.layers.flax.functional.conv2d import FractionalConv2d
from hpfracc_nn.layers.flax.functional.difference import FractionalDifference
from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer
from hpfracc_nn.layers.flax.functional.labels import param_labels
from hpfracc_nn.layers.flax.functional.linear import FractionalLinear
from hpfracc_nn.layers.flax.functional.order import Alpha
from hpfracc_nn.layers.flax.functional.probabilistic_alpha import ProbabilisticAlpha
from hpfracc_nn.layers.flax.functional.recurrent import FractionalGRU, FractionalLSTM

__all__ = [
    "Alpha",
    "FractionalAttention",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalGRU",
    "FractionalLSTM",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
    "param_labels",
]
