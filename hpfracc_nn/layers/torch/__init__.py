"""Layers for PyTorch."""

from hpfracc_nn.fractional.torch.alpha import Alpha
from hpfracc_nn.fractional.torch.probabilistic_alpha import ProbabilisticAlpha
from hpfracc_nn.layers.torch.convolution import FractionalConv1d, FractionalConv2d
from hpfracc_nn.layers.torch.difference import FractionalDifference
from hpfracc_nn.layers.torch.fractional import FractionalLayer
from hpfracc_nn.layers.torch.linear import FractionalLinear
from hpfracc_nn.layers.torch.param_groups import param_groups

__all__ = [
    "Alpha",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
    "param_groups",
]
