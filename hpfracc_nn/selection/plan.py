"""How a workload is run: a plan, which is a decision and does not change, and its usage, which counts and is timed.

The period between two timed calls doubles from 1 to 256 calls, so that a plan which runs often is timed often at first
and hardly ever later. The first sample is dropped: it paid for compilation, page faults and cold caches.

A call on a device that computes while the host goes on is put between two marks in the device's own order of work.
Later calls look whether the device has passed them; nobody ever waits for it. What a framework marks with is its own
affair: it registers a marker, as CUDA events are for torch.
"""

import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from hpfracc_nn.selection.learning.model import KEPT_SAMPLES, LONGEST_PERIOD, Prediction, confidence, quantile
from hpfracc_nn.selection.registry import Compilation, Kernel, Mark, mark
from hpfracc_nn.selection.workload import Direction, Measurement, Workload

PREEMPTED = 0.9  # part of its time for which a call of one thread must have had the processor
MOST_DROPPED = 3  # samples in a row: from then on the call itself is what waits
NEVER = 1 << 62  # a countdown that no process lives to see
MOST_PENDING = 64  # calls on a device whose times are awaited; of more the oldest are dropped
LOOKED_AFTER = LONGEST_PERIOD  # calls, after which the planner is asked whether a plan that does not learn may stay


class Stopwatch:
    """Times one call, and tells whether the processor was taken away meanwhile.

    Args:
        threads: How many threads the call may use; with several, the processor time says nothing.

    Examples:
        >>> watch = Stopwatch(threads=1)
        >>> seconds, tells = watch.stop()  # with `tells` False the processor was elsewhere
        >>> 0 <= seconds < 60
        True
    """

    __slots__ = ("_processor", "_started")

    def __init__(self, threads: int):
        self._processor = time.thread_time() if threads == 1 else None
        self._started = time.perf_counter()

    def stop(self) -> tuple[float, bool]:
        """Return the seconds since the start, and whether they say how long the call takes."""
        seconds = time.perf_counter() - self._started
        if self._processor is None:
            return seconds, True
        return seconds, time.thread_time() - self._processor >= PREEMPTED * seconds


class Samples:
    """The times of one plan in one direction, and the countdown to the next call to time.

    Args:
        sample: Whether calls are timed by themselves; otherwise only after `request`.

    Attributes:
        countdown: Calls until the next timed one.
        period: The number that the countdown began with.
        seconds: The last times that were kept.
        warm: Whether the first sample, which is dropped, is over.
        dropped: How many samples in a row were not kept.
    """

    __slots__ = ("countdown", "dropped", "period", "seconds", "warm")

    def __init__(self, sample: bool = True):
        self.countdown = 1 if sample else NEVER
        self.period = 1 if sample else NEVER
        self.seconds: deque[float] = deque(maxlen=KEPT_SAMPLES)
        self.warm = False
        self.dropped = 0

    def due(self) -> bool:
        """Return whether this call shall be timed, and count it.

        Threads may race here: the worst is a call timed twice or one call later.
        """
        self.countdown -= 1
        if self.countdown > 0:
            return False
        self.restart()
        return True

    def restart(self) -> None:
        """Count down to the next call to time, because one is timed now."""
        if self.period != NEVER:
            self.period = min(2 * self.period, LONGEST_PERIOD)
        self.countdown = self.period

    def request(self) -> None:
        """Let the next call be timed."""
        self.countdown = 1

    def keeps(self, keep: bool) -> bool:
        """Return whether to keep a sample: `keep`, or True after more than `MOST_DROPPED` in a row without it.

        `keep` is False where the processor was taken away during the call, whose time then says nothing. But a kernel
        that waits, for a thread of its own or for a lock, looks like that at every call; then the time by the clock is
        what it takes.
        """
        if keep:
            self.dropped = 0
            return True
        self.dropped += 1
        return self.dropped > MOST_DROPPED

    def add(self, seconds: float) -> bool:
        """Keep one sample; return False for the first, which is dropped."""
        if not self.warm:
            self.warm = True
            return False
        self.seconds.append(seconds)
        return True


class Counts(NamedTuple):
    """Consultations by direction, trials among the forward ones, switches to the kernel, and its failures."""

    forwards: int = 0
    backwards: int = 0
    trials: int = 0
    switches: int = 0
    failures: int = 0

    @property
    def calls(self) -> int:
        """Consultations in both directions."""
        return self.forwards + self.backwards

    def minus(self, other: "Counts") -> "Counts":
        """Return the differences of these counts to another plan's, or to earlier ones."""
        return Counts(*map(operator.sub, self, other))

    def plus(self, other: "Counts") -> "Counts":
        """Return the sums of these counts and others."""
        return Counts(*map(operator.add, self, other))


Use = tuple[str, str]  # operation and kernel


