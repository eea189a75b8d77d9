"""Derivatives of weights in their order, where every weight depends on one order only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def slopes(formula: Callable[[Tensor], Sequence[Tensor]], alpha: Tensor) -> list[Tensor]:
    """Return the derivative of each of the formula's numbers in the one entry of alpha that it depends on.

    By the formula's own autograd: what is pulled back with a seed is linear in the seed, and the derivative is its
    factor. The result has a graph where gradients are recorded and alpha requires one.
    """
    records = torch.is_grad_enabled()
    if not (records and alpha.requires_grad):
        alpha = alpha.detach().requires_grad_()
    with torch.enable_grad():
        values = list(formula(alpha))
        seeds = [torch.zeros_like(each, requires_grad=True) for each in values]
        (pulled,) = torch.autograd.grad(values, alpha, seeds, create_graph=True)
        return list(torch.autograd.grad(pulled, seeds, torch.ones_like(pulled), create_graph=records))


def apart(x: Tensor | None) -> Tensor | None:
    """Return x apart from what else is made of it, for gradients in several tensors of which one is made of another.

    A backward pass owes the direct part alone: autograd goes on behind each tensor, and would count a path that it has
    followed already once more. A second derivative still reaches x.
    """
    return None if x is None else x.view_as(x)
