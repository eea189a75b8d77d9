"""What a call site keeps: the plans it received, looked up in a fraction of a microsecond.

A plan is a kernel chosen for a workload; its usage counts the calls that it served at this site, and how many are left
until the next decision (`plan.py`). A site looks plans up by key: a hashable value of all that the workload depends on,
which the caller makes. `describe` makes the workload itself. `started` is the time at which a decision began.
"""

import time
import weakref
from collections.abc import Callable, Collection, Hashable
from typing import Any

from hpfracc_nn.selection.plan import NEVER, Plan, Usage
from hpfracc_nn.selection.planner import Step, period_of
from hpfracc_nn.selection.recorder import Recorder
from hpfracc_nn.selection.registry import Kernel
from hpfracc_nn.selection.workload import Direction, Workload

MOST_PLANS = 4096


class Site:
    """One place that asks for plans, such as a layer; made by `BackendManager.site`.

    The usages of its plans count what happened at this site alone. A copy is a fresh site with
    the same manager; an unpickled one belongs to the process-wide manager.

    Attributes:
        manager: The BackendManager that made this site.
        op: The operation.
        framework: The arrays' framework.
        label: Name of the caller in reports.
        recorder: The manager's Recorder, which counts the calls and keeps their times.

    Examples:
        >>> site = BackendManager(Settings(mode="prior")).site("toeplitz", "numpy", "my layer")
        >>> plans = [
        ...     site.pick((4, 64), lambda: workload((4, 64), framework="numpy"))
        ...     for _ in range(2)
        ... ]
        >>> # described once, found again, counted twice
        >>> plans[0] is plans[1], plans[0].forwards
        (True, 2)
    """

    __slots__ = (
        "__weakref__",
        "_candidates",
        "_epoch",
        "_followers",
        "_others",
        "_plans",
        "_tried",
        "framework",
        "label",
        "manager",
        "op",
        "recorder",
    )

    def __init__(self, manager: Any, recorder: Recorder, op: str, framework: str, label: str):
        self.manager = manager
        self.recorder = recorder
        self.op = op
        self.framework = framework
        self.label = label
        self._plans: dict[Hashable, Plan] = {}
        self._others: dict[Hashable, dict[str, Plan]] = {}  # plans that were tried or replaced, by kernel
        self._tried: dict[Hashable, Plan] = {}  # on trial in a key's last forward pass, until its next pass
        self._followers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._candidates = recorder.planner.candidates
        self._epoch = self._candidates.epoch

    def pick(self, key: Hashable, describe: Callable[[], Workload]) -> Plan:
        """Return the plan for `key` and count one forward consultation.

        Costs one dict lookup while nothing changes, without a lock. `key` must hold all that
        the workload depends on: shape, dtype, device, which gradients are wanted, threads.

        Args:
            key: Compared by value; never an address.
            describe: Makes the workload; called only for a key that is new here, or when the
                manager was configured since.

        Raises:
            LookupError: No kernel accepts the workload.
            ValueError: `describe` answers for another op or framework than this site's.
        """
        plan = self._plans.get(key)
        if plan is None or self._epoch != self._candidates.epoch:
            return self._first(key, describe)
        usage = plan.usage
        usage.forwards += 1
        left = usage.left - 1
        usage.left = left
        return plan if left > 0 else self._decided(key, plan, describe)

    def again(self, plan: Plan) -> Plan:
        """Return `plan`, picked in the forward pass, and count one backward consultation."""
        plan.usage.backwards += 1
        return plan

    def pick_backward(self, key: Hashable, describe: Callable[[], Workload]) -> Plan:
        """Return the plan for `key` and count one backward consultation: where no plan came from the forward pass.

        In a compiled graph the two passes are two operations; the same key gives both the same plan, also one that is
        only tried.
        """
        plan = self._tried.pop(key, None) or self._plans.get(key)
        if plan is None or self._epoch != self._candidates.epoch:
            recorder, started = self.recorder, time.perf_counter()
            with recorder.planner.lock:
                self._catch_up()
                plan = self._plans.get(key)
                if plan is None:
                    fresh = recorder.planner.plan(self._described(describe)).twin()
                    plan = self._began(key, fresh, started)
            recorder.publish()
        return self.again(plan)

    def pick_traced(self, key: Hashable, describe: Callable[[], Workload]) -> Plan:
        """Return the plan for `key` that is believed to be the best, never one on trial, and count one consultation.

        For calls that are traced, whose times nobody sees: what is compiled would keep a kernel that was only tried.
        The planner is asked again after many calls, or where `BackendManager.reconsider` says so. Arguments and
        exceptions are those of `pick`.
        """
        plan = self._plans.get(key)
        if plan is not None and plan.usage.left > 1 and self._epoch == self._candidates.epoch:
            plan.usage.forwards += 1
            plan.usage.left -= 1
            return plan
        recorder, started = self.recorder, time.perf_counter()
        planner = recorder.planner
        with planner.lock:
            self._catch_up()
            before = self._plans.get(key)
            fresh = planner.plan(self._described(describe) if before is None else before.workload)
            calls = before.usage.period if before is not None and before.kernel is fresh.kernel else 1
            plan = self._bound(key, before, fresh)
            if plan.usage is not (None if before is None else before.usage):
                if before is not None:
                    self._others.setdefault(key, {})[before.kernel.name] = before
                    plan.usage.switches += 1
                recorder.chosen(self._name, before, plan, fresh.reason, time.perf_counter() - started)
            self._plans[key] = plan
            plan.usage.grant(period_of(fresh, calls), is_timed=False)
            plan.usage.forwards += 1
        recorder.publish()
        return plan

    def plans(self) -> tuple[Plan, ...]:
        """Return the plans since the last change of settings, in the order they were first asked for."""
        with self.recorder.planner.lock:
            found: dict[Usage, Plan] = {}  # an interrupt may leave a usage in two places
            for plans in (self._plans.values(), *(others.values() for others in self._others.values())):
                for plan in plans:
                    found.setdefault(plan.usage, plan)
            return tuple(found.values())

    def in_use(self) -> tuple[Plan, ...]:
        """Return the plan in use for each key, without those that were only tried or are replaced."""
        with self.recorder.planner.lock:
            return tuple(self._plans.values())

    def follow(self, follower: Any) -> None:
        """Call `follower.retiring(site, plans)` before plans are dropped, for as long as the follower lives."""
        with self.recorder.planner.lock:
            self._followers.add(follower)

    def unfollow(self, follower: Any) -> None:
        """Call `follower.retiring` no more."""
        with self.recorder.planner.lock:
            self._followers.discard(follower)

    def reconsider(self) -> None:
        """Let the next call of each learning plan reconsider the choice."""
        with self.recorder.planner.lock:
            for plan in self._plans.values():
                if plan.learns:
                    plan.usage.reconsider()

    def expire(self, kernel: Kernel, matches: Callable[[Plan], bool]) -> None:
        """Let a failed kernel's plans that `matches` accepts be decided anew at their next call."""
        with self.recorder.planner.lock:
            for plan in self._plans.values():
                if plan.kernel is kernel and matches(plan):
                    if plan.learns:
                        plan.usage.reconsider()
                    plan.usage.left = 1

    def stand_in(
        self, plan: Plan, tried: Collection[str], direction: Direction, error: BaseException | None = None
    ) -> Plan | None:
        """Return the plan that runs in place of `plan`, whose kernel failed; the consultation now counts for that one.

        Args:
            plan: The plan that failed, picked at this site.
            tried: Names of the kernels that failed at this call.
            direction: Direction of the pass.
            error: What the kernel raised; None where its result is only doubted.

        Returns:
            The plan; None where no kernel is left.
        """
        recorder, started = self.recorder, time.perf_counter()
        with recorder.planner.lock:
            found = recorder.planner.stand_in(plan.workload, tried)
            if found is None:
                return None
            key, name = self._key_of(plan), found.kernel.name
            others, present = self._others.setdefault(key, {}), self._plans.get(key)
            if present is not None and present.kernel is found.kernel:
                kept = self._plans[key] = present.cut(found.chunk, found.workspace)
            else:
                known = others.get(name)
                kept = others[name] = self._opened(found) if known is None else known.cut(found.chunk, found.workspace)
            plan.usage.move(kept.usage, direction)
            recorder.counts.stand_ins[self.op, name] += 1
            recorder.chosen(self._name, plan, kept, "fallback", time.perf_counter() - started, direction, error)
        recorder.publish()
        return kept

    @property
    def _name(self) -> str:
        return self.label or self.op

    def _opened(self, plan: Plan) -> Plan:
        """Let the manager count the usage of `plan` from now on, and return the plan."""
        self.recorder.counts.add(plan.usage)
        return plan

    def _bound(self, key: Hashable, before: Plan | None, fresh: Plan) -> Plan:
        """Return the plan `fresh`, with a usage that counts the calls at this site.

        Args:
            key: The key of the call.
            before: The plan in use for the key, None if there is none.
            fresh: The planner's new plan, shared with other sites.
        """
        known = before
        if known is None or known.kernel is not fresh.kernel:
            known = self._others.get(key, {}).pop(fresh.kernel.name, None)
        return self._opened(fresh.twin()) if known is None else known.renewed(fresh)

    def _key_of(self, plan: Plan) -> Hashable:
        """Return the key that `plan` was picked for, or its workload if the plan is no longer kept here."""
        for key, kept in self._plans.items():
            if kept.usage is plan.usage:
                return key
        for key, others in self._others.items():
            if any(kept.usage is plan.usage for kept in others.values()):
                return key
        return plan.workload

    def _first(self, key: Hashable, describe: Callable[[], Workload]) -> Plan:
        """Return the plan for a key that has none, and count the call.

        The key is new, or its plan was dropped because the settings changed.
        """
        recorder, started = self.recorder, time.perf_counter()
        recorder.join()  # before the first event
        recorder.harvest()
        with recorder.planner.lock:
            self._catch_up()  # before planning: a change meanwhile makes the next pick ask again
            plan, step = self._plans.get(key), None  # another thread may have made one while this thread waited
            if plan is None:
                plan, step = recorder.planner.first(self._described(describe))
                self._began(key, plan, started)
            plan.usage.forwards += 1
            plan.usage.left -= 1
            if step is not None:
                plan = self._stepped(key, plan, step, started)
            elif plan.usage.left <= 0:
                plan = self._reconsidered(key, plan, started)
        recorder.publish()
        return plan

    def _began(self, key: Hashable, plan: Plan, started: float) -> Plan:
        """Keep `plan` as the first one of a key, and return it.

        The choice is recorded here, unless the plan learns: then `_stepped` records its first decision.
        """
        self._plans[key] = self._opened(plan)
        if not plan.learns:
            self.recorder.chosen(self._name, None, plan, plan.reason, time.perf_counter() - started)
        return plan

    def _catch_up(self) -> None:
        """Drop all plans if the settings or kernels changed since they were made, or if there are `MOST_PLANS`."""
        epoch = self._candidates.epoch
        if self._epoch != epoch or len(self._plans) >= MOST_PLANS:
            plans = self.plans()
            for follower in self._followers:
                follower.retiring(self, plans)
            self._plans.clear()
            self._others.clear()
            self._tried.clear()
            self._epoch = epoch

    def _decided(self, key: Hashable, plan: Plan, describe: Callable[[], Workload]) -> Plan:
        """Return what runs now that the calls of `plan` are used up: the same plan, one on trial, or its successor."""
        recorder, started = self.recorder, time.perf_counter()
        planner, usage = recorder.planner, plan.usage
        recorder.harvest()
        with planner.lock:
            present = self._plans.get(key)
            if present is None or planner.has_changed(self.framework):
                usage.forwards -= 1
                return self.pick(key, describe)
            if present.usage is not usage:  # another thread decided while this one waited
                usage.move(present.usage, "forward")
                return present
            if usage.left > 0:
                return present
            chosen = self._reconsidered(key, present, started)
        recorder.publish()
        return chosen

    def _reconsidered(self, key: Hashable, plan: Plan, started: float) -> Plan:
        """Return what the planner decides to run in place of `plan`; the caller holds the lock."""
        usage = plan.usage
        known = {**self._others.get(key, {}), plan.kernel.name: plan}
        backwards = min(usage.backwards - usage.backwards_before, usage.period) if usage.period > 1 else None
        step = self.recorder.planner.next(plan, usage.period, backwards, known)
        return self._stepped(key, plan, step, started)

    def _stepped(self, key: Hashable, plan: Plan, step: Step, started: float) -> Plan:
        """Carry out and record a decision of the planner on `plan`; return what runs now. The caller holds the lock."""
        if step.spreads:
            self.recorder.reconsider()
        chosen = self._take(key, plan, step)
        self.recorder.chosen(self._name, plan, chosen, step.reason, time.perf_counter() - started)
        return chosen

    def _take(self, key: Hashable, plan: Plan, step: Step) -> Plan:
        """Let the plan that `step` decided on run in place of `plan`, and return it; a trial runs for one call only.

        An interrupt in the middle leaves one of the two plans kept, or one kept twice.
        """
        chosen, usage = step.plan, plan.usage
        self._tried.pop(key, None)
        if chosen.usage is usage:
            self._plans[key] = chosen
            usage.grant(step.period, is_timed=chosen.learns and chosen.sample)
            return chosen
        if chosen.usage.ended is None:
            self._opened(chosen)
        others = self._others.setdefault(key, {})
        if step.is_trial:
            others[chosen.kernel.name] = self._tried[key] = chosen
            usage.left = usage.period = 1
            chosen.usage.trials += 1
        else:
            if usage.forwards > 1 or usage.backwards:  # not only for the call that `chosen` will have run
                others[plan.kernel.name] = plan
                chosen.usage.switches += 1
            self._plans[key] = chosen
            others.pop(chosen.kernel.name, None)
            usage.left = NEVER
        chosen.usage.grant(NEVER if step.is_trial else step.period, is_timed=chosen.learns and chosen.sample)
        usage.move(chosen.usage, "forward")
        return chosen

    def _described(self, describe: Callable[[], Workload]) -> Workload:
        workload = describe()
        if (workload.op, workload.framework) != (self.op, self.framework):
            raise ValueError(
                f"Site.pick(describe=...): needs a workload of {self.op} on {self.framework}; "
                f"it describes {workload.op} on {workload.framework}."
            )
        return workload

    def __copy__(self) -> "Site":
        made: Site = self.manager.site(self.op, self.framework, self.label)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> "Site":
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self.manager).process_site, (self.op, self.framework, self.label)

    def __repr__(self) -> str:
        return f"Site({self.label or self.op!r}, {self.op} on {self.framework}, {len(self._plans)} plans)"
