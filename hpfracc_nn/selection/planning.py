"""How a manager turns a workload into a plan: by the estimate, by what was learnt, by what the memory allows."""

import itertools
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable

from hpfracc_nn.selection.candidates import Room, Verdict, accepted, judge, plan_of, ranked, still_refuse, why
from hpfracc_nn.selection.fallback import Work, carried_out
from hpfracc_nn.selection.machine import CostModel, Machine, has_probe, this_machine
from hpfracc_nn.selection.operations import rehearsal
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.recovery import Recovery
from hpfracc_nn.selection.registry import kernels
from hpfracc_nn.selection.workload import Workload

MOST_PLANS = 4096


class Planning(Recovery):
    """The part of a manager that chooses.

    Attributes:
        epoch: Sites compare it on each pick, and ask again when it moved.
    """

    def __init__(self, machine: Machine | None, clock: Callable[[], float]):
        super().__init__(clock)
        self.epoch = 0
        self._epochs = itertools.count(1)
        self._machine = machine or this_machine()
        self._room = Room()
        self._plans: dict[tuple[int, Workload], Plan] = {}
        self._verdicts: dict[Workload, tuple[int, list[Verdict]]] = {}  # with the epoch that they belong to

    def plan(self, workload: Workload) -> Plan:
        """Return the plan for `workload`, the same one until something is configured or another kernel is better.

        What it takes may be told to `record`, and is learnt.

        Raises:
            LookupError: No kernel accepts it, or none of those that are forced.
        """
        with self.lock:
            self.has_changed(workload.framework)
            key = (self.epoch, workload)
            plan = self._plans.get(key)
            if plan is None or plan.learns or self._quarantine:
                fresh = self._planned(workload)
                if plan is not None and plan.kernel is fresh.kernel:
                    plan.renew(fresh)  # with its samples: the first that is recorded of each plan is dropped
                    return plan
                plan = fresh
                if len(self._plans) >= MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = plan
            return plan

    def warm_up(self, workloads: Iterable[Workload]) -> dict[str, float]:
        """Compile and load ahead what calls of these workloads may need, and return the seconds by kernel.

        Each kernel that accepts a workload, and has something to compile for it that it may compile unasked, is run
        once on made-up data of that size; one that nothing else can stand in for, also where it would not start by
        itself. Do it before a CUDA graph is captured, before a server answers, or before the first step of a training.

        Args:
            workloads: As `hpfracc_nn.workload` makes them.

        Raises:
            LookupError: No kernel accepts one of them, or nobody has said how the operation is rehearsed.

        Examples:
            >>> seconds = BackendManager().warm_up(
            ...     [workload((8, 256), framework="torch", needs_gradient=True)]
            ... )
        """
        took: dict[str, float] = {}
        for workload in workloads:
            run = rehearsal(workload.op, workload.framework)
            site = self.shared_site(workload.op, workload.framework, "warm up")
            chosen = self.plan(workload).kernel.name
            for verdict in accepted(self._verdicts_now(workload)):
                missing, name = verdict.kernel.ask("compiles", workload), verdict.kernel.name
                plan = self._to_warm(name, workload)
                if missing is None and not plan.devices:  # where there are several, what one has another may lack
                    continue
                if missing is not None and missing.seconds == math.inf and name != chosen:
                    continue
                started = time.perf_counter()
                carried_out(Work(lambda plan, run=run: run(plan), is_timed=False), site, plan)
                took[name] = took.get(name, 0.0) + time.perf_counter() - started
        self.reconsider()
        return took

    def _to_warm(self, name: str, workload: Workload) -> Plan:
        settings = self.settings.of(workload.op)
        return plan_of(name, "explore", self._verdicts_now(workload), workload, settings)

    def draft(self, workload: Workload) -> Plan:
        """Return a plan of its own for a site: where it learns, `decide` is next, and may only try another one.

        It is the one decided upon before, at another site or under other settings, or else the estimate's.
        """
        with self.lock:
            if self.has_changed(workload.framework) or not self.learner.is_learning(workload.framework):
                return self.plan(workload).twin()
            settings = self.settings.of(workload.op)
            verdicts, reduced = self._standing(workload)
            name, reason = self.learner.standing(workload)
            if name not in {each.kernel.name for each in accepted(verdicts)}:
                name, reason = ranked(verdicts, settings)[0].kernel.name, "prior"
            return plan_of(name, reason, verdicts, workload, settings, learns=True, provisional=reduced)

    def has_changed(self, framework: str) -> bool:
        """Return whether a framework lets plans change where it did not before, or no more; all ask again then."""
        with self.lock:
            changed = self.learner.has_changed(framework)
            if changed:
                self.kernels_changed()
            return changed

    def decide(self, plan: Plan, calls: int, backwards: int | None) -> tuple[str, str, int, bool]:
        """Return the kernel that runs now in place of `plan`, why, and after how many calls to ask again.

        For sites. The reason is "explore" where it is tried for one call. The last is whether a kernel that may be
        better is left out for a while.

        Args:
            plan: One that learns.
            calls: Since the last decision, this one included.
            backwards: How many of them were followed by a backward pass; None: all.
        """
        workload = plan.workload
        with self.lock:
            verdicts, reduced = self._standing(workload)
            decision, compiles = self.learner.decide(workload, verdicts, calls, backwards)
            if compiles:
                self.reconsider()
            if decision.name == plan.kernel.name:
                _refit(plan, verdicts)
            reason = why(decision.reason, decision.name, verdicts, reduced)
            return decision.name, reason, decision.period, reduced

    def plan_with(self, name: str, reason: str, workload: Workload) -> Plan:
        """Return a plan that runs the kernel of that name, for a site that was told to by `decide`."""
        verdicts, reduced = self._standing(workload)
        _, believed = self.learner.believed(workload, verdicts)
        settings = self.settings.of(workload.op)
        return plan_of(name, reason, verdicts, workload, settings, learns=True, provisional=reduced, believed=believed)

    def refit(self, plan: Plan) -> None:
        """Let a plan compute as many rows at a time as the memory now allows."""
        _refit(plan, self._verdicts_on(plan.workload))

    def kernels_changed(self) -> None:
        """Ask again from now on; the registry calls this when a kernel comes or goes."""
        self._plans.clear()
        self._verdicts.clear()
        self.epoch = next(self._epochs)

    def _planned(self, workload: Workload) -> Plan:
        settings = self.settings.of(workload.op)
        verdicts, reduced = self._standing(workload)
        if settings.mode == "off":
            first = next(each for each in verdicts if each.refusal is None)
            reason = "fallback" if reduced else "first"
            return plan_of(first.kernel.name, reason, verdicts, workload, settings, provisional=reduced)
        if not self.learner.uses_knowledge(workload.framework):
            name, reason = ranked(verdicts, settings)[0].kernel.name, "fallback" if reduced else "prior"
            return plan_of(name, reason, verdicts, workload, settings, provisional=reduced)
        name, believed = self.learner.believed(workload, verdicts)
        reason = self.learner.basis(workload, name, believed[name])
        learns = self.learner.is_learning(workload.framework)
        return plan_of(
            name, reason, verdicts, workload, settings, learns=learns, provisional=reduced, believed=believed
        )

    def _fitted(self, workload: Workload) -> list[Verdict]:
        """Return what all kernels say, those that take too much memory with a refusal or in parts."""
        settings = self.settings.of(workload.op)
        epoch, found = self._verdicts.get(workload, (-1, []))
        if epoch != self.epoch or not still_refuse(found, workload, settings):
            if len(self._verdicts) >= MOST_PLANS:
                self._verdicts.clear()
            self.learner.know()  # the rates that an earlier process measured, before this one measures them again
            model = self._model(workload.framework)
            epoch = self.epoch  # before the kernels are asked: one may come or go meanwhile, in another thread
            found = judge(kernels(workload.op, workload.framework), workload, settings, model)
            self._verdicts[workload] = epoch, found
        return self._room.fit(found, workload, settings, self._model)

    def _verdicts_now(self, workload: Workload) -> list[Verdict]:
        try:
            return self._reduced(self._fitted(workload), workload)
        except LookupError:  # every kernel was unregistered meanwhile
            return []

    def _model(self, framework: str) -> CostModel:
        is_measured = has_probe(framework) and not self.settings.is_deterministic(framework)
        return CostModel(self._machine, self.settings.calibration if is_measured else "shipped")

    @abstractmethod
    def reconsider(self) -> None: ...


def _refit(plan: Plan, verdicts: Iterable[Verdict]) -> None:
    for verdict in verdicts:
        if verdict.kernel is plan.kernel and verdict.refusal is None:
            plan.cut(verdict.rows, verdict.workspace)
