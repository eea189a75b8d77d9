"""Layers for PyTorch."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy
from hpfracc_nn.fractional.torch import custom_op  # noqa: F401  registers the operation of programs that are loaded

if TYPE_CHECKING:
    from hpfracc_nn.fractional.torch.parameters import Alpha as Alpha
    from hpfracc_nn.fractional.torch.parameters import ProbabilisticAlpha as ProbabilisticAlpha
    from hpfracc_nn.layers.torch.arfima import ARFIMA as ARFIMA
    from hpfracc_nn.layers.torch.attention import FractionalAttention as FractionalAttention
    from hpfracc_nn.layers.torch.difference import FractionalDifference as FractionalDifference
    from hpfracc_nn.layers.torch.difference import RoughnessFeatures as RoughnessFeatures
    from hpfracc_nn.layers.torch.fractional import FractionalLayer as FractionalLayer
    from hpfracc_nn.layers.torch.fractional import param_groups as param_groups
    from hpfracc_nn.layers.torch.linear import FractionalConv1d as FractionalConv1d
    from hpfracc_nn.layers.torch.linear import FractionalConv2d as FractionalConv2d
    from hpfracc_nn.layers.torch.linear import FractionalLinear as FractionalLinear
    from hpfracc_nn.layers.torch.recurrent import FractionalGRU as FractionalGRU
    from hpfracc_nn.layers.torch.recurrent import FractionalLSTM as FractionalLSTM
    from hpfracc_nn.layers.torch.solve import FDEBlock as FDEBlock
    from hpfracc_nn.layers.torch.solve import FractionalGraphConv as FractionalGraphConv
    from hpfracc_nn.layers.torch.solve import FSDEBlock as FSDEBlock
    from hpfracc_nn.layers.torch.spectral import SpectralFractional as SpectralFractional

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
