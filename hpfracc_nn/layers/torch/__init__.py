"""Layers for PyTorch."""

from hpfracc_nn.fractional.torch.alpha import Alpha
from hpfracc_nn.layers.torch.difference import FractionalDifference
from hpfracc_nn.layers.torch.fractional import FractionalLayer
from hpfracc_nn.layers.torch.recurrent import FractionalGRU, FractionalLSTM

__all__ = ["Alpha", "FractionalDifference", "FractionalGRU", "FractionalLSTM", "FractionalLayer"]
