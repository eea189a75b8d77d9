"""The operator around a kernel's product, tile by tile and a few rows at a time.

    y = T(left) d(x) + sum over j of columns[j] * v_j(x),

with d the differenced data and v_j their few boundary values. A kernel that brings its own passes reads `arrays`; the
others take the data tile by tile, differenced and padded to whole chunks, and what belongs to the boundary is added
when they ask for the next tile. On a CPU a tile's differences, states and result stay in a cache. Everything that can
be is prepared once for all tiles: a tile costs a handful of calls. Tensors are [batch, channels, n, width].

What takes too much memory at once is computed in parts. There half precision is converted for kernels that do not read
it, part by part, to the frame's dtype and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.torch import boundary as diff
from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.scratch import scratch
from hpfracc_nn.selection import Plan, Workload

_WIDE = 16  # signals side by side, from which on a matrix product with them is as fast as with time last (measured)
_FEW = 2048  # samples, below which the calls that turn them round take longer than they save (measured)
_BYTES = 1 << 21  # of one tile's data: below it a tile's dozen calls cost more than the cache gives


def tile_rows(x: Tensor) -> int:
    """Return how many signals of the batch make a tile of x [batch, channels, n, width]."""
    batch, channels, n, width = x.shape
    if x.numel() * x.element_size() <= _BYTES or channels > 1 or x.device.type != "cpu":
        return batch  # with several channels they are regrouped anyway
    return min(batch, max(1, _BYTES * torch.get_num_threads() // max(1, n * width * x.element_size())))


def tile_bytes(workload: Workload) -> int:
    """Return the bytes of the samples of one tile."""
    if workload.bytes <= _BYTES or workload.channels > 1 or not workload.device.startswith("cpu"):
        return workload.bytes
    signal = workload.n * workload.width * workload.itemsize
    return min(workload.bytes, max(1, _BYTES * workload.threads // max(1, signal)) * signal)


def is_narrow(samples: int, width: int) -> bool:
    """Return whether time is in the middle, with so few signals side by side that turning the data round pays.

    Products with so narrow matrices are 3 to 30 times as slow as with time last, in both precisions, which is more than
    turning them round and back takes.

    Args:
        samples: Of all signals.
        width: Signals side by side.
    """
    return 1 < width < _WIDE and samples >= _FEW


def with_time_last(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield x tile by tile as [signals, channels, n, 1], and room for the result, which is then written into y."""
    rows, (_, channels, n, width) = tile_rows(x), x.shape
    data, result = (scratch(use, (rows, width, channels, n), x) for use in ("turned", "turned result"))
    for part, done in zip(cut(x, rows), cut(y, rows), strict=True):
        given, found = (data, result) if part.shape[0] == rows else (data[: part.shape[0]], result[: part.shape[0]])
        given.copy_(part.permute(0, 3, 1, 2))
        yield given.view(-1, channels, n, 1), found.view(-1, channels, n, 1)
        done.copy_(found.permute(0, 2, 3, 1))


