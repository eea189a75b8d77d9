"""Draw the charts of the page on performance from the committed tables of `benchmarks/results`.

Run:  python docs/pictures/performance.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "benchmarks" / "results"
PANELS = (  # title, table, what is kept of it
    ("forward, float32", "forward", {"dtype": "float32", "allocator": "cold"}),
    ("forward, float64", "forward", {"dtype": "float64", "allocator": "warm"}),
    ("with gradient in x, float32", "backward", {"dtype": "float32", "gradient": "x", "allocator": "cold"}),
    ("in x and alpha, float32", "backward", {"dtype": "float32", "gradient": "x, alpha", "allocator": "cold"}),
)
Record = dict[str, Any]


def records(table: str) -> list[Record]:
    """Return the records of a committed table."""
    found: list[Record] = json.loads((RESULTS / f"{table}.json").read_text("utf-8"))["records"]
    return found


def over_best(record: Record) -> float:
    """Return the time of the faster of torch's two ways, over ours."""
    ways = (record["fft_us"], record.get("conv1d_us"))
    return min(way for way in ways if way is not None) / record["call_us"]


def as_ratio(axis: Axes) -> None:
    """Shade what is slower than the alternative, and write plain numbers."""
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.axhspan(axis.get_ylim()[0], 1.0, color="C3", alpha=0.08)
    axis.grid(True, linewidth=0.3)


def sizes() -> Figure:
    """Draw the ratio over the length, a panel for each operation, a line for each number of signals."""
    figure = Figure(figsize=(9, 6), layout="constrained")
    for axis, (title, table, kept) in zip(figure.subplots(2, 2, sharey=True).flat, PANELS, strict=True):
        lines: dict[int, list[tuple[int, float]]] = {}
        for record in records(table):
            if record["definition"].startswith("caputo") and kept.items() <= record.items():
                rows, n = map(int, record["shape"].split(" x "))
                lines.setdefault(rows, []).append((n, over_best(record)))
        for rows, line in lines.items():
            axis.plot(
                *zip(*sorted(line), strict=True), marker="o", markersize=3, label=f"{rows} signal" + "s" * (rows > 1)
            )
        axis.set_xscale("log", base=2)
        axis.set(title=title, xlabel="samples")
        axis.set_ylim(0.2, 64)
        as_ratio(axis)
    figure.axes[0].legend(fontsize=8)
    figure.supylabel("times as fast as the best of torch's FFT and conv1d")
    return figure


def spread() -> dict[str, list[float]]:
    """Return the ratios of all cells by operation, slow ones too."""
    kinds = {f"{title}": (table, {**kept}) for title, table, kept in PANELS}
    kinds["time in the middle, float32"] = ("layouts", {})
    found = {
        name: [over_best(record) for record in records(table) if kept.items() <= record.items()]
        for name, (table, kept) in kinds.items()
    }
    peers = records("peers")
    for peer in dict.fromkeys(record["peer"] for record in peers):
        found[f"one signal: {peer}"] = [record["numpy_ratio"] for record in peers if record["peer"] == peer]
    ours, *others = records("solvers-peers")
    for other in others:
        found[f"an equation: {other['peer']}"] = [other["ms"] / ours["ms"]]
    for dtype in ("float32", "float64"):
        noise = [record["ratio"] for record in records("noise-fractional") if record["who"] == dtype]
        found[f"fractional Brownian motion, {dtype}: fbm"] = noise
    found["attention: torch's own layer"] = [1 / record["ratio"] for record in records("layers_attention")]
    return found


def overview() -> Figure:
    """Draw a point for each cell and a bar at the median, by operation."""
    ratios = spread()
    figure = Figure(figsize=(9, 5), layout="constrained")
    axis = figure.subplots()
    for number, values in enumerate(reversed(ratios.values())):
        colors = ["C3" if value < 1 else "C0" for value in values]
        axis.scatter(values, [number] * len(values), s=9, c=colors, alpha=0.4, linewidths=0)
        axis.plot([statistics.median(values)] * 2, [number - 0.3, number + 0.3], color="black")
    axis.set_yticks(range(len(ratios)), list(reversed(ratios)))
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.grid(True, axis="x", linewidth=0.3)
    axis.set(xlabel="times as fast as the alternative; red: slower; bar: median")
    return figure


def threads() -> Figure:
    """Draw what a second thread gains, of the public call and of the FFT."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    pairs: dict[tuple[str, ...], dict[int, Record]] = {}
    for record in records("threads"):
        if record["definition"].startswith("caputo"):
            key = (record["gradient"], record["dtype"], record["shape"])
            pairs.setdefault(key, {})[record["threads"]] = record
    for axis, (gradient, title) in zip(
        figure.subplots(1, 2, sharey=True), (("none", "forward"), ("x", "with gradient in x")), strict=True
    ):
        chosen = {key[1:]: pair for key, pair in pairs.items() if key[0] == gradient}
        for shift, (what, label) in enumerate((("call_us", "this package"), ("fft_us", "torch's FFT"))):
            gains = [pair[1][what] / pair[2][what] for pair in chosen.values()]
            axis.bar([place + 0.4 * shift for place in range(len(gains))], gains, 0.4, label=label)
        axis.set_xticks(range(len(chosen)), [f"{shape}\n{dtype}" for dtype, shape in chosen], fontsize=6, rotation=30)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set(title=title)
    figure.axes[0].set_ylabel("one thread's time / two threads'")
    figure.axes[0].legend(fontsize=8)
    return figure


def main() -> None:
    """Draw every chart beside this file."""
    for name, draw in (
        ("performance_overview", overview),
        ("performance_sizes", sizes),
        ("performance_threads", threads),
    ):
        draw().savefig(HERE / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main()
