"""The operators on PyTorch tensors, by what they do."""

from hpfracc_nn.fractional.nonuniform.torch import operator as at_times
from hpfracc_nn.fractional.nonuniform.torch import variable
from hpfracc_nn.fractional.torch import differencing, inverse, operator, special, spectral

__all__ = ["at_times", "differencing", "inverse", "operator", "special", "spectral", "variable"]
