"""The causal Toeplitz product of this package against what else there is.

    python benchmarks/product.py [--group NAME ...] [--cells NAME] [--strict] [--output DIR]

Groups: `forward`, `backward` and `layouts` (the wide grid against torch's FFT, one thread), `threads` (one and two
threads), `peers` (SciPy, differint, pycaputo, and a NumPy loop), `floors` (the ratios that the product must reach).
All by default. Medians of interleaved rounds in one process. The allocator is warm (it keeps freed memory) or cold
(every large array is fresh pages); glibc only, elsewhere both are the same.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from calls import calibrate
from extent import add_cells
from floors import FLOORS
from grid import BACKWARD, FORWARD, LAYOUTS, THREADS
from peers import LOOP, PEERS
from plot import draw
from results import Group, Table
from timing import ALLOCATORS, set_allocator, torch_threads

GROUPS: dict[str, tuple[Group, ...]] = {
    "floors": (FLOORS,),
    "forward": (FORWARD,),
    "backward": (BACKWARD,),
    "layouts": (LAYOUTS,),
    "threads": (THREADS,),
    "peers": (PEERS, LOOP),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="what to measure; may be repeated")
    add_cells(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a floor is not reached")
    parser.add_argument("--output", type=Path, help="also write each table into this folder, and a chart of `forward`")
    arguments = parser.parse_args()
    groups = [part for name in arguments.group or GROUPS for part in GROUPS[name]]
    for count in (1, 2):
        calibrate(count)
    with torch_threads(1):
        tables = [group.table(arguments.cells) for group in groups]
        for allocator in ALLOCATORS:
            set_allocator(allocator)
            for group, table in zip(groups, tables, strict=True):
                if allocator in group.allocators:
                    table.begin(f"{allocator} allocator")
                    group.fill(table, allocator, arguments.cells)
                    if arguments.output:
                        write(table, arguments.output)
    if arguments.strict and any(record.get("verdict") == "FAIL" for table in tables for record in table.records):
        sys.exit("a floor was not reached")


def write(table: Table, folder: Path) -> None:
    """Write the table as far as it is filled, and the chart where Matplotlib is installed."""
    table.write(folder)
    if table.name == "forward" and find_spec("matplotlib") is not None:
        draw(table, folder / "forward.png")


if __name__ == "__main__":
    main()
