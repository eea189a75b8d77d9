"""Draw the ratio of torch's FFT to the public call over the length of the series."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from results import Table


def draw(table: Table, path: Path) -> None:
    """Write the records of the `forward` table as a chart; needs Matplotlib.

    One panel for each allocator, one line for each number of rows; float32, Caputo's l1_2.
    """
    from matplotlib.figure import Figure

    records = [r for r in table.records if r["dtype"] == "float32" and r["definition"].startswith("caputo")]
    allocators = list(dict.fromkeys(r["allocator"] for r in records))
    figure = Figure(figsize=(5 * len(allocators), 4), layout="constrained")
    panels = figure.subplots(1, len(allocators), sharey=True, squeeze=False)[0]
    for panel, allocator in zip(panels, allocators, strict=True):
        for rows, line in _lines([r for r in records if r["allocator"] == allocator]).items():
            panel.plot(*zip(*line, strict=True), marker="o", markersize=3, label=f"{rows} row{'s' * (rows > 1)}")
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set(xlabel="samples n", title=f"{allocator} allocator")
        panel.grid(True, which="major", linewidth=0.3)
    panels[0].set_ylabel("time of FFT / time of derivative()")
    panels[0].legend()
    figure.savefig(path, dpi=120)


def _lines(records: list[dict[str, Any]]) -> dict[int, list[tuple[int, float]]]:
    lines: dict[int, list[tuple[int, float]]] = {}
    for record in records:
        rows, n = map(int, record["shape"].split(" x "))
        lines.setdefault(rows, []).append((n, record["call_ratio"]))
    return lines
