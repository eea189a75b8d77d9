"""Layers for PyTorch."""

from hpfracc_nn.fractional.torch.alpha import Alpha
from hpfracc_nn.layers.torch.arfima import ARFIMA
from hpfracc_nn.layers.torch.difference import FractionalDifference
from hpfracc_nn.layers.torch.fractional import FractionalLayer

__all__ = ["ARFIMA", "Alpha", "FractionalDifference", "FractionalLayer"]
