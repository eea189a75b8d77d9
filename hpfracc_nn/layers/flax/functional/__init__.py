"""The cores of the layers for Flax: values and pure functions. See `core` for the conventions."""

from hpfracc_nn.layers.flax.functional.arfima import ARFIMA
from hpfracc_nn.layers.flax.functional.arfima_formula import arfima_errors, arfima_forecast, arfima_nll
from hpfracc_nn.layers.flax.functional.attention import FractionalAttention
from hpfracc_nn.layers.flax.functional.conv1d import FractionalConv1d
from hpfracc_nn.layers.flax.functional.conv2d import FractionalConv2d
from hpfracc_nn.layers.flax.functional.difference import FractionalDifference
from hpfracc_nn.layers.flax.functional.fde_block import FDEBlock
from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer
from hpfracc_nn.layers.flax.functional.fsde_block import FSDEBlock
from hpfracc_nn.layers.flax.functional.graph import FractionalGraphConv
from hpfracc_nn.layers.flax.functional.labels import param_labels
from hpfracc_nn.layers.flax.functional.linear import FractionalLinear
from hpfracc_nn.layers.flax.functional.order import Alpha
from hpfracc_nn.layers.flax.functional.probabilistic_alpha import ProbabilisticAlpha
from hpfracc_nn.layers.flax.functional.recurrent import FractionalGRU, FractionalLSTM
from hpfracc_nn.layers.flax.functional.roughness import RoughnessFeatures
from hpfracc_nn.layers.flax.functional.spectral import SpectralFractional

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
    "arfima_errors",
    "arfima_forecast",
    "arfima_nll",
    "param_labels",
]
