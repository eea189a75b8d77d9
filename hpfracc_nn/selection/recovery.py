"""What a manager does about kernels that fail: it counts, leaves them alone for a while, and names the next best."""

import logging
import math
import threading
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from hpfracc_nn.selection.candidates import Verdict, accepted, eligible, handicaps, no_kernel, plan_of
from hpfracc_nn.selection.chronicle import Chronicle
from hpfracc_nn.selection.fallback import carried_out
from hpfracc_nn.selection.learning.learner import Learner
from hpfracc_nn.selection.learning.model import Prediction
from hpfracc_nn.selection.observe.events import Defeat, Failure, Quarantined
from hpfracc_nn.selection.operations import RUN, operation
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.quarantine import Quarantine, cause_of, kind_of, text_of
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.timing import wall_time
from hpfracc_nn.selection.workload import Direction, Measurement, Workload

_log = logging.getLogger("hpfracc_nn.selection")
_SCOPES = {
    "kernel": "for workloads like it",
    "memory": "for calls of this size and above",
    "environment": "at all",
}


class Recovery(Chronicle):
    """The part of a manager that lets others run in place of a kernel that fails."""

    lock: threading.RLock
    settings: Settings
    learner: Learner
    _history: deque[Measurement]

    def __init__(self, clock: Callable[[], float]):
        super().__init__()
        self._clock = clock
        self._quarantine = Quarantine()

    def run(self, op: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return what a kernel of an operation of the caller's own returns for these arguments.

        The operation was introduced by `register_operation`, its kernels by `register`. The call is one consultation:
        it is counted, timed now and then and learnt from, and where the kernel fails the next one runs.

        Args:
            op: The operation.
            args: For `run` of its kernels, and for the function that describes the workload.
            kwargs: The same.

        Raises:
            LookupError: There is no such operation, or no kernel accepts the workload.
            TypeError: What describes the call returns no workload.
            ValueError: It returns one of another operation.
        """
        found = operation(op)
        workload = found.described(args, kwargs)
        site = self.shared_site(op, workload.framework, "run")
        plan = site.pick(workload, lambda: workload)
        return carried_out(RUN, site, plan, found, args, kwargs)

    def failures(self) -> dict[str, dict[str, int]]:
        """Return how often each kernel failed, by its name and the class of the error."""
        with self.lock:
            found: dict[str, dict[str, int]] = {}
            for (_, kernel, error), count in self.tally.failures.items():
                by_error = found.setdefault(kernel, {})
                by_error[error] = by_error.get(error, 0) + count
            return found

    def quarantined(self) -> Counter[tuple[str, str]]:
        """Return at how many workloads, sizes or places each kernel is left alone now, by operation and kernel."""
        with self.lock:
            return Counter((kernel.op, kernel.name) for kernel in self._quarantine.held(self._clock()))

    def failed(self, plan: Plan, error: Exception, direction: Direction) -> None:
        """Record that a plan's kernel raised."""
        kind = type(error).__name__
        with self.lock:
            plan.failures += 1
            self.tally.failures[plan.workload.op, plan.kernel.name, kind] += 1
            self.journal.note(
                Failure(
                    time=wall_time(),
                    workload=plan.workload,
                    kernel=plan.kernel.name,
                    direction=direction,
                    error=kind,
                    message=text_of(error),
                )
            )
            self._history.append(
                Measurement(plan.workload, plan.kernel.name, math.nan, direction, succeeded=False, error=kind)
            )

    def leave_alone(self, plan: Plan, error: Exception) -> None:
        """Choose the kernel of a plan no more for a while: another one has done what it failed at."""
        workload, kind, cause = plan.workload, kind_of(error), cause_of(error)
        with self.lock:
            now, size = self._clock(), _size(plan.workspace, workload)
            seconds = self._quarantine.add(plan.kernel, workload, kind, cause, size=size, now=now)
            for site in self.sites():
                site.expire(plan.kernel, self._is_left_alone)
            self.journal.note(
                Quarantined(
                    time=wall_time(),
                    workload=workload,
                    kernel=plan.kernel.name,
                    seconds=seconds,
                    error=type(error).__name__,
                    message=text_of(error),
                )
            )
        self.tell()
        until = "until something is configured" if kind == "environment" else f"for {seconds:.0f} s"
        note = "; plans are not the deterministic ones meanwhile"
        _log.warning(
            "%s failed at %s, rows=%d n=%d width=%d: %s; not used %s %s%s.",
            *(plan.kernel.name, workload, workload.rows, workload.n, workload.width, cause, _SCOPES[kind], until),
            note if self.settings.is_deterministic(workload.framework) else "",
        )

    def defeated(self, plan: Plan, error: BaseException, direction: Direction) -> None:
        """Note that every kernel failed at a call, the one of `plan` first, and that its error is raised."""
        with self.lock:
            self.journal.note(
                Defeat(
                    time=wall_time(),
                    workload=plan.workload,
                    kernel=plan.kernel.name,
                    direction=direction,
                    error=type(error).__name__,
                    message=text_of(error),
                )
            )
        self.tell()

    def forgive(self, plan: Plan, *, at_once: bool = False) -> None:
        """Forget earlier failures of a plan's kernel, because it works; `at_once` also while it is left alone."""
        if self._quarantine:
            with self.lock:
                now, size = math.inf if at_once else self._clock(), _size(plan.workspace, plan.workload)
                self._quarantine.forgive(plan.kernel, plan.workload, size=size, now=now)

    def stand_in(self, workload: Workload, tried: Collection[str]) -> Plan | None:
        """Return a plan for the next best kernel after others failed at this very call, None where none is left.

        Kernels that would have to compile first come later, and last those that are left alone.
        """
        with self.lock:
            try:
                verdicts = self._fitted(workload)
            except LookupError:  # every kernel was unregistered meanwhile
                return None
            fit = {each.kernel.name for each in accepted(self._reduced(verdicts, workload))}
            left = [each for each in accepted(verdicts) if each.kernel.name not in tried]
            if not left:
                return None
            believed: dict[str, Prediction] = {}
            if self.learner.uses_knowledge(workload.framework):
                _, believed = self.learner.believed(workload, verdicts)

            best, factors = eligible(left, self.settings), handicaps(left, self.settings)

            def rank(each: Verdict) -> tuple[bool, bool, bool, float]:
                name, missing = each.kernel.name, each.kernel.ask("compiles", workload)
                seconds = believed[name].seconds if name in believed else each.seconds
                return name not in fit, each not in best, missing is not None, seconds * factors[name]

            name = min(left, key=rank).kernel.name
            learns = self.learner.is_learning(workload.framework)
            settings = self.settings.of(workload.op)
            return plan_of(name, "fallback", verdicts, workload, settings, learns=learns, believed=believed)

    def _verdicts_on(self, workload: Workload) -> list[Verdict]:
        """Return what all kernels say with the memory that there is now; at least one accepts."""
        return self._standing(workload)[0]

    def _standing(self, workload: Workload) -> tuple[list[Verdict], bool]:
        """Return the same, and whether kernels that would accept are left alone for a while."""
        fitting = self._fitted(workload)
        if not accepted(fitting):
            raise LookupError(no_kernel(fitting, workload, self.settings.of(workload.op)))
        found = self._reduced(fitting, workload)
        return found, found is not fitting

    def _reduced(self, verdicts: list[Verdict], workload: Workload) -> list[Verdict]:
        """Refuse the kernels that are left alone, unless none else accepts: then each may be tried."""
        if not self._quarantine:
            return verdicts
        now = self._clock()

        def marked(verdict: Verdict) -> Verdict:
            if verdict.refusal is not None:
                return verdict
            size = _size(verdict.workspace, workload)
            refusal = self._quarantine.refusal(verdict.kernel, workload, size=size, now=now)
            return verdict if refusal is None else replace(verdict, refusal=refusal)

        found = [marked(verdict) for verdict in verdicts]
        return verdicts if found == verdicts or not accepted(found) else found

    def _is_left_alone(self, plan: Plan) -> bool:
        size = _size(plan.workspace, plan.workload)
        return self._quarantine.refusal(plan.kernel, plan.workload, size=size, now=self._clock()) is not None

    @abstractmethod
    def sites(self) -> list[Site]: ...

    @abstractmethod
    def shared_site(self, op: str, framework: str, label: str) -> Site: ...

    @abstractmethod
    def _fitted(self, workload: Workload) -> list[Verdict]: ...


def _size(workspace: float, workload: Workload) -> float:
    """Return the bytes by which calls that run out of memory are compared."""
    return workspace + workload.bytes
