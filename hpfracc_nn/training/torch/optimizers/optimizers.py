"""The optimizers: torch's, each with the fractional direction in place of the gradient."""

from __future__ import annotations

from typing import Any

import torch

from hpfracc_nn.training.torch.optimizers.fractional import Fractional, around_compiled


class FractionalSGD(Fractional, torch.optim.SGD):
    """SGD."""


class FractionalAdam(Fractional, torch.optim.Adam):
    """Adam."""


class FractionalAdamW(Fractional, torch.optim.AdamW):
    """AdamW."""


class FractionalRMSprop(Fractional, torch.optim.RMSprop):
    """RMSprop."""

    def __init__(self, params: Any, lr: Any = 1e-2, smoothing: float = 0.99, *options: Any, **named: Any):
        super().__init__(params, lr, smoothing, *options, **named)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as of the other fractional optimizers."""
        if "smoothing" not in self.defaults:
            _rename(self.defaults)
        super().add_param_group(param_group)

    def _base_step(self) -> None:
        alphas = [group["alpha"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                group["alpha"] = group["smoothing"]
            super()._base_step()
        finally:
            for group, alpha in zip(self.param_groups, alphas, strict=True):
                group["alpha"] = alpha

    def __setstate__(self, state: dict[str, Any]) -> None:
        for group in state["param_groups"]:
            if "smoothing" not in group:  # saved by torch's own
                _rename(group)
        super().__setstate__(state)


around_compiled(FractionalRMSprop._base_step)


def _rename(options: dict[str, Any]) -> None:
    """Give torch's name of the smoothing constant free for the order."""
    options["smoothing"] = options.pop("alpha")
