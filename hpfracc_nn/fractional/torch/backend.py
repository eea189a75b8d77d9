"""The operators on PyTorch tensors, by what they do."""

from hpfracc_nn.fractional.torch import differencing, inverse, multipliers, operator, product_integration, special

__all__ = ["differencing", "inverse", "multipliers", "operator", "product_integration", "special"]
