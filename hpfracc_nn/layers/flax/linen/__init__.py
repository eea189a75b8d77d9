"""The layers as linen modules. See `layers.flax.functional.core` for the conventions."""

from hpfracc_nn.layers.flax.linen.arfima import ARFIMA
from hpfracc_nn.layers.flax.linen.fde_block import FDEBlock
from hpfracc_nn.layers.flax.linen.fractional import FractionalLayer
from hpfracc_nn.layers.flax.linen.fsde_block import FSDEBlock
from hpfracc_nn.layers.flax.linen.graph import FractionalGraphConv
from hpfracc_nn.layers.flax.linen.order import Alpha
from hpfracc_nn.layers.flax.linen.spectral import SpectralFractional

__all__ = ["ARFIMA", "Alpha", "FDEBlock", "FSDEBlock", "FractionalGraphConv", "FractionalLayer", "SpectralFractional"]
