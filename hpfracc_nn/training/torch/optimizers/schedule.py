"""An alpha that changes from step to step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpfracc_nn.training.torch.optimizers.fractional import Fractional
from hpfracc_nn.training.torch.optimizers.kinds import check_options

Alpha = Callable[[int], float]  # of how many steps


class AlphaSchedule:
    """Set the alpha of an optimizer's groups, as torch's LambdaLR sets their learning rate.

    A window of past gradients does not depend on alpha, and neither do the rates of the exponentials: a new alpha
    weighs what was remembered anew, at once.

    Args:
        optimizer: A fractional one, or one around it, such as ZeroRedundancyOptimizer.
        alpha: Returns alpha, in (0, 1], for how often `step` was called: for all groups, also those that are added
            later. Or a list or tuple with such a function for each group, or None for one that is to keep its alpha;
            groups that are added later keep theirs.

    Raises:
        TypeError: The optimizer has no fractional alpha.
        ValueError: There is another number of functions than of groups, or an alpha is out of range; then none is set.

    Examples:
        >>> optimizer = FractionalSGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        >>> schedule = AlphaSchedule(optimizer, lambda epoch: min(1.0, 0.5 + 0.05 * epoch))
        >>> for epoch in range(20):
        ...     optimizer.step()
        ...     schedule.step()
        >>> schedule.get_last_alpha()
        [1.0]
    """

    def __init__(self, optimizer: torch.optim.Optimizer, alpha: Alpha | Sequence[Alpha | None]):
        groups = optimizer.param_groups
        if not isinstance(_inner(optimizer), Fractional):  # RMSprop's alpha is no order
            raise TypeError(
                f"AlphaSchedule(optimizer: {type(optimizer).__name__}): needs an optimizer with a fractional alpha, "
                "such as FractionalAdam."
            )
        if isinstance(alpha, Sequence) and len(alpha) != len(groups):
            raise ValueError(
                f"AlphaSchedule(alpha: {len(alpha)} functions): needs one for each of the {len(groups)} groups, None "
                "for one that is to keep its alpha, or a single one for all."
            )
        self.optimizer = optimizer
        self.last_epoch = 0
        self._alpha = alpha
        self._set(0)

    def step(self) -> None:
        """Go on to the next alpha."""
        self._set(self.last_epoch + 1)

    def get_last_alpha(self) -> list[float]:
        """Return the alpha of each group."""
        return [group["alpha"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes: the number of steps; functions are not saved."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where another schedule was."""
        self._set(state_dict["last_epoch"])

    def _set(self, epoch: int) -> None:
        groups = self.optimizer.param_groups
        functions = self._alpha if isinstance(self._alpha, Sequence) else [self._alpha] * len(groups)
        scheduled = [
            (group, function(epoch)) for group, function in zip(groups, functions, strict=False) if function is not None
        ]
        for group, alpha in scheduled:
            check_options({**group, "alpha": alpha})
        for group, alpha in scheduled:
            group["alpha"] = float(alpha)
        self.last_epoch = epoch


def _inner(optimizer: Any) -> Any:
    """Return the optimizer that another one steps: torch's wrappers call it `optim`, Accelerate's `optimizer`."""
    while not isinstance(optimizer, Fractional):
        inside = getattr(optimizer, "optim", None) or getattr(optimizer, "optimizer", None)
        if inside is None:
            break
        optimizer = inside
    return optimizer
