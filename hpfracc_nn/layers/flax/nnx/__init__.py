"""The layers as nnx modules. See `layers.flax.functional.core` for the conventions."""

from hpfracc_nn.layers.flax.nnx.arfima import ARFIMA
from hpfracc_nn.layers.flax.nnx.fde_block import FDEBlock
from hpfracc_nn.layers.flax.nnx.fractional import FractionalLayer
from hpfracc_nn.layers.flax.nnx.fsde_block import FSDEBlock
from hpfracc_nn.layers.flax.nnx.graph import FractionalGraphConv
from hpfracc_nn.layers.flax.nnx.order import Alpha
from hpfracc_nn.layers.flax.nnx.spectral import SpectralFractional

__all__ = ["ARFIMA", "Alpha", "FDEBlock", "FSDEBlock", "FractionalGraphConv", "FractionalLayer", "SpectralFractional"]
