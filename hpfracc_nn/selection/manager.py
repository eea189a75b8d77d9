"""The BackendManager: turns workloads into plans, and remembers how they fared."""

import atexit
import itertools
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from hpfracc_nn.selection.answers import Answers
from hpfracc_nn.selection.cost import CostModel
from hpfracc_nn.selection.environment import from_environment
from hpfracc_nn.selection.learning import Learner
from hpfracc_nn.selection.machine import Machine, this_machine
from hpfracc_nn.selection.objective import ranked
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.probe import has_probe
from hpfracc_nn.selection.recording import Records
from hpfracc_nn.selection.recovery import Recovery
from hpfracc_nn.selection.registry import kernels, watch
from hpfracc_nn.selection.reporting import Counters
from hpfracc_nn.selection.room import Room
from hpfracc_nn.selection.settings import UNCHANGED, Limit, Mode, Objective, Settings, Unchanged, names
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.verdict import Verdict, judge, plan_of
from hpfracc_nn.selection.workload import Measurement, Workload

MOST_PLANS = 4096
MOST_MEASUREMENTS = 4096
MOST_RETIRED = 64


_managers: weakref.WeakSet["BackendManager"] = weakref.WeakSet()


class BackendManager(Recovery, Records, Answers):
    """Chooses the kernel for each workload: the forced one, else the best by the objective.

    Planning takes a lock; a site that has its plan takes none. A copy is the manager itself.

    Args:
        settings: None reads the environment.
        machine: Whose rates to estimate with; None is the one that this process shares.
        clock: Seconds that never go back, by which kernels that failed are left alone for a while.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        machine: Machine | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(clock)
        self.settings = from_environment() if settings is None else settings
        self.epoch = 0  # sites compare it on each pick, and ask again when it moved
        self.lock = threading.RLock()  # a kernel's `refuses` may plan something itself
        self._machine = machine
        self._epochs = itertools.count(1)
        self._plans: dict[tuple[int, Workload], Plan] = {}
        self._sites: weakref.WeakValueDictionary[int, Site] = weakref.WeakValueDictionary()
        self._shared_sites: dict[tuple[str, str, str], Site] = {}
        self._site_numbers = itertools.count()
        self._retired: deque[tuple[Plan, ...]] = deque()
        self._past = Counter[str]()
        self._past_backward = 0
        self._verdicts: dict[Workload, list[Verdict]] = {}
        self.learner = Learner(self.settings, machine or this_machine())
        self._room = Room()
        self._history: deque[Measurement] = deque(maxlen=MOST_MEASUREMENTS)
        watch(self)
        _managers.add(self)

    def renew_locks(self) -> None:
        """Make the locks anew, in a child process: a thread that the child does not have may hold them."""
        self.lock = threading.RLock()
        self.learner.after_fork()
        (self._machine or this_machine()).renew_lock()

    def configure(
        self,
        *,
        force_backend: str | Unchanged | None = UNCHANGED,
        force_algorithm: str | Unchanged | None = UNCHANGED,
        disable: str | Iterable[str] | Unchanged | None = UNCHANGED,
        calibration: Literal["measured", "shipped"] | Unchanged | None = UNCHANGED,
        sample: bool | Unchanged | None = UNCHANGED,
        mode: Mode | Unchanged | None = UNCHANGED,
        explore_fraction: float | Unchanged | None = UNCHANGED,
        switch_margin: float | Unchanged | None = UNCHANGED,
        objective: Objective | Mapping[str, float] | Unchanged | None = UNCHANGED,
        deterministic: bool | Unchanged | None = UNCHANGED,
        memory_limit: Limit | Unchanged | None = UNCHANGED,
        gpu_memory_limit: Limit | Unchanged | None = UNCHANGED,
        wisdom: str | os.PathLike[str] | Unchanged | None = UNCHANGED,
    ) -> None:
        """Change the settings that are given; None restores the default of one. See `Settings`.

        Args:
            force_backend: The only backend that may run.
            force_algorithm: The only algorithm that may run.
            disable: All that may not run: backends or "backend/algorithm", a comma list or an
                iterable; it replaces what was disabled before.
            calibration: "measured" (default) or "shipped".
            sample: Whether live calls are timed now and then (default True).
            mode: "off", "prior", "frozen" or "learn" (default).
            explore_fraction: Part of the time that may go into trying other kernels, in [0, 0.5] (default 0.02).
            switch_margin: By which part a kernel must be better to replace the present one, in [0, 1] (default 0.1).
            objective: "latency" (default), "memory", "energy", or weights such as {"latency": 1, "memory": 0.5}.
            deterministic: Whether plans must not change; None follows the framework.
            memory_limit: The most that a call may take of the host's memory: bytes, a fraction in (0, 1] of what
                is free, or text such as "4GiB".
            gpu_memory_limit: The same for the other devices.
            wisdom: A directory, "off", or "default".

        Raises:
            ValueError: A name is not known, a number out of range, or energy cannot be read; nothing is changed then.
            TypeError: A value is of another type; nothing is changed then.
        """
        given: dict[str, Any] = {
            "force_backend": force_backend,
            "force_algorithm": force_algorithm,
            "disabled": disable if isinstance(disable, Unchanged) else names(disable),
            "calibration": calibration,
            "sample": sample,
            "mode": mode,
            "explore_fraction": explore_fraction,
            "switch_margin": switch_margin,
            "objective": objective,
            "deterministic": deterministic,
            "memory_limit": memory_limit,
            "gpu_memory_limit": gpu_memory_limit,
            "wisdom": wisdom,
        }
        changes = {
            name: getattr(Settings, name) if value is None else value  # the default of a field is its class attribute
            for name, value in given.items()
            if not isinstance(value, Unchanged)
        }
        with self.lock:
            self._adopt(replace(self.settings, **changes))

    def reload_env(self) -> None:
        """Read the environment again; it replaces whatever `configure` had set."""
        with self.lock:
            self._adopt(from_environment())

    def plan(self, workload: Workload) -> Plan:
        """Return the plan for `workload`, the same one until something is configured or a kernel fails.

        Raises:
            LookupError: No kernel accepts it, or none of those that are forced.
        """
        with self.lock:
            self.has_changed(workload.framework)
            key = (self.epoch, workload)
            plan = self._plans.get(key)
            if plan is None or plan.learns or self._quarantine:
                plan = self._planned(workload)
                if len(self._plans) >= MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = plan
            return plan

    def draft(self, workload: Workload) -> Plan:
        """Return a plan of its own for a site: where it learns it is the estimate's, and `decide` is next."""
        with self.lock:
            if self.has_changed(workload.framework) or not self.learner.is_learning(workload.framework):
                return self.plan(workload).twin()
            verdicts, reduced = self._standing(workload)
            name = ranked(verdicts, self.settings)[0].kernel.name
            return plan_of(name, "prior", verdicts, workload, self.settings, learns=True, provisional=reduced)

    def has_changed(self, framework: str) -> bool:
        """Return whether a framework lets plans change where it did not before, or no more; all ask again then."""
        with self.lock:
            changed = self.learner.has_changed(framework)
            if changed:
                self.kernels_changed()
            return changed

    def decide(self, plan: Plan, calls: int, backwards: int | None) -> tuple[str, str, int]:
        """Return the kernel that runs now in place of `plan`, why, and after how many calls to ask again.

        For sites. The reason is "explore" where it is tried for one call.

        Args:
            plan: One that learns.
            calls: Since the last decision, this one included.
            backwards: How many of them were followed by a backward pass; None: all.
        """
        workload = plan.workload
        with self.lock:
            verdicts = self._verdicts_on(workload)
            decision, compiles = self.learner.decide(workload, verdicts, calls, backwards)
            if compiles:
                self.reconsider()
            if decision.name == plan.kernel.name:
                _refit(plan, verdicts)
            return decision.name, decision.reason, decision.period

    def plan_with(self, name: str, reason: str, workload: Workload) -> Plan:
        """Return a plan that runs the kernel of that name, for a site that was told to by `decide`."""
        verdicts, reduced = self._standing(workload)
        _, believed = self.learner.believed(workload, verdicts)
        return plan_of(
            name, reason, verdicts, workload, self.settings, learns=True, provisional=reduced, believed=believed
        )

    def refit(self, plan: Plan) -> None:
        """Let a plan compute as many rows at a time as the memory now allows."""
        _refit(plan, self._verdicts_on(plan.workload))

    def reconsider(self) -> None:
        """Let every site ask again at its next call."""
        for site in self.sites():
            site.reconsider()

    def site(self, op: str, framework: str, label: str = "") -> Site:
        """Return a site for one caller to keep; it is reported for as long as it lives."""
        if len(self._retired) > MOST_RETIRED:
            self._fold()  # not where a site dies: the garbage collector must not wait for a lock
        made = Site(self, op, framework, label, self._retired)
        with self.lock:
            self._sites[next(self._site_numbers)] = made
        return made

    def shared_site(self, op: str, framework: str, label: str) -> Site:
        """Return the one site of that label, kept by the manager: for functions, which keep nothing."""
        key = (op, framework, label)
        found = self._shared_sites.get(key)
        if found is None:
            with self.lock:
                found = self._shared_sites.get(key)
                if found is None:
                    found = self._shared_sites[key] = self.site(op, framework, label)
        return found

    @staticmethod
    def process_site(op: str, framework: str, label: str) -> Site:
        """Return a site of the process-wide manager: what an unpickled site becomes."""
        return default_manager().site(op, framework, label)

    def forget(self, op: str | None = None) -> None:
        """Drop what was measured of an operation, or of all, and ask again; what is on disk stays."""
        with self.lock:
            self.learner.forget(op)
            kept = [each for each in self._history if op is not None and each.workload.op != op]
            self._history.clear()
            self._history.extend(kept)
            self.kernels_changed()

    def save(self) -> bool:
        """Merge what was learnt into the wisdom file, and return whether it is there now.

        It happens by itself, once a minute while something is learnt and when the process ends.
        """
        with self.lock:
            return self.learner.save()

    def sites(self) -> list[Site]:
        """Return the sites that are alive, oldest first."""
        with self.lock:
            return list(self._sites.values())

    def counters(self) -> Counters:
        """Return how often sites, also those that are gone, were consulted."""
        with self.lock:
            self._fold()
            picks, backward = self._past.copy(), self._past_backward
            for site in self.sites():
                for plan in site.plans():
                    forwards, backwards = plan.uncounted()
                    picks[plan.kernel.name] += forwards
                    backward += backwards
        return {"forward": picks.total(), "backward": backward, "picks": dict(picks)}

    def kernels_changed(self) -> None:
        """Ask again from now on; the registry calls this when a kernel comes or goes."""
        self._plans.clear()
        self._verdicts.clear()
        self.epoch = next(self._epochs)

    def retire(self, plans: tuple[Plan, ...]) -> None:
        """Keep the counts of plans that their site lets go."""
        self._retired.append(plans)
        self._fold()

    def _adopt(self, settings: Settings) -> None:
        self.settings = settings
        self.learner.adopt(settings)
        self._quarantine.lift()
        self.kernels_changed()

    def _planned(self, workload: Workload) -> Plan:
        settings = self.settings
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
        found = self._verdicts.get(workload)
        if found is None:
            if len(self._verdicts) >= MOST_PLANS:
                self._verdicts.clear()
            self.learner.know()  # the rates that an earlier process measured, before this one measures them again
            model = self._model(workload.framework)
            found = judge(kernels(workload.op, workload.framework), workload, self.settings, model)
            self._verdicts[workload] = found
        return self._room.fit(found, workload, self.settings, self._model)

    def _model(self, framework: str) -> CostModel:
        is_measured = has_probe(framework) and not self.settings.is_deterministic(framework)
        return CostModel(self._machine or this_machine(), self.settings.calibration if is_measured else "shipped")

    def _fold(self) -> None:
        with self.lock:
            for plan in itertools.chain.from_iterable(_drain(self._retired)):
                forwards, backwards = plan.uncounted()
                plan.counted = plan.forwards, plan.backwards  # one that an interrupt left in two places counts once
                self._past[plan.kernel.name] += forwards
                self._past_backward += backwards

    def __copy__(self) -> "BackendManager":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "BackendManager":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self is _process_wide:
            return default_manager, ()
        return BackendManager, (self.settings,)


def _refit(plan: Plan, verdicts: Iterable[Verdict]) -> None:
    for verdict in verdicts:
        if verdict.kernel is plan.kernel and verdict.refusal is None:
            plan.chunk = verdict.rows


_process_wide: BackendManager | None = None
_making = threading.Lock()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    for manager in list(_managers):
        manager.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _save_all() -> None:
    """What was learnt is not lost when the process ends."""
    for manager in list(_managers):
        manager.save()


def default_manager() -> BackendManager:
    """Return the process-wide manager, made from the environment when first asked for."""
    global _process_wide
    with _making:
        if _process_wide is None:
            _process_wide = BackendManager()
        return _process_wide


def is_process_wide(manager: BackendManager) -> bool:
    """Return whether `manager` is the one that `default_manager` returns; a compiler can follow it."""
    return manager is _process_wide


def _drain(queue: deque[tuple[Plan, ...]]) -> Iterator[tuple[Plan, ...]]:
    while queue:
        yield queue.popleft()
