"""The operator around a kernel's product, tile by tile and a few rows at a time.

A tile is some entries of the batch. It is differenced and padded to whole chunks, the kernel multiplies it, and the
boundary columns are added (`fractional/boundary.py`). On a CPU a tile's differences, states and result stay in a cache.
Everything that can be is prepared once for all tiles: a tile costs a handful of calls. A kernel that computes the whole
operator in passes of its own does all of this itself. Tensors are [batch, channels, n, width].

What takes too much memory at once is computed in parts. There half precision is converted for kernels that do not read
it, part by part, to the product's dtype and back.

Working memory is kept between calls, per thread: fresh pages cost more than the arithmetic done on them. A buffer never
leaves the call that asked for it, and each use inside one call has its own name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import Boundary, difference_into, transposed_into, values
from hpfracc_nn.fractional.linear import Column, StateSpace
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.selection import Plan, Workload

_KEPT_BYTES = 8 << 20  # larger buffers are made anew
_LOCAL = threading.local()

_WIDE = 16  # signals side by side, from which on a matrix product is as fast as with time last (measured)
_FEW = 2048  # samples, below which permuting them takes longer than it saves (measured)
_BY_NUMPY = 32768  # samples of a tile that NumPy differences: its views cost a tenth, and torch uses one thread too
_BYTES = 1 << 21  # of one tile's data: below it a tile's dozen calls cost more than the cache gives


def in_tiles(x: Tensor, y: Tensor) -> tuple[int, Iterable[tuple[Tensor, Tensor]]]:
    """Return how many batch entries make a tile of x and y [batch, channels, n, width], and the pairs of tiles."""
    batch, channels, n, width = x.shape
    if x.numel() * x.element_size() <= _BYTES or channels > 1 or not x.is_cpu:
        return batch, ((x, y),)  # several channels are regrouped in a copy anyway
    rows = max(1, _BYTES * torch.get_num_threads() // max(1, n * width * x.element_size()))
    if rows >= batch:
        return batch, ((x, y),)
    return rows, zip(x.split(rows), y.split(rows), strict=True)


def tile_bytes(workload: Workload) -> int:
    """Return the bytes of the samples of one tile."""
    whole = workload.bytes
    if whole <= _BYTES or workload.channels > 1 or not workload.device.startswith("cpu"):
        return whole
    signal = workload.n * workload.width * workload.itemsize
    return min(whole, max(1, _BYTES * workload.threads // max(1, signal)) * signal)


def is_narrow(samples: int, width: int) -> bool:
    """Return whether time is in the middle, with so few signals side by side that a copy with time last pays.

    Products with so narrow matrices are 3 to 30 times as slow as with time last, in both precisions, which is more than
    permuting the data there and back takes.

    Args:
        samples: Of all signals.
        width: Signals side by side.
    """
    return 1 < width < _WIDE and samples >= _FEW


def with_time_last(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a copy of each tile of x as [signals, channels, n, 1], and an array for its result.

    After each step the result is written into y, permuted back.
    """
    (rows, pairs), (_, channels, n, width) = in_tiles(x, y), x.shape
    data, result = (scratch(use, (rows, width, channels, n), x) for use in ("turned", "turned result"))
    for part, done in pairs:
        given, found = (data, result) if part.shape[0] == rows else (data[: part.shape[0]], result[: part.shape[0]])
        given.copy_(part.permute(0, 3, 1, 2))
        yield given.view(-1, channels, n, 1), found.view(-1, channels, n, 1)
        done.copy_(found.permute(0, 2, 3, 1))


