"""The cores of the layers for Flax: values and pure functions. See `core` for the conventions."""

from hpfracc_nn.layers.flax.functional.arfima import ARFIMA, arfima_errors, arfima_forecast, arfima_nll
from hpfracc_nn.layers.flax.functional.fde_block import FDEBlock
from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer
from hpfracc_nn.layers.flax.functional.fsde_block import FSDEBlock
from hpfracc_nn.layers.flax.functional.graph import FractionalGraphConv
from hpfracc_nn.layers.flax.functional.order import Alpha
from hpfracc_nn.layers.flax.functional.spectral import SpectralFractional

__all__ = [
    "ARFIMA",
    "Alpha",
    "FDEBlock",
    "FSDEBlock",
    "FractionalGraphConv",
    "FractionalLayer",
    "SpectralFractional",
    "arfima_errors",
    "arfima_forecast",
    "arfima_nll",
]
