"""Fractional optimizers for optax: a transformation that averages gradients, and optax's optimizers behind it."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.training.jax.optimizers.optimizers import fractional_adam as fractional_adam
    from hpfracc_nn.training.jax.optimizers.optimizers import fractional_adamw as fractional_adamw
    from hpfracc_nn.training.jax.optimizers.optimizers import fractional_rmsprop as fractional_rmsprop
    from hpfracc_nn.training.jax.optimizers.optimizers import fractional_sgd as fractional_sgd
    from hpfracc_nn.training.jax.optimizers.optimizers import scale_by_fractional as scale_by_fractional

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
