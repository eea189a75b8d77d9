"""What fractional models reach on tasks, beside baselines: forecasts, roughness, graphs, digits, equations.

Nothing is tuned on what is held out, and the baselines are not tuned at all. Every seed that was run is shown.

Run:  python benchmarks/tasks.py [group ...] [--quick] [--output benchmarks/results]
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from results import Table
from timing import machine

# Each module has `rows(quick)`: a list of records with the keys
#   task, model, parameters, metric   what was done by what, with how many parameters, and what is measured
#   values, mean, spread              one value for each seed, their mean and standard deviation
#   bar, higher_is_better             what the mean should reach, or None; whether more is better
# and, where they help, `each`: every value should reach the bar, and `note`: what else is to be said.
GROUPS = {
    "series": "task_series",
    "roughness": "task_roughness",
    "graph": "task_graph",
    "digits": "task_digits",
    "pinn": "task_pinn",
}
COLUMNS = {
    "task": ("task", ""),
    "model": ("model", ""),
    "parameters": ("parameters", ""),
    "metric": ("metric", ""),
    "mean": ("mean", ".4g"),
    "spread": ("spread", ".2g"),
    "seeds": ("each seed", ""),
    "bar": ("bar", ".4g"),
    "met": ("met", ""),
    "best": ("best", ""),
}


def is_met(row: dict[str, Any]) -> bool | None:
    """Return whether a row reaches its bar, None where there is none; NaN reaches nothing."""
    if row["bar"] is None:
        return None
    judged = row["values"] if row.get("each") else [row["mean"]]
    return all(value >= row["bar"] if row["higher_is_better"] else value <= row["bar"] for value in judged)


def best_of(rows: list[dict[str, Any]]) -> set[int]:
    """Return the numbers of the rows that are best in their task and metric, of those where several compete."""
    rivals = defaultdict(list)
    for number, row in enumerate(rows):
        if not math.isnan(row["mean"]):
            rivals[row["task"], row["metric"]].append(number)
    found = set()
    for numbers in rivals.values():
        means = [rows[number]["mean"] for number in numbers]
        top = max(means) if rows[numbers[0]]["higher_is_better"] else min(means)
        found |= {number for number in numbers if rows[number]["mean"] == top and len(numbers) > 1}
    return found


def run(group: str, quick: bool) -> Table:
    """Return the table of one group."""
    rows = importlib.import_module(GROUPS[group]).rows(quick)
    caption = f"{'Quick form. ' if quick else ''}Bars are for the mean over the seeds; a loss stays in the table."
    table = Table(f"tasks-{group}", f"{caption} {machine()}.", COLUMNS)
    table.begin("all")
    best = best_of(rows)
    for number, row in enumerate(rows):
        met = is_met(row)
        table.add(
            **row,
            seeds=", ".join(f"{value:.4g}" for value in row["values"]) if len(row["values"]) > 1 else "",
            met="" if met is None else "yes" if met else "no",
            best="*" if number in best else "",
        )
    for row in rows:
        if row.get("note"):
            table.note(f"{row['task']}, {row['model']}: {row['note']}")
    judged = [met for met in map(is_met, rows) if met is not None]
    table.note(f"{sum(judged)} of {len(judged)} bars are met.")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="group", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="fewer seeds or steps")
    parser.add_argument("--output", type=Path, help="also write the tables into this folder")
    arguments = parser.parse_args()
    unknown = set(arguments.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    for group in arguments.groups or GROUPS:
        table = run(group, arguments.quick)
        if arguments.output:
            table.write(arguments.output)


if __name__ == "__main__":
    main()
