"""Why this kernel and not another: plain text tables."""

import math
from collections.abc import Iterable, Mapping, Sequence

from hpfracc_nn.selection.candidates import Assessment, accepted, in_words
from hpfracc_nn.selection.learning.model import Prediction, quantile
from hpfracc_nn.selection.machine import limit_of
from hpfracc_nn.selection.memory import in_bytes
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.planner import Planner
from hpfracc_nn.selection.registry import Compilation
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.workload import DIRECTIONS, Cost, Measurement, Rates, Workload

HEADER = (
    "",
    "kernel",
    "predicted ms",
    "bounds ms",
    "samples",
    "compile s",
    "flop/B",
    "limit",
    "workspace",
    "saves",
    "front",
    "forward ms",
    "backward ms",
    "reason",
)
FRONT = "x"

_WHY = {
    "prior": "prior: best by the estimate",
    "wisdom": "wisdom: best by what an earlier process measured",
    "measured": "measured: best by live calls",
    "explore": "explore: being tried",
    "fallback": "fallback: a better one is left alone after it failed",
    "first": "first: mode off compares nothing",
    "only": "only: the others refuse",
}


def explain(planner: Planner, workload: Workload, history: Iterable[Measurement]) -> str:
    """Return the table of kernels for a workload, fastest first, refused ones last; the chosen one is marked `*`.

    Predicted is forward plus the backward that the workload asks for, with the bounds and the samples that say so.
    `compile s` is what its next call would compile or load, `flop/B` its operations per byte, and `limit` what most of
    the estimate goes into. An x in `front` marks the Pareto front of seconds and bytes
    (workspace and saves): no other kernel has less of one and not more of the other. Forward and backward are 20 %
    quantiles of what was measured for exactly this workload.

    Args:
        planner: The manager's planner.
        workload: What is to be computed.
        history: Measurements of live calls.
    """
    with planner.lock:
        candidates, settings = planner.candidates, planner.settings.of(workload.op)
        fitting = candidates.fitting(workload)
        assessments = candidates.reduced(fitting, workload)
        able = accepted(assessments)
        expected = planner.expected(workload, fitting)  # also of those in quarantine
        lines: list[tuple[str, ...]] = [HEADER]
        if able:
            plan, trial = planner.planned(workload), planner.learner.trial(workload)
            rates = candidates.model(workload.framework).rates(workload)
            measured = [each for each in history if each.workload == workload and each.succeeded and each.cache_hit]
            efficient = front(able, expected)
            for each in sorted(able, key=lambda each: expected[each.kernel.name].seconds):
                name, missing = each.kernel.name, each.kernel.ask("compiles", workload)
                chosen = name == plan.kernel.name
                why = _chosen(plan, settings) if chosen else _passed_over(name, plan, expected, trial, missing)
                if each.rows is not None:
                    why += f"; {each.rows} row{'s' * (each.rows > 1)} at a time"
                marks = "*" if chosen else "", FRONT if name in efficient else ""
                facts = _facts(each, expected[name], missing, each.kernel.ask("cost", workload), rates)
                times = (_measured_ms(measured, name, direction) for direction in DIRECTIONS)
                lines.append((marks[0], name, *facts, marks[1], *times, why))
    for each in assessments:
        if each.refusal is not None:
            lines.append(("", each.kernel.name, *["-"] * (len(HEADER) - 3), f"refused: {each.refusal}"))
    text = [_title(workload), *aligned(lines)]
    if not able:
        text.append("No kernel is left for this workload.")
    return "\n".join(text)


def front(assessments: Iterable[Assessment], expected: Mapping[str, Prediction]) -> set[str]:
    """Return the Pareto front: kernels to which no other is better in seconds or bytes and not worse in the other."""
    best, found = math.inf, set()
    for each in sorted(assessments, key=lambda each: (expected[each.kernel.name].seconds, each.bytes)):
        if each.bytes < best:
            best = each.bytes
            found.add(each.kernel.name)
    return found


def _facts(
    assessment: Assessment, expected: Prediction, missing: Compilation | None, cost: Cost, rates: Rates
) -> tuple[str, ...]:
    """Return the cells of a kernel in the columns from "predicted ms" to "saves"."""
    return (
        _ms(expected.seconds),
        f"{1e3 * expected.low:.3g}-{1e3 * expected.high:.3g}",
        str(expected.samples),
        "-" if missing is None else "not unasked" if missing.seconds == math.inf else f"{missing.seconds:.2g}",
        f"{cost.intensity:.3g}",
        limit_of(cost, rates),
        in_bytes(assessment.workspace),
        in_bytes(assessment.saves),
    )


def _chosen(plan: Plan, settings: Settings) -> str:
    why = f"forced: {settings.forced}" if plan.reason == "forced" else _WHY.get(plan.reason, plan.reason)
    objective = in_words(settings) if plan.reason in ("prior", "wisdom", "measured") else ""
    return f"chosen, {why}" + (f", {objective}" if objective else "")


def _passed_over(
    name: str,
    plan: Plan,
    expected: Mapping[str, Prediction],
    trial: str | None,
    missing: Compilation | None,
) -> str:
    now, then = expected[plan.kernel.name].seconds, expected[name].seconds
    ratio = f"{then / now:.3g} times the chosen" if now else ""
    if name == trial:
        return f"{ratio}; {_WHY['explore']}"
    waits = plan.learns and missing is not None and then < now and missing.seconds < math.inf
    return f"{ratio}; compiled once that would have paid" if waits else ratio


def _measured_ms(measured: Sequence[Measurement], name: str, direction: str) -> str:
    seconds = quantile([m.seconds for m in measured if m.kernel == name and m.direction == direction])
    return "-" if seconds is None else _ms(seconds)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _title(workload: Workload) -> str:
    wanted = {"the input": workload.needs_gradient, "the weights": workload.learns_weights}
    gradients = " and ".join(name for name, is_wanted in wanted.items() if is_wanted)
    return (
        f"{workload}: rows={workload.rows} n={workload.n} width={workload.width} "
        f"channels={workload.channels} exponentials={workload.exponentials} threads={workload.threads}, "
        + (f"gradient in {gradients}" if gradients else "no gradient")
    )


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
