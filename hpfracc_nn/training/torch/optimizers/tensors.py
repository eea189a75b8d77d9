"""Values of a tensor in the order in which they lie in memory, as real numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Strides = tuple[int, ...]


def dense_strides(like: Tensor) -> Strides:
    """Return the strides of `like` where it is dense, or else of what torch allocates in its place."""
    return torch.empty_like(like, device="meta", memory_format=torch.preserve_format).stride()


def room_like(grad: Tensor, strides: Strides) -> Tensor:
    """Return room of the shape of `grad`, with strides that are dense."""
    return torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device)


def rows_like(line: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return `count` rows of zeros of the shape and strides of `line`, one behind another; shape [count, ...]."""
    shape, strides = (count, *line.shape), (line.numel(), *line.stride())
    return torch.empty_strided(shape, strides, dtype=dtype, device=line.device).zero_()


def in_order(values: Tensor, like: Tensor) -> Tensor:
    """Return `values` as a line, real, in the order of `like`, which is dense: a view where the strides are the same.

    Shapes: values and like [...], result [n], or [2 n] where they are complex.
    """
    if values.stride() != like.stride() or values.is_conj() or values.is_neg():
        values = room_like(like, like.stride()).copy_(values)
    return line_of(values)


def line_of(values: Tensor) -> Tensor:
    """Return values that are dense as a line, real, in the order in which they lie: a view, or themselves."""
    line = values if values.dim() == 1 else values.as_strided((values.numel(),), (1,))
    return torch.view_as_real(line).reshape(-1) if line.is_complex() else line


def lines_of(rows: Tensor) -> Tensor:
    """Return rows laid out as by `rows_like` as lines, real, in the order of `line_of`: a view, or themselves.

    Shapes: rows [R, ...], result [R, n], or [R, 2 n] where they are complex.
    """
    lines = rows
    if rows.dim() != 2:
        count = rows.shape[0]
        values = rows.numel() // count
        lines = rows.as_strided((count, values), (values, 1))
    return torch.view_as_real(lines).flatten(1) if lines.is_complex() else lines


def shaped(lines: Tensor, like: Tensor) -> Tensor:
    """Return what a line made by `line_of`, or lines made by `lines_of`, stand for, in `like`'s shape and strides."""
    rows = lines.shape[:-1]
    if like.is_complex():
        lines = torch.view_as_complex(lines.reshape(*rows, -1, 2))
    return lines.as_strided((*rows, *like.shape), (*(like.numel() for _ in rows), *like.stride()))


def check_belongs(what: str, kept: Tensor, grad: Tensor) -> None:
    """Raise unless what is kept is that of a parameter with such a gradient: kernels go by addresses."""
    if kept.shape != grad.shape or kept.dtype != grad.dtype or kept.device != grad.device:
        raise RuntimeError(
            f"the state holds {what} of shape {tuple(kept.shape)}, {kept.dtype} on {kept.device}, and the gradient has "
            f"shape {tuple(grad.shape)}, {grad.dtype} on {grad.device}: what is remembered belongs to one parameter as "
            "it is; drop it with optimizer.state.pop(parameter), or make a new optimizer."
        )


def as_real(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return complex tensors as real ones with one more axis, and all others as they are."""
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]
