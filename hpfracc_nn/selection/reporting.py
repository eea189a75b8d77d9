"""What ran where, as rows for a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict

from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.workload import Workload


class Counters(TypedDict):
    """Consultations so far, by direction, and forward ones by the name of the kernel picked."""

    forward: int
    backward: int
    picks: dict[str, int]


class Counts(NamedTuple):
    """What a plan counts: consultations by direction, trials among the forward ones, switches to it, and failures."""

    forwards: int = 0
    backwards: int = 0
    trials: int = 0
    switches: int = 0
    failures: int = 0

    @classmethod
    def of(cls, plan: Plan) -> "Counts":
        """Return the counts of a plan now."""
        return cls(plan.forwards, plan.backwards, plan.trials, plan.switches, plan.failures)

    @property
    def calls(self) -> int:
        """Consultations in both directions."""
        return self.forwards + self.backwards

    def minus(self, other: "Counts") -> "Counts":
        """Return how many more these are."""
        return Counts(*(mine - its for mine, its in zip(self, other, strict=True)))

    def plus(self, other: "Counts") -> "Counts":
        """Return both together."""
        return Counts(*(mine + its for mine, its in zip(self, other, strict=True)))


@dataclass(frozen=True)
class ReportRow:
    """One plan of one site.

    Times are in milliseconds: `forward_ms` and `backward_ms` are 20 % quantiles of sampled
    calls, None before there are any; `predicted_ms` is forward and backward together. `share`
    is this row's part of all consultations in the report. `speed_up` compares predictions with
    the second best kernel, None where there is no other; a forced plan may be below 1. `confidence`
    is the probability that no other kernel is faster. `trials` are forward calls that only tried
    the kernel, `switches` how often it took over from another one, `failures` what it raised.

    Examples:
        >>> manager = BackendManager()
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> (row,) = manager.report()
        >>> row.op, row.workload, row.dtype, row.forwards
        ('toeplitz', '4 x 64 x 1', 'float64', 1)
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
    confidence: float = 1.0
    trials: int = 0
    switches: int = 0
    failures: int = 0

    @property
    def counts(self) -> Counts:
        return Counts(self.forwards, self.backwards, self.trials, self.switches, self.failures)

    @property
    def explored(self) -> float | None:
        """The part of its forward calls that only tried the kernel, None where there is none."""
        return self.trials / self.forwards if self.forwards else None


def rows(sites: Iterable[Site]) -> list[ReportRow]:
    """Return a row for each plan of `sites`, in their order, most consulted first within one."""
    found = [
        row_of(site.label, plan, Counts.of(plan))
        for site in sites
        for plan in sorted(site.plans(), key=lambda plan: Counts.of(plan).calls, reverse=True)
    ]
    return shared(found)


def shared(found: Sequence[ReportRow]) -> list[ReportRow]:
    """Return the rows with their parts of all consultations."""
    whole = sum(row.counts.calls for row in found)
    return [replace(row, share=row.counts.calls / whole if whole else 0.0) for row in found]


def row_of(label: str, plan: Plan, counts: Counts) -> ReportRow:
    """Return what a plan of the site of that label did, without its share."""
    work = plan.workload
    return ReportRow(
        label=label,
        op=work.op,
        workload=summary(work),
        dtype=work.dtype,
        device=work.device,
        backend=plan.backend,
        algorithm=plan.algorithm,
        share=0.0,
        forward_ms=milliseconds(plan.quantile("forward")),
        backward_ms=milliseconds(plan.quantile("backward")),
        predicted_ms=1e3 * plan.seconds,
        speed_up=plan.alternatives[0][1] / plan.seconds if plan.alternatives and plan.seconds else None,
        reason=plan.reason,
        confidence=plan.confidence,
        **counts._asdict(),
    )


def summary(workload: Workload) -> str:
    """Return rows x n x width."""
    return f"{workload.rows} x {workload.n} x {workload.width}"


def milliseconds(seconds: float | None) -> float | None:
    """Return `seconds` in milliseconds."""
    return None if seconds is None else 1e3 * seconds
