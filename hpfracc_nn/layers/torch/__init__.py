"""Layers for PyTorch."""

from hpfracc_nn.fractional.torch.alpha import Alpha
from hpfracc_nn.layers.torch.blocks import FDEBlock, FSDEBlock
from hpfracc_nn.layers.torch.difference import FractionalDifference
from hpfracc_nn.layers.torch.fractional import FractionalLayer
from hpfracc_nn.layers.torch.graph import FractionalGraphConv

__all__ = ["Alpha", "FDEBlock", "FSDEBlock", "FractionalDifference", "FractionalGraphConv", "FractionalLayer"]
