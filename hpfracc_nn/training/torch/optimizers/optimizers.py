"""The optimizers: torch's, each with the fractional direction in place of the gradient."""

from __future__ import annotations

from typing import Any

import torch

from hpfracc_nn.fractional.torch.probe import around_compiled
from hpfracc_nn.training.torch.optimizers.fractional import Fractional
from hpfracc_nn.training.torch.optimizers.kind import Group

# RMSprop's order in a state_dict. A group has the key too, and None: flattened checkpoints are read by a group's keys.
_SAVED_ORDER = "fractional_alpha"


class FractionalSGD(Fractional, torch.optim.SGD):
    """`torch.optim.SGD` along a power-law average of the last gradients; with alpha = 1 it is that optimizer.

    Takes the options of `torch.optim.SGD`, in its order and by name, and those below by name. With momentum the average
    is what enters the velocity: it is one kernel of past gradients after another.

    Args:
        params: Tensors, named tensors or groups; a group may have its own alpha, kind and memory.
        options: As of `torch.optim.SGD`: lr, momentum, dampening, weight_decay, nesterov, maximize, foreach,
            differentiable, fused.
        alpha: Order in (0, 1]. The weights of past gradients fall like lag**-alpha: 1 keeps none of them, towards 0
            all count alike.
        kind: "integral" (default): weights of the fractional integral of order 1 - alpha, divided by their sum.
            "difference": of the derivative of order 1 - alpha. "fcgd", "caputo", "caputo_terminal": as in papers, to
            reproduce them. See `power_law.py` and `caputo.py`, and the documentation for what they are good for.
        memory: How many gradients are averaged, that of the step included: as many copies of the parameters are kept.
            "exponentials" keeps 5 copies, and weighs like the power law times exp(-lag / 50). The kinds "caputo" (1
            copy) and "caputo_terminal" (none) leave it unused.
        generator: Where the random numbers of "fcgd" begin; it must be alike in all processes that train one model.
            None is the same numbers in every run.
        manager: Who chooses the kernel that averages, anew at each step; None is the process-wide BackendManager.

    Raises:
        ValueError: alpha is not in (0, 1], memory is less than 1, a kind is unknown or does not support an option, or
            the base optimizer refuses its options.
        TypeError: alpha is not a number, or memory neither a whole number nor "exponentials".

    Source: the weights in `hpfracc_nn/training/power_law.py`.

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
        named: The same by name; alpha, kind, memory, generator and manager are as of `FractionalSGD`, errors and
            source too.

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
        named: The same by name; alpha, kind, memory, generator and manager are as of `FractionalSGD`, errors and
            source too.

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
    `state_dict`, which either of the two optimizers can load, `alpha` is torch's and the order `fractional_alpha`; in a
    group that is None.

    Args:
        params: Tensors, named tensors or groups; a group may have its own alpha, kind and memory.
        lr: Learning rate.
        smoothing: What torch calls `alpha`.
        options: As of `torch.optim.RMSprop`: eps, weight_decay, momentum, centered, capturable, foreach, maximize,
            differentiable.
        named: The same by name; alpha, kind, memory, generator and manager are as of `FractionalSGD`, errors and
            source too.

    Examples:
        >>> w = nn.Parameter(torch.zeros(1))
        >>> optimizer = FractionalRMSprop([w], lr=1e-2, smoothing=0.9, alpha=0.9)
        >>> w.sum().backward()
        >>> optimizer.step()
        >>> w.detach()  # 0.01 / sqrt(0.1)
        tensor([-0.0316])
    """

    def __init__(self, params: Any, lr: Any = 1e-2, smoothing: float = 0.99, *options: Any, **named: Any):
        super().__init__(params, lr, smoothing, *options, **named)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; alpha, kind and memory that it does not bring are the defaults.

        Raises:
            TypeError: One of these has no usable type.
            ValueError: One of these is out of range or unknown.
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
        if order is not None or "smoothing" not in saved:  # or else it is a group as it is here
            smoothing = saved.get("alpha", present["smoothing"])
            order = present["alpha"] if order is None else order
            saved = {**saved, "alpha": order, "smoothing": smoothing, _SAVED_ORDER: None}
        return super()._adopted_group(saved, present)


def _with_torchs_alpha(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state with torch's name for the smoothing constant."""
    groups = [
        {**group, "alpha": group["smoothing"], _SAVED_ORDER: group["alpha"]} for group in state_dict["param_groups"]
    ]
    return {**state_dict, "param_groups": groups}