class Usage:
    """How one site uses one kernel for one workload: what was counted, and what is due.

    The numbers are changed without a lock; between threads an update of one may be lost, and none is invented. A usage
    that nobody holds any more hands its counts to the manager's.

    Args:
        plan: The first plan that is used; plans that replace it for the same kernel share the usage.

    Attributes:
        use: Operation and kernel.
        left: Forward calls until the choice is reconsidered.
        period: The number that `left` began with.
        backwards_before: Backward calls when the period began.
        forward: Samples of the forward pass.
        backward: Samples of the backward pass.
        forwards: Forward consultations.
        backwards: Backward consultations.
        trials: Forward consultations that only tried the kernel.
        switches: How often the kernel replaced another one that had run.
        failures: Exceptions and wrong results of the kernel.
        compilation: What the first call has to compile or load, None where that is nothing.
        announced: Whether the event log has a choice of this kernel.
        kept: For whoever picks the plan: a weak reference to what would be made anew at every call, such as torch's
            `PreparedCall`.
        ended: Called with `use` and the last counts when nobody holds the usage any more; `ManagerCounts.add` sets it.
    """

    __slots__ = (
        "__weakref__",
        "announced",
        "backward",
        "backwards",
        "backwards_before",
        "compilation",
        "ended",
        "failures",
        "forward",
        "forwards",
        "kept",
        "left",
        "period",
        "switches",
        "trials",
        "use",
    )

    def __init__(self, plan: "Plan"):
        self.use = plan.workload.op, plan.kernel.name
        self.left, self.period, self.backwards_before = 1 if plan.learns or plan.provisional else LOOKED_AFTER, 1, 0
        self.forwards = self.backwards = self.trials = self.switches = self.failures = 0
        self.announced = False
        self.kept: Any = None
        self.ended: Callable[[tuple[Use, Counts]], None] | None = None
        by_itself = plan.sample and not plan.learns
        self.forward, self.backward = Samples(by_itself), Samples(by_itself)
        self.compilation: Compilation | None = plan.kernel.ask("compiles", plan.workload)

    def counts(self) -> Counts:
        """Return what was counted so far."""
        return Counts(self.forwards, self.backwards, self.trials, self.switches, self.failures)

    def grant(self, calls: int, *, is_timed: bool) -> None:
        """Let the choice be reconsidered after so many forward calls; time the next call if `is_timed`."""
        self.left = self.period = calls
        self.backwards_before = self.backwards
        if is_timed:
            self.forward.request()
            self.backward.request()

    def reconsider(self) -> None:
        """Let the next call reconsider the choice."""
        self.period = max(1, self.period - max(0, self.left - 1))  # threads may race: a call was made, at least
        self.left = 1

    def move(self, other: "Usage", direction: Direction) -> None:
        """Count the last consultation for another usage, whose kernel runs in place of this one's."""
        if direction == "forward":
            other.forwards += 1
            self.forwards -= 1
        else:
            other.backwards += 1
            self.backwards -= 1

    def samples(self, direction: Direction) -> Samples:
        return self.forward if direction == "forward" else self.backward

    def compiled_in(self, seconds: float) -> bool:
        """Return whether a first call that took `seconds` compiled or loaded code, as was foreseen.

        Where another plan of the same kernel has compiled meanwhile, the call takes much less than a compilation.
        """
        return self.compilation is not None and seconds >= self.compilation.seconds / 4

    def __del__(self) -> None:
        # A thread, or the backward pass of an autograd graph, may use a plan long after its site has dropped it. The
        # garbage collector runs this too, which must not wait for a lock.
        ended = getattr(self, "ended", None)  # absent where `__init__` raised
        if ended is not None:
            self.ended, last = None, (self.use, self.counts())
            self.forwards = self.backwards = self.trials = self.switches = self.failures = 0
            ended(last)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Plan:
    """How a workload is run: chosen once, for forward and backward together.

    A plan does not change; where the choice or what is expected of it does, another plan takes its place. What is
    counted and timed is its `usage`.

    Args:
        kernel: The kernel that runs.
        workload: The workload that it was chosen for.
        expected: What is predicted of each kernel that accepts this, forward plus the backward that the workload asks
            for: of this one, then of the others, fastest first.
        workspace: Bytes held beyond input and output; it goes with `chunk`.
        reason: "forced", "only" (nothing else accepts the workload), "first" (nothing was compared), or what speaks for
            it: "prior" (the estimate), "wisdom" (an earlier process), "measured", "explore" (it is being tried), or
            "fallback" (it stands in for a kernel that failed).
        sample: Whether live calls are to be timed at all.
        learns: Whether the manager learns from them: they are timed when it asks for a time, and not by themselves.
        chunk: Rows to compute at a time, None for all at once; it follows the memory that there is.
        provisional: Whether a kernel that may be better is left out for a while, so that the choice is reconsidered.
        devices: Where a kernel that offloads may compute; none: on the current one of its framework.
        usage: The usage of an earlier plan with the same kernel that this one replaces; by default a new one.

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
    expected: Mapping[str, Prediction]
    workspace: float
    reason: str
    sample: bool = True
    learns: bool = False
    chunk: int | None = None
    provisional: bool = False
    devices: tuple[str, ...] = ()
    usage: Usage = field(default=cast(Usage, None), repr=False)

    def __post_init__(self) -> None:
        if self.usage is None:
            object.__setattr__(self, "usage", Usage(self))

    def twin(self) -> "Plan":
        """Return a plan of the same decision with a new usage."""
        return replace(self, usage=cast(Usage, None))

    def renewed(self, fresh: "Plan") -> "Plan":
        """Return a plan with the predictions of `fresh`, a newer plan of the same kernel, and the usage of this one."""
        same = (self.reason, self.provisional, self.chunk, self.workspace)
        if same == (fresh.reason, fresh.provisional, fresh.chunk, fresh.workspace) and self.expected == fresh.expected:
            return self
        return replace(
            self,
            expected=fresh.expected,
            workspace=fresh.workspace,
            reason=fresh.reason,
            chunk=fresh.chunk,
            provisional=fresh.provisional,
        )

    def cut(self, chunk: int | None, workspace: float) -> "Plan":
        """Return this plan for `chunk` rows at a time, None for all at once, and a workspace of so many bytes."""
        if (chunk, workspace) == (self.chunk, self.workspace):
            return self
        return replace(self, chunk=chunk, workspace=workspace)

    def due(self, direction: Direction = "forward") -> bool:
        """Return whether this call shall be timed and given to `BackendManager.record`."""
        return (self.usage.forward if direction == "forward" else self.usage.backward).due()

    def quantile(self, direction: Direction = "forward") -> float | None:
        """Return the 20 % quantile of the sampled seconds, or None before the second sample."""
        return quantile(self.usage.samples(direction).seconds)

    def failure_note(self) -> str:
        """Return the note for an exception: what was running, and how to do without the kernel."""
        work = self.workload
        return (
            f"while running {work.op} by {self.kernel.name} on {work.place}, rows={work.rows} n={work.n} "
            f"width={work.width}; to do without it: configure(disable={self.kernel.name!r})"
        )

    @property
    def seconds(self) -> float:
        """Predicted time, forward plus the backward that the workload asks for."""
        return self.expected[self.kernel.name].seconds

    @property
    def uncertainty(self) -> float:
        """Factor u >= 1: the time is believed to lie in [seconds / u, seconds * u]."""
        return self.expected[self.kernel.name].uncertainty

    @property
    def alternatives(self) -> tuple[tuple[str, float], ...]:
        """The other kernels that accept the workload, with predicted seconds, fastest first."""
        return tuple((name, each.seconds) for name, each in self.expected.items() if name != self.kernel.name)

    @property
    def confidence(self) -> float:
        """The probability that no other kernel is faster; see `learning.model.confidence`."""
        return confidence(self.kernel.name, self.expected)

    @property
    def forwards(self) -> int:
        """Forward consultations so far."""
        return self.usage.forwards

    @property
    def backwards(self) -> int:
        """Backward consultations so far."""
        return self.usage.backwards

    @property
    def trials(self) -> int:
        """Forward consultations that only tried the kernel."""
        return self.usage.trials

    @property
    def switches(self) -> int:
        """How often the kernel replaced another one that had run."""
        return self.usage.switches

    @property
    def failures(self) -> int:
        """Exceptions and wrong results of the kernel."""
        return self.usage.failures

    @property
    def backend(self) -> str:
        return self.kernel.backend

    @property
    def algorithm(self) -> str:
        return self.kernel.algorithm


class Block:
    """The stopwatch that `BackendManager.profile` yields; it starts when it is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._compiling = self._transferring = 0.0

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Count what happens inside as compilation."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._compiling += time.perf_counter() - began

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Count what happens inside as moving data between devices."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._transferring += time.perf_counter() - began

    def measured(self, workload: Workload, succeeded: bool) -> Measurement:
        """Return the Measurement of the block from its start until now."""
        return Measurement(
            workload,
            "block",
            time.perf_counter() - self._began,
            "forward",
            succeeded=succeeded,
            compile_seconds=self._compiling,
            transfer_seconds=self._transferring,
        )


