"""The user's state as one array [a, r]: a orders alpha, and r numbers that share each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

State = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Packing:
    """How a state is laid out.

    Attributes:
        shapes: Of each tensor of the user's tuple, or of the one tensor.
        is_tuple: Whether the user has a tuple.
        order: The axes of the one tensor, those along which alpha varies first; None where they lie so already.
        orders: a, how many alphas.
    """

    shapes: tuple[torch.Size, ...]
    is_tuple: bool
    order: tuple[int, ...] | None
    orders: int

    @property
    def width(self) -> int:
        """r, the numbers of each order."""
        return sum(shape.numel() for shape in self.shapes) // self.orders

    def flat(self, y: State) -> Tensor:
        """Return a state as [a, r]; a view where it can be."""
        if self.is_tuple:
            return torch.cat([part.reshape(-1) for part in y])[None]
        assert isinstance(y, Tensor)
        return (y if self.order is None else y.permute(self.order)).reshape(self.orders, self.width)

    def shaped(self, z: Tensor) -> State:
        """Return [*time, a, r] as the user's state, with the axes of time first."""
        time = z.shape[:-2]
        if self.is_tuple:
            sizes = [shape.numel() for shape in self.shapes]
            parts = z.reshape(*time, -1).split(sizes, dim=-1)
            return tuple(part.reshape(*time, *shape) for part, shape in zip(parts, self.shapes, strict=True))
        shape = self.shapes[0]
        if self.order is None:
            return z.reshape(*time, *shape)
        moved = z.reshape(*time, *(shape[axis] for axis in self.order))
        back = [self.order.index(axis) + len(time) for axis in range(len(shape))]
        return moved.permute(*range(len(time)), *back)


def packing_of(y0: State, alpha_shape: torch.Size) -> Packing:
    """Return the packing of states like `y0` under an alpha of that shape.

    Raises:
        ValueError: alpha is not one number and y0 is a tuple, or alpha does not broadcast to y0.
    """
    if isinstance(y0, tuple):
        if math.prod(alpha_shape) != 1:
            raise ValueError(
                f"fdeint(alpha of shape {tuple(alpha_shape)}): needs one alpha for a tuple of tensors; join the "
                "tensors into one and pass an alpha for each of its entries."
            )
        return Packing(tuple(part.shape for part in y0), True, None, 1)
    shape = y0.shape
    missing = len(shape) - len(alpha_shape)
    padded = (1,) * missing + tuple(alpha_shape)
    if missing < 0 or any(size not in (1, shape[axis]) for axis, size in enumerate(padded)):
        if math.prod(alpha_shape) == 1:
            return Packing((shape,), False, None, 1)
        raise ValueError(
            f"fdeint(alpha of shape {tuple(alpha_shape)}): needs one number, or a shape that broadcasts to y0's "
            f"{tuple(shape)}; pass one alpha for all, or one for each entry along some of y0's axes."
        )
    varying = [axis for axis, size in enumerate(padded) if size > 1]
    others = [axis for axis in range(len(shape)) if axis not in varying]
    order = (*varying, *others)
    return Packing((shape,), False, None if order == tuple(range(len(shape))) else order, math.prod(padded))
