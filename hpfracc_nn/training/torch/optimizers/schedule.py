"""An alpha that changes from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hpfracc_nn.training.torch.optimizers.kinds import check_options


class AlphaSchedule:
    """Set the alpha of an optimizer's groups, as torch's LambdaLR sets their learning rate.

    A window of past gradients does not depend on alpha, and neither do the rates of the exponentials: a new alpha
    weighs what was remembered anew, at once.

    Args:
        optimizer: A fractional one.
        alpha: Returns alpha, in (0, 1], for how often `step` was called; or one such function for each group.

    Raises:
        TypeError: The optimizer has no alpha.
        ValueError: There is another number of functions than of groups, or an alpha is out of range.

    Example:
        >>> schedule = AlphaSchedule(optimizer, lambda epoch: min(1.0, 0.5 + 0.05 * epoch))
        >>> for epoch in range(20):
        ...     train(optimizer)
        ...     schedule.step()
    """

    def __init__(self, optimizer: torch.optim.Optimizer, alpha: Callable[[int], float] | list[Callable[[int], float]]):
        groups = optimizer.param_groups
        if any("alpha" not in group for group in groups):
            raise TypeError(
                f"AlphaSchedule(optimizer: {type(optimizer).__name__}): needs an optimizer with alpha, such as "
                "FractionalAdam."
            )
        functions = alpha if isinstance(alpha, list) else [alpha] * len(groups)
        if len(functions) != len(groups):
            raise ValueError(
                f"AlphaSchedule(alpha: {len(functions)} functions): needs one for each of the {len(groups)} groups, "
                "or a single one for all."
            )
        self.optimizer = optimizer
        self.last_epoch = 0
        self._functions = functions
        self._set()

    def step(self) -> None:
        """Go on to the next alpha."""
        self.last_epoch += 1
        self._set()

    def get_last_alpha(self) -> list[float]:
        """Return the alpha of each group."""
        return [group["alpha"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes: the number of steps; functions are not saved."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another schedule was."""
        self.last_epoch = state_dict["last_epoch"]
        self._set()

    def _set(self) -> None:
        for group, function in zip(self.optimizer.param_groups, self._functions, strict=True):
            alpha = function(self.last_epoch)
            check_options({**group, "alpha": alpha})
            group["alpha"] = float(alpha)
