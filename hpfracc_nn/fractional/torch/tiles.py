"""An array cut into tiles of whole signals, as the kernels see it: differenced, and padded to whole chunks.

On a CPU a tile's differences, states and result stay in a cache. Everything that can be is prepared once for
all tiles: a tile costs a handful of calls.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.torch import differences as diff
from hpfracc_nn.fractional.torch.scratch import scratch
from hpfracc_nn.selection import Workload

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


def padded(x: Tensor, rows: int, length: int, use: str = "padded") -> Iterator[Tensor]:
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
        yield from padded(x, rows, length, "difference")
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