def cut(x: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Return the tiles of x; one tile is x itself, without the cost of a view."""
    return (x,) if rows >= x.shape[0] else x.split(rows)


def buffer(use: str, x: Tensor, rows: int, length: int) -> Tensor:
    """Return an array [rows, channels, length, width] for one tile of padded data, zero behind x's n samples."""
    _, channels, n, width = x.shape
    room = scratch(use, (rows, channels, length, width), x)
    if length > n:
        room[:, :, n:] = 0
    return room


def padded(x: Tensor, rows: int, length: int, use: str = "padded") -> Iterable[Tensor]:
    """Return the tiles of x, padded with zeros to `length` samples; a tile is overwritten by the next.

    `use` names the memory: two iterations that run side by side need two names.
    """
    if length == x.shape[2]:
        return cut(x, rows)
    return _in_buffer(x, buffer(use, x, rows, length), lambda tile, data: data.narrow(2, 0, x.shape[2]).copy_(tile))


def differenced(x: Tensor, rows: int, length: int, b: Boundary) -> Iterable[Tensor]:
    """Return the tiles of d, the differences of x, padded with zeros to `length` samples.

    A tile is overwritten by the next.
    """
    if not (b.differences or b.subtract):
        return padded(x, rows, length, "difference")
    if rows < x.shape[0]:
        if b.differences == 1 and b.taylor == 1 and length == x.shape[2] > 1 and x.shape[3] == 1:
            return _first_differences(x, rows, b.subtract)
        return _in_buffer(x, buffer("difference", x, rows, length), lambda tile, d: _difference(tile, d, b))
    d = scratch("difference", x.shape, x) if length == x.shape[2] else buffer("difference", x, rows, length)
    _difference(x, d, b)
    return (d,)


def _in_buffer(x: Tensor, room: Tensor, write: Callable[[Tensor, Tensor], Any]) -> Iterator[Tensor]:
    """Yield for each tile of x the array that `write(tile, array)` fills, which the next tile overwrites.

    The arrays are views of `room`, a buffer [rows, channels, length, width] for tiles of at most `rows` batch entries.
    """
    rows = room.shape[0]
    for tile in cut(x, rows):
        data = room if tile.shape[0] == rows else room[: tile.shape[0]]
        write(tile, data)
        yield data


def _difference(tile: Tensor, d: Tensor, b: Boundary) -> None:
    if b.differences > 0 and tile.is_cpu and tile.numel() <= _BY_NUMPY:
        with np.errstate(invalid="ignore"):  # infinities may meet; see `fractional.gaps`
            difference_into(tile.detach().numpy(), d.numpy(), b, NUMPY)
    else:
        difference_into(tile, d, b, TORCH)


def _first_differences(x: Tensor, rows: int, subtract: bool) -> Iterator[Tensor]:
    """Yield the first differences along time of each tile of x, computed in one pass over its memory.

    A tile has up to `rows` batch entries of x [batch, channels, n, 1], and the next one overwrites its differences. At
    time 0 they are the first sample, or 0 where `subtract` says that it is subtracted from all.
    """
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


Operator = Column | StateSpace
Shape = tuple[int, int, int, int]  # batch, channels, n, width
Multiply = Callable[[Tensor, Tensor], None]  # of a tile's data, and the array of its product


def forward(multiply: Multiply, b: Boundary, x: Tensor, y: Tensor, chunk: int) -> None:
    """Write the operator on x into y, tile by tile.

    Args:
        multiply: Writes the product of a tile, in whole chunks, into an array.
        b: The differences before and the boundary columns after the product.
        x: Samples.
        y: Where the results are written.
        chunk: Samples of a chunk, to a multiple of which tiles are padded.
    """
    (rows, pairs), n, factors = in_tiles(x, y), b.n, b.factors
    if factors is None:
        factors = b.factors = [] if b.columns is None else list(b.columns.unsqueeze(-1).unbind())
    length = -(-n // chunk) * chunk
    work = buffer("result", x, rows, length) if length > n else None
    for (part, done), d in zip(pairs, differenced(x, rows, length, b), strict=True):
        found = values(part, d, b) if factors else ()
        if work is None:
            multiply(d, done)
        else:
            multiply(d, work[: d.shape[0]])
            done.copy_(work[: d.shape[0], :, :n])
        for factor, value in zip(factors, found, strict=True):
            done.addcmul_(factor, value)


def backward(multiply: Multiply, b: Boundary, g: Tensor, gx: Tensor, chunk: int) -> None:
    """Write the operator's transpose on g into gx, tile by tile.

    Args:
        multiply: Writes the transposed product of a tile, in whole chunks, into an array.
        b: The differences before and the boundary columns after the product.
        g: What the transpose is applied to.
        gx: Where the results are written.
        chunk: Samples of a chunk, to a multiple of which tiles are padded.
    """
    (rows, pairs), n = in_tiles(g, gx), b.n
    length = -(-n // chunk) * chunk
    back = buffer("result", g, rows, length)
    for (part, found), data in zip(pairs, padded(g, rows, length), strict=True):
        out = back if part.shape[0] == rows else back[: part.shape[0]]
        multiply(data, out)
        transposed_into(out.narrow(2, 0, n), part, found, b)


Steps = tuple[Callable[..., None], Callable[..., None]]


def by_tiles(
    product: Callable[[Any], Multiply], adjoint: Callable[[Any], Multiply], *, turns_narrow: bool = False
) -> Steps:
    """Return a kernel's run and adjoint, made of functions for the product alone.

    Args:
        product: Returns, for the weights, the function that writes the product of a tile.
        adjoint: The same for the transpose of the product.
        turns_narrow: Whether data with time in the middle and few signals side by side are copied with time last first.
    """

    def step_by(step: Callable[..., None], multiply: Callable[[Any], Multiply]) -> Callable[..., None]:
        def write_all(operator: Operator, b: Boundary, shape: Shape, x: Tensor, y: Tensor) -> None:
            x, y = x.view(shape), y.view(shape)
            if not (turns_narrow and shape[3] > 1 and is_narrow(x.numel(), shape[3])):
                step(multiply(operator), b, x, y, operator.multiple)
                return
            for data, result in with_time_last(x, y):
                step(multiply(operator), b, data, result, operator.multiple)

        return write_all

    return step_by(forward, product), step_by(backward, adjoint)


Step = Callable[[Operator, Boundary, Shape, Tensor, Tensor], None]


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
    step: Step,
    rows: int | None,
    operator: Operator,
    b: Boundary,
    shape: Shape,
    x: Tensor,
    y: Tensor,
    *,
    as_stored: bool,
) -> None:
    """Run one direction of a kernel, `rows` signals at a time; all at once for None.

    Args:
        step: The direction: the kernel's run or adjoint.
        rows: See `parts`.
        operator: The weights, as the kernel takes them.
        b: The differences before and the boundary columns after the product.
        shape: Of x and y.
        x: The samples, or what the transpose is applied to.
        y: Where the results are written, of x's dtype.
        as_stored: Whether the kernel takes x in its own dtype.
    """
    converts = not as_stored and x.dtype != b.dtype
    for part, (data, room) in parts(shape, rows, x, y):
        if converts:
            widely(step, operator, b, part, data, room)
        else:
            step(operator, b, part, data, room)


def step_of(plan: Plan, direction: Literal["run", "adjoint"]) -> Callable[..., None]:
    """Return one direction of a plan's kernel, on the devices that the plan names."""
    step: Callable[..., None] = getattr(plan.kernel, direction)
    return partial(step, devices=plan.devices) if plan.devices else step


def widely(step: Step, operator: Operator, b: Boundary, shape: Shape, x: Tensor, y: Tensor) -> None:
    """Run one direction of a kernel on x in the product's dtype, and write the results into y, rounded to its dtype."""
    data = x.to(b.dtype)
    found = torch.empty_like(data)
    step(operator, b, shape, data, found)
    y.copy_(found.view(y.shape))


def multiplied(run: Callable[..., None], operator: Operator, b: Boundary, shape: Shape, x: Tensor, g: Tensor) -> Tensor:
    """Return for each channel the sum of the operator's results for x times g, in float64; [] for one channel.

    `run` is a kernel's run.
    """
    moved = torch.empty(x.shape, dtype=b.dtype, device=x.device)
    run(operator, b, shape, x.to(b.dtype), moved)
    moved.mul_(g)
    if shape[1] == 1:
        return moved.sum(dtype=torch.float64)
    return moved.view(shape).sum(dim=(0, 2, 3), dtype=torch.float64)


def scratch(use: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialised buffer of `shape` with the dtype and device of `like`.

    Args:
        use: What it is for; a second request for the same use in the same thread may return the same memory.
        shape: Its shape.
        like: Whose dtype and device.
    """
    kept: dict[tuple[str, torch.dtype], tuple[Tensor, Tensor]] = _LOCAL.__dict__.setdefault("kept", {})
    room, last = kept.get((use, like.dtype), (None, None))
    if last is not None and last.shape == shape and like.device.type == "cpu":
        return last
    size = prod(shape)
    if like.device.type != "cpu" or size * like.element_size() > _KEPT_BYTES:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if room is None or room.numel() < size:
        room = torch.empty(size, dtype=like.dtype, device=like.device)
    view = room[:size].view(shape)
    kept[use, like.dtype] = room, view
    return view


def drop_scratch() -> None:
    """Drop the buffers that this thread keeps."""
    _LOCAL.__dict__.pop("kept", None)
