"""How good the plan is that the calibrated estimate makes: the planned kernel against the best measured one.

    python benchmarks/estimate.py [--dtype float32] [--threads 1] [--quick] [--output DIR]

Every kernel that accepts a cell runs, interleaved in one run: the difference pass with the kernel, forward, and forward
with the adjoint. Where the best of them takes less than 20 us, the whole call of the layer is timed instead, because
dispatch then is most of what a user waits for. A kernel that is slower than four times the fastest at first sight keeps
that one time. Targets: geometric mean of planned / best at most 1.10, worst cell at most 1.5.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from calls import both_ways, calibrate, forced_managers, planned_kernel, product_alone, product_both_ways, signals
from results import Table, microseconds
from timing import Call, interleaved, machine, set_allocator, torch_threads

from hpfracc_nn import BackendManager, Caputo, FractionalLayer
from hpfracc_nn.selection import Settings

ROWS, LENGTHS = (1, 16, 256), (32, 64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536)
QUICK_ROWS, QUICK_LENGTHS = (1, 256), (64, 512, 4096)
DIRECTIONS = ("forward", "forward and backward")
GEOMETRIC_MEAN, WORST = 1.10, 1.5
DISPATCH = 20e-6  # seconds: below, the layer's call is timed
HOPELESS = 4.0  # times the fastest
BUDGET = 2.0  # seconds
DEFINITION = Caputo(0.5)


def cell(rows: int, n: int, dtype: torch.dtype, direction: str, rounds: int) -> dict[str, Any]:
    """Return the record of one cell: what was planned, what was best, and every kernel's seconds."""
    x = signals(rows, n, dtype=dtype).requires_grad_(direction == "forward and backward")
    planned = planned_kernel(x, DEFINITION, BackendManager(Settings(mode="prior")))
    managers = accepting(x)
    timed = "product"
    seconds = race({name: _product(x, manager) for name, manager in managers.items()}, rounds)
    if min(seconds.values()) < DISPATCH:
        timed = "layer"
        seconds = race({name: _layer(x, manager) for name, manager in managers.items()}, rounds)
    best = min(seconds, key=seconds.__getitem__)
    return {
        "direction": direction,
        "rows": rows,
        "n": n,
        "timed": timed,
        "planned": planned,
        "planned_us": microseconds(seconds[planned]),
        "best": best,
        "best_us": microseconds(seconds[best]),
        "ratio": seconds[planned] / seconds[best],
        "all_us": {name: microseconds(found) for name, found in seconds.items()},
    }


def accepting(x: torch.Tensor) -> dict[str, BackendManager]:
    """Return the forced managers of the kernels that accept x."""
    found = {}
    for name, manager in forced_managers().items():
        try:
            planned_kernel(x, DEFINITION, manager)
        except LookupError:  # it refuses this workload
            continue
        found[name] = manager
    return found


def race(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """Return each call's median seconds; one that is hopeless is not run again."""
    first = {}
    for name, call in calls.items():
        call()
        first[name] = min(_seconds(call) for _ in range(2))
    fastest = min(first.values())
    close = {name: call for name, call in calls.items() if first[name] <= HOPELESS * max(fastest, DISPATCH)}
    return first | dict(interleaved(close, rounds, budget=BUDGET).medians)


def summary(table: Table) -> None:
    """Note geometric mean and worst cell of each direction, and whether they meet the targets."""
    for direction in DIRECTIONS:
        records = [record for record in table.records if record["direction"] == direction]
        mean = statistics.geometric_mean(record["ratio"] for record in records)
        worst = max(records, key=lambda record: record["ratio"])
        reached = mean <= GEOMETRIC_MEAN and worst["ratio"] <= WORST
        table.note(
            f"{direction}: geometric mean {mean:.3f} (target {GEOMETRIC_MEAN:.2f}), worst {worst['ratio']:.2f} at "
            f"{worst['rows']} x {worst['n']} (target {WORST:g}): {'pass' if reached else 'FAIL'}."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--quick", action="store_true", help="a few cells, few rounds")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    calibrate(arguments.threads)
    set_allocator("warm")
    rounds = 5 if arguments.quick else 15
    table = Table(
        f"estimate-{arguments.dtype}-{arguments.threads}",
        f"The plan of the calibrated estimate against the best kernel measured: Caputo l1_2 of order 0.5, "
        f"{arguments.dtype}, {arguments.threads} thread(s), {machine()}. Microseconds, medians of up to {rounds} "
        "interleaved rounds.",
        {
            "direction": ("direction", ""),
            "rows": ("rows", ""),
            "n": ("n", ""),
            "timed": ("timed", ""),
            "planned": ("planned", ""),
            "planned_us": ("us", ".1f"),
            "best": ("best", ""),
            "best_us": ("us", ".1f"),
            "ratio": ("planned / best", ".2f"),
        },
    )
    with torch_threads(arguments.threads):
        table.begin("warm allocator")
        for direction in DIRECTIONS:
            for rows in QUICK_ROWS if arguments.quick else ROWS:
                for n in QUICK_LENGTHS if arguments.quick else LENGTHS:
                    table.add(**cell(rows, n, getattr(torch, arguments.dtype), direction, rounds))
    summary(table)
    if arguments.output:
        table.write(arguments.output)


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _product(x: torch.Tensor, manager: BackendManager) -> Call:
    if x.requires_grad:
        return product_both_ways(x, torch.ones_like(x), DEFINITION, manager)
    return product_alone(x, DEFINITION, manager)


def _layer(x: torch.Tensor, manager: BackendManager) -> Call:
    layer = FractionalLayer(DEFINITION.alpha, "caputo", manager=manager)
    if x.requires_grad:
        return both_ways(partial(layer, x), [x], torch.ones_like(x))
    return partial(layer, x)


if __name__ == "__main__":
    main()
