"""One kernel's standing for one workload, and the choice among all of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpfracc_nn.selection.cost import CostModel
from hpfracc_nn.selection.decision import Prediction
from hpfracc_nn.selection.environment import Settings
from hpfracc_nn.selection.machine import Rates
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.registry import Kernel
from hpfracc_nn.selection.workload import Workload

NOT_ALLOWED = "it would move the data to a device and back; allow it by configure(offload=True)"
DISABLED = "disabled by configure() or the environment"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a kernel would take, or why it does not come into question."""

    kernel: Kernel
    refusal: str | None
    seconds: float = math.inf  # forward and the backward that the workload asks for
    workspace: float = 0.0
    forward: float = math.inf
    uncertainty: float = 1.0
    saves: float = 0.0
    need: float = 0.0  # workspace, what is saved, and the results
    rows: int | None = None  # at a time, where all at once take too much memory

    @property
    def bytes(self) -> float:
        """What is taken beyond input and results: while it runs, and for the backward pass."""
        return self.workspace + self.saves

    @property
    def backward(self) -> float:
        """Seconds of the backward pass alone; none where nobody runs it, and so nobody times it."""
        is_run = self.refusal is None and self.kernel.is_differentiable
        return max(0.0, self.seconds - self.forward) if is_run else 0.0


def judge(kernels: Iterable[Kernel], workload: Workload, settings: Settings, model: CostModel) -> list[Verdict]:
    """Return one verdict per kernel, in their order.

    A kernel that is disabled or not forced is not asked, so its package is not imported.
    """
    verdicts, rates = [], None
    one_way = _one_way(workload)
    for kernel in kernels:
        refusal = _refusal(kernel, workload, settings)
        if refusal is not None:
            verdicts.append(Verdict(kernel, refusal))
            continue
        rates = rates or model.rates(workload)  # which calibrates, and only where a kernel accepts
        verdicts.append(_assessed(kernel, workload, one_way, model, rates))
    return verdicts


def still_refuse(verdicts: Iterable[Verdict], workload: Workload, settings: Settings) -> bool:
    """Return whether the kernels that refused do so still, for the same reasons; those that accepted are not asked."""
    refused = [each for each in verdicts if each.refusal is not None]
    return all(_refusal(each.kernel, workload, settings) == each.refusal for each in refused)


def assess(kernel: Kernel, workload: Workload, model: CostModel) -> Verdict:
    """Return what a kernel would take, whether it accepts the workload or not."""
    return _assessed(kernel, workload, _one_way(workload), model, model.rates(workload))


def accepted(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return those that may run, fastest first; of equals, the first registered."""
    return sorted((v for v in verdicts if v.refusal is None), key=lambda v: v.seconds)


def plan_of(
    name: str,
    reason: str,
    verdicts: Sequence[Verdict],
    workload: Workload,
    settings: Settings,
    *,
    learns: bool = False,
    provisional: bool = False,
    believed: Mapping[str, Prediction] | None = None,
) -> Plan:
    """Return the plan that runs one of the kernels that accept.

    Args:
        name: The kernel.
        reason: Why.
        verdicts: On all kernels.
        workload: What they were made for.
        settings: Of the manager.
        learns: Whether the choice is to be reconsidered.
        provisional: Whether a kernel that may be better is left out for a while.
        believed: What is expected of the kernels after measurements; without it the estimates stand.
    """
    ranked = accepted(verdicts)
    chosen = next(each for each in verdicts if each.kernel.name == name)  # which may refuse since it was decided upon
    found = {each.kernel.name: (each.seconds, each.uncertainty) for each in (chosen, *ranked)}
    for kernel, said in (believed or {}).items():
        found[kernel] = said.seconds, said.high / said.seconds
    others = sorted((seconds, kernel, doubt) for kernel, (seconds, doubt) in found.items() if kernel != name)
    seconds, uncertainty = found[name]
    return Plan(
        kernel=chosen.kernel,
        workload=workload,
        seconds=seconds,
        uncertainty=uncertainty,
        workspace=chosen.workspace,
        reason="forced" if settings.forced else why(reason, name, ranked, provisional),
        alternatives=tuple((kernel, seconds) for seconds, kernel, _ in others),
        doubts=tuple(doubt for _, _, doubt in others),
        sample=settings.sample,
        learns=learns,
        chunk=chosen.rows,
        provisional=provisional,
        devices=_devices(settings, workload) if chosen.kernel.offloads else (),
    )


def _devices(settings: Settings, workload: Workload) -> tuple[str, ...]:
    """Return where a kernel that offloads computes: on one device where nothing may depend on who is free."""
    return settings.devices[:1] if settings.is_deterministic(workload.framework) else settings.devices


def why(reason: str, name: str, verdicts: Iterable[Verdict], provisional: bool) -> str:
    """Return the reason of a choice: "only" where no other kernel accepts, or would if it were not left alone."""
    others = any(each.refusal is None and each.kernel.name != name for each in verdicts)
    return reason if others or provisional else "only"


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
    if kernel.offloads and not settings.offload:
        return NOT_ALLOWED
    refusal: str | None = kernel.ask("refuses", workload)
    out_of_reach = (kernel.reaches(device) for device in settings.devices) if kernel.offloads else ()
    return refusal or next((said for said in out_of_reach if said is not None), None)


def _one_way(workload: Workload) -> Workload:
    """Return the forward pass alone: the workload itself where it wants no gradient."""
    if workload.needs_gradient or workload.learns_weights:
        return replace(workload, needs_gradient=False, learns_weights=False)
    return workload


def _assessed(kernel: Kernel, workload: Workload, one_way: Workload, model: CostModel, rates: Rates) -> Verdict:
    cost, saves = kernel.ask("cost", workload), kernel.ask("saves", workload)
    seconds = model.seconds(cost, rates)
    forward = seconds if one_way is workload else model.seconds(kernel.ask("cost", one_way), rates)
    passes = 1 + (workload.needs_gradient and workload.learns_weights)  # results of the larger one
    need = cost.workspace + saves + (0 if workload.in_place else workload.bytes * passes)
    return Verdict(kernel, None, seconds, cost.workspace, forward, model.uncertainty, saves, need)