def cut(x: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Return the tiles of x; one tile is x itself, without the cost of a view."""
    return (x,) if rows >= x.shape[0] else x.split(rows)


def buffer(use: str, x: Tensor, rows: int, length: int) -> Tensor:
    """Return room for one tile of padded data; what lies behind the samples is zero."""
    _, channels, n, width = x.shape
    room = scratch(use, (rows, channels, length, width), x)
    if length > n:
        room[:, :, n:] = 0
    return room


def padded_bytes(x: Tensor, rows: int, length: int, use: str = "padded") -> Iterator[Tensor]:
    """Yield x tile by tile, padded with zeros to `length` samples; a tile is overwritten by the next.

    `use` names the memory: two iterations that run side by side need two names.
    """
    n = x.shape[2]
    if length == n:
        yield from cut(x, rows)
        return
    room = buffer(use, x, rows, length)
    for tile in cut(x, rows):
        data = room if tile.shape[0] == rows else room[: tile.shape[0]]
        data.narrow(2, 0, n).copy_(tile)
        yield data


def differenced(x: Tensor, rows: int, length: int, stencil: Stencil) -> Iterator[Tensor]:
    """Yield d tile by tile, padded with zeros; a tile is overwritten by the next."""
    if not (stencil.differences or stencil.subtract):
        yield from padded_bytes(x, rows, length, "difference")
        return
    first = stencil.differences == 1 and not diff.two_terms(stencil)
    if first and length == x.shape[2] and x.shape[3] == 1 and x.shape[2] > 1 and rows < x.shape[0]:
        yield from _first_differences(x, rows, stencil.subtract)
        return
    room = buffer("difference", x, rows, length)
    for tile in cut(x, rows):
        d = room if tile.shape[0] == rows else room[: tile.shape[0]]
        diff.difference_into(d, tile, stencil)
        yield d


def _first_differences(x: Tensor, rows: int, subtract: bool) -> Iterator[Tensor]:
    """All signals of a tile are differenced in one pass; then each gets its first sample."""
    _, channels, n, _ = x.shape
    size = rows * channels * n
    room = scratch("difference", (size + 1,), x)
    d, inside = room[:size].view(rows, channels, n, 1), room[1:]
    first, flat = d.narrow(2, 0, 1), x.view(-1)
    for tile, later, earlier in zip(x.split(rows), flat[1:].split(size), flat[:-1].split(size), strict=True):
        count = tile.shape[0]
        torch.sub(later, earlier, out=inside if later.numel() == size else inside[: later.numel()])
        if subtract:
            first.zero_()
        else:
            first[:count] = tile[:, :, :1]
        yield d if count == rows else d[:count]


Pairs = Iterable[tuple[Tensor, Tensor]]
Shape = tuple[int, int, int, int]  # batch, channels, n, width


@dataclass(eq=False)
class Frame:
    """The stencil of an operator and its boundary columns [terms, channels, n], or None."""

    stencil: Stencil
    columns: Tensor | None
    dtype: torch.dtype

    @cached_property
    def arrays(self) -> tuple[np.ndarray, int, bool, int, int]:
        """The same for kernels that know no tensors, on a CPU.

        The columns, m, whether the Taylor polynomial is subtracted, its terms, and the entry of d that the first column
        multiplies, -1 where none does.
        """
        stencil, columns = self.stencil, self.columns
        if columns is None:
            found = np.empty((0, 1, stencil.n), np.float64 if self.dtype == torch.float64 else np.float32)
        else:
            found = columns.detach().numpy()
        start = stencil.start_index if stencil.starts else -1
        return found, stencil.differences, stencil.subtract, stencil.taylor, start

    def forward(self, x: Tensor, y: Tensor, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (differenced data, room for the result), in whole chunks."""
        stencil, n = self.stencil, x.shape[2]
        rows, length = tile_rows(x), -(-n // chunk) * chunk
        work = buffer("result", x, rows, length) if length > n else None
        columns = self._each_column()
        for part, done, d in zip(cut(x, rows), cut(y, rows), differenced(x, rows, length, stencil), strict=True):
            values = diff.boundary_values(part, d, stencil) if columns else ()
            yield d, done if work is None else work[: d.shape[0]]
            if work is not None:
                done.copy_(work[: d.shape[0], :, :n])
            for column, value in zip(columns, values, strict=True):
                done.addcmul_(column, value)

    def backward(self, g: Tensor, gx: Tensor, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (gradient, room for the adjoint); when a tile is done it goes back through the differences."""
        stencil, n = self.stencil, g.shape[2]
        rows, length = tile_rows(g), -(-n // chunk) * chunk
        back = buffer("result", g, rows, length)
        columns = self._each_column()
        for part, found, padded in zip(cut(g, rows), cut(gx, rows), padded_bytes(g, rows, length), strict=True):
            out = back if part.shape[0] == rows else back[: part.shape[0]]
            yield padded, out
            values = [(part * column).sum(dim=2, keepdim=True) for column in columns]
            start, analytic = diff.split_boundary(values, stencil)
            gd = out.narrow(2, 0, n)
            if start is not None:
                gd[:, :, stencil.start_index : stencil.start_index + 1] += start
            diff.difference_adjoint_into(found, gd, stencil)
            if analytic:
                found[:, :, :4] += diff.head_gradient(analytic, found)

    def _each_column(self) -> list[Tensor]:
        return [] if self.columns is None else [column[:, :, None] for column in self.columns]


Steps = tuple[Callable[..., None], Callable[..., None]]


def by_tiles(run: Callable[..., None], adjoint: Callable[..., None], *, turns_narrow: bool = False) -> Steps:
    """Return a kernel's run and adjoint, made of functions (form, pairs) that write into the second of each pair.

    Args:
        run: The product.
        adjoint: Its transpose.
        turns_narrow: Whether data with time in the middle and few signals side by side are turned round first.
    """

    def arrays(shape: Shape, x: Tensor, y: Tensor) -> Pairs:
        both = x.view(shape), y.view(shape)
        return with_time_last(*both) if turns_narrow and is_narrow(x.numel(), shape[3]) else (both,)

    def run_all(form: Form, frame: Frame, shape: Shape, x: Tensor, y: Tensor) -> None:
        for data, result in arrays(shape, x, y):
            run(form, frame.forward(data, result, form.multiple))

    def adjoint_all(form: Form, frame: Frame, shape: Shape, g: Tensor, gx: Tensor) -> None:
        for data, result in arrays(shape, g, gx):
            adjoint(form, frame.backward(data, result, form.multiple))

    return run_all, adjoint_all


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
