"""How a workload is run: a decision that stays, with counters that move."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpfracc_nn.selection.learning.model import confidence, predictions
from hpfracc_nn.selection.registry import Compilation, Kernel
from hpfracc_nn.selection.timing import LONGEST_PERIOD, Samples, quantile
from hpfracc_nn.selection.workload import Direction, Workload

LOOKED_AFTER = LONGEST_PERIOD  # calls, after which a plan that does not learn looks whether it may still stay


class Uses(NamedTuple):
    """Consultations of a kernel, forward and backward, and how often it replaced another one."""

    op: str
    kernel: str
    forwards: int
    backwards: int
    switches: int


@dataclass(slots=True, weakref_slot=True, eq=False)
class Plan:
    """How a workload is run: chosen once, for forward and backward together, then counted.

    The decision does not change; the counters do. They are bumped without a lock, where an
    update lost between threads does no harm.

    Args:
        kernel: What runs.
        workload: What it was chosen for.
        seconds: Predicted time, forward plus the backward that the workload asks for.
        uncertainty: Factor u >= 1: the time is believed to lie in [seconds / u, seconds * u].
        workspace: Bytes held beyond input and output; it goes with `chunk`.
        reason: "forced", "only" (nothing else accepts the workload), "first" (nothing was compared), or what speaks for
            it: "prior" (the estimate), "wisdom" (an earlier process), "measured", "explore" (it is being tried), or
            "fallback" (it stands in for a kernel that failed).
        alternatives: The other kernels that accept it, with predicted seconds, fastest first.
        doubts: The factor u of each of them.
        sample: Whether live calls are to be timed at all.
        learns: Whether they are timed when the one who learns from them asks for it, and not by themselves.
        chunk: Rows to compute at a time, None for all at once; it follows the memory that there is.
        provisional: Whether a kernel that may be better is left out for a while, so that the choice is reconsidered.
        devices: Where a kernel that offloads may compute; none: on the current one of its framework.

    Attributes:
        left: Forward calls until the choice is reconsidered, or whether there still is none.
        granted: What `left` began with.
        told: Backward calls that were there then.
        compilation: What the first call has to compile or load, None where all is there.
        trials: Forward calls that only tried its kernel.
        switches: How often it replaced another plan that had run.
        failures: Exceptions and wrong results of its kernel.
        announced: Whether the journal of its manager knows of it.
        counted: Consultations, forward and backward, and switches that the manager has added up for good.
        heir: Who is given a plan's last counts at its end; set where its site has let it go, and others still have it.
        kept: Room for whoever picks the plan: what it would make anew at every call.

    Examples:
        >>> plan = BackendManager(Settings(mode="prior")).plan(
        ...     workload((256, 1024), framework="numpy")
        ... )
        >>> plan.reason  # the estimate alone; it says that the others take longer
        'prior'
        >>> all(plan.seconds <= seconds for name, seconds in plan.alternatives)
        True
    """

    kernel: Kernel
    workload: Workload
    seconds: float
    uncertainty: float
    workspace: float
    reason: str
    alternatives: tuple[tuple[str, float], ...] = ()
    doubts: tuple[float, ...] = ()
    sample: bool = True
    learns: bool = False
    chunk: int | None = None
    provisional: bool = False
    devices: tuple[str, ...] = ()
    forwards: int = field(default=0, init=False)
    backwards: int = field(default=0, init=False)
    left: int = field(default=LOOKED_AFTER, init=False)
    granted: int = field(default=1, init=False)
    told: int = field(default=0, init=False)
    compilation: Compilation | None = field(init=False, repr=False)
    trials: int = field(default=0, init=False)
    switches: int = field(default=0, init=False)
    failures: int = field(default=0, init=False)
    announced: bool = field(default=False, init=False, repr=False)
    counted: tuple[int, int, int] = field(default=(0, 0, 0), init=False, repr=False)
    heir: Callable[[Uses], None] | None = field(default=None, init=False, repr=False)
    kept: Any = field(default=None, init=False, repr=False)
    forward: Samples = field(init=False, repr=False)
    backward: Samples = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.forward = Samples(self.sample and not self.learns)
        self.backward = Samples(self.sample and not self.learns)
        self.compilation = self.kernel.ask("compiles", self.workload)
        if self.learns or self.provisional:
            self.left = 1

    def twin(self) -> "Plan":
        """Return the same decision with counters of its own."""
        return Plan(
            self.kernel,
            self.workload,
            self.seconds,
            self.uncertainty,
            self.workspace,
            self.reason,
            self.alternatives,
            self.doubts,
            self.sample,
            self.learns,
            self.chunk,
            self.provisional,
            self.devices,
        )

    def cut(self, chunk: int | None, workspace: float) -> None:
        """Compute so many rows at a time from now on, None for all at once, with so many bytes of workspace."""
        self.chunk, self.workspace = chunk, workspace

    def renew(self, fresh: "Plan") -> None:
        """Take over what another plan says of the same kernel; the counters stay."""
        self.reason, self.provisional, self.alternatives = fresh.reason, fresh.provisional, fresh.alternatives
        self.seconds, self.uncertainty, self.doubts = fresh.seconds, fresh.uncertainty, fresh.doubts
        self.cut(fresh.chunk, fresh.workspace)

    def grant(self, calls: int) -> None:
        """Time the next call, and reconsider the choice after so many."""
        self.left = self.granted = calls
        self.told = self.backwards
        if self.sample:
            self.forward.request()
            self.backward.request()

    def postpone(self) -> None:
        """Reconsider a choice that does not learn: a provisional one after twice as many calls as the last time."""
        self.left = self.granted = min(2 * self.granted, LONGEST_PERIOD) if self.provisional else LOOKED_AFTER

    def reconsider(self) -> None:
        """Let the next call reconsider the choice, unless it is one that stays."""
        if self.learns:
            self.granted = max(1, self.granted - max(0, self.left - 1))  # threads may race: a call was made, at least
            self.left = 1

    def expire(self) -> None:
        """Let the next call make the choice anew, whatever it is: its kernel has failed."""
        self.reconsider()
        self.left = 1

    def move(self, other: "Plan", direction: Direction) -> None:
        """Count the last consultation for another plan, which runs in place of this one."""
        if direction == "forward":
            other.forwards += 1
            self.forwards -= 1
        else:
            other.backwards += 1
            self.backwards -= 1

    def uncounted(self) -> Uses:
        """Return what the manager has not added up yet."""
        return self._since((self.forwards, self.backwards, self.switches))

    def settle(self) -> Uses:
        """Return the same, which is added up from now on."""
        counts = self.forwards, self.backwards, self.switches
        uses, self.counted = self._since(counts), counts
        return uses

    def _since(self, counts: tuple[int, int, int]) -> Uses:
        forwards, backwards, switches = (now - before for now, before in zip(counts, self.counted, strict=True))
        return Uses(self.workload.op, self.kernel.name, forwards, backwards, switches)

    def __del__(self) -> None:
        # A thread, or the backward pass of an autograd graph, may use a plan long after its site has let it go.
        heir = getattr(self, "heir", None)  # absent where `__init__` raised
        if heir is not None:
            heir(self.settle())

    def samples(self, direction: Direction) -> Samples:
        return self.forward if direction == "forward" else self.backward

    def due(self, direction: Direction = "forward") -> bool:
        """Return whether this call shall be timed and given to `BackendManager.record`."""
        return (self.forward if direction == "forward" else self.backward).due()

    def compiled_in(self, seconds: float) -> bool:
        """Return whether a first call that took so long compiled or loaded code, as was foreseen.

        Another plan of the same kernel may have done it meanwhile: then it took much less than that takes.
        """
        return self.compilation is not None and seconds >= self.compilation.seconds / 4

    def quantile(self, direction: Direction = "forward") -> float | None:
        """Return the 20 % quantile of the sampled seconds, or None before the second sample."""
        return quantile(self.samples(direction).seconds)

    def failure_note(self) -> str:
        """Return the line that says what was running, and how to do without it."""
        work = self.workload
        return (
            f"while running {work.op} by {self.kernel.name} on {work.place}, rows={work.rows} n={work.n} "
            f"width={work.width}; to do without it: configure(disable={self.kernel.name!r})"
        )

    @property
    def confidence(self) -> float:
        """The probability that no other kernel is faster; see `learning.model.confidence`."""
        name = self.kernel.name
        return confidence(name, predictions(name, self.seconds, self.uncertainty, self.alternatives, self.doubts))

    @property
    def countdown(self) -> int:
        """Forward calls until the next is timed."""
        return self.forward.countdown

    @property
    def period(self) -> int:
        return self.forward.period

    @property
    def backend(self) -> str:
        return self.kernel.backend

    @property
    def algorithm(self) -> str:
        return self.kernel.algorithm
