"""How often each kernel was consulted, took over and failed, and what ran where, as rows for a table."""

import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict, TypeVar

from hpfracc_nn.selection.plan import Plan, Uses
from hpfracc_nn.selection.workload import Direction, Workload


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


T = TypeVar("T")
Use = tuple[str, str, Direction]  # operation, kernel, pass


@dataclass
class Totals:
    """Numbers that only ever grow.

    Args:
        uses: Consultations by operation, kernel and direction.
        switches: How often a kernel replaced another one that had run, by operation and kernel.
    """

    uses: Counter[Use] = field(default_factory=Counter)
    switches: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, uses: Iterable[Uses]) -> None:
        """Count these too."""
        for op, name, forwards, backwards, switches in uses:
            self.uses[op, name, "forward"] += forwards
            self.uses[op, name, "backward"] += backwards
            self.switches[op, name] += switches

    def copy(self) -> "Totals":
        """Return the same numbers, to be added to."""
        return Totals(self.uses.copy(), self.switches.copy())


class Tally:
    """The counts of one manager; it outlives the manager where somebody still wants to read them.

    Callers hold the manager's lock, except where a plan is retired: the garbage collector does that, and must not wait.

    Attributes:
        open: Numbers of the sites whose plans are not all retired.
        retired: Plans whose site is gone or has let them go, until they are added up.
        failures: By operation, kernel and the class of the error.
        stand_ins: How often a kernel ran in place of one that failed, by operation and kernel.
    """

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.retired: deque[tuple[Plan, ...]] = deque()
        self.failures = Counter[tuple[str, str, str]]()
        self.stand_ins = Counter[tuple[str, str]]()
        self._past = Totals()
        self._late: weakref.WeakSet[Plan] = weakref.WeakSet()  # added up, and still somebody's, who may count on
        self._last = deque[Uses]()  # what others of these had counted when they went

    def close(self, number: int, plans: tuple[Plan, ...]) -> None:
        """Retire the plans of a site that is gone; it takes no lock."""
        self.retired.append(plans)
        self.open.discard(number)

    def fold(self) -> None:
        """Add up the plans that are retired, for good, and what those before them have counted since."""
        retired = [plan for plans in _drain(self.retired) for plan in plans]  # held until they are added up
        self._late.update(retired)
        for plan in list(self._late):
            plan.heir = self._last.append
            self._past.add([plan.settle()])  # one that an interrupt left in two places counts once
        self._past.add(_drain(self._last))

    def totals(self, plans: Iterable[Plan]) -> Totals:
        """Return the counts of all plans there were, of which `plans` are in use."""
        self.fold()
        found = self._past.copy()
        found.add(plan.uncounted() for plan in plans)
        return found

    def counters(self, plans: Iterable[Plan]) -> Counters:
        """Return the same as consultations by direction, and forward ones by kernel."""
        picks, backward = Counter[str](), 0
        for (_, name, direction), count in self.totals(plans).uses.items():
            if direction == "forward":
                picks[name] += count
            else:
                backward += count
        return {"forward": picks.total(), "backward": backward, "picks": dict(picks)}


def _drain(queue: deque[T]) -> Iterator[T]:
    while queue:
        yield queue.popleft()
