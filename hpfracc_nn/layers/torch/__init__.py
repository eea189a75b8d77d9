"""Layers for PyTorch."""

from hpfracc_nn.layers.torch.difference import FractionalDifference
from hpfracc_nn.layers.torch.fractional import FractionalLayer
from hpfracc_nn.layers.torch.order import Alpha

__all__ = ["Alpha", "FractionalDifference", "FractionalLayer"]
