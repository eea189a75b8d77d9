"""Running a plan: the one module that catches a kernel's exceptions, so that another kernel can compute the result.

A plan is a kernel chosen for a workload (`plan.py`). Invalid input raises at the public call, before a plan runs. An
exception that is the input's fault all the same comes from every kernel, and is raised.

A result can be rejected too: `WrongResult` is the error recorded for a kernel whose result is wrong, and a `Doubt` says
that a result looks wrong but may be right, which a second kernel decides.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpfracc_nn import errors
from hpfracc_nn.selection.plan import Plan, Stopwatch
from hpfracc_nn.selection.quarantine import Doubt, WrongResult, cause_of, free_memory, is_control_flow, kind_of
from hpfracc_nn.selection.registry import Operation
from hpfracc_nn.selection.site import Site
from hpfracc_nn.selection.workload import Direction, is_host

_log = logging.getLogger("hpfracc_nn.selection")


@dataclass(frozen=True, slots=True)
class Work:
    """What is done with a plan, made once and used for every call.

    Args:
        run: Called as run(plan, *given) with one plan after the other until one returns. It may be called again with
            another plan after it raised, and must not have changed what it was given.
        fault: Called as fault(result, *given) on the host, where the call was timed or another kernel failed at it:
            what is wrong with the result, or None. What it raises is wrong with the result too. A `Doubt` is dropped
            where a second kernel gives rise to one as well: then it is the data.
        direction: Direction of the pass.
        is_timed: Whether the call is what the plan's times mean.

    Examples:
        >>> def fault(y, x):
        ...     return None if np.ndim(y) == 0 else "it is no number"
        >>> total = Work(lambda plan, x: plan.kernel.run(x), fault)
        >>> total.direction, total.fault(np.ones(3), np.ones(3))
        ('forward', 'it is no number')
    """

    run: Callable[..., Any]
    fault: Callable[..., str | None] | None = None
    direction: Direction = "forward"
    is_timed: bool = True


def carried_out(work: Work, site: Site, plan: Plan, *given: Any) -> Any:
    """Return what `work` returns for the plan, or for the next best one if its kernel raises.

    KeyboardInterrupt, SystemExit and GeneratorExit pass, and what the handler of a signal raises. A failure is recorded
    by the manager, and the kernel is not chosen for a while, if another one could do the same.

    Args:
        work: What to do.
        site: The site that picked the plan.
        plan: The plan whose kernel runs first.
        given: The arguments of `work.run` after the plan.

    Raises:
        Exception: The first kernel's, where all that accept the workload failed, with a note for each of them; that of
            `work.fault` where it raises at each one's result.

    Examples:
        >>> def broken(x):
        ...     raise RuntimeError("boom")
        >>> made = [
        ...     register(Kernel("total", "numpy", "numpy", run.__name__, run))
        ...     for run in (broken, np.sum)
        ... ]
        >>> # "off": the first that accepts is taken
        >>> site = BackendManager(Settings(mode="off")).site("total", "numpy")
        >>> plan = site.pick(5, lambda: Workload("total", "numpy", n=5))
        >>> total = carried_out(
        ...     Work(lambda plan, x: plan.kernel.run(x)), site, plan, np.arange(5.0)
        ... )
        >>> plan.kernel.name, float(total)
        ('numpy/broken', 10.0)
        >>> for kernel in made:
        ...     unregister(kernel)
    """
    recorder = site.recorder
    attempt: _Attempt | None = None
    while True:
        watch = mark = None
        if work.is_timed:
            samples = plan.usage.forward if work.direction == "forward" else plan.usage.backward
            samples.countdown -= 1  # as `Samples.due` does, in place: this is on every call's way
            if samples.countdown <= 0:
                samples.restart()
                if is_host(plan.workload.device):
                    watch = Stopwatch(plan.workload.threads)
                else:
                    mark = recorder.device_times.begin(plan)
        try:
            result = work.run(plan, *given)
        except Exception as error:  # whatever a kernel's packages raise; none is swallowed: it is recorded, or raised
            if is_control_flow(error):
                raise
            attempt = attempt or _Attempt(work, site, given)
            attempt.failed(plan, error)
        else:
            if mark is not None:
                recorder.device_times.end(plan, work.direction, mark)
                recorder.harvest()
            if watch is None and attempt is None:
                return result
            attempt = attempt or _Attempt(work, site, given)
            if attempt.accepts(plan, result, watch):
                return result
        found = attempt.next_plan(plan)
        if found is None:
            return attempt.outcome()
        plan = found


class _Attempt:
    """One call that was timed or failed, with the kernels tried, their errors and their doubtful results.

    Args:
        work: What to run, and the check of its result.
        site: The call site that picked the plan; its recorder takes down times and failures.
        given: The arguments of `work.run` after the plan.
    """

    def __init__(self, work: Work, site: Site, given: tuple[Any, ...]):
        self.work, self.site, self.given = work, site, given
        self.errors: list[tuple[Plan, Exception]] = []
        self.doubts: list[tuple[Plan, str, Any]] = []
        self.is_retried = False

    def failed(self, plan: Plan, error: Exception) -> None:
        """Record what a plan's kernel raised, and keep it for the next attempts."""
        self.site.recorder.failed(plan, error, self.work.direction)
        if self.errors:
            # A traceback keeps alive what the kernel had begun; only that of the first error is shown. Called this way,
            # a frozen exception takes the change too.
            BaseException.with_traceback(error, None)
        self.errors.append((plan, error))

    def accepts(self, plan: Plan, result: Any, watch: Stopwatch | None) -> bool:
        """Return whether `result` may be returned to the caller; if so, record how the call went."""
        seconds, keep = (0.0, False) if watch is None else watch.stop()
        is_seen = watch is not None or self.doubts or (self.errors and is_host(plan.workload.device))
        fault = self._fault(result) if is_seen else None
        if isinstance(fault, Doubt):
            self.doubts.append((plan, fault, result))
            return False
        if fault is not None:
            self.failed(plan, fault)
            return False
        for doubted, reason, _ in self.doubts:
            self.failed(doubted, WrongResult(reason))
        self._settle(plan)
        if watch is not None:
            self.site.recorder.record(plan, seconds, self.work.direction, keep=keep)
        return True

    def next_plan(self, plan: Plan) -> Plan | None:
        """Return the plan to try after `plan`, None where the outcome is clear.

        The same plan is tried once more after memory ran out and was freed; else the next kernel is. Two doubts end the
        call.
        """
        if len(self.doubts) == 2:
            return None
        if self.errors and self.errors[-1][0] is plan and not self.is_retried:
            causes = [error for _, error in self.errors]
            if kind_of(causes[-1]) == "memory":
                self.is_retried = True
                free_memory(causes, plan.workload.framework, plan.workload.device)
                return plan
        tried = {each.kernel.name for each, _ in self.errors} | {each.kernel.name for each, _, _ in self.doubts}
        error = self.errors[-1][1] if self.errors and self.errors[-1][0] is plan else None
        found = self.site.stand_in(plan, tried, self.work.direction, error)
        if found is not None:
            _log.debug("%s runs in place of %s.", found.kernel.name, plan.kernel.name)
        return found

    def outcome(self) -> Any:
        """Return the result that was doubted first, or raise the first error: no kernel has done better."""
        if self.doubts:
            plan, _, result = self.doubts[0]
            self._settle(plan)
            return result
        (plan, _), *others = self.errors
        first = _first([error for _, error in self.errors])
        self.errors.clear()  # which the error's own traceback leads to
        self.site.recorder.all_failed(plan, first, self.work.direction)
        errors.note(first, plan.failure_note())
        for other, error in others:
            if other is not plan:
                errors.note(first, f"{other.kernel.name} failed too: {cause_of(error)}")
        try:
            raise first
        finally:
            del first, others

    def _fault(self, result: Any) -> Doubt | WrongResult | None:
        """Return what `work.fault` says is wrong with a result, or None; if it raises, the result is wrong."""
        if self.work.fault is None:
            return None
        try:
            said = self.work.fault(result, *self.given)
        except Exception as error:  # it is recorded, or raised where it comes of every kernel's result
            if is_control_flow(error):
                raise
            wrong = WrongResult(f"fault raised {cause_of(error)}")
            wrong.__cause__ = error
            return wrong
        return said if said is None or isinstance(said, Doubt) else WrongResult(said)

    def _settle(self, plan: Plan) -> None:
        """Quarantine the kernels that failed at this call, except that of `plan`, whose result is returned."""
        if self.errors:
            self.site.recorder.forgive(plan, at_once=True)
        last = {failed.kernel: (failed, error) for failed, error in self.errors if failed.kernel is not plan.kernel}
        self.errors.clear()
        for failed, error in last.values():
            self.site.recorder.quarantine(failed, error)


def _first(errors: Sequence[Exception]) -> BaseException:
    """Return the exception to raise when every kernel has failed.

    It is the first error; or, where the check of results itself raised for every kernel, the first exception that the
    check raised.
    """
    causes = [error.__cause__ for error in errors if isinstance(error, WrongResult)]
    unseen = [cause for cause in causes if cause is not None]
    return unseen[0] if len(unseen) == len(errors) else errors[0]


def _run(plan: Plan, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    plan.kernel.calls["run"] += 1
    return plan.kernel.run(*args, **kwargs)


def _fault_of(result: Any, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    return None if operation.fault is None else operation.fault(result, *args, **kwargs)


RUN = Work(_run, _fault_of)
