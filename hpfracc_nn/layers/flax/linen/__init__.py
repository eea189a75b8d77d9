"""The layers as linen modules. See `layers.flax.functional.core` for the conventions."""

from hpfracc_nn.layers.flax.linen.arfima import ARFIMA
from hpfracc_nn.layers.flax.linen.attention import FractionalAttention
from hpfracc_nn.layers.flax.linen.conv1d import FractionalConv1d
from hpfracc_nn.layers.flax.linen.conv2d import FractionalConv2d
from hpfracc_nn.layers.flax.linen.difference import FractionalDifference
from hpfracc_nn.layers.flax.linen.fde_block import FDEBlock
from hpfracc_nn.layers.flax.linen.fractional import FractionalLayer
from hpfracc_nn.layers.flax.linen.fsde_block import FSDEBlock
from hpfracc_nn.layers.flax.linen.graph import FractionalGraphConv
from hpfracc_nn.layers.flax.linen.linear import FractionalLinear
from hpfracc_nn.layers.flax.linen.order import Alpha, ProbabilisticAlpha
from hpfracc_nn.layers.flax.linen.recurrent import FractionalGRU, FractionalLSTM
from hpfracc_nn.layers.flax.linen.roughness import RoughnessFeatures
from hpfracc_nn.layers.flax.linen.spectral import SpectralFractional

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
]
