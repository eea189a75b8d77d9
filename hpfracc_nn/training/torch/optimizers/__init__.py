"""Fractional optimizers: torch's own, stepping along a power-law average of the last gradients."""

from hpfracc_nn.training.torch.optimizers.optimizers import (
    FractionalAdam,
    FractionalAdamW,
    FractionalRMSprop,
    FractionalSGD,
)
from hpfracc_nn.training.torch.optimizers.schedule import AlphaSchedule

__all__ = ["AlphaSchedule", "FractionalAdam", "FractionalAdamW", "FractionalRMSprop", "FractionalSGD"]
