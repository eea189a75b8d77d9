"""The operators on PyTorch tensors, by what they do."""

from hpfracc_nn.fractional.torch import inverse, multipliers, operator, product_integration, special

__all__ = ["inverse", "multipliers", "operator", "product_integration", "special"]
