"""The optimizers: torch's, each with the fractional direction in place of the gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.tracing import around_compiled
from hpfracc_nn.training.torch.optimizers.directions import Group, check_options
from hpfracc_nn.training.torch.optimizers.fractional import Fractional

# RMSprop's order in a state_dict. A group has the key too, and None: flattened checkpoints are read by a group's keys.
_SAVED_ORDER = "fractional_alpha"


class FractionalSGD(Fractional, torch.optim.SGD):
    """`torch.optim.SGD` along a power-law average of the last gradients; with alpha = 1 it is that optimizer.

    Takes the options of `torch.optim.SGD`, in its order and by name, and those below by name. With momentum the average
    enters the velocity: past gradients are weighted twice, by the power law and by momentum.

    Args:
        params: Tensors, named tensors or groups; a group may have its own alpha, kind and memory.
        options: As of `torch.optim.SGD`: lr, momentum, dampening, weight_decay, nesterov, maximize, foreach,
            differentiable, fused.
        alpha: Order in (0, 1]. The weights of past gradients fall like lag**-alpha: 1 keeps none of them, towards 0
            all count alike.
        kind: "integral" (default): weights of the fractional integral of order 1 - alpha, divided by their sum.
            "difference": of the derivative of order 1 - alpha. "fcgd", "caputo", "caputo_terminal": as in papers, to
            reproduce them. See `training/directions.py`, and the documentation for what they are good for.
        memory: How many gradients are averaged, that of the step included: as many copies of the parameters are kept.
            "exponentials" keeps 5 copies, and weighs like the power law times exp(-lag / 50). The kinds "caputo" (1
            copy) and "caputo_terminal" (none) leave it unused.
        generator: The generator of the seeds of "fcgd"; it must be alike in all processes that train one model. None is
            the same random numbers in every run.
        manager: The manager that chooses the kernel for the average, anew at each step; None is the process-wide
            BackendManager.

    Raises:
        ValueError: alpha is not in (0, 1], memory is less than 1, a kind is unknown or does not support an option, or
            the base optimizer refuses its options.
        TypeError: alpha is not a number, or memory neither a whole number nor "exponentials".

    Source: the weights in `hpfracc_nn/training/directions.py`.

    Examples:
        >>> w = nn.Parameter(torch.zeros(1))
        >>> optimizer = FractionalSGD([w], lr=0.1, alpha=0.5)
        >>> for slope in (1.0, 0.0):
        ...     optimizer.zero_grad()
        ...     (slope * w).sum().backward()
        ...     optimizer.step()
        >>> w.detach()  # -0.1 - 0.1 (0 + 1 / 2) / (1 + 1 / 2)
        tensor([-0.1333])
    """

    _takes_sparse = True


class FractionalAdam(Fractional, torch.optim.Adam):
    """`torch.optim.Adam` along a power-law average of the last gradients; with alpha = 1 it is that optimizer.

    Takes the options of `torch.optim.Adam`, in its order and by name, and those below by name. Both of Adam's moments
    are those of the average.

    Args:
        params: Tensors, named tensors or groups; a group may have its own alpha, kind and memory.
        options: As of `torch.optim.Adam`: lr, betas, eps, weight_decay, amsgrad, foreach, maximize, capturable,
            differentiable, fused.
        named: Options of the base optimizer by name; and alpha, kind, memory, generator and manager, as of
            `FractionalSGD`. Errors and source are as of `FractionalSGD`, too.

    Examples:
        >>> w = nn.Parameter(torch.zeros(1))
        >>> optimizer = FractionalAdam([w], lr=1e-3, alpha=0.9, memory=10)
        >>> w.sum().backward()
        >>> optimizer.step()
        >>> w.detach()  # the rate: a first step averages one gradient
        tensor([-0.0010])
    """


class FractionalAdamW(Fractional, torch.optim.AdamW):
    """`torch.optim.AdamW` along a power-law average of the last gradients; with alpha = 1 it is that optimizer.

    Takes the options of `torch.optim.AdamW`, in its order and by name, and those below by name. Weights decay by
    themselves, as in AdamW: what decays is not averaged.

    Args:
        params: Tensors, named tensors or groups; a group may have its own alpha, kind and memory.
        options: As of `torch.optim.AdamW`: lr, betas, eps, weight_decay, amsgrad, maximize, foreach, capturable,
            differentiable, fused.
        named: Options of the base optimizer by name; and alpha, kind, memory, generator and manager, as of
            `FractionalSGD`. Errors and source are as of `FractionalSGD`, too.

    Examples:
        >>> w = nn.Parameter(torch.zeros(1))
        >>> optimizer = FractionalAdamW([w], lr=1e-3, alpha=0.9, memory="exponentials")
        >>> w.sum().backward()
        >>> optimizer.step()
        >>> w.detach()  # the rate: a first step averages one gradient
        tensor([-0.0010])
    """


class FractionalRMSprop(Fractional, torch.optim.RMSprop):
    """`torch.optim.RMSprop` along a power-law average of the last gradients; with alpha = 1 it is that optimizer.

    Takes the options of `torch.optim.RMSprop`, in its order and by name, and those below by name. Torch's own `alpha`,
    the smoothing constant, is `smoothing` here: `alpha` is the order, as everywhere in this package. Only in
    `state_dict`, which either of the two optimizers can load, `alpha` is torch's constant, and `fractional_alpha` the
    order; in a group of the optimizer itself `fractional_alpha` is None.

    Args:
        params: Tensors, named tensors or groups; a group may have its own alpha, kind and memory.
        lr: Learning rate.
        smoothing: The smoothing constant, which torch calls `alpha`.
        options: As of `torch.optim.RMSprop`: eps, weight_decay, momentum, centered, capturable, foreach, maximize,
            differentiable.
        named: Options of the base optimizer by name; and alpha, kind, memory, generator and manager, as of
            `FractionalSGD`. Errors and source are as of `FractionalSGD`, too.

    Examples:
        >>> w = nn.Parameter(torch.zeros(1))
        >>> optimizer = FractionalRMSprop([w], lr=1e-2, smoothing=0.9, alpha=0.9)
        >>> w.sum().backward()
        >>> optimizer.step()
        >>> w.detach()  # 0.01 / sqrt(0.1)
        tensor([-0.0316])
    """

    def __init__(self, params: Any, lr: Any = 1e-2, smoothing: float = 0.99, *options: Any, **named: Any):
        smoothing = errors.real("FractionalRMSprop", "smoothing", smoothing, 0.0, example=0.99)
        super().__init__(params, lr, smoothing, *options, **named)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; alpha, kind and memory missing in the group are the defaults.

        Raises:
            TypeError: alpha, kind or memory has no usable type.
            ValueError: alpha, kind or memory is out of range or unknown.
        """
        if "smoothing" not in self.defaults:
            self.defaults.update({"smoothing": self.defaults.pop("alpha"), _SAVED_ORDER: None})
        super().add_param_group(param_group)

    @around_compiled
    def _base_step(self) -> None:
        alphas = [group["alpha"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                group["alpha"] = group["smoothing"]
            super()._base_step()
        finally:
            for group, alpha in zip(self.param_groups, alphas, strict=True):
                group["alpha"] = alpha

    def state_dict(self) -> dict[str, Any]:
        """Return the state as the base optimizer saves it, which can load it: `alpha` is the smoothing constant.

        The order is the group's `fractional_alpha`.
        """
        handle = self.register_state_dict_post_hook(_with_torchs_alpha, prepend=True)
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def _adopted_group(self, saved: Group, present: Group) -> Group:
        order = saved.get(_SAVED_ORDER)
        if order is not None or "smoothing" not in saved:  # otherwise the saved group has the names of this class
            smoothing = saved.get("alpha", present["smoothing"])
            order = present["alpha"] if order is None else order
            saved = {**saved, "alpha": order, "smoothing": smoothing, _SAVED_ORDER: None}
        return super()._adopted_group(saved, present)


def _with_torchs_alpha(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state_dict that torch's RMSprop can load: `alpha` is torch's smoothing constant, not the order.

    This function is registered as a hook, which torch calls with the optimizer first.
    """
    groups = [
        {**group, "alpha": group["smoothing"], _SAVED_ORDER: group["alpha"]} for group in state_dict["param_groups"]
    ]
    return {**state_dict, "param_groups": groups}


Alpha = Callable[[int], float]  # takes the number of steps to alpha


class AlphaSchedule:
    """Set the alpha of an optimizer's groups, as torch's LambdaLR sets their learning rate.

    A window of past gradients does not depend on alpha, and neither do the rates of the exponentials: a new alpha
    weighs the gradients that are kept anew, at once.

    Args:
        optimizer: A fractional optimizer, or a wrapper of one, such as ZeroRedundancyOptimizer.
        alpha: A function from the number of calls of `step` to alpha, in (0, 1], for all groups, also those that are
            added later. Or a list or tuple with such a function for each group, or None for a group that is to keep its
            alpha; groups that are added later keep theirs.

    Raises:
        TypeError: The optimizer has no fractional alpha, or `alpha` is no function and no list of functions.
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
        if not isinstance(_inner(optimizer), Fractional):  # RMSprop's alpha is no order
            raise TypeError(
                f"AlphaSchedule(optimizer: {type(optimizer).__name__}): needs an optimizer with a fractional alpha, "
                "such as FractionalAdam."
            )
        groups = optimizer.param_groups
        functions = alpha if isinstance(alpha, list | tuple) else [alpha]
        if not all(each is None or callable(each) for each in functions) or alpha is None:
            raise TypeError(
                f"AlphaSchedule(alpha={alpha!r}): needs a function of the number of steps, or one for each group; "
                "pass for example lambda epoch: 0.9."
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
        """Count a step, and set the alpha of the groups for the new count."""
        self._set(self.last_epoch + 1)

    def get_last_alpha(self) -> list[float]:
        """Return the alpha of each group."""
        return [group["alpha"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes: the number of steps; functions are not saved."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the count of steps that another schedule's `state_dict` holds, and set alpha for it."""
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
    """Return the fractional optimizer inside of wrappers, or the innermost optimizer if there is none.

    torch's wrappers call what they wrap `optim`, Accelerate's `optimizer`.
    """
    while not isinstance(optimizer, Fractional):
        inside = getattr(optimizer, "optim", None) or getattr(optimizer, "optimizer", None)
        if inside is None:
            break
        optimizer = inside
    return optimizer
