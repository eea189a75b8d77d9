"""How good the choice of kernels is that is learnt in a running process: traces replayed from tables of costs.

    python benchmarks/selection.py [--cells NAME] [--calls N] [--output benchmarks/results]

The tables are those of `selection_tables.py`: what each arm takes at 15 sizes and what its first use compiles, with
empty caches ("cold") or with what an earlier process left ("disk"). A trace asks for sizes with Pareto weights, 4000 or
20000 times. `drift`: from half of it on, the backend that hindsight uses most takes three times as long. `faults`: the
arm that hindsight would use raises at a third of the sizes. Times that a policy is told have 10 % of noise and 2 % of
spikes of 2 to 20 times; what it is charged has none. Regret is the time beyond that of the best plan in hindsight: it
knows all costs, changes its mind at the drift, and pays for what it compiles. Calibration and compilation are charged
to the policy too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from extent import Cells, add_cells
from results import Table
from selection_players import PLAYERS, Ours
from selection_replay import Costs, Player, Trace, drifting, faulty, read, replay, stationary
from timing import machine

RESULTS = Path(__file__).parent / "results"
OPERATIONS = (
    "convolution",
    "library",
    "taps",
    "training",
    "middle",
    "narrow",
)  # the policy was written with these in sight
LATER = ("double",)  # measured after the last change of the policy
CACHES = ("cold", "disk")
LENGTHS = {4000: 10, 20000: 6}  # calls: seeds
REPORTED = {4000: 5, 20000: 3}  # of all tables but the first, whose medians are promised
QUICK = {500: 2}
TRACES: dict[str, Callable[[Costs, int, int], Trace]] = {
    "stationary": stationary,
    "drift": drifting,
    "faults": faulty,
}
TARGETS = {("stationary", 4000): 0.03, ("stationary", 20000): 0.02, ("drift", 4000): 0.15, ("drift", 20000): 0.15}
STEADY, WORST_KEY, EXPLORED = 0.02, 1.5, 0.02
LEARNING = 0.05  # of hindsight's time: what is lost beyond the player below, in the mean over all traces
SCRAMBLED = "this package, scrambled estimates"
OURS = ("this package", "this package, calibrated before", SCRAMBLED)
REFERENCE = "knows all costs but not the future"

Figures = dict[str, list[float]]


def figures(costs: Costs, make: type[Player], kind: str, calls: int, seeds: int, scramble: bool) -> Figures:
    """Return each figure of a replay for every seed."""
    found: Figures = {}
    for seed in range(seeds):
        table = costs.scrambled(np.random.default_rng([seed, 3])) if scramble else costs
        for name, value in replay(TRACES[kind](table, calls, seed), make).items():
            found.setdefault(name, []).append(value)
    return found


def row(costs: Costs, label: str, name: str, lengths: dict[int, int]) -> dict[str, Any]:
    """Return the record of one policy on one table."""
    make = Ours if name == SCRAMBLED else PLAYERS[name]
    all_figures: dict[str, Figures] = {}
    regrets: dict[str, list[float]] = {}
    medians: dict[str, dict[str, float]] = {}
    record: dict[str, Any] = {"costs": label, "policy": name}
    for calls, seeds in lengths.items():
        for kind in TRACES:
            found = figures(costs, make, kind, calls, seeds, name == SCRAMBLED)
            all_figures[f"{kind} {calls}"] = found
            regrets[f"{kind} {calls}"] = [round(each, 5) for each in found["regret"]]
            medians[f"{kind} {calls}"] = {figure: round(statistics.median(each), 5) for figure, each in found.items()}
            record[f"{kind} {calls}"] = spread(found["regret"])
    last = medians[f"stationary {max(lengths)}"]
    record |= {figure: last[figure] for figure in ("choice", "steady", "worst_key", "switches")}
    for figure in ("explored", "overspent"):
        record[figure] = max(max(found[figure]) for found in all_figures.values())
    return {**record, "regrets": regrets, "medians": medians}


def spread(values: Sequence[float]) -> str:
    """Return median, least and largest in percent."""
    return f"{_percent(statistics.median(values))} [{_percent(min(values))}, {_percent(max(values))}]"


def verdicts(table: Table, label: str) -> None:
    """Note what of the targets is reached on one table, and whether every other policy is worse."""
    records = {record["policy"]: record for record in table.records if record["costs"] == label}
    ours = records["this package"]
    said = [
        _said(f"{kind} {calls}", statistics.median(ours["regrets"][f"{kind} {calls}"]), most)
        for (kind, calls), most in TARGETS.items()
        if f"{kind} {calls}" in ours["regrets"]
    ]
    said.append(_said("steady", ours["steady"], STEADY))
    said.append(f"worst key {ours['worst_key']:.2f} ({WORST_KEY:g}){_mark(ours['worst_key'] <= WORST_KEY)}")
    said.append(_said("exploration", max(records[name]["explored"] for name in OURS), EXPLORED))
    table.note(f"{label}: {', '.join(said)}.")
    table.note(f"{label}: beyond the policy that {REFERENCE}, calibrated before: {', '.join(learning(records))}.")
    better = [
        f"{name} ({cell})"
        for cell in ours["regrets"]
        for name, other in records.items()
        if name not in (*OURS, REFERENCE)
        and statistics.median(other["regrets"][cell]) <= statistics.median(ours["regrets"][cell])
    ]
    if len(records) > len(OURS) + 1:
        table.note(f"{label}: not worse than this package: {', '.join(better) or 'none'}.")


def learning(records: dict[str, dict[str, Any]]) -> list[str]:
    """Return what learning costs in each kind of trace: the median over the seeds, in percent of hindsight's time."""
    said = []
    for cell, ours in records["this package, calibrated before"]["regrets"].items():
        known = records[REFERENCE]["regrets"][cell]
        difference = statistics.median(a - b for a, b in zip(ours, known, strict=True))
        said.append(f"{cell} {difference:+.1%}")
    return said


