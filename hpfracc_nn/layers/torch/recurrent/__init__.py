"""Recurrent layers whose cells remember by a power law."""

from hpfracc_nn.layers.torch.recurrent.layers import FractionalGRU, FractionalLSTM

__all__ = ["FractionalGRU", "FractionalLSTM"]
