"""The layers as nnx modules. See `layers.flax.functional.core` for the conventions."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.layers.flax.nnx.arfima import ARFIMA as ARFIMA
    from hpfracc_nn.layers.flax.nnx.attention import FractionalAttention as FractionalAttention
    from hpfracc_nn.layers.flax.nnx.conv1d import FractionalConv1d as FractionalConv1d
    from hpfracc_nn.layers.flax.nnx.conv2d import FractionalConv2d as FractionalConv2d
    from hpfracc_nn.layers.flax.nnx.difference import FractionalDifference as FractionalDifference
    from hpfracc_nn.layers.flax.nnx.fde_block import FDEBlock as FDEBlock
    from hpfracc_nn.layers.flax.nnx.fractional import FractionalLayer as FractionalLayer
    from hpfracc_nn.layers.flax.nnx.fsde_block import FSDEBlock as FSDEBlock
    from hpfracc_nn.layers.flax.nnx.graph import FractionalGraphConv as FractionalGraphConv
    from hpfracc_nn.layers.flax.nnx.linear import FractionalLinear as FractionalLinear
    from hpfracc_nn.layers.flax.nnx.order import Alpha as Alpha
    from hpfracc_nn.layers.flax.nnx.order import ProbabilisticAlpha as ProbabilisticAlpha
    from hpfracc_nn.layers.flax.nnx.recurrent import FractionalGRU as FractionalGRU
    from hpfracc_nn.layers.flax.nnx.recurrent import FractionalLSTM as FractionalLSTM
    from hpfracc_nn.layers.flax.nnx.roughness import RoughnessFeatures as RoughnessFeatures
    from hpfracc_nn.layers.flax.nnx.spectral import SpectralFractional as SpectralFractional

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
