"""Values of a tensor in the order in which they lie in memory, as real numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def room_like(grad: Tensor) -> Tensor:
    """Return room of the shape of `grad`, dense, and with its strides where these are."""
    return torch.empty_like(grad, memory_format=torch.preserve_format, requires_grad=False)


def in_order(values: Tensor, like: Tensor) -> Tensor:
    """Return `values` as a line, real, in the order of `like`, which is dense: a view where the strides are the same.

    Shapes: values and like [...], result [n], or [2 n] where they are complex.
    """
    if values.stride() != like.stride() or values.is_conj() or values.is_neg():
        values = room_like(like).copy_(values)
    line = values.as_strided((values.numel(),), (1,))
    return torch.view_as_real(line).reshape(-1) if line.is_complex() else line


def shaped(line: Tensor, like: Tensor) -> Tensor:
    """Return the tensor of `like`'s shape and strides that a line made by `in_order` stands for."""
    if like.is_complex():
        line = torch.view_as_complex(line.reshape(-1, 2))
    return line.as_strided(like.shape, like.stride())


def as_real(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return complex tensors as real ones with one more axis, and all others as they are."""
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]
