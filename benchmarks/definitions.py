"""The time of every definition, relative to Caputo's.

    python benchmarks/definitions.py [--quick] [--output DIR]

256 signals of 4096 samples by default, torch, one thread; medians of CPU time over interleaved rounds in one process.
The kernels are those of the estimate, so that definitions with as many states are timed with the same one. A memory of
one exponential should take less than a power law, and a tempered one no more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from results import Table
from timing import FLOOR_ROUNDS, interleaved, machine, set_allocator, torch_threads

from hpfracc_nn import DEFINITIONS, MULTIPLIERS, BackendManager, derivative
from hpfracc_nn.selection import Settings

ALPHA, SHAPE, QUICK = 0.5, (256, 4096), (16, 256)
AT_LEAST = {"caputo_fabrizio": 1.5}  # times as fast as Caputo
AT_MOST = {"tempered_caputo": 1.1}  # times the time of Caputo
BASE = "caputo"


def calls(shape: tuple[int, int], dtype: torch.dtype, backward: bool) -> dict[str, Callable[[], object]]:
    """Return one call for every definition and multiplier, with or without its gradient in the samples."""
    x = torch.randn(shape, dtype=dtype, requires_grad=backward)
    g = torch.randn(shape, dtype=dtype)
    dt, manager = 10 / shape[1], BackendManager(Settings(mode="prior", calibration="shipped"))

    def forward(definition: object) -> Callable[[], object]:
        return lambda: derivative(x, definition, dt=dt, dim=-1, manager=manager)

    def both(definition: object) -> Callable[[], object]:
        return lambda: torch.autograd.grad(derivative(x, definition, dt=dt, dim=-1, manager=manager), x, g)

    make = both if backward else forward
    return {name: make(kind(ALPHA)) for name, kind in {**DEFINITIONS, **MULTIPLIERS}.items()}


def empty(shape: tuple[int, int]) -> Table:
    """Return the table without its rows."""
    return Table(
        "definitions",
        f"Milliseconds of CPU time of `derivative` for {shape[0]} x {shape[1]} samples, alpha = {ALPHA}, default "
        f"schemes; one thread, {machine()}. Ratio: over Caputo's in the same rounds.",
        {
            "dtype": ("dtype", ""),
            "what": ("pass", ""),
            "name": ("definition", ""),
            "ms": ("ms", ".2f"),
            "ratio": ("ratio", ".2f"),
        },
    )


def fill(table: Table, shape: tuple[int, int], rounds: int) -> None:
    """Add a row for every definition, dtype and pass."""
    for dtype in (torch.float32, torch.float64):
        for backward in (False, True):
            found = calls(shape, dtype, backward)
            times = interleaved(found, rounds, seconds=0.2, clock=time.process_time)
            for name in found:
                table.add(
                    dtype=str(dtype).removeprefix("torch."),
                    what="forward and backward" if backward else "forward",
                    name=name,
                    ms=1e3 * times[name],
                    ratio=times[name] / times[BASE],
                )


def verdicts(table: Table) -> None:
    """Say how the definitions with a bound compare with it."""
    for name, factor in AT_LEAST.items():
        worst = max(record["ratio"] for record in table.records if record["name"] == name)
        table.note(f"{name}: {1 / worst:.1f} times as fast as {BASE} or more; at least {factor} wanted.")
    for name, factor in AT_MOST.items():
        worst = max(record["ratio"] for record in table.records if record["name"] == name)
        table.note(f"{name}: at most {worst:.2f} times the time of {BASE}; at most {factor} wanted.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small shape and few rounds")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    shape = QUICK if arguments.quick else SHAPE
    set_allocator("warm")
    table = empty(shape)
    with torch_threads(1):
        table.begin("all")
        fill(table, shape, 5 if arguments.quick else FLOOR_ROUNDS)
    verdicts(table)
    if arguments.output:
        table.write(arguments.output)


if __name__ == "__main__":
    main()
