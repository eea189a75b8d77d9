"""The operators on NumPy arrays, by what they do."""

from hpfracc_nn.fractional.nonuniform.numpy import operator as at_times
from hpfracc_nn.fractional.nonuniform.numpy import variable
from hpfracc_nn.fractional.numpy import differencing, inverse, operator, special, spectral

__all__ = ["at_times", "differencing", "inverse", "operator", "special", "spectral", "variable"]
