"""The operators on NumPy arrays, by what they do."""

from hpfracc_nn.fractional.numpy import differencing, inverse, multipliers, operator, product_integration, special

__all__ = ["differencing", "inverse", "multipliers", "operator", "product_integration", "special"]
