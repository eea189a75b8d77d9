"""What of a script's table stands in the report: all of it, some of its rows, or the mean and the worst of a ratio."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import KNOWING, OURS
from promise import Record, fits


@dataclass(frozen=True)
class Written:
    """A table as a script wrote it.

    Args:
        caption: What was measured.
        heading: Its two first lines.
        lines: One for each record.
        records: What the lines show, and more.
        notes: What stands below.
    """

    caption: str
    heading: list[str]
    lines: list[str]
    records: list[Record]
    notes: list[str]


@dataclass(frozen=True)
class Some:
    """The rows that fit."""

    where: Mapping[str, object]

    def lines(self, table: Written) -> list[str]:
        chosen = [
            line
            for line, record in zip(table.lines, table.records, strict=True)
            if all(fits(record.get(key), wanted) for key, wanted in self.where.items())
        ]
        return [*table.heading, *chosen]


@dataclass(frozen=True)
class Summary:
    """Geometric mean, least and largest of a ratio among rows that are alike in some keys."""

    by: tuple[str, ...]
    ratio: str
    title: str

    def lines(self, table: Written) -> list[str]:
        alike: dict[tuple[object, ...], list[float]] = {}
        for record in table.records:
            alike.setdefault(tuple(record[key] for key in self.by), []).append(record[self.ratio])
        heads = [*self.by, "cells", f"{self.title}: mean", "least", "largest"]
        found = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
        for key, ratios in alike.items():
            figures = [statistics.geometric_mean(ratios), min(ratios), max(ratios)]
            shown = [*map(str, key), str(len(ratios)), *(f"{figure:.2f}" for figure in figures)]
            found.append("| " + " | ".join(shown) + " |")
        return found


# Tables that are too long to be shown whole.
DIGESTS: dict[str, Some | Summary] = {
    "floors": Summary(("what", "shape", "allocator"), "ratio", "baseline / ours"),
    "forward": Summary(("dtype", "allocator", "definition"), "call_ratio", "FFT / call"),
    "backward": Summary(("dtype", "allocator", "gradient"), "call_ratio", "FFT / call"),
    "layouts": Summary(("dtype", "allocator", "gradient"), "call_ratio", "FFT / call"),
    "threads": Summary(("threads", "gradient"), "call_ratio", "FFT / call"),
    "estimate-float32-1": Summary(("direction", "rows"), "ratio", "planned / best"),
    "definitions": Summary(("name",), "ratio", "time / Caputo's"),
    "weights": Some({"n": (1024, 16384)}),
    "selection": Some({"policy": (OURS, KNOWING)}),
}


def read(folder: Path) -> dict[str, Written]:
    """Return the tables that scripts wrote into a folder; what their quick form calls "-quick" has its own name."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        shown = [line for line in path.with_suffix(".md").read_text().splitlines() if line.startswith("|")]
        records = document["records"]
        found[path.stem.removesuffix("-quick")] = Written(
            document["caption"], shown[:2], shown[2 : 2 + len(records)], records, document["notes"]
        )
    return found


def section(name: str, table: Written) -> list[str]:
    """Return the lines of one table, between marks by which a page of the documentation takes it over."""
    digest = DIGESTS.get(name)
    body = digest.lines(table) if digest else [*table.heading, *table.lines]
    notes = [line for note in table.notes for line in ("", note)]
    start, end = (f"<!-- --8<-- [{which}:{name}] -->" for which in ("start", "end"))
    return [f"### {name}", "", start, table.caption, "", *body, *notes, "", end, ""]


def scalars(records: Sequence[Record]) -> list[dict[str, object]]:
    """Return what records hold in numbers and words, five digits of each; not what each seed or sample gave."""
    return [
        {key: _rounded(value) for key, value in record.items() if not isinstance(value, (list, dict))}
        for record in records
    ]


def _rounded(value: object) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) and math.isfinite(value) else value
