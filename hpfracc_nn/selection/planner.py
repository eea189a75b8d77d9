"""How a workload becomes a plan: by the estimate, by what was learnt, and by what the memory allows."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from hpfracc_nn.selection.candidates import (
    Assessment,
    Candidates,
    accepted,
    eligible,
    handicaps,
    ranked,
)
from hpfracc_nn.selection.learning.learner import Learner
from hpfracc_nn.selection.learning.model import LONGEST_PERIOD, Prediction
from hpfracc_nn.selection.learning.wisdom_file import LOCK_SECONDS
from hpfracc_nn.selection.machine import Machine
from hpfracc_nn.selection.plan import LOOKED_AFTER, Plan
from hpfracc_nn.selection.quarantine import Quarantine
from hpfracc_nn.selection.registry import watch
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.workload import Workload

MOST_PLANS = 4096


class Step(NamedTuple):
    """What a site does next.

    Args:
        plan: The plan that runs.
        reason: Why it runs; "explore" for a trial.
        period: Reconsider the choice after so many calls.
        is_trial: The plan runs for this call only.
        spreads: Whether every site should reconsider, because the call makes code that others can use.
    """

    plan: Plan
    reason: str
    period: int
    is_trial: bool = False
    spreads: bool = False


class Planner:
    """Chooses the kernel for a workload: the one that is forced, else the best by the objective.

    Args:
        settings: The user's settings.
        machine: The machine whose rates estimates are made with.
        clock: Seconds that never go back, by which the quarantine of a kernel ends.

    Attributes:
        lock: Held while something is decided or changed; a kernel's `refuses` may plan something itself.
        learner: What learns the times of kernels, from live calls and earlier processes.
        quarantine: The kernels that failed.
        candidates: The kernels that come into question.
    """

    def __init__(self, settings: Settings, machine: Machine, clock: Callable[[], float] = time.monotonic):
        self.settings = settings
        self.lock = threading.RLock()
        self.learner = Learner(settings, machine)
        self.quarantine = Quarantine()
        self.candidates = Candidates(settings, machine, self.quarantine, clock, self.learner.know)
        self._plans: dict[tuple[int, Workload], Plan] = {}
        watch(self)

    def adopt(self, settings: Settings) -> None:
        """Go on under other settings: every kernel may be tried again, and every site asks anew."""
        self.settings = self.candidates.settings = settings
        self.learner.adopt(settings)
        self.quarantine.lift()
        self.kernels_changed()

    def kernels_changed(self) -> None:
        """Let every site ask for its plans anew; the registry calls this, without a lock, when kernels come or go."""
        self._plans.clear()
        self.candidates.invalidate()

    def after_fork(self) -> None:
        """Renew the locks, in a child process: a thread that the child does not have may hold them."""
        self.lock = threading.RLock()
        self.learner.after_fork()
        self.candidates.machine.renew_lock()

    def save(self, seconds: float = LOCK_SECONDS) -> bool:
        """Merge what was learnt into the wisdom file; see `BackendManager.save`."""
        with self.lock:
            outbox = self.learner.packed()
        return outbox.deliver(seconds)

    def plan(self, workload: Workload) -> Plan:
        """Return the plan for `workload`; see `BackendManager.plan`."""
        with self.lock:
            self.has_changed(workload.framework)
            key = (self.candidates.epoch, workload)
            plan = self._plans.get(key)
            if plan is None or plan.learns or self.quarantine.holds:
                fresh = self.planned(workload)
                if plan is not None and plan.kernel is fresh.kernel:
                    fresh = plan.renewed(fresh)  # with its samples: the first that is recorded of a usage is dropped
                if len(self._plans) >= MOST_PLANS:
                    self._plans.clear()
                plan = self._plans[key] = fresh
            return plan

    def planned(self, workload: Workload) -> Plan:
        """Return a new plan for `workload`, by the settings and what is known now.

        Raises:
            LookupError: No kernel accepts the workload, or none of those that are forced.
        """
        settings = self.settings.of(workload.op)
        found, reduced = self.candidates.of(workload)
        if settings.mode == "off":
            first = next(each for each in found if each.refusal is None)
            reason = "fallback" if reduced else "first"
            return self._plan_of(first.kernel.name, reason, found, workload, provisional=reduced)
        if not self.learner.uses_knowledge(workload.framework):
            name, reason = ranked(found, settings)[0].kernel.name, "fallback" if reduced else "prior"
            return self._plan_of(name, reason, found, workload, provisional=reduced)
        name, believed = self.learner.believed(workload, found)
        reason = self.learner.basis(workload, name, believed[name])
        learns = self.learner.is_learning(workload.framework)
        return self._plan_of(name, reason, found, workload, learns=learns, provisional=reduced, believed=believed)

    def first(self, workload: Workload) -> tuple[Plan, Step | None]:
        """Return a new plan for a site, and the Step that decides its first call; the lock is held.

        Where the plan does not learn, nothing is decided, and None stands in place of the Step.
        """
        if self.has_changed(workload.framework) or not self.learner.is_learning(workload.framework):
            return self.plan(workload).twin(), None
        found, reduced = self.candidates.of(workload)
        decision, spreads = self.learner.decide(workload, found, 1, None)
        plans = [
            self._plan_of(name, reason, found, workload, learns=True, provisional=reduced, believed=decision.expected)
            for name, reason in {decision.incumbent: decision.basis, decision.name: decision.reason}.items()
        ]
        return plans[0], Step(plans[-1], plans[-1].reason, decision.period, decision.is_trial, spreads)

    def next(self, plan: Plan, calls: int, backwards: int | None, known: Mapping[str, Plan]) -> Step:
        """Return the Step that a site takes in place of `plan`, whose period is over; the lock is held.

        Args:
            plan: The site's plan.
            calls: Since the last decision, this one included.
            backwards: How many of them were followed by a backward pass; None: all.
            known: The site's plans of this workload by their kernels' names, `plan` too.
        """
        if not plan.learns:
            fresh = self.plan(plan.workload)
            period = period_of(fresh, calls if fresh.kernel is plan.kernel else 1)
            before = known.get(fresh.kernel.name)
            return Step(fresh.twin() if before is None else before.renewed(fresh), fresh.reason, period)
        workload = plan.workload
        found, reduced = self.candidates.of(workload)
        decision, spreads = self.learner.decide(workload, found, calls, backwards)
        name, reason = decision.name, why(decision.reason, decision.name, found, reduced)
        before = known.get(name)
        is_known = before is not None and (before.reason, before.provisional) == (reason, reduced)
        if before is not None and (is_known or decision.is_trial or before.reason == "forced"):
            chosen = refitted(before, found)
        else:
            chosen = self._plan_of(
                name, reason, found, workload, learns=True, provisional=reduced, believed=decision.expected
            )
            chosen = chosen if before is None else before.renewed(chosen)
        said = chosen.reason if name == plan.kernel.name else reason
        return Step(chosen, said, decision.period, decision.is_trial, spreads)

    def plan_with(self, name: str, reason: str, workload: Workload) -> Plan:
        """Return a new learning plan that runs the kernel `name`, chosen for `reason`; the lock is held."""
        found, reduced = self.candidates.of(workload)
        _, believed = self.learner.believed(workload, found)
        return self._plan_of(name, reason, found, workload, learns=True, provisional=reduced, believed=believed)

    def to_warm_up(self, name: str, workload: Workload) -> Plan:
        """Return a plan that only runs the kernel `name` once, on made-up data."""
        return self._plan_of(name, "explore", self.candidates.now(workload), workload)

    def stand_in(self, workload: Workload, tried: Collection[str]) -> Plan | None:
        """Return a plan for the next best kernel after others failed at this very call, None where none is left.

        Kernels that would have to compile first come later, and last those in quarantine. The lock is held.
        """
        try:
            found = self.candidates.fitting(workload)
        except LookupError:  # every kernel was unregistered meanwhile
            return None
        fit = {each.kernel.name for each in accepted(self.candidates.reduced(found, workload))}
        left = [each for each in accepted(found) if each.kernel.name not in tried]
        if not left:
            return None
        believed: dict[str, Prediction] = {}
        if self.learner.uses_knowledge(workload.framework):
            _, believed = self.learner.believed(workload, found)
        best, factors = eligible(left, self.settings), handicaps(left, self.settings)

        def rank(each: Assessment) -> tuple[bool, bool, bool, float]:
            name, missing = each.kernel.name, each.kernel.ask("compiles", workload)
            seconds = believed[name].seconds if name in believed else each.seconds
            return name not in fit, each not in best, missing is not None, seconds * factors[name]

        name = min(left, key=rank).kernel.name
        learns = self.learner.is_learning(workload.framework)
        return self._plan_of(name, "fallback", found, workload, learns=learns, believed=believed)

    def has_changed(self, framework: str) -> bool:
        """Return whether plans for a framework may change now and might not before, or the reverse.

        If so, every site asks for its plans anew.
        """
        with self.lock:
            changed = self.learner.has_changed(framework)
            if changed:
                self.kernels_changed()
            return changed

    def expected(self, workload: Workload, assessments: Sequence[Assessment]) -> dict[str, Prediction]:
        """Return the prediction for each kernel that accepts the workload, by name; the lock is held."""
        if self.learner.uses_knowledge(workload.framework):
            return self.learner.expected(workload, assessments)
        return {each.kernel.name: Prediction.within(each.seconds, each.uncertainty) for each in accepted(assessments)}

    def _plan_of(
        self,
        name: str,
        reason: str,
        assessments: Sequence[Assessment],
        workload: Workload,
        *,
        learns: bool = False,
        provisional: bool = False,
        believed: Mapping[str, Prediction] = MappingProxyType({}),
    ) -> Plan:
        """Return the plan that runs the kernel `name`.

        Args:
            name: One of the kernels that accept the workload.
            reason: Why it was chosen, as in `Plan.reason`.
            assessments: What each kernel would take for this workload, refusals included.
            workload: What is to be computed.
            learns: Whether later calls reconsider the choice.
            provisional: Whether a kernel that may be better is left out for a while.
            believed: What is expected of kernels after measurements; for all others the estimates stand.
        """
        settings, able = self.settings.of(workload.op), accepted(assessments)
        chosen = next(each for each in assessments if each.kernel.name == name)  # it may refuse since it was decided
        expected = {
            each.kernel.name: Prediction.within(each.seconds, each.uncertainty)
            for each in (chosen, *able)
            if each.kernel.name not in believed
        }
        expected.update(believed)
        order = sorted(expected, key=lambda kernel: (kernel != name, expected[kernel].seconds, kernel))
        devices: tuple[str, ...] = ()
        if chosen.kernel.offloads:  # on one device where nothing may depend on which is free
            devices = settings.devices[:1] if settings.is_deterministic(workload.framework) else settings.devices
        return Plan(
            kernel=chosen.kernel,
            workload=workload,
            expected={kernel: expected[kernel] for kernel in order},
            workspace=chosen.workspace,
            reason="forced" if settings.is_forced else why(reason, name, able, provisional),
            sample=settings.sample,
            learns=learns,
            chunk=chosen.rows,
            provisional=provisional,
            devices=devices,
        )


def period_of(plan: Plan, calls: int) -> int:
    """Return after how many calls a plan that does not learn is reconsidered.

    For a provisional plan the number doubles each time, from `calls`, the last one.
    """
    return min(2 * calls, LONGEST_PERIOD) if plan.provisional else LOOKED_AFTER


def refitted(plan: Plan, assessments: Sequence[Assessment]) -> Plan:
    """Return `plan` with as many rows at a time as the memory allows now."""
    for each in assessments:
        if each.kernel is plan.kernel and each.refusal is None:
            return plan.cut(each.rows, each.workspace)
    return plan


def why(reason: str, name: str, assessments: Sequence[Assessment], provisional: bool) -> str:
    """Return the reason of a choice: "only" where no other kernel accepts, or would if it were not in quarantine."""
    if provisional or any(each.refusal is None and each.kernel.name != name for each in assessments):
        return reason
    return "only"
