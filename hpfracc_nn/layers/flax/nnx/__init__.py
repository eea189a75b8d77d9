"""The layers as nnx modules. See `layers.flax.functional.core` for the conventions."""

from hpfracc_nn.layers.flax.nnx.arfima import ARFIMA
from hpfracc_nn.layers.flax.nnx.attention import FractionalAttention
from hpfracc_nn.layers.flax.nnx.conv1d import FractionalConv1d
from hpfracc_nn.layers.flax.nnx.conv2d import FractionalConv2d
from hpfracc_nn.layers.flax.nnx.difference import FractionalDifference
from hpfracc_nn.layers.flax.nnx.fde_block import FDEBlock
from hpfracc_nn.layers.flax.nnx.fractional import FractionalLayer
from hpfracc_nn.layers.flax.nnx.fsde_block import FSDEBlock
from hpfracc_nn.layers.flax.nnx.graph import FractionalGraphConv
from hpfracc_nn.layers.flax.nnx.linear import FractionalLinear
from hpfracc_nn.layers.flax.nnx.order import Alpha, ProbabilisticAlpha
from hpfracc_nn.layers.flax.nnx.recurrent import FractionalGRU, FractionalLSTM
from hpfracc_nn.layers.flax.nnx.roughness import RoughnessFeatures
from hpfracc_nn.layers.flax.nnx.spectral import SpectralFractional

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
