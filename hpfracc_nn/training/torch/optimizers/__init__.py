"""Fractional optimizers: torch's own, stepping along a power-law average of the last gradients."""

from hpfracc_nn.training.torch.optimizers.optimizers import (
    AlphaSchedule,
    FractionalAdam,
    FractionalAdamW,
    FractionalRMSprop,
    FractionalSGD,
)

__all__ = ["AlphaSchedule", "FractionalAdam", "FractionalAdamW", "FractionalRMSprop", "FractionalSGD"]
