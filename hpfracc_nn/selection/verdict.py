"""One kernel's standing for one workload, and the choice among all of them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hpfracc_nn.selection.cost import CostModel
from hpfracc_nn.selection.environment import Settings
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.registry import Kernel
from hpfracc_nn.selection.workload import Workload

DISABLED = "disabled by configure() or the environment"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a kernel would take, or why it does not come into question."""

    kernel: Kernel
    refusal: str | None
    seconds: float = math.inf
    workspace: float = 0.0


def judge(kernels: Iterable[Kernel], workload: Workload, settings: Settings, model: CostModel) -> list[Verdict]:
    """Return one verdict per kernel, in their order.

    A kernel that is disabled or not forced is not asked, so its package is not imported.
    """
    verdicts = []
    for kernel in kernels:
        refusal = _refusal(kernel, workload, settings)
        if refusal is not None:
            verdicts.append(Verdict(kernel, refusal))
            continue
        cost = kernel.cost(workload)
        seconds = model.seconds(cost, model.rates(workload))
        verdicts.append(Verdict(kernel, None, seconds, cost.workspace))
    return verdicts


def accepted(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return those that may run, fastest first; of equals, the first registered."""
    return sorted((v for v in verdicts if v.refusal is None), key=lambda v: v.seconds)


def choose_plan(verdicts: list[Verdict], workload: Workload, settings: Settings, model: CostModel) -> Plan:
    """Return the plan with the lowest estimate.

    Raises:
        LookupError: Every kernel is refused, disabled or not the forced one.
    """
    ranked = accepted(verdicts)
    if not ranked:
        raise LookupError(no_kernel(verdicts, workload, settings))
    best, *others = ranked
    return Plan(
        kernel=best.kernel,
        workload=workload,
        seconds=best.seconds,
        uncertainty=model.uncertainty,
        workspace=best.workspace,
        reason="forced" if settings.forced else "prior" if others else "only",
        alternatives=tuple((other.kernel.name, other.seconds) for other in others),
        sample=settings.sample,
    )


def no_kernel(verdicts: list[Verdict], workload: Workload, settings: Settings) -> str:
    """Return the message for a workload that no kernel accepts, with the way out."""
    forced = settings.forced
    asked = [v for v in verdicts if settings.admits(v.kernel.backend, v.kernel.algorithm)]
    if forced and not asked:
        have = ", ".join(verdict.kernel.name for verdict in verdicts)
        causes = f"registered are only {have}"
    else:
        causes = "; ".join(f"{verdict.kernel.name}: {verdict.refusal}" for verdict in asked)
    ways = []
    if forced:
        ways.append("lift the force with configure(force_backend=None, force_algorithm=None)")
    if any(verdict.refusal == DISABLED for verdict in asked):
        ways.append("enable one with configure(disable=None)")
    if ways:
        ways[-1] += (
            " or in the environment (HPFRACC_NN_FORCE_*, HPFRACC_NN_DISABLE*, HPFRACC_FORCE_*, HPFRACC_DISABLE_*)"
        )
    else:
        ways.append("change what a refusal names, or register a kernel that accepts this workload")
    head = f"no kernel for {workload}" + (f" with {forced}" if forced else "")
    return f"{head}: {causes}; {', or '.join(ways)}."


def _refusal(kernel: Kernel, workload: Workload, settings: Settings) -> str | None:
    if settings.disables(kernel.backend, kernel.algorithm):
        return DISABLED
    if not settings.admits(kernel.backend, kernel.algorithm):
        return f"not asked: {settings.forced}"
    return kernel.refuses(workload)