class DeviceTimes:
    """The calls that a device has not finished: each lies between two marks, and is kept until the second is passed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[tuple[Plan, Direction, Mark, Mark]] = deque(maxlen=MOST_PENDING)

    @staticmethod
    def begin(plan: Plan) -> Mark | None:
        """Return a mark before a call of `plan`, None where its framework has none for the device."""
        return mark(plan.workload.framework, plan.workload.device)

    def end(self, plan: Plan, direction: Direction, begin: Mark) -> None:
        """Mark the end of a call that began at the mark `begin`, and keep the call until the device has finished it."""
        end = self.begin(plan)
        if end is not None:
            with self._lock:
                self._pending.append((plan, direction, begin, end))

    def finished(self) -> list[tuple[Plan, Direction, float]]:
        """Return (plan, direction, seconds) of each call that the device has finished since the last time."""
        if not self._pending:
            return []
        with self._lock:
            done = [each for each in self._pending if each[3].passed()]
            self._pending = deque((each for each in self._pending if each not in done), MOST_PENDING)
        return [(plan, direction, end.seconds_since(begin)) for plan, direction, begin, end in done]

    def clear(self) -> None:
        """Forget all calls, in a child process, which has no device; renew the lock, which another thread may hold."""
        self._lock = threading.Lock()
        self._pending.clear()
