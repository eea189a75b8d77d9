"""Layers for PyTorch."""

from hpfracc_nn.fractional.torch.alpha import Alpha
from hpfracc_nn.layers.torch.attention import FractionalAttention
from hpfracc_nn.layers.torch.difference import FractionalDifference
from hpfracc_nn.layers.torch.fractional import FractionalLayer
from hpfracc_nn.layers.torch.roughness import RoughnessFeatures
from hpfracc_nn.layers.torch.spectral import SpectralFractional

__all__ = [
    "Alpha",
    "FractionalAttention",
    "FractionalDifference",
    "FractionalLayer",
    "RoughnessFeatures",
    "SpectralFractional",
]
