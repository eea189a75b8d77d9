"""Why this kernel and not another: plain text tables."""

import math
from collections.abc import Iterable, Mapping, Sequence

from hpfracc_nn.selection.candidates import Assessment, Candidates, accepted, in_words
from hpfracc_nn.selection.learning.model import Prediction
from hpfracc_nn.selection.machine import Limit, limit_of
from hpfracc_nn.selection.memory import in_bytes
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.planner import Planner
from hpfracc_nn.selection.registry import Compilation
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.timing import quantile
from hpfracc_nn.selection.workload import Measurement, Workload

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


def table(
    assessments: Sequence[Assessment],
    workload: Workload,
    settings: Settings,
    history: Iterable[Measurement],
    plan: Plan | None,
    expected: Mapping[str, Prediction],
    roofline: Mapping[str, tuple[float, Limit]],
    trial: str | None = None,
) -> str:
    """Return the table, fastest first, refused ones last; the chosen one is marked `*`.

    Predicted is forward plus the backward that the workload asks for, with the bounds and the samples that say so.
    `compile s` is what its next call would compile or load, `flop/B` its operations per byte, and `limit` what most of
    the estimate goes into. An x in `front` marks the Pareto front of seconds and bytes
    (workspace and saves): no other kernel has less of one and not more of the other. Forward and backward are 20 %
    quantiles of what was measured for exactly this workload.

    Args:
        assessments: Of all kernels.
        workload: What they were made for.
        settings: Of the manager.
        history: What was measured.
        plan: What would run, None where every kernel refuses.
        expected: Of each kernel that accepts.
        roofline: Operations per byte of each, and what most of its estimate goes into.
        trial: The kernel that is being tried on a live call.
    """
    measured = [each for each in history if each.workload == workload and each.succeeded and each.cache_hit]
    ranked = sorted(accepted(assessments), key=lambda each: expected[each.kernel.name].seconds)
    efficient = front(ranked, expected)
    lines: list[tuple[str, ...]] = [HEADER]
    for assessment in ranked:
        assert plan is not None
        name = assessment.kernel.name
        chosen = name == plan.kernel.name
        missing = assessment.kernel.ask("compiles", workload)
        reason = _chosen(plan, settings) if chosen else _passed_over(name, plan, expected, trial, missing)
        if assessment.rows is not None:
            reason += f"; {assessment.rows} row{'s' * (assessment.rows > 1)} at a time"
        marks = "*" if chosen else "", FRONT if name in efficient else ""
        lines.append(_line(assessment, marks, reason, missing, measured, expected[name], roofline[name]))
    for assessment in assessments:
        if assessment.refusal is not None:
            lines.append(("", assessment.kernel.name, *["-"] * (len(HEADER) - 3), f"refused: {assessment.refusal}"))
    text = [_title(workload), *aligned(lines)]
    if not ranked:
        text.append("No kernel is left for this workload.")
    return "\n".join(text)


def predictions(expected: Mapping[str, Prediction]) -> str:
    """Return what `BackendManager.predict` returned, as a table."""
    lines = [("kernel", "predicted ms", "bounds ms", "samples")]
    lines += [(name, _ms(each.seconds), _bounds(each), str(each.samples)) for name, each in expected.items()]
    return "\n".join(aligned(lines))


def front(assessments: Iterable[Assessment], expected: Mapping[str, Prediction]) -> set[str]:
    """Return the kernels than which no other has less of seconds or bytes, and not more of the other."""
    best, found = math.inf, set()
    for each in sorted(assessments, key=lambda each: (expected[each.kernel.name].seconds, each.bytes)):
        if each.bytes < best:
            best = each.bytes
            found.add(each.kernel.name)
    return found


def _line(
    assessment: Assessment,
    marks: tuple[str, str],
    reason: str,
    missing: Compilation | None,
    measured: Sequence[Measurement],
    expected: Prediction,
    roofline: tuple[float, Limit],
) -> tuple[str, ...]:
    kernel, (intensity, limit) = assessment.kernel, roofline
    return (
        marks[0],
        kernel.name,
        _ms(expected.seconds),
        _bounds(expected),
        str(expected.samples),
        "-" if missing is None else "not unasked" if missing.seconds == math.inf else f"{missing.seconds:.2g}",
        f"{intensity:.3g}",
        limit,
        in_bytes(assessment.workspace),
        in_bytes(assessment.saves),
        marks[1],
        *(_measured_ms(measured, kernel.name, direction) for direction in ("forward", "backward")),
        reason,
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


def _bounds(expected: Prediction) -> str:
    return f"{1e3 * expected.low:.3g}-{1e3 * expected.high:.3g}"


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


def explain(planner: Planner, workload: Workload, history: Iterable[Measurement]) -> str:
    """Return the table for a workload now; see `BackendManager.explain`."""
    with planner.lock:
        candidates = planner.candidates
        fitting = candidates.fitting(workload)
        assessments = candidates.reduced(fitting, workload)
        plan = planner.planned(workload) if accepted(assessments) else None
        expected = planner.expected(workload, fitting)  # also of those in quarantine
        trial = planner.learner.trial(workload)
        roofline = _roofline(candidates, assessments, workload)
        settings = planner.settings.of(workload.op)
        return table(assessments, workload, settings, history, plan, expected, roofline, trial)


def _roofline(
    candidates: Candidates, assessments: list[Assessment], workload: Workload
) -> dict[str, tuple[float, Limit]]:
    """Return by kernel its operations per byte, and what most of its estimated time goes into.

    Kernels that refuse the workload are left out.
    """
    able = accepted(assessments)
    if not able:
        return {}
    rates = candidates.model(workload.framework).rates(workload)
    costs = {each.kernel.name: each.kernel.ask("cost", workload) for each in able}
    return {name: (cost.intensity, limit_of(cost, rates)) for name, cost in costs.items()}
