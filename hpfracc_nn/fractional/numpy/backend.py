"""The operators on NumPy arrays, by what they do."""

from hpfracc_nn.fractional.numpy import inverse, multipliers, operator, product_integration, special

__all__ = ["inverse", "multipliers", "operator", "product_integration", "special"]
