"""The cores of the layers for Flax: values and pure functions. See `core` for the conventions."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.layers.flax.functional.arfima import ARFIMA as ARFIMA
    from hpfracc_nn.layers.flax.functional.arfima import arfima_errors as arfima_errors
    from hpfracc_nn.layers.flax.functional.arfima import arfima_forecast as arfima_forecast
    from hpfracc_nn.layers.flax.functional.arfima import arfima_nll as arfima_nll
    from hpfracc_nn.layers.flax.functional.attention import FractionalAttention as FractionalAttention
    from hpfracc_nn.layers.flax.functional.core import Alpha as Alpha
    from hpfracc_nn.layers.flax.functional.core import ProbabilisticAlpha as ProbabilisticAlpha
    from hpfracc_nn.layers.flax.functional.core import param_labels as param_labels
    from hpfracc_nn.layers.flax.functional.difference import FractionalDifference as FractionalDifference
    from hpfracc_nn.layers.flax.functional.difference import RoughnessFeatures as RoughnessFeatures
    from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer as FractionalLayer
    from hpfracc_nn.layers.flax.functional.linear import FractionalConv1d as FractionalConv1d
    from hpfracc_nn.layers.flax.functional.linear import FractionalConv2d as FractionalConv2d
    from hpfracc_nn.layers.flax.functional.linear import FractionalLinear as FractionalLinear
    from hpfracc_nn.layers.flax.functional.recurrent import FractionalGRU as FractionalGRU
    from hpfracc_nn.layers.flax.functional.recurrent import FractionalLSTM as FractionalLSTM
    from hpfracc_nn.layers.flax.functional.solve import FDEBlock as FDEBlock
    from hpfracc_nn.layers.flax.functional.solve import FractionalGraphConv as FractionalGraphConv
    from hpfracc_nn.layers.flax.functional.solve import FSDEBlock as FSDEBlock
    from hpfracc_nn.layers.flax.functional.spectral import SpectralFractional as SpectralFractional

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
