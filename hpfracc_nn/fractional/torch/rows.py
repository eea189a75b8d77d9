"""A kernel's run and adjoint, over a few rows at a time: what takes too much memory at once is computed in parts.

Here half precision is converted for kernels that do not read it, part by part, to the frame's dtype and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.frame import Frame, Shape
from hpfracc_nn.selection import Plan

Step = Callable[[Form, Frame, Shape, Tensor, Tensor], None]


def parts(shape: Shape, rows: int | None, *tensors: Tensor) -> Iterator[tuple[Shape, tuple[Tensor, ...]]]:
    """Yield pieces of contiguous tensors, with their shape.

    Args:
        shape: Of all: batch, channels, n, width.
        rows: Signals of a piece, batch times channels, at least one of each channel; None: all, as they are.
        tensors: What is cut along the batch, without a copy.
    """
    if rows is None:
        yield shape, tensors
        return
    batch, channels, n, width = shape
    count = max(1, rows // channels)
    for begin in range(0, batch, count):
        some = min(count, batch - begin)
        yield (some, channels, n, width), tuple(each.view(shape)[begin : begin + some] for each in tensors)


def run_in_parts(
    step: Step, rows: int | None, form: Form, frame: Frame, shape: Shape, x: Tensor, y: Tensor, *, as_stored: bool
) -> None:
    """Run one direction of a kernel, `rows` signals at a time; None: at once.

    Args:
        step: The direction.
        rows: See `parts`.
        form: Of the weights.
        frame: Around the product.
        shape: Of x and y.
        x: What goes in.
        y: Room for what comes out, of x's dtype.
        as_stored: Whether the kernel takes x in its own dtype.
    """
    converts = not as_stored and x.dtype != frame.dtype
    for part, (data, room) in parts(shape, rows, x, y):
        if converts:
            widely(step, form, frame, part, data, room)
        else:
            step(form, frame, part, data, room)


def step_of(plan: Plan, direction: Literal["run", "adjoint"]) -> Callable[..., None]:
    """Return one direction of a plan's kernel, on the devices that the plan names."""
    step: Callable[..., None] = getattr(plan.kernel, direction)
    return partial(step, devices=plan.devices) if plan.devices else step


def widely(step: Step, form: Form, frame: Frame, shape: Shape, x: Tensor, y: Tensor) -> None:
    """Run one direction on samples of the frame's dtype, and round the results to that of y."""
    data = x.to(frame.dtype)
    found = torch.empty_like(data)
    step(form, frame, shape, data, found)
    y.copy_(found.view(y.shape))


def multiplied(run: Callable[..., None], form: Form, frame: Frame, shape: Shape, x: Tensor, g: Tensor) -> Tensor:
    """Return for each channel the sum of what `run` makes of x, times g."""
    moved = torch.empty(x.shape, dtype=frame.dtype, device=x.device)
    run(form, frame, shape, x.to(frame.dtype), moved)
    moved.mul_(g)
    return moved.sum() if shape[1] == 1 else moved.view(shape).sum(dim=(0, 2, 3))
