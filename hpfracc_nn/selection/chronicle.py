"""What a manager keeps of its choices: counts, events, and who is told of them."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping

from hpfracc_nn.selection.learning.learner import Learner
from hpfracc_nn.selection.observe import events, telemetry
from hpfracc_nn.selection.observe.counts import Tally, Totals
from hpfracc_nn.selection.observe.events import Choice, Event, Journal, Look
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.quarantine import text_of
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.timing import wall_time
from hpfracc_nn.selection.workload import Direction, Workload

SLOW = 1e-3  # seconds: a choice that took longer is noted, though it changed nothing


class Chronicle(ABC):
    """The part of a manager that keeps what happened.

    Attributes:
        telemetry: Whom the manager tells; None as long as nobody in the process uses OpenTelemetry.
    """

    lock: threading.RLock
    settings: Settings
    learner: Learner

    def __init__(self) -> None:
        self.journal = Journal()
        self.tally = Tally()
        self.telemetry: telemetry.Telemetry | None = None

    def events(self) -> list[Event]:
        """Return the last 4096 events, oldest first: choices, changes of speed, failures.

        A choice stands here if it was the first at its workload, took another kernel than before, or took long.
        """
        return self.journal.events()

    def looks(self) -> list[Look]:
        """Return how often each kernel had been consulted, at no more than 513 times, the last one now."""
        return self.journal.looks(self.totals().uses)

    def chosen(
        self,
        site: Site,
        before: Plan | None,
        plan: Plan,
        reason: str,
        elapsed: float,
        direction: Direction = "forward",
        error: BaseException | None = None,
    ) -> None:
        """Note that a site goes on with `plan`, if that is worth it; the lock is held.

        Args:
            site: Whose choice it is.
            before: What ran before, None where nothing did.
            plan: What runs.
            reason: Why.
            elapsed: Seconds that the choice took.
            direction: Of the pass.
            error: What the kernel before raised.
        """
        if self.journal.looks_again:
            self.journal.look(self.totals().uses)
        previous = before.kernel.name if before is not None and before.announced else ""
        if plan.announced and previous in ("", plan.kernel.name) and elapsed < SLOW:
            return
        plan.announced = True
        workload, name = plan.workload, plan.kernel.name
        self.journal.note(
            Choice(
                time=wall_time(),
                workload=workload,
                kernel=name,
                site=site.label or site.op,
                previous=previous,
                reason=self._reason(reason, workload),
                seconds=plan.seconds,
                uncertainty=plan.uncertainty,
                alternatives=plan.alternatives,
                doubts=plan.doubts,
                workspace=plan.workspace,
                elapsed=elapsed,
                direction=direction,
                error="" if error is None else type(error).__name__,
                message="" if error is None else text_of(error),
            )
        )

    def tell(self) -> None:
        """Tell who listens what is new; the lock is not held, because they may take their time."""
        if self.telemetry is None:
            events.tell(telemetry.join, self)
        self.journal.tell()

    def _reason(self, reason: str, workload: Workload) -> str:
        is_fixed = reason == "prior" and self.settings.is_deterministic(workload.framework)
        return "deterministic" if is_fixed else reason

    @abstractmethod
    def totals(self) -> Totals: ...

    @abstractmethod
    def exploration(self) -> tuple[float, float]: ...

    @abstractmethod
    def quarantined(self) -> Mapping[tuple[str, str], int]: ...
