"""How a state is laid out: the user's, the one that steps work with, and the matrices of the history.

Steps work with one tensor: the user's own, or his tuple joined into a vector. The history has [a, r]: a orders alpha,
and r numbers that share each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from hpfracc_nn.solvers.checks import fitting_orders

State = Tensor | tuple[Tensor, ...]
S = TypeVar("S", Tensor, tuple[Tensor, ...])  # of what kind the user's state is


@dataclass(frozen=True)
class Packing:
    """A layout.

    Attributes:
        shapes: Of each tensor of the user's tuple, or of the one tensor.
        is_tuple: Whether the user has a tuple.
        varying: The sizes of alpha's axes, as many as the state has: 1 where it does not vary.
        shape: Of the states that steps work with.
        orders: a.
        width: r.
    """

    shapes: tuple[torch.Size, ...]
    is_tuple: bool
    varying: tuple[int, ...]
    shape: torch.Size = field(init=False)
    orders: int = field(init=False)
    width: int = field(init=False)
    _order: list[int] | None = field(init=False)
    _back: list[int] = field(init=False)

    def __post_init__(self) -> None:
        axes = range(len(self.varying))
        order = [axis for axis in axes if self.varying[axis] > 1] + [axis for axis in axes if self.varying[axis] == 1]
        back = [order.index(axis) for axis in axes]
        numbers = sum(shape.numel() for shape in self.shapes)
        shape = torch.Size([numbers]) if self.is_tuple else self.shapes[0]
        orders = math.prod(self.varying)
        for name, value in (("shape", shape), ("orders", orders), ("width", numbers // orders)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_order", None if order == list(axes) else order)
        object.__setattr__(self, "_back", back)

    def joined(self, y: State) -> Tensor:
        """Return the user's state as one tensor."""
        if isinstance(y, Tensor):
            return y
        return torch.cat([part.reshape(-1) for part in y])

    def parted(self, z: Tensor) -> State:
        """Return states [*time, *shape] as the user's."""
        if not self.is_tuple:
            return z
        parts = z.split([shape.numel() for shape in self.shapes], dim=-1)
        return tuple(part.reshape((*z.shape[:-1], *shape)) for part, shape in zip(parts, self.shapes, strict=True))

    def matrix(self, z: Tensor) -> Tensor:
        """Return states [time, *shape] as [a, time, r]."""
        if self._order is not None:
            z = z.permute(0, *(axis + 1 for axis in self._order))
        return z.reshape(z.shape[0], self.orders, self.width).transpose(0, 1)

    def viewed(self, x: Tensor) -> Tensor:
        """Return a view of x, [a, *time, r], as [*time, *shape]."""
        time = x.shape[1:-1]  # it and shape may both be empty, and view() takes no arguments but a tuple of none
        if self.orders == 1:
            return x.view((*time, *self.shape))
        moved = x.movedim(0, -2)
        if self._order is None:
            return moved.view((*time, *self.shape))
        split = moved.view((*time, *(self.shape[axis] for axis in self._order)))
        return split.permute(*range(len(time)), *(axis + len(time) for axis in self._back))

    def spread(self, values: Tensor) -> Tensor:
        """Return one number for each order, [a], in a shape that broadcasts to that of a state."""
        return values.view(self.varying)


def packing_of(y0: State, alpha_shape: torch.Size, owner: str = "fdeint") -> Packing:
    """Return the packing of states like `y0` under an alpha of that shape.

    Raises:
        ValueError: alpha is not one number and y0 is a tuple, or alpha does not broadcast to y0.
    """
    if isinstance(y0, tuple):
        if math.prod(alpha_shape) != 1:
            raise ValueError(
                f"{owner}(alpha of shape {tuple(alpha_shape)}): needs one alpha for a tuple of tensors; join the "
                "tensors into one and pass an alpha for each of its entries."
            )
        return Packing(tuple(part.shape for part in y0), True, (1,))
    return Packing((y0.shape,), False, fitting_orders(owner, tuple(alpha_shape), tuple(y0.shape)))
