"""The kernels that come into question for a workload, with their estimates, and why the others do not.

A kernel is assessed by its cost, refused where it takes more memory than a call may, and ranked by the objective.
Memory is a fact of the kernel and needs no learning: what the whole call takes, workspace, what is saved for the
backward pass, and results. Energy counts as time: on one device it is power times time, and the power is not
known by kernel.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpfracc_nn.selection.learning.model import Prediction
from hpfracc_nn.selection.machine import CostModel, Rates
from hpfracc_nn.selection.memory import allowed, chunks, free, in_bytes, setting_of
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.registry import Kernel
from hpfracc_nn.selection.settings import Settings
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


_ALIKE = 1.01  # times the fewest bytes: allocators round up by more


def eligible(verdicts: Iterable[Verdict], settings: Settings) -> list[Verdict]:
    """Return those of the kernels that accept which come into question: for the memory alone, those that take least."""
    able = [each for each in verdicts if each.refusal is None]
    if _exponent(settings) is not None or not able:
        return able
    least = min(each.need for each in able)
    return [each for each in able if each.need <= _ALIKE * least]


def handicaps(verdicts: Sequence[Verdict], settings: Settings) -> dict[str, float]:
    """Return by kernel the factor on its time that makes the least product the best choice.

    With weights a for time and b for memory the best has the least a log(seconds) + b log(bytes), that is the least
    seconds * bytes**(b / a): twice the bytes cost as much as 2**(b / a) times the time.
    """
    exponent = _exponent(settings) or 0.0
    if not exponent:
        return {each.kernel.name: 1.0 for each in verdicts}
    least = min(max(1.0, each.need) for each in verdicts)
    return {each.kernel.name: (max(1.0, each.need) / least) ** exponent for each in verdicts}


def ranked(verdicts: Iterable[Verdict], settings: Settings) -> list[Verdict]:
    """Return those that come into question, best first by the estimate."""
    found = eligible(verdicts, settings)
    factors = handicaps(found, settings)
    return sorted(found, key=lambda each: each.seconds * factors[each.kernel.name])


def in_words(settings: Settings) -> str:
    """Return what the choice goes by, "" for time alone."""
    weights = settings.weights
    if set(weights) == {"latency"}:
        return ""
    if len(weights) == 1:
        return f"for little {next(iter(weights))}"
    return "for little " + " and ".join(f"{name} (weight {weight:g})" for name, weight in weights.items())


def _exponent(settings: Settings) -> float | None:
    """Return the weight of memory over that of time, None where time does not count."""
    if settings.objective == "latency":
        return 0.0
    weights = settings.weights
    time = weights.get("latency", 0.0) + weights.get("energy", 0.0)
    return weights.get("memory", 0.0) / time if time else None


SMALL = 1 / 16  # of what was free when it was last asked: less is not worth a question
MOST_ANSWERS = 256  # that one reading serves
OLDEST = 1.0  # seconds


@dataclass(slots=True)
class _Reading:
    free: int | None
    read: float
    answers: int = 0


class Room:
    """Remembers what was free on each device, because reading it takes 0.1 to 0.3 ms on the host."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], _Reading] = {}

    def fit(
        self, verdicts: list[Verdict], workload: Workload, settings: Settings, model: Callable[[str], CostModel]
    ) -> list[Verdict]:
        """Return the verdicts, with a refusal for each kernel that takes more memory than a call may.

        Where all of them do, each takes as many rows at a time as keep within the limit. What cannot be cut is the
        result as a whole: where that alone is more than what is free, all refuse. In deterministic mode only a limit
        in bytes counts, not what is free.

        Args:
            verdicts: Of all kernels.
            workload: What they were made for.
            settings: With the limits.
            model: Returns who estimates fewer rows, for a framework.
        """
        need = max((each.need for each in verdicts if each.refusal is None), default=0.0)
        if not need:
            return verdicts
        is_fixed = settings.is_deterministic(workload.framework)
        there = None if is_fixed else self._free(workload, need)
        most = allowed(there, workload.device, settings)
        if most is None or need <= most:
            return verdicts
        if there is not None and workload.bytes > there:
            reason = f"the result takes {in_bytes(workload.bytes)}, and {in_bytes(there)} are free"
            return [replace(each, refusal=reason) if each.refusal is None else each for each in verdicts]
        if any(each.need <= most for each in accepted(verdicts)):
            return [_refused(each, most, workload) for each in verdicts]
        estimates = model(workload.framework)
        parts = (in_parts(each, workload, most, estimates) if each.refusal is None else each for each in verdicts)
        return [_refused(each, most, workload) if each.rows is None else each for each in parts]

    def _free(self, workload: Workload, need: float) -> int | None:
        """Return what is free, read anew where it matters and the last reading is old."""
        place = workload.framework, workload.device
        found, now = self._read.get(place), time.monotonic()
        if found is not None:
            found.answers += 1
            is_old = found.answers > MOST_ANSWERS or now - found.read > OLDEST
            if found.free is None or not is_old or need <= SMALL * found.free:
                return found.free
        try:
            there = free(*place)
        except LookupError:  # a framework without a probe: it cannot be told
            there = None
        self._read[place] = _Reading(there, now)
        return there


def in_parts(verdict: Verdict, workload: Workload, most: float, model: CostModel) -> Verdict:
    """Return the verdict on computing as many rows at a time as keep within `most` bytes; itself where not even one.

    Every channel of the weights has as many of them, so their number is a multiple of the channels.
    """
    units, channels = workload.rows // workload.channels, workload.channels

    def part(count: int) -> Verdict:
        return assess(verdict.kernel, replace(workload, rows=count * channels), model)

    one = part(1).need
    each = max(0.0, part(2).need - one)
    count = chunks(units, each, most, fixed=max(0.0, one - each))
    while count > 1 and part(count).need > most:  # what a kernel takes need not be a straight line
        count //= 2
    if count == 0 or part(count).need > most:
        return verdict
    found, times = part(count), -(-units // count)
    return replace(
        found, seconds=times * found.seconds, forward=times * found.forward, need=found.need, rows=count * channels
    )


def _refused(verdict: Verdict, most: float, workload: Workload) -> Verdict:
    if verdict.refusal is not None or verdict.need <= most:
        return verdict
    allowed = f"{in_bytes(most)} ({setting_of(workload.device)})"
    return replace(verdict, refusal=f"it takes {in_bytes(verdict.need)} of memory, and a call may take {allowed}")
