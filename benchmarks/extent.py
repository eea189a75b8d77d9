"""How much a script measures: a few small cells, those that the report shows, or all of them."""

from __future__ import annotations

import argparse
from enum import StrEnum


class Cells(StrEnum):
    """What `--cells` takes."""

    QUICK = "quick"
    REPORT = "report"
    FULL = "full"

    @property
    def is_quick(self) -> bool:
        """Whether this only shows that the script works."""
        return self is Cells.QUICK


def add_cells(parser: argparse.ArgumentParser) -> None:
    """Add `--cells` to a script's parser, and `--quick`, its other name for the smallest."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--cells",
        type=Cells,
        choices=list(Cells),
        default=Cells.FULL,
        help="quick: a few small ones, few rounds; report: what the report shows; full: all, by default",
    )
    either.add_argument("--quick", dest="cells", action="store_const", const=Cells.QUICK, help="as --cells quick")
