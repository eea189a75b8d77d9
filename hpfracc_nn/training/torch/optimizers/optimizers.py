"""The optimizers: torch's, each with the fractional direction in place of the gradient."""

from __future__ import annotations

from typing import Any

import torch

from hpfracc_nn.fractional.torch.probe import around_compiled
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.training.torch.optimizers.fractional import Fractional


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
        generator: Where the random numbers of "fcgd" begin; None is torch's own.
        manager: Who chooses the kernel that averages, anew at each step; None is the process-wide BackendManager.

    Raises:
        ValueError: alpha is not in (0, 1], memory is less than 1, a kind is unknown or does not support an option, or
            the base optimizer refuses its options.
        TypeError: alpha is not a number, or memory neither a whole number nor "exponentials".

    Source: the weights in `hpfracc_nn/training/power_law.py`.

    Example:
        >>> optimizer = FractionalSGD(net.parameters(), lr=0.1, momentum=0.9, alpha=0.9)
        >>> loss.backward()
        >>> optimizer.step()
    """


class FractionalAdam(Fractional, torch.optim.Adam):
    """`torch.optim.Adam` along a power-law average of the last gradients; with alpha = 1 it is that optimizer.

    Takes the options of `torch.optim.Adam`, in its order and by name, and those below by name. Both of Adam's moments
    are those of the average.

    Args:
        params: Tensors, named tensors or groups; a group may have its own alpha, kind and memory.
        options: As of `torch.optim.Adam`: lr, betas, eps, weight_decay, amsgrad, foreach, maximize, capturable,
            differentiable, fused.
        alpha: As of `FractionalSGD`.
        kind: As of `FractionalSGD`.
        memory: As of `FractionalSGD`.
        generator: As of `FractionalSGD`.
        manager: As of `FractionalSGD`.

    Raises:
        ValueError: As of `FractionalSGD`.
        TypeError: As of `FractionalSGD`.

    Example:
        >>> optimizer = FractionalAdam(net.parameters(), lr=1e-3, alpha=0.9, memory=10)
        >>> loss.backward()
        >>> optimizer.step()
    """


class FractionalAdamW(Fractional, torch.optim.AdamW):
    """`torch.optim.AdamW` along a power-law average of the last gradients; with alpha = 1 it is that optimizer.

    Takes the options of `torch.optim.AdamW`, in its order and by name, and those below by name. Weights decay by
    themselves, as in AdamW: what decays is not averaged.

    Args:
        params: Tensors, named tensors or groups; a group may have its own alpha, kind and memory.
        options: As of `torch.optim.AdamW`: lr, betas, eps, weight_decay, amsgrad, maximize, foreach, capturable,
            differentiable, fused.
        alpha: As of `FractionalSGD`.
        kind: As of `FractionalSGD`.
        memory: As of `FractionalSGD`.
        generator: As of `FractionalSGD`.
        manager: As of `FractionalSGD`.

    Raises:
        ValueError: As of `FractionalSGD`.
        TypeError: As of `FractionalSGD`.

    Example:
        >>> optimizer = FractionalAdamW(net.parameters(), lr=1e-3, alpha=0.9, memory="exponentials")
        >>> loss.backward()
        >>> optimizer.step()
    """


class FractionalRMSprop(Fractional, torch.optim.RMSprop):
    """`torch.optim.RMSprop` along a power-law average of the last gradients; with alpha = 1 it is that optimizer.

    Takes the options of `torch.optim.RMSprop`, in its order and by name, and those below by name. Torch's own `alpha`,
    the smoothing constant, is `smoothing` here: `alpha` is the order, as everywhere in this package.

    Args:
        params: Tensors, named tensors or groups; a group may have its own alpha, kind and memory.
        lr: Learning rate.
        smoothing: What torch calls `alpha`.
        options: As of `torch.optim.RMSprop`: eps, weight_decay, momentum, centered, capturable, foreach, maximize,
            differentiable.
        alpha: As of `FractionalSGD`.
        kind: As of `FractionalSGD`.
        memory: As of `FractionalSGD`.
        generator: As of `FractionalSGD`.
        manager: As of `FractionalSGD`.

    Raises:
        ValueError: As of `FractionalSGD`.
        TypeError: As of `FractionalSGD`.

    Example:
        >>> optimizer = FractionalRMSprop(net.parameters(), lr=1e-2, smoothing=0.9, alpha=0.9)
        >>> loss.backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Any,
        lr: Any = 1e-2,
        smoothing: float = 0.99,
        *options: Any,
        alpha: float = 1.0,
        kind: str = "integral",
        memory: int | str = 10,
        generator: torch.Generator | None = None,
        manager: BackendManager | None = None,
        **named: Any,
    ):
        own: dict[str, Any] = {"alpha": alpha, "kind": kind, "memory": memory, "generator": generator}
        super().__init__(params, lr, smoothing, *options, manager=manager, **own, **named)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; alpha, kind and memory that it does not bring are the defaults.

        Raises:
            TypeError: One of these has no usable type.
            ValueError: One of these is out of range or unknown.
        """
        if "smoothing" not in self.defaults:
            _rename(self.defaults)
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

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, as of the base optimizer; where that one saved it, its `alpha` is `smoothing`."""
        groups = [dict(group) for group in state_dict["param_groups"]]
        for group in groups:
            if "smoothing" not in group:
                _rename(group)
        super().load_state_dict({**state_dict, "param_groups": groups})

    def __setstate__(self, state: dict[str, Any]) -> None:
        for group in state["param_groups"]:
            if "smoothing" not in group:  # saved by torch's own
                _rename(group)
        super().__setstate__(state)


def _rename(options: dict[str, Any]) -> None:
    """Give torch's name of the smoothing constant free for the order."""
    options["smoothing"] = options.pop("alpha")
