"""Draw the error of solvers against their work: python docs/pictures/work_precision.py writes work_precision.png.

It reads benchmarks/results/collocation-work.json, which benchmarks/collocation.py makes. Needs Matplotlib.
"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "collocation-work.json"
WORK = {"evaluations": "evaluations of f", "ms": "processor ms"}
MARKERS = {
    "predictor_corrector": "o",
    "bdf2": "s",
    "trapezoid": "^",
    "trapezoid, graded": "v",
    "collocation": "D",
}


def main() -> None:
    """Draw a panel for each problem and kind of work."""
    records = json.loads(RESULTS.read_text("utf-8"))["records"]
    problems = list(dict.fromkeys(each["problem"] for each in records))
    figure = Figure(figsize=(2.4 * len(problems), 5), layout="constrained")
    for row, (kind, label) in zip(figure.subplots(2, len(problems), sharey=True), WORK.items(), strict=True):
        for axis, problem in zip(row, problems, strict=True):
            for scheme, marker in MARKERS.items():
                line = [each for each in records if each["problem"] == problem and each["scheme"] == scheme]
                places = [each[kind] for each in line], [each["error"] for each in line]
                axis.loglog(*places, marker=marker, markersize=3, linewidth=0.9, label=scheme)
            axis.set_xlabel(label, fontsize=8)
            axis.tick_params(labelsize=7)
            axis.grid(True, linewidth=0.3)
            if kind == "evaluations":
                axis.set_title(problem, fontsize=8)
        row[0].set_ylabel("error, of 1 + |y|", fontsize=8)
        row[0].legend(fontsize=5)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=90)


if __name__ == "__main__":
    main()
