"""A kernel's run and adjoint, over a few rows at a time: what takes too much memory at once is computed in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.frame import Frame, Shape

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


def run_in_parts(step: Step, rows: int | None, form: Form, frame: Frame, shape: Shape, x: Tensor, y: Tensor) -> None:
    """Run one direction of a kernel, `rows` signals at a time; None: at once."""
    for part, (data, room) in parts(shape, rows, x, y):
        step(form, frame, part, data, room)
