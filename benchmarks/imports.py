"""What an import takes in a fresh process: the package, which loads no framework, beside NumPy.

    python benchmarks/imports.py [--quick] [--output DIR]

Milliseconds of the import alone, the least and the median of fresh processes that take turns; the first of each, which
may compile to bytecode, is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from results import Table
from timing import machine

MODULES = ("hpfracc_nn", "numpy")
PROGRAM = "import time; start = time.perf_counter(); import {}; print(1e3 * (time.perf_counter() - start))"
AT_MOST = 100  # milliseconds, the package


def milliseconds(module: str) -> float:
    """Return what the import takes in a fresh process."""
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def fill(table: Table, rounds: int) -> None:
    """Add a line for each module."""
    times: dict[str, list[float]] = {module: [] for module in MODULES}
    for _ in range(1 + rounds):
        for module, found in times.items():
            found.append(milliseconds(module))
    for module, found in times.items():
        table.add(module=module, least=min(found[1:]), median=statistics.median(found[1:]))


def empty(rounds: int) -> Table:
    """Return the table."""
    columns = {"module": ("import", ""), "least": ("least, ms", ".0f"), "median": ("median, ms", ".0f")}
    return Table("imports", f"Imports in {rounds} fresh processes, {machine()}.", columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few processes")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else 5
    table = empty(rounds)
    table.begin("all")
    fill(table, rounds)
    (ours,) = (record["least"] for record in table.records if record["module"] == "hpfracc_nn")
    table.note(f"hpfracc_nn: {ours:.0f} ms; at most {AT_MOST} wanted.")
    if arguments.output:
        table.write(arguments.output)


if __name__ == "__main__":
    main()
