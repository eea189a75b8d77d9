"""What ran where, as rows for a table."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.workload import Workload


class Counters(TypedDict):
    """Consultations so far, by direction, and forward ones by the name of the kernel picked."""

    forward: int
    backward: int
    picks: dict[str, int]


@dataclass(frozen=True)
class ReportRow:
    """One plan of one site.

    Times are in milliseconds: `forward_ms` and `backward_ms` are 20 % quantiles of sampled
    calls, None before there are any; `predicted_ms` is forward and backward together. `share`
    is this row's part of all consultations in the report. `speed_up` compares predictions with
    the second best kernel, None where there is no other; a forced plan may be below 1.
    """

    label: str
    op: str
    workload: str
    dtype: str
    device: str
    backend: str
    algorithm: str
    forwards: int
    backwards: int
    share: float
    forward_ms: float | None
    backward_ms: float | None
    predicted_ms: float
    speed_up: float | None
    reason: str


def rows(sites: Iterable[Site]) -> list[ReportRow]:
    """Return a row for each plan of `sites`, in their order, most consulted first within one."""
    found = [(site, plan) for site in sites for plan in sorted(site.plans(), key=_calls, reverse=True)]
    total = sum(_calls(plan) for _, plan in found)
    return [_row(site, plan, total) for site, plan in found]


def _row(site: Site, plan: Plan, total: int) -> ReportRow:
    return ReportRow(
        label=site.label,
        op=site.op,
        workload=summary(plan.workload),
        dtype=plan.workload.dtype,
        device=plan.workload.device,
        backend=plan.backend,
        algorithm=plan.algorithm,
        forwards=plan.forwards,
        backwards=plan.backwards,
        share=_calls(plan) / total if total else 0.0,
        forward_ms=_ms(plan.quantile("forward")),
        backward_ms=_ms(plan.quantile("backward")),
        predicted_ms=1e3 * plan.seconds,
        speed_up=_speed_up(plan),
        reason=plan.reason,
    )


def summary(workload: Workload) -> str:
    """Return rows x n x width."""
    return f"{workload.rows} x {workload.n} x {workload.width}"


def _calls(plan: Plan) -> int:
    return plan.forwards + plan.backwards


def _speed_up(plan: Plan) -> float | None:
    if not plan.alternatives or not plan.seconds:
        return None
    return plan.alternatives[0][1] / plan.seconds


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
