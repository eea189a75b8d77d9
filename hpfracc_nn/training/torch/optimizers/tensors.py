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


def check_belongs(what: str, kept: Tensor, grad: Tensor) -> None:
    """Raise unless what is kept is that of a parameter with such a gradient: kernels go by addresses."""
    if (kept.shape, kept.dtype, kept.device) != (grad.shape, grad.dtype, grad.device):
        raise RuntimeError(
            f"the state holds {what} of shape {tuple(kept.shape)}, {kept.dtype} on {kept.device}, and the gradient has "
            f"shape {tuple(grad.shape)}, {grad.dtype} on {grad.device}: what is remembered belongs to one parameter as "
            "it is; drop it with optimizer.state.pop(parameter), or make a new optimizer."
        )


def as_real(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return complex tensors as real ones with one more axis, and all others as they are."""
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]
