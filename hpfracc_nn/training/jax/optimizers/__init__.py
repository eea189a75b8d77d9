"""Fractional optimizers for optax: a transformation that averages gradients, and optax's optimizers behind it."""

from hpfracc_nn.training.jax.optimizers.fractional import scale_by_fractional
from hpfracc_nn.training.jax.optimizers.optimizers import (
    fractional_adam,
    fractional_adamw,
    fractional_rmsprop,
    fractional_sgd,
)

__all__ = ["fractional_adam", "fractional_adamw", "fractional_rmsprop", "fractional_sgd", "scale_by_fractional"]
