"""The layers as nnx modules. See `layers.flax.functional.core` for the conventions."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.layers.flax.nnx.arfima import ARFIMA as ARFIMA
    from hpfracc_nn.layers.flax.nnx.modules import FractionalAttention as FractionalAttention
    from hpfracc_nn.layers.flax.nnx.modules import FractionalConv1d as FractionalConv1d
    from hpfracc_nn.layers.flax.nnx.modules import FractionalConv2d as FractionalConv2d
    from hpfracc_nn.layers.flax.nnx.modules import FractionalDifference as FractionalDifference
    from hpfracc_nn.layers.flax.nnx.modules import FractionalGRU as FractionalGRU
    from hpfracc_nn.layers.flax.nnx.modules import FractionalLayer as FractionalLayer
    from hpfracc_nn.layers.flax.nnx.modules import FractionalLinear as FractionalLinear
    from hpfracc_nn.layers.flax.nnx.modules import FractionalLSTM as FractionalLSTM
    from hpfracc_nn.layers.flax.nnx.modules import RoughnessFeatures as RoughnessFeatures
    from hpfracc_nn.layers.flax.nnx.modules import SpectralFractional as SpectralFractional
    from hpfracc_nn.layers.flax.nnx.shell import Alpha as Alpha
    from hpfracc_nn.layers.flax.nnx.shell import ProbabilisticAlpha as ProbabilisticAlpha
    from hpfracc_nn.layers.flax.nnx.solve import FDEBlock as FDEBlock
    from hpfracc_nn.layers.flax.nnx.solve import FractionalGraphConv as FractionalGraphConv
    from hpfracc_nn.layers.flax.nnx.solve import FSDEBlock as FSDEBlock

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
