"""The operators on JAX arrays, by what they do. Definitions are pytrees from this import on."""

import hpfracc_nn.fractional.jax.pytrees  # noqa: F401  definitions are registered
from hpfracc_nn.fractional.jax import differencing, inverse, operator, special, spectral
from hpfracc_nn.fractional.nonuniform.jax import operator as at_times
from hpfracc_nn.fractional.nonuniform.jax import variable

__all__ = ["at_times", "differencing", "inverse", "operator", "special", "spectral", "variable"]
