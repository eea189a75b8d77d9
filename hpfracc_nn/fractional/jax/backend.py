"""The operators on JAX arrays, by what they do. Definitions are pytrees from this import on."""

import hpfracc_nn.fractional.jax.pytrees  # noqa: F401  definitions are registered
from hpfracc_nn.fractional.jax import inverse, multipliers, operator, product_integration, special

__all__ = ["inverse", "multipliers", "operator", "product_integration", "special"]
