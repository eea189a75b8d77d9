"""The layers as linen modules. See `layers.flax.functional.core` for the conventions."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.layers.flax.linen.arfima import ARFIMA as ARFIMA
    from hpfracc_nn.layers.flax.linen.attention import FractionalAttention as FractionalAttention
    from hpfracc_nn.layers.flax.linen.conv1d import FractionalConv1d as FractionalConv1d
    from hpfracc_nn.layers.flax.linen.conv2d import FractionalConv2d as FractionalConv2d
    from hpfracc_nn.layers.flax.linen.difference import FractionalDifference as FractionalDifference
    from hpfracc_nn.layers.flax.linen.fde_block import FDEBlock as FDEBlock
    from hpfracc_nn.layers.flax.linen.fractional import FractionalLayer as FractionalLayer
    from hpfracc_nn.layers.flax.linen.fsde_block import FSDEBlock as FSDEBlock
    from hpfracc_nn.layers.flax.linen.graph import FractionalGraphConv as FractionalGraphConv
    from hpfracc_nn.layers.flax.linen.linear import FractionalLinear as FractionalLinear
    from hpfracc_nn.layers.flax.linen.order import Alpha as Alpha
    from hpfracc_nn.layers.flax.linen.order import ProbabilisticAlpha as ProbabilisticAlpha
    from hpfracc_nn.layers.flax.linen.recurrent import FractionalGRU as FractionalGRU
    from hpfracc_nn.layers.flax.linen.recurrent import FractionalLSTM as FractionalLSTM
    from hpfracc_nn.layers.flax.linen.roughness import RoughnessFeatures as RoughnessFeatures
    from hpfracc_nn.layers.flax.linen.spectral import SpectralFractional as SpectralFractional

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
