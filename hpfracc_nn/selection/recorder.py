"""What a manager keeps of live calls: choices, times and failures, and what it learns of them."""

import logging
import math
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from hpfracc_nn.selection.observe.counts import ManagerCounts
from hpfracc_nn.selection.observe.events import Choice, Defeat, Drift, Event, EventLog, Failure, Quarantined, inform
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.planner import Planner
from hpfracc_nn.selection.quarantine import cause_of, kind_of, text_of
from hpfracc_nn.selection.timing import DeviceTimes, wall_time
from hpfracc_nn.selection.workload import DIRECTIONS, Direction, Measurement

MOST_MEASUREMENTS = 4096
OPENTELEMETRY = "opentelemetry.trace"  # joined once the process has imported it
SLOW = 1e-3  # seconds: a choice that took longer is noted, though it changed nothing

_log = logging.getLogger("hpfracc_nn.selection")
_SCOPES = {
    "kernel": "for workloads like it",
    "memory": "for calls of this size and above",
    "environment": "at all",
}


class Recorder:
    """Records what sites choose and what their calls take, and lets the planner learn of it.

    Args:
        planner: What learns.
        join: Called with this recorder when events are published, as long as nobody watches it and the process has
            imported OpenTelemetry.

    Attributes:
        counts: How often what was consulted.
        log: The last events.
        history: The last measurements.
        device_times: Calls that a device has not finished.
        sites: The sites that are alive, by their numbers.
        telemetry: Who watches this recorder; None as long as nobody in the process uses OpenTelemetry.
    """

    def __init__(self, planner: Planner, join: Callable[["Recorder"], None]):
        self.planner = planner
        self.counts = ManagerCounts()
        self.log = EventLog(self.counts)
        self.history: deque[Measurement] = deque(maxlen=MOST_MEASUREMENTS)
        self.device_times = DeviceTimes()
        self.sites: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.telemetry: Any = None
        self._join = join

    def after_fork(self) -> None:
        """Leave to the parent process what is on its way, and renew the locks."""
        self.planner.after_fork()
        self.counts.after_fork()
        self.log.after_fork()
        self.device_times.clear()

    def join(self) -> None:
        """Let the process-wide Telemetry watch this recorder, once the process has imported OpenTelemetry."""
        if self.telemetry is None and OPENTELEMETRY in sys.modules:
            inform(self._join, self)

    def publish(self) -> None:
        """Pass new events to the listeners; the lock is not held, because a listener may be slow."""
        self.join()
        self.log.publish()

    def reconsider(self) -> None:
        """Let every site reconsider its choices at its next calls."""
        with self.planner.lock:
            for site in list(self.sites.values()):
                site.reconsider()

    def quarantined(self) -> Counter[tuple[str, str]]:
        """Return at how many workloads, sizes or places each kernel is in quarantine, by operation and kernel."""
        with self.planner.lock:
            held = self.planner.quarantine.held(self.planner.candidates.clock())
            return Counter((kernel.op, kernel.name) for kernel in held)

    def chosen(
        self,
        label: str,
        before: Plan | None,
        plan: Plan,
        reason: str,
        elapsed: float,
        direction: Direction = "forward",
        error: BaseException | None = None,
    ) -> None:
        """Note that a site goes on with `plan`, if that is worth an event; the lock is held.

        Args:
            label: Of the site.
            before: What ran before, None where nothing did.
            plan: What runs.
            reason: Why.
            elapsed: Seconds that the choice took.
            direction: Of the pass.
            error: What the kernel before raised.
        """
        self.log.look()
        previous = before.kernel.name if before is not None and before.usage.announced else ""
        name, workload = plan.kernel.name, plan.workload
        if plan.usage.announced and previous in ("", name) and elapsed < SLOW:
            return
        plan.usage.announced = True
        is_fixed = reason == "prior" and not plan.learns and self.planner.settings.is_deterministic(workload.framework)
        self._add(
            Choice,
            plan,
            site=label,
            previous=previous,
            reason="deterministic" if is_fixed else reason,
            seconds=plan.seconds,
            uncertainty=plan.uncertainty,
            alternatives=plan.alternatives,
            doubts=tuple(each.uncertainty for other, each in plan.expected.items() if other != name),
            workspace=plan.workspace,
            elapsed=elapsed,
            direction=direction,
            error="" if error is None else type(error).__name__,
            message="" if error is None else text_of(error),
        )

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
        """Keep that `plan` took `seconds`, and learn from it; see `BackendManager.record`."""
        if direction not in DIRECTIONS:
            raise ValueError(f"record(direction={direction!r}): needs one of {', '.join(DIRECTIONS)}.")
        if not 0 <= seconds < math.inf:
            raise ValueError(f"record(seconds={seconds}): needs a finite time, not negative.")
        if not 0 <= transfer_seconds <= seconds:
            raise ValueError(f"record(transfer_seconds={transfer_seconds}): needs a part of the {seconds} seconds.")
        self.forgive(plan)
        samples = plan.usage.samples(direction)
        is_first, keep = not samples.warm, samples.keeps(keep)
        if keep and (samples.add(seconds) or (is_first and plan.usage.compiled_in(seconds))):
            self.history.append(
                Measurement(
                    plan.workload,
                    plan.kernel.name,
                    seconds,
                    direction,
                    compile_seconds=max(0.0, seconds - transfer_seconds - plan.seconds) if is_first else 0.0,
                    transfer_seconds=transfer_seconds,
                    peak_bytes=peak_bytes,
                )
            )
        if self.telemetry is not None and keep:
            inform(self.telemetry.timed, plan, seconds, direction)
        if plan.learns:
            self._learn(plan, seconds, direction, keep)

    def failed(self, plan: Plan, error: Exception, direction: Direction) -> None:
        """Record that the kernel of a plan raised."""
        kind = type(error).__name__
        with self.planner.lock:
            plan.usage.failures += 1
            self.counts.failures[plan.workload.op, plan.kernel.name, kind] += 1
            self._add(Failure, plan, direction=direction, error=kind, message=text_of(error))
            self.history.append(
                Measurement(plan.workload, plan.kernel.name, math.nan, direction, succeeded=False, error=kind)
            )

    def quarantine(self, plan: Plan, error: Exception) -> None:
        """Choose the kernel of a plan no more for a while: another one has done what it failed at."""
        planner, workload, kind, cause = self.planner, plan.workload, kind_of(error), cause_of(error)
        candidates = planner.candidates
        with planner.lock:
            size = plan.workspace + workload.bytes
            seconds = planner.quarantine.add(plan.kernel, workload, kind, cause, size=size, now=candidates.clock())
            for site in list(self.sites.values()):
                site.expire(plan.kernel, candidates.is_quarantined)
            self._add(Quarantined, plan, seconds=seconds, error=type(error).__name__, message=text_of(error))
        self.publish()
        until = "until something is configured" if kind == "environment" else f"for {seconds:.0f} s"
        note = "; plans are not the deterministic ones meanwhile"
        _log.warning(
            "%s failed at %s, rows=%d n=%d width=%d: %s; not used %s %s%s.",
            *(plan.kernel.name, workload, workload.rows, workload.n, workload.width, cause, _SCOPES[kind], until),
            note if planner.settings.is_deterministic(workload.framework) else "",
        )

    def all_failed(self, plan: Plan, error: BaseException, direction: Direction) -> None:
        """Record that every kernel failed at a call, the one of `plan` first, and that its error is raised."""
        with self.planner.lock:
            self._add(Defeat, plan, direction=direction, error=type(error).__name__, message=text_of(error))
        self.publish()

    def forgive(self, plan: Plan, *, at_once: bool = False) -> None:
        """Forget earlier failures of a plan's kernel, because it works; `at_once` also while it is in quarantine."""
        quarantine = self.planner.quarantine
        if quarantine.holds:
            with self.planner.lock:
                now = math.inf if at_once else self.planner.candidates.clock()
                size = plan.workspace + plan.workload.bytes
                quarantine.forgive(plan.kernel, plan.workload, size=size, now=now)

    def _learn(self, plan: Plan, seconds: float, direction: Direction, keep: bool) -> None:
        planner = self.planner
        with planner.lock:
            change = planner.learner.observe(plan, seconds, direction, keep, planner.candidates.now)
            if change is not None:
                self.reconsider()
                self._add(Drift, plan, direction=change.direction, factor=change.factor)
            is_due = planner.learner.is_due
        if change is not None:
            self.publish()
        if is_due:
            planner.save(0.0)  # a computing thread waits for no other process, and no other thread for the disk

    def _add(self, kind: type[Event], plan: Plan, **facts: Any) -> None:
        self.log.add(kind(time=wall_time(), workload=plan.workload, kernel=plan.kernel.name, **facts))
