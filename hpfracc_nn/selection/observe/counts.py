"""How often each kernel was consulted, took over and failed, and what ran where, as rows for a table."""

import threading
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict

from hpfracc_nn.selection.plan import Plan, Usage, Uses
from hpfracc_nn.selection.workload import Direction, Workload

MOST_ENDED = 64


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
        usage = plan.usage
        return cls(usage.forwards, usage.backwards, usage.trials, usage.switches, usage.failures)

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
    work, others = plan.workload, plan.alternatives
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
        speed_up=others[0][1] / plan.seconds if others and plan.seconds else None,
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

    def update(self, other: "Totals") -> None:
        """Add other totals."""
        self.uses.update(other.uses)
        self.switches.update(other.switches)

    def copy(self) -> "Totals":
        """Return the same numbers, to be added to."""
        return Totals(self.uses.copy(), self.switches.copy())


class ManagerCounts:
    """The counts of one manager, of usages that are alive and of those that are gone.

    It takes no lock that a call waits for, and outlives the manager where somebody still wants to read it.

    Attributes:
        failures: By operation, kernel and the class of the error.
        stand_ins: How often a kernel ran in place of one that failed, by operation and kernel.
    """

    def __init__(self) -> None:
        self.failures = Counter[tuple[str, str, str]]()
        self.stand_ins = Counter[tuple[str, str]]()
        self._alive: set[weakref.ref[Usage]] = set()
        self._ended = deque[Uses]()  # the last counts of usages, until they are added up
        self._past = Totals()
        self._begun = self._added_up = 0  # usages
        self._lock = threading.RLock()  # of the sum; the garbage collector may come while it is held

    def add(self, usage: Usage) -> Usage:
        """Count a usage from now on, and return it; the manager's lock is held."""
        if len(self._ended) > MOST_ENDED:  # not where a usage ends: the garbage collector must not wait for a lock
            self._add_up()
        self._begun += 1
        usage.ended = self._ended.append
        self._alive.add(weakref.ref(usage, self._alive.discard))
        return usage

    @property
    def is_final(self) -> bool:
        """Whether no usage is alive."""
        return self._begun == self._added_up + len(self._ended)

    def totals(self) -> Totals:
        """Return the counts of all usages there were."""
        with self._lock:
            alive = [usage for ref in list(self._alive) if (usage := ref()) is not None]  # held: none ends meanwhile
            self._add_up()
            found = self._past.copy()
            found.add(usage.uses() for usage in alive)
            return found

    def _add_up(self) -> None:
        """Add the counts of plans that no longer exist to the totals, once each."""
        with self._lock:
            while self._ended:
                self._past.add([self._ended.popleft()])
                self._added_up += 1

    def counters(self) -> Counters:
        """Return the same as consultations by direction, and forward ones by kernel."""
        picks, backward = Counter[str](), 0
        for (_, name, direction), count in self.totals().uses.items():
            if direction == "forward" and count:
                picks[name] += count
            elif direction == "backward":
                backward += count
        return {"forward": picks.total(), "backward": backward, "picks": dict(picks)}

    def after_fork(self) -> None:
        """Renew the lock, in a child process."""
        self._lock = threading.RLock()
