"""The cost tables that `selection.py` replays: what each arm takes at each size, and what its first use takes.

    python benchmarks/selection_tables.py --operation convolution [--quick] [--output benchmarks/results]

Seconds of the processor, the least of interleaved rounds on one core, so that a table says what a choice costs and not
how busy the machine was. What the first use compiles is timed in processes of their own, one with empty caches and one
that finds what the first left on disk.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from selection_arms import DOUBLE, OPERATIONS, Arm, Call
from timing import machine

from hpfracc_nn.selection import CostModel, Machine, Workload

ROWS, LENGTHS = (1, 8, 64), (16, 64, 256, 1024, 4096)
QUICK_ROWS, QUICK_LENGTHS = (1, 64), (16, 256)
CHUNK = 2e-3  # seconds of one timing
HOPELESS = 20.0  # times the fastest: not run again
WEIGHTS = "torch/chunked_scan"  # runs before, so that the weights are there
CACHES = ("NUMBA_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")


def measured(arms: Mapping[str, Arm], sizes: list[tuple[int, int]], rounds: int) -> dict[str, list[float]]:
    """Return for each arm the least processor seconds at each size."""
    found: dict[str, list[float]] = {name: [] for name in arms}
    for rows, n in sizes:
        calls = {name: arm.make(rows, n) for name, arm in arms.items()}
        for name, seconds in race(calls, rounds).items():
            found[name].append(seconds)
        print(f"{rows} x {n}: " + ", ".join(f"{name} {1e6 * each[-1]:.0f}" for name, each in found.items()), flush=True)
    return found


def race(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Return the least processor seconds of each call; all take turns, and a hopeless one is not run again."""
    best = {}
    for name, call in calls.items():
        for _ in range(2):
            call()
        best[name] = min(spent(call, 1) for _ in range(2))
    fastest = min(best.values())
    repeats = {
        name: max(1, math.ceil(CHUNK / best[name])) for name in calls if best[name] <= HOPELESS * max(fastest, 20e-6)
    }
    for _ in range(rounds):
        for name, count in repeats.items():
            best[name] = min(best[name], spent(calls[name], count))
    return best


def spent(call: Call, count: int) -> float:
    """Return the processor seconds of one of `count` calls."""
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def estimates(arms: Mapping[str, Arm], sizes: list[tuple[int, int]], dtype: str) -> tuple[dict[str, Any], float]:
    """Return the calibrated estimate of each arm at each size, and the processor seconds of the calibration."""
    model = CostModel(Machine())
    start = time.process_time()
    rates = model.rates(Workload("toeplitz", "torch", dtype=dtype))
    seconds = time.process_time() - start
    return {name: [model.seconds(arm.cost(*size), rates) for size in sizes] for name, arm in arms.items()}, seconds


def first_uses(operation: str, arms: Mapping[str, Arm], sizes: list[tuple[int, int]]) -> dict[str, Any]:
    """Return for each arm that compiles its first use at each size: with empty caches, and with what is on disk."""
    found: dict[str, Any] = {}
    for name, arm in arms.items():
        if not arm.compiles:
            continue
        with tempfile.TemporaryDirectory() as folder:
            environ = {**os.environ, **dict.fromkeys(CACHES, folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
            command = [sys.executable, __file__, "--operation", operation, "--first-use", name, json.dumps(sizes)]
            runs = [_read(command, environ) for _ in range(2)]
        found[name] = {"compiles": arm.compiles, "cold": runs[0], "disk": runs[1]}
        print(f"{name}: first use {runs[0][0]:.2f} s, from disk {runs[1][0]:.2f} s", flush=True)
    return found


def first_use(operation: str, name: str, sizes: list[tuple[int, int]]) -> list[float]:
    """Return the processor seconds by which making and calling `name` exceeds a call, at each size in turn."""
    arms = OPERATIONS[operation]()
    found = []
    for rows, n in sizes:
        if WEIGHTS in arms:
            arms[WEIGHTS].make(rows, n)()
        start = time.process_time()
        call = arms[name].make(rows, n)
        call()
        first = time.process_time() - start
        found.append(max(0.0, first - min(spent(call, 1) for _ in range(3))))
    return found


def table(operation: str, quick: bool) -> dict[str, Any]:
    """Return the whole table."""
    arms = OPERATIONS[operation]()
    sizes = [(r, n) for r in (QUICK_ROWS if quick else ROWS) for n in (QUICK_LENGTHS if quick else LENGTHS)]
    compiling = first_uses(operation, arms, sizes)
    guessed, calibration = estimates(arms, sizes, "float64" if operation in DOUBLE else "float32")
    return {
        "operation": operation,
        "machine": machine(),
        "sizes": sizes,
        "calibration": calibration,
        "estimates": guessed,
        "first_use": compiling,
        "seconds": measured(arms, sizes, 3 if quick else 25),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operation", choices=list(OPERATIONS), required=True)
    parser.add_argument("--quick", action="store_true", help="four sizes, few rounds")
    parser.add_argument("--output", type=Path, help="write the table into this folder")
    parser.add_argument("--first-use", nargs=2, metavar=("ARM", "SIZES"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # XLA has threads of its own, which count too
    torch.set_num_threads(1)
    if arguments.first_use:
        name, sizes = arguments.first_use
        print(json.dumps(first_use(arguments.operation, name, json.loads(sizes))))
        return
    made = table(arguments.operation, arguments.quick)
    if arguments.output:
        (arguments.output / f"selection-{arguments.operation}.json").write_text(json.dumps(made, indent=1) + "\n")


def _read(command: list[str], environ: Mapping[str, str]) -> list[float]:
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