def overall(table: Table) -> str:
    """Return what learning costs in the mean over all tables, traces and seeds."""
    mean = {
        name: statistics.fmean(
            statistics.fmean(regrets)
            for record in table.records
            if record["policy"] == name
            for regrets in record["regrets"].values()
        )
        for name in ("this package, calibrated before", REFERENCE)
    }
    ours, known = mean.values()
    said = _said("beyond the policy that " + REFERENCE, ours - known, LEARNING)
    return f"Mean regret over all tables, traces and seeds: {ours:.1%}; {said}."


def empty(lengths: dict[int, int]) -> Table:
    """Return the table without records."""
    regrets = {f"{kind} {calls}": (f"{kind} {calls}", "") for calls in lengths for kind in TRACES}
    seeds = ", ".join(f"{seeds} seeds of {calls} calls" for calls, seeds in lengths.items())
    return Table(
        "selection",
        f"Regret against hindsight in percent, median [least, largest] over {seeds}, {machine()}. The figures that "
        "follow are those of the longest stationary trace: choice is the time beyond that of the fastest arm that is "
        "already compiled, steady the last quarter against hindsight's plan, worst key the largest ratio to that plan "
        "of any size after its first 200 calls; explored is the largest share of time that trials cost in any trace.",
        {
            "costs": ("costs", ""),
            "policy": ("policy", ""),
            **regrets,
            "choice": ("choice", ".1%"),
            "steady": ("steady", ".1%"),
            "worst_key": ("worst key", ".2f"),
            "explored": ("explored", ".2%"),
            "switches": ("switches / 1000", ".1f"),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cells(parser)
    parser.add_argument("--calls", type=int, help="traces of this length instead, two seeds of each")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    cells: Cells = arguments.cells
    lengths = {Cells.QUICK: QUICK, Cells.REPORT: REPORTED, Cells.FULL: LENGTHS}[cells]
    lengths = {arguments.calls: 2} if arguments.calls else lengths
    first = LENGTHS if lengths is REPORTED else lengths
    operations = OPERATIONS[:1] if cells.is_quick else (*OPERATIONS, *LATER)
    others = (REFERENCE,) if cells is Cells.REPORT else tuple(name for name in PLAYERS if name not in OURS)
    table = empty(lengths)
    for operation in operations:
        for caches in CACHES[:1] if cells.is_quick else CACHES:
            label = f"{operation}, {caches}"
            costs = read(RESULTS / f"selection-{operation}.json", caches)
            table.begin(label)
            some = first if operation == OPERATIONS[0] else lengths
            for name in (*OURS, *others):
                table.add(**row(costs, label, name, some))
            verdicts(table, label)
    table.note(overall(table))
    if first is not lengths:
        seeds = " and ".join(map(str, LENGTHS.values()))
        table.note(f"Of {OPERATIONS[0]}, whose medians are promised, {seeds} seeds.")
    table.note(
        f"The decision core was written with {', '.join(OPERATIONS)} in sight; {' and '.join(LATER)} was measured "
        "after the last change of it."
    )
    if arguments.output:
        table.write(arguments.output)
    if any(record["overspent"] for record in table.records if record["policy"] != SCRAMBLED):
        sys.exit(f"trials cost more than {EXPLORED:.0%} of the time and the allowance")


def _said(name: str, value: float, most: float) -> str:
    return f"{name} {value:.1%} ({most:.0%}){_mark(value <= most)}"


def _mark(reached: bool) -> str:
    return "" if reached else " FAIL"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if abs(value) < 1 else f"{100 * value:.0f}"


if __name__ == "__main__":
    main()
