"""What a manager is told of live calls, and remembers."""

import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from hpfracc_nn.selection.candidates import Verdict
from hpfracc_nn.selection.device_times import DeviceTimes
from hpfracc_nn.selection.learning.learner import Learner
from hpfracc_nn.selection.learning.model import Change
from hpfracc_nn.selection.observe import events
from hpfracc_nn.selection.observe.events import Drift, Journal
from hpfracc_nn.selection.observe.telemetry import Telemetry
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.timing import Block, wall_time
from hpfracc_nn.selection.workload import DIRECTIONS, Direction, Measurement, Workload


class Records(ABC):
    """The part of a manager that keeps measurements."""

    lock: threading.RLock
    learner: Learner
    journal: Journal
    telemetry: Telemetry | None
    device_times: DeviceTimes
    _history: deque[Measurement]

    def harvest(self) -> None:
        """Record the calls that devices have finished since the last time; nothing is waited for."""
        for plan, direction, seconds in self.device_times.finished():
            self.record(plan, seconds, direction)

    def record(
        self,
        plan: Plan,
        seconds: float,
        direction: Direction = "forward",
        *,
        keep: bool = True,
        transfer_seconds: float = 0.0,
        peak_bytes: float | None = None,
    ) -> None:
        """Remember that `plan` took `seconds`, and learn from it.

        A plan's first sample in each direction is dropped: it paid for cold caches. Where it compiled, it is remembered
        as what that took.

        Args:
            plan: What ran.
            seconds: Its time.
            direction: Of the pass.
            keep: False: the time says nothing of the plan, because the processor was taken away meanwhile. After three
                such times in a row they are kept nevertheless: it is the kernel that waits.
            transfer_seconds: The part of it that moved data between devices.
            peak_bytes: The most that it held beyond its input, None where nobody measured it.

        Raises:
            ValueError: A time is negative or not finite, the part more than the whole, or there is no such direction.
        """
        if direction not in DIRECTIONS:
            raise ValueError(f"record(direction={direction!r}): needs one of {', '.join(DIRECTIONS)}.")
        if not 0 <= seconds < math.inf:
            raise ValueError(f"record(seconds={seconds}): needs a finite time, not negative.")
        if not 0 <= transfer_seconds <= seconds:
            raise ValueError(f"record(transfer_seconds={transfer_seconds}): needs a part of the {seconds} seconds.")
        self.forgive(plan)
        samples = plan.samples(direction)
        is_first, keep = not samples.warm, samples.keeps(keep)
        if keep and (samples.add(seconds) or (is_first and plan.compiled_in(seconds))):
            compiling = max(0.0, seconds - transfer_seconds - plan.seconds) if is_first else 0.0
            self._history.append(
                Measurement(
                    plan.workload,
                    plan.kernel.name,
                    seconds,
                    direction,
                    compile_seconds=compiling,
                    transfer_seconds=transfer_seconds,
                    peak_bytes=peak_bytes,
                )
            )
        if self.telemetry is not None and keep:
            events.tell(self.telemetry.timed, plan, seconds, direction)
        if plan.learns:
            with self.lock:
                change = self.learner.observe(plan, seconds, direction, keep, self._verdicts_now)
                if change is not None:
                    self.reconsider()
                    self._note_drift(plan, change)
                is_due = self.learner.is_due
            if change is not None:
                self.tell()
            if is_due:
                self.save(0.0)  # whoever computes does not wait for other processes, nor other threads for the disk

    def history(self, op: str | None = None) -> list[Measurement]:
        """Return the last measurements, oldest first: of an operation or a profiled block, or all."""
        return [each for each in list(self._history) if op is None or each.workload.op == op]

    @contextmanager
    def profile(self, name: str) -> Iterator[Block]:
        """Time a block into the history, also one that raises: `history(name)` returns what was measured.

        Args:
            name: Of the block; it stands where an operation's does.

        Yields:
            What times the parts of the block that compile or move data.

        Examples:
            >>> manager = BackendManager()
            >>> with manager.profile("epoch") as block:
            ...     with block.transferring():
            ...         batch = np.ones((4, 64)).copy()  # or `batch.to("cuda")`
            ...     y = derivative(batch, Caputo(0.5), manager=manager)
            >>> (measured,) = manager.history("epoch")
            >>> measured.kernel, measured.succeeded
            ('block', True)
        """
        block = Block()
        succeeded = False
        try:
            yield block
            succeeded = True
        finally:
            self._history.append(block.measured(Workload(name, "python"), succeeded))

    def _note_drift(self, plan: Plan, change: Change) -> None:
        self.journal.note(
            Drift(
                time=wall_time(),
                workload=plan.workload,
                kernel=plan.kernel.name,
                direction=change.direction,
                factor=change.factor,
            )
        )

    @abstractmethod
    def tell(self) -> None: ...

    @abstractmethod
    def _verdicts_now(self, workload: Workload) -> list[Verdict]: ...

    @abstractmethod
    def reconsider(self) -> None: ...

    @abstractmethod
    def save(self, seconds: float) -> bool: ...

    @abstractmethod
    def forgive(self, plan: Plan, *, at_once: bool = False) -> None: ...
