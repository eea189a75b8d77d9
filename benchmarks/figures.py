"""Figures of promises that are made of several records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from promise import Figure, Record, chosen_from, one, value_of

OURS, KNOWING = "this package, calibrated before", "knows all costs but not the future"


def geometric_mean(records: Sequence[Record]) -> float:
    """Return the geometric mean of the ratios."""
    return statistics.geometric_mean(value_of(record, "ratio") for record in records)


def added_by_autograd(records: Sequence[Record]) -> float:
    """Return what a required gradient adds to a call, over what a minimal function adds to the bare kernel."""
    layer, bare, moving, around = (
        one(records, "us", {"call": call})
        for call in ("layer", "bare kernel", "layer, x requires grad", "minimal Function around the bare kernel")
    )
    return (moving - layer) / (around - bare)


def cost_of_learning(records: Sequence[Record]) -> float:
    """Return what is lost beyond the player who knows all costs, as a share of hindsight's time, over all replays."""
    ours, known = (
        statistics.fmean(
            statistics.fmean(regrets)
            for record in chosen_from(records, {"policy": policy})
            for regrets in record["regrets"].values()
        )
        for policy in (OURS, KNOWING)
    )
    return ours - known


def over_fastest_alone(records: Sequence[Record]) -> float:
    """Return the learner's time over that of the fastest kernel alone."""
    alone = [value_of(record, "seconds") for record in chosen_from(records, {"player": "* alone"})]
    return one(records, "seconds", {"player": "learner"}) / min(alone)


def fastest_kernel(key: str, *, least: bool) -> Figure:
    """Return the figure of the best kernel at each size, of which the worst size counts; `least`: less is better."""
    best, worst = (min, max) if least else (max, min)

    def figure(records: Sequence[Record]) -> float:
        shapes: dict[str, list[float]] = {}
        for record in records:
            shapes.setdefault(str(record["shape"]), []).append(value_of(record, key))
        return worst(best(found) for found in shapes.values())

    return figure
