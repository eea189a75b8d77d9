"""Kinds made of Caputo's derivative of the loss along the way of the parameters: see `training/caputo.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gamma
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.selection import Site
from hpfracc_nn.training.caputo import NODES, quadrature
from hpfracc_nn.training.fractional_options import EXPONENTIALS, keeps_no_gradients
from hpfracc_nn.training.torch.optimizers.kind import Directions, Group, State
from hpfracc_nn.training.torch.optimizers.tensors import as_real, check_belongs


@dataclass(frozen=True)
class ClosedForm:
    """The gradient times a power of the last step's length; the first step takes the gradient as it is."""

    needs_closure = False
    keeps = ("previous",)

    def fault(self, group: Group) -> str | None:
        return _fault(group)

    def is_identity(self, group: Group) -> bool:
        return group["alpha"] == 1

    def rewind(self, state: State) -> None:
        """Nothing: a previous point that is the present one says no more than none."""

    def prepared(
        self, group: Group, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], site: Site
    ) -> Directions:
        taken = []
        for p, grad, state in zip(params, grads, states, strict=True):
            previous = state.get("previous")
            if previous is not None:
                check_belongs("the previous point", previous, grad)
            # A copy: the base optimizer may change in place what it is given.
            taken.append(grad.clone() if previous is None else _along(grad, p - previous, group["alpha"]))

        def directions() -> list[Tensor]:
            for p, state in zip(params, states, strict=True):
                state["previous"] = state["previous"].copy_(p) if "previous" in state else p.clone()
            return taken

        return directions


@dataclass(frozen=True)
class FixedTerminal:
    """The derivative from 0; the gradients that it is given are means along the line, made by `mean_gradients`."""

    needs_closure = True
    keeps = ()

    def fault(self, group: Group) -> str | None:
        return _fault(group)

    def is_identity(self, group: Group) -> bool:
        return group["alpha"] == 1

    def rewind(self, state: State) -> None:
        """Nothing: it keeps nothing."""

    def prepared(
        self, group: Group, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], site: Site
    ) -> Directions:
        taken = [_modulated(grad, p, group["alpha"]) for p, grad in zip(params, grads, strict=True)]
        return lambda: taken


def mean_gradients(groups: Sequence[Group], closure: Callable[[], Any]) -> dict[Tensor, Tensor]:
    """Return the mean of each parameter's gradient on the way from 0, weighted by (1 - s)**-alpha.

    All groups move together, each by the nodes of its own alpha. One that requires no gradient stays where it is, and
    one that gets none is left out. The parameters are as before when this returns or raises.
    """
    places = {p: p.detach().clone() for group in groups for p in group["params"] if p.requires_grad}
    rules = [(group, *(each.tolist() for each in quadrature(group["alpha"]))) for group in groups]
    means: dict[Tensor, Tensor] = {}
    try:
        for node in range(NODES):
            with torch.no_grad():
                for group, points, _ in rules:
                    for p in filter(places.__contains__, group["params"]):
                        p.copy_(points[node] * places[p])
            with torch.enable_grad():
                closure()
            for group, _, weights in rules:
                for p in group["params"]:
                    if p.grad is not None:
                        part = weights[node] * p.grad.detach()
                        means[p] = means[p].add_(part) if p in means else part
    finally:
        with torch.no_grad():
            for p, place in places.items():
                p.copy_(place)
    return means


def _along(grad: Tensor, way: Tensor, alpha: float) -> Tensor:
    """Return the modulated gradient, or the gradient where the way is 0 everywhere; nothing waits for a device."""
    return torch.where(way.any(), _modulated(grad, way, alpha), grad)


def _modulated(grad: Tensor, way: Tensor, alpha: float) -> Tensor:
    """Return grad * abs(way)**(1 - alpha) / Gamma(2 - alpha), for the parts of complex numbers apart."""
    real_grad, real_way = as_real([grad, way])
    result = real_way.abs().pow_(1 - alpha).mul_(real_grad).mul_(1 / gamma(2 - alpha))
    return torch.view_as_complex(result) if grad.is_complex() else result


def _fault(group: Group) -> str | None:
    if group["memory"] == EXPONENTIALS:
        return keeps_no_gradients(group["kind"])
    if group.get("differentiable"):
        return (
            f"kind {group['kind']!r} does not support differentiable: abs(x)**(1 - alpha) has no derivative at 0; "
            "pass kind='integral'"
        )
    return None
