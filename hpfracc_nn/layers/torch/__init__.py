"""Layers for PyTorch."""

from hpfracc_nn.fractional.torch.alpha import Alpha
from hpfracc_nn.fractional.torch.probabilistic_alpha import ProbabilisticAlpha
from hpfracc_nn.layers.torch.arfima import ARFIMA
from hpfracc_nn.layers.torch.attention import FractionalAttention
from hpfracc_nn.layers.torch.blocks import FDEBlock, FSDEBlock
from hpfracc_nn.layers.torch.conv1d import FractionalConv1d
from hpfracc_nn.layers.torch.conv2d import FractionalConv2d
from hpfracc_nn.layers.torch.difference import FractionalDifference
from hpfracc_nn.layers.torch.fractional import FractionalLayer
from hpfracc_nn.layers.torch.graph import FractionalGraphConv
from hpfracc_nn.layers.torch.linear import FractionalLinear
from hpfracc_nn.layers.torch.parameter_groups import param_groups
from hpfracc_nn.layers.torch.recurrent import FractionalGRU, FractionalLSTM
from hpfracc_nn.layers.torch.roughness import RoughnessFeatures
from hpfracc_nn.layers.torch.spectral import SpectralFractional

__all__ = [
    "ARFIMA",
    "Alpha",
    "FDEBlock",
    "FSDEBlock",
    "FractionalAttention",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalGRU",
    "FractionalGraphConv",
    "FractionalLSTM",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
    "RoughnessFeatures",
    "SpectralFractional",
    "param_groups",
]
