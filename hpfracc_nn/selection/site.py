"""What a call site keeps: the plans it was given, found again in a fraction of a microsecond."""

import time
import weakref
from collections.abc import Callable, Collection, Hashable
from typing import TYPE_CHECKING, Any, Protocol

from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.registry import Kernel
from hpfracc_nn.selection.timing import NEVER
from hpfracc_nn.selection.workload import Direction, Workload

if TYPE_CHECKING:
    from hpfracc_nn.selection.manager import BackendManager
    from hpfracc_nn.selection.observe.counts import Tally

MOST_PLANS = 4096


class Follower(Protocol):
    """Someone who wants to know what becomes of a site's plans."""

    def retiring(self, site: "Site", plans: tuple[Plan, ...]) -> None:
        """Hear that `site` lets go of all its plans; the manager's lock is held."""


class Site:
    """One place that asks for plans, such as a layer; made by `BackendManager.site`.

    Its plans are its own: their counters say what happened here. A copy is a fresh site with
    the same manager; an unpickled one belongs to the process-wide manager.

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
        "_epoch",
        "_followers",
        "_others",
        "_plans",
        "_tried",
        "framework",
        "label",
        "manager",
        "op",
    )

    def __init__(
        self,
        manager: "BackendManager",
        op: str,
        framework: str,
        label: str,
        tally: "Tally",
        number: int,
    ):
        self.manager = manager
        self.op = op
        self.framework = framework
        self.label = label
        self._plans: dict[Hashable, Plan] = {}
        self._others: dict[tuple[Hashable, str], Plan] = {}  # those that were tried or replaced, by kernel
        self._tried: dict[Hashable, Plan] = {}  # by the last forward pass of a key, until its backward pass or the next
        self._followers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._epoch = manager.epoch
        weakref.finalize(self, _retire, tally, number, self._plans, self._others).atexit = False

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
        if plan is None or self._epoch != self.manager.epoch:
            plan = self._ask(key, describe)
        plan.forwards += 1
        left = plan.left - 1
        plan.left = left
        return plan if left > 0 else self._decide(key, plan, describe)

    def again(self, plan: Plan) -> Plan:
        """Return `plan`, picked in the forward pass, and count one backward consultation."""
        plan.backwards += 1
        return plan

    def pick_backward(self, key: Hashable, describe: Callable[[], Workload]) -> Plan:
        """Return the plan for `key` and count one backward consultation: where no plan came from the forward pass.

        In a compiled graph the two passes are two operations; the same key gives both the same plan, also one that is
        only tried.
        """
        plan = self._tried.pop(key, None) or self._plans.get(key)
        if plan is None or self._epoch != self.manager.epoch:
            plan = self._ask(key, describe)
        return self.again(plan)

    def pick_traced(self, key: Hashable, describe: Callable[[], Workload]) -> Plan:
        """Return the plan for `key` that is believed to be the best, never one on trial, and count one consultation.

        For calls that are traced, whose times nobody sees: what is compiled would keep a kernel that was only tried.
        What is believed is asked for again after many calls, or where `BackendManager.reconsider` says so. Arguments
        and exceptions are those of `pick`.
        """
        plan = self._plans.get(key)
        if plan is not None and plan.left > 1 and self._epoch == self.manager.epoch:
            plan.forwards += 1
            plan.left -= 1
            return plan
        manager, started = self.manager, time.perf_counter()
        with manager.lock:
            if self._epoch != manager.epoch or len(self._plans) >= MOST_PLANS:
                self._let_go()
                self._epoch = manager.epoch
            plan = self._plans.get(key)
            fresh = manager.plan(self._described(describe) if plan is None else plan.workload)
            if plan is None or plan.kernel is not fresh.kernel:
                before, plan = plan, self._others.pop((key, fresh.kernel.name), None) or fresh.twin()
                if before is not None:
                    self._others[key, before.kernel.name] = before
                    plan.switches += 1
                self._plans[key] = plan
                manager.chosen(self, before, plan, fresh.reason, time.perf_counter() - started)
            plan.renew(fresh)
            plan.postpone()
            plan.forwards += 1
        manager.tell()
        return plan

    def plans(self) -> tuple[Plan, ...]:
        """Return the plans since the last change of settings, in the order they were first asked for."""
        with self.manager.lock:
            every = (*self._plans.values(), *self._others.values())
            return tuple(dict.fromkeys(every))  # an interrupt may leave one in two places

    def in_use(self) -> tuple[Plan, ...]:
        """Return the same without those that were only tried or are replaced."""
        with self.manager.lock:
            return tuple(self._plans.values())

    def follow(self, follower: Follower) -> None:
        """Tell `follower` from now on when plans are let go, for as long as it lives."""
        with self.manager.lock:
            self._followers.add(follower)

    def unfollow(self, follower: Follower) -> None:
        """Tell `follower` nothing more."""
        with self.manager.lock:
            self._followers.discard(follower)

    def reconsider(self) -> None:
        """Let the next call of each plan reconsider the choice."""
        with self.manager.lock:
            for plan in self._plans.values():
                plan.reconsider()

    def expire(self, kernel: Kernel, matches: Callable[[Plan], bool]) -> None:
        """Let the plans of a kernel that match be made anew at their next call."""
        with self.manager.lock:
            for plan in self._plans.values():
                if plan.kernel is kernel and matches(plan):
                    plan.expire()

    def stand_in(
        self, plan: Plan, tried: Collection[str], direction: Direction, error: BaseException | None = None
    ) -> Plan | None:
        """Return what runs in place of `plan`, whose kernel failed, and count the consultation for it.

        Args:
            plan: It was picked here.
            tried: Names of the kernels that failed at this call.
            direction: Of the pass.
            error: What the kernel raised, if it is told.

        Returns:
            None where no kernel is left.
        """
        manager, started = self.manager, time.perf_counter()
        with manager.lock:
            found = manager.stand_in(plan.workload, tried)
            if found is None:
                return None
            key, name = self._key_of(plan), found.kernel.name
            present = self._plans.get(key)
            if present is not None and present.kernel is found.kernel:
                kept = present
            else:
                kept = self._others.setdefault((key, name), found)
            kept.cut(found.chunk, found.workspace)
            plan.move(kept, direction)
            manager.tally.stand_ins[self.op, name] += 1
            manager.chosen(self, plan, kept, "fallback", time.perf_counter() - started, direction, error)
        manager.tell()
        return kept

    def _key_of(self, plan: Plan) -> Hashable:
        """Return what `plan` was picked for; its workload where it is no longer kept here."""
        for key, kept in self._plans.items():
            if kept is plan:
                return key
        return next((key for (key, _), kept in self._others.items() if kept is plan), plan.workload)

    def _ask(self, key: Hashable, describe: Callable[[], Workload]) -> Plan:
        manager, started = self.manager, time.perf_counter()
        with manager.lock:
            epoch = manager.epoch  # read before planning: a change meanwhile makes the next pick ask again
            if self._epoch != epoch or len(self._plans) >= MOST_PLANS:
                self._let_go()
                self._epoch = epoch
            plan = self._plans.get(key)  # another thread may have asked while this one waited
            if plan is None:
                plan = manager.draft(self._described(describe))
                self._plans[key] = plan
            if not plan.learns:  # else the call itself decides
                manager.chosen(self, None, plan, plan.reason, time.perf_counter() - started)
        manager.tell()
        return plan

    def _let_go(self) -> None:
        plans = self.plans()
        self.manager.retire(plans)
        for follower in self._followers:
            follower.retiring(self, plans)
        self._plans.clear()  # the same dicts for ever: the finalizer holds them
        self._others.clear()
        self._tried.clear()

    def _decide(self, key: Hashable, plan: Plan, describe: Callable[[], Workload]) -> Plan:
        """Return what runs now, which may be another plan for this call or from now on."""
        manager, started = self.manager, time.perf_counter()
        manager.harvest()
        with manager.lock:
            present = self._plans.get(key)
            if present is None or manager.has_changed(self.framework):
                plan.forwards -= 1
                return self.pick(key, describe)
            if present is not plan:  # another thread decided while this one waited
                plan.move(present, "forward")
                return present
            if plan.left > 0:
                return plan
            chosen, reason = self._learnt(key, plan) if plan.learns else self._renewed(key, plan)
            manager.chosen(self, plan, chosen, reason, time.perf_counter() - started)
        manager.tell()
        return chosen

    def _learnt(self, key: Hashable, plan: Plan) -> tuple[Plan, str]:
        """Return what runs in place of a plan that learns, which may be itself, and why."""
        manager = self.manager
        backwards = min(plan.backwards - plan.told, plan.granted) if plan.granted > 1 else None
        name, reason, period, provisional = manager.decide(plan, plan.granted, backwards)
        self._tried.pop(key, None)
        if name == plan.kernel.name:
            self._justify(plan, reason, provisional)
            plan.grant(period)
            return plan, plan.reason
        chosen = self._others.get((key, name)) or manager.plan_with(name, reason, plan.workload)
        manager.refit(chosen)
        if reason == "explore":
            self._others[key, name] = self._tried[key] = chosen
            plan.left = plan.granted = 1
            chosen.trials += 1
            chosen.grant(NEVER)
        else:
            self._justify(chosen, reason, provisional)
            chosen.grant(period)
            self._replace(key, plan, chosen)
        plan.move(chosen, "forward")
        return chosen, reason

    def _justify(self, plan: Plan, reason: str, provisional: bool) -> None:
        """Note why `plan` runs, and where that is another reason than before, what is expected of it now."""
        if (reason, provisional) != (plan.reason, plan.provisional) and plan.reason != "forced":
            plan.renew(self.manager.plan_with(plan.kernel.name, reason, plan.workload))

    def _renewed(self, key: Hashable, plan: Plan) -> tuple[Plan, str]:
        """Return the plan that is right now in place of one that does not learn, and why."""
        fresh = self.manager.plan(plan.workload)
        if fresh.kernel is plan.kernel:
            plan.renew(fresh)
            plan.postpone()
            return plan, plan.reason
        chosen = self._others.get((key, fresh.kernel.name)) or fresh.twin()
        chosen.renew(fresh)
        chosen.granted = 1
        chosen.postpone()
        self._replace(key, plan, chosen)
        plan.move(chosen, "forward")
        return chosen, chosen.reason

    def _replace(self, key: Hashable, plan: Plan, chosen: Plan) -> None:
        """Keep `chosen` from now on; an interrupt in between leaves one of the two, or one twice: see `plans`."""
        if plan.forwards > 1 or plan.backwards:  # not only for the call that `chosen` will have run
            self._others[key, plan.kernel.name] = plan
            chosen.switches += 1
        self._plans[key] = chosen
        self._others.pop((key, chosen.kernel.name), None)
        plan.left = NEVER

    def _described(self, describe: Callable[[], Workload]) -> Workload:
        workload = describe()
        if (workload.op, workload.framework) != (self.op, self.framework):
            raise ValueError(
                f"Site.pick(describe=...): needs a workload of {self.op} on {self.framework}; "
                f"it describes {workload.op} on {workload.framework}."
            )
        return workload

    def __copy__(self) -> "Site":
        return self.manager.site(self.op, self.framework, self.label)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Site":
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self.manager).process_site, (self.op, self.framework, self.label)

    def __repr__(self) -> str:
        return f"Site({self.label or self.op!r}, {self.op} on {self.framework}, {len(self._plans)} plans)"


def _retire(tally: "Tally", number: int, *plans: dict[Any, Plan]) -> None:
    # It runs in the garbage collector, which must not wait for a lock.
    tally.close(number, tuple(plan for some in plans for plan in some.values()))
