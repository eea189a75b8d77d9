"""The wide grid: forward, backward, both layouts, one and two threads, each against torch's FFT."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from calls import signals
from cells import Record, backward_cell, forward_cell
from extent import Cells
from results import Group, Table
from timing import machine, torch_threads

ROWS = (1, 16, 256, 1024)
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536, 262144, 1_000_000)
MOST_FORWARD, MOST_BACKWARD = 1 << 24, 1 << 22  # samples
THREADED = [(256, 1024), (1024, 1024), (256, 16384), (16, 65536), (1, 65536), (1, 1_000_000)]
QUICK = [(16, 256), (256, 1024)]
REPORTED = [
    (1, 256),
    (1, 4096),
    (1, 65536),
    (16, 512),
    (16, 16384),
    (16, 262144),
    (256, 64),
    (256, 1024),
    (256, 16384),
    (1024, 1024),
]
BUDGET = 0.7  # seconds after which a cell begins no new round, once it has three

_COLUMNS = {
    "shape": ("shape", ""),
    "dtype": ("dtype", ""),
    "allocator": ("allocator", ""),
    "definition": ("definition", ""),
    "gradient": ("gradient in", ""),
    "threads": ("threads", ""),
    "fft_us": ("FFT", ".0f"),
    "conv1d_us": ("conv1d", ".0f"),
    "product_us": ("product", ".0f"),
    "call_us": ("call", ".0f"),
    "product_ratio": ("FFT / product", ".2f"),
    "call_ratio": ("FFT / call", ".2f"),
    "kernel": ("kernel", ""),
    "rounds": ("rounds", ""),
}
_OF_FORWARD = {"conv1d_us", "product_us", "product_ratio"}


def forward(table: Table, allocator: str, cells: Cells) -> None:
    """Time last."""
    for dtype in _dtypes(allocator, cells):
        for rows, n in _shapes(MOST_FORWARD, cells):
            for record in forward_cell(signals(rows, n, dtype=dtype), _rounds(cells), budget=BUDGET):
                table.add(**record, allocator=allocator)


def backward(table: Table, allocator: str, cells: Cells) -> None:
    """Time last, the gradient in x and in x and alpha."""
    for dtype in _dtypes(allocator, cells):
        for rows, n in _shapes(MOST_BACKWARD, cells):
            for gradient in ("x", "x, alpha"):
                x = signals(rows, n, dtype=dtype)
                for record in backward_cell(x, _rounds(cells), gradient=gradient, budget=BUDGET):
                    table.add(**record, allocator=allocator)


def layouts(table: Table, allocator: str, cells: Cells) -> None:
    """Time in the middle: [rows / 16, n, 16], and one batch as wide as there are rows."""
    for dtype in _dtypes(allocator, cells):
        for rows, n in _shapes(MOST_BACKWARD, cells):
            for batch, width in dict.fromkeys([(rows // 16, 16), (1, rows)]):
                if batch and width > 1:
                    for record in _both_cells(signals(batch, n, width, dtype=dtype), cells, dim=1):
                        table.add(**record, allocator=allocator)


def threads(table: Table, allocator: str, cells: Cells) -> None:
    """One and two threads of torch."""
    for rows, n in QUICK if cells.is_quick else THREADED:
        for count in (1, 2):
            with torch_threads(count):
                for record in _both_cells(signals(rows, n), cells):
                    table.add(**record, allocator=allocator, threads=count)


def _table(name: str, caption: str, hidden: set[str], cells: Cells) -> Table:
    columns = {key: column for key, column in _COLUMNS.items() if key not in hidden}
    return Table(
        name, f"{caption} {machine()}. Microseconds, medians of up to {_rounds(cells)} interleaved rounds.", columns
    )


def _group(name: str, caption: str, hidden: set[str], fill: Callable[[Table, str, Cells], None]) -> Group:
    return Group(partial(_table, name, caption, hidden), fill)


FORWARD = _group(
    "forward",
    "Forward, time last, one thread: torch's FFT with a cached spectrum (the better of two paddings), torch's conv1d "
    "where it is affordable, the difference pass with the planned kernel (product), and the whole public call.",
    {"gradient", "threads"},
    forward,
)
BACKWARD = _group(
    "backward",
    "Forward and backward of the public call, time last, one thread. Gradient in x: against torch's FFT with a cached "
    "spectrum under autograd. In x and alpha: against the FFT whose weights are made in the graph, padded to 2 n.",
    {"threads", *_OF_FORWARD},
    backward,
)
LAYOUTS = _group(
    "layouts",
    "Time in the middle, on axis 1 of three, one thread: the public call against torch's FFT along that axis with a "
    "cached spectrum, forward, and forward and backward in x.",
    {"threads", *_OF_FORWARD},
    layouts,
)
THREADS = Group(
    partial(
        _table,
        "threads",
        "One and two threads of torch, time last: the public call against torch's FFT with a cached spectrum and as "
        "many threads, forward, and forward and backward in x.",
        _OF_FORWARD,
    ),
    threads,
    allocators=("warm",),
)


def _both_cells(x: torch.Tensor, cells: Cells, dim: int = -1) -> list[Record]:
    found = forward_cell(x, _rounds(cells), dim, budget=BUDGET)
    return found + backward_cell(x, _rounds(cells), dim, gradient="x", budget=BUDGET)


def _shapes(most: int, cells: Cells) -> list[tuple[int, int]]:
    whole = [(rows, n) for rows in ROWS for n in LENGTHS if rows * n <= most]
    return {Cells.QUICK: QUICK, Cells.REPORT: REPORTED, Cells.FULL: whole}[cells]


def _dtypes(allocator: str, cells: Cells) -> tuple[torch.dtype, ...]:
    """float64 with the warm allocator only: what fresh pages cost is seen in float32."""
    return (torch.float32,) if cells.is_quick or allocator == "cold" else (torch.float32, torch.float64)


def _rounds(cells: Cells) -> int:
    return 3 if cells.is_quick else 15
