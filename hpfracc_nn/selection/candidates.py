"""The kernels that come into question for a workload, with their estimates, and the reasons why others do not.

A kernel is assessed by its cost, refused where it takes more memory than a call may, and ranked by the objective.
Memory is a fact of the kernel and needs no learning: what the whole call takes, workspace, what is saved for the
backward pass, and results. Energy counts as time: on one device it is power times time, and the power is not
known by kernel.

A workload is one operation on `rows` signals of `n` samples each, in one dtype on one device (`workload.py`).
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from hpfracc_nn.selection.machine import CostModel, Machine
from hpfracc_nn.selection.memory import SMALL, FreeMemory, allowed, chunks, in_bytes, setting_of
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.quarantine import Quarantine
from hpfracc_nn.selection.registry import Kernel, has_probe, kernels
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.workload import Workload

NOT_ALLOWED = "it would move the data to a device and back; allow it by configure(offload=True)"
MOST_ASSESSED = 4096  # workloads
_ALIKE = 1.01  # times the fewest bytes: allocators round up by more
DISABLED = "disabled by configure() or the environment"


class Assessment(NamedTuple):
    """The estimated time and memory of one kernel for a workload; or `refusal`, why it does not come into question."""

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
        """Bytes held beyond input and results: while the kernel runs, and for the backward pass."""
        return self.workspace + self.saves

    @property
    def backward(self) -> float:
        """Seconds of the backward pass alone; 0 for a kernel without an adjoint, whose backward pass is never timed."""
        is_run = self.refusal is None and self.kernel.is_differentiable
        return max(0.0, self.seconds - self.forward) if is_run else 0.0


class Candidates:
    """The kernels that come into question for a workload now: assessed, fitted into memory, not quarantined.

    What kernels say of a workload is kept until `invalidate`, but refusals are asked for again. Callers hold the
    manager's lock.

    Args:
        settings: The manager's settings.
        machine: The machine whose rates estimates are made with.
        quarantine: The kernels that failed.
        clock: Seconds that never go back, by which the quarantine ends.
        before_rates: Called before rates are first needed: it reads them from wisdom, which saves a calibration.

    Attributes:
        epoch: A number that changes at each `invalidate`; sites compare it at every call.
    """

    def __init__(
        self,
        settings: Settings,
        machine: Machine,
        quarantine: Quarantine,
        clock: Callable[[], float],
        before_rates: Callable[[], None],
    ):
        self.settings, self.machine, self.quarantine, self.clock = settings, machine, quarantine, clock
        self.epoch = 0
        self.memory = FreeMemory()
        self._epochs = itertools.count(1)
        self._before_rates = before_rates
        self._assessed: dict[Workload, tuple[int, list[Assessment]]] = {}  # with the epoch that they belong to

    def invalidate(self) -> None:
        """Ask every kernel again from now on; takes no lock."""
        self._assessed.clear()
        self.memory.plenty.clear()
        self.epoch = next(self._epochs)

    def of(self, workload: Workload) -> tuple[list[Assessment], bool]:
        """Return an assessment of every kernel, and whether the quarantine refuses some; at least one accepts.

        Raises:
            LookupError: None accepts.
        """
        fitting = self.fitting(workload)
        if all(each.refusal is not None for each in fitting):
            raise LookupError(no_kernel(fitting, workload, self.settings.of(workload.op)))
        found = self.reduced(fitting, workload)
        return found, found is not fitting

    def now(self, workload: Workload) -> list[Assessment]:
        """Return an assessment of every kernel, whether or not any accepts; an empty list without kernels."""
        try:
            return self.reduced(self.fitting(workload), workload)
        except LookupError:  # every kernel was unregistered meanwhile
            return []

    def fitting(self, workload: Workload) -> list[Assessment]:
        """Return an assessment of every kernel, with the limit of memory but without the quarantine.

        A kernel that takes more memory than a call may is refused or, where all do, assessed for fewer rows at a time.

        Raises:
            LookupError: The operation has no kernel for these arrays.
        """
        settings = self.settings.of(workload.op)
        epoch, found = self._assessed.get(workload, (-1, []))
        if epoch != self.epoch or not still_refuse(found, workload, settings):
            if len(self._assessed) >= MOST_ASSESSED:
                self._assessed.clear()
            self._before_rates()
            model = self.model(workload.framework)
            epoch = self.epoch  # read first: another thread may register or remove a kernel meanwhile
            found = assessments_of(kernels(workload.op, workload.framework), workload, settings, model)
            self._assessed[workload] = epoch, found
        return self._fitted(found, workload, settings)

    def reduced(self, assessments: list[Assessment], workload: Workload) -> list[Assessment]:
        """Return the assessments with a refusal for kernels in quarantine, unless no other accepts."""
        if not self.quarantine.holds:
            return assessments
        now = self.clock()

        def marked(each: Assessment) -> Assessment:
            if each.refusal is not None:
                return each
            size = each.workspace + workload.bytes
            refusal = self.quarantine.refusal(each.kernel, workload, size=size, now=now)
            return each if refusal is None else each._replace(refusal=refusal)

        found = [marked(each) for each in assessments]
        return assessments if found == assessments or not accepted(found) else found

    def is_quarantined(self, plan: Plan) -> bool:
        """Return whether the kernel of a plan is in quarantine for the plan's workload."""
        size = plan.workspace + plan.workload.bytes
        return self.quarantine.refusal(plan.kernel, plan.workload, size=size, now=self.clock()) is not None

    def model(self, framework: str) -> CostModel:
        """Return the CostModel for a framework's arrays; its rates are the shipped ones in deterministic mode."""
        is_measured = has_probe(framework) and not self.settings.is_deterministic(framework)
        return CostModel(self.machine, self.settings.calibration if is_measured else "shipped")

    def _fitted(self, assessments: list[Assessment], workload: Workload, settings: Settings) -> list[Assessment]:
        """Return the assessments, with a refusal for each kernel that would take more memory than a call may.

        If every kernel would, each is assessed for as many rows at a time as keep within the limit. The result itself
        cannot be split: if it alone is larger than the free memory, all kernels refuse. In deterministic mode only a
        limit in bytes counts, not what is free.
        """
        need = max([each.need for each in assessments if each.refusal is None], default=0.0)
        if need <= self.memory.plenty.get((workload.framework, workload.device), 0.0):
            return assessments
        is_fixed = settings.is_deterministic(workload.framework)
        there = None if is_fixed else self.memory.free(workload.framework, workload.device, need)
        most = allowed(there, workload.device, settings)
        if there is not None and most is not None:
            self.memory.plenty[workload.framework, workload.device] = min(SMALL * there, most)
        if most is None or need <= most:
            return assessments
        if there is not None and workload.bytes > there:
            reason = f"the result takes {in_bytes(workload.bytes)}, and {in_bytes(there)} are free"
            return [each._replace(refusal=reason) if each.refusal is None else each for each in assessments]
        if any(each.need <= most for each in accepted(assessments)):
            return [_refused(each, most, workload) for each in assessments]
        estimates = self.model(workload.framework)
        parts = (in_parts(each, workload, most, estimates) if each.refusal is None else each for each in assessments)
        return [_refused(each, most, workload) if each.rows is None else each for each in parts]


def assessments_of(
    kernels: Iterable[Kernel], workload: Workload, settings: Settings, model: CostModel
) -> list[Assessment]:
    """Return an assessment of each kernel, in their order.

    A kernel that is disabled or not forced is not asked, so its package is not imported.
    """
    assessments: list[Assessment] = []
    assess = None
    for kernel in kernels:
        refusal = _refusal(kernel, workload, settings)
        if refusal is None:
            assess = assess or assessor(workload, model)  # which calibrates, and only where a kernel accepts
            assessments.append(assess(kernel))
        else:
            assessments.append(Assessment(kernel, refusal))
    return assessments


def still_refuse(assessments: Iterable[Assessment], workload: Workload, settings: Settings) -> bool:
    """Return whether every kernel that refused still does, for the same reason; the others are not queried."""
    for each in assessments:
        if each.refusal is not None and _refusal(each.kernel, workload, settings) != each.refusal:
            return False
    return True


def assessor(workload: Workload, model: CostModel) -> Callable[[Kernel], Assessment]:
    """Return a function that assesses a kernel for `workload`, whether or not the kernel accepts the workload."""
    rates, uncertainty = model.rates(workload), model.uncertainty
    passes = 1 + (workload.needs_gradient and workload.learns_weights)  # results of the larger one
    results = 0 if workload.in_place else workload.bytes * passes
    has_gradient = workload.needs_gradient or workload.learns_weights
    one_way = workload.changed(needs_gradient=False, learns_weights=False) if has_gradient else workload

    def assess(kernel: Kernel) -> Assessment:
        cost, saves = kernel.ask("cost", workload), kernel.ask("saves", workload)
        forward = seconds = model.seconds(cost, rates)
        if has_gradient:
            forward = model.seconds(kernel.ask("cost", one_way), rates)
        need = cost.workspace + saves + results
        return Assessment(kernel, None, seconds, cost.workspace, forward, uncertainty, saves, need)

    return assess


def accepted(assessments: Iterable[Assessment]) -> list[Assessment]:
    """Return the assessments of kernels that may run, fastest first; of equals, the first registered."""
    return sorted([each for each in assessments if each.refusal is None], key=attrgetter("seconds"))


def no_kernel(assessments: list[Assessment], workload: Workload, settings: Settings) -> str:
    """Return the message for a workload that no kernel accepts, with the way out."""
    forced = settings.forced
    asked = [v for v in assessments if settings.admits(v.kernel.backend, v.kernel.algorithm)]
    if forced and not asked:
        have = ", ".join(assessment.kernel.name for assessment in assessments)
        causes = f"registered are only {have}"
    else:
        causes = "; ".join(f"{assessment.kernel.name}: {assessment.refusal}" for assessment in asked)
    ways = []
    if forced:
        ways.append("lift the force with configure(force_backend=None, force_algorithm=None)")
    if any(assessment.refusal == DISABLED for assessment in asked):
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
    if settings.disabled and settings.disables(kernel.backend, kernel.algorithm):
        return DISABLED
    if settings.is_forced and not settings.admits(kernel.backend, kernel.algorithm):
        return f"not asked: {settings.forced}"
    if kernel.offloads and not settings.offload:
        return NOT_ALLOWED
    refusal: str | None = kernel.ask("refuses", workload)
    if refusal is None and kernel.offloads:
        refusal = next((said for device in settings.devices if (said := kernel.reaches(device)) is not None), None)
    if refusal is None and kernel.unproven is not None and settings.force_backend != kernel.backend:
        return f"{kernel.unproven}; run it by configure(force_backend={kernel.backend!r})"
    return refusal


def eligible(assessments: Iterable[Assessment], settings: Settings) -> list[Assessment]:
    """Return the assessments of kernels to choose from: all that accept.

    Where the objective is memory alone, they are those that need least of it.
    """
    able = [each for each in assessments if each.refusal is None]
    if _exponent(settings) is not None or not able:
        return able
    least = min(each.need for each in able)
    return [each for each in able if each.need <= _ALIKE * least]


def handicaps(assessments: Sequence[Assessment], settings: Settings) -> dict[str, float]:
    """Return a factor for each kernel, by name: the best choice has the least product of time and factor.

    With weights a for time and b for memory the best has the least a log(seconds) + b log(bytes), that is the least
    seconds * bytes**(b / a): twice the bytes cost as much as 2**(b / a) times the time.
    """
    exponent = _exponent(settings) or 0.0
    if not exponent:
        return {each.kernel.name: 1.0 for each in assessments}
    least = min(max(1.0, each.need) for each in assessments)
    return {each.kernel.name: (max(1.0, each.need) / least) ** exponent for each in assessments}


def ranked(assessments: Iterable[Assessment], settings: Settings) -> list[Assessment]:
    """Return the assessments of kernels to choose from, best first by the estimate and the objective."""
    found = eligible(assessments, settings)
    factors = handicaps(found, settings)
    return sorted(found, key=lambda each: each.seconds * factors[each.kernel.name])


def in_words(settings: Settings) -> str:
    """Return the objective in words, such as "for little memory"; "" for latency alone."""
    weights = settings.weights
    if set(weights) == {"latency"}:
        return ""
    if len(weights) == 1:
        return f"for little {next(iter(weights))}"
    return "for little " + " and ".join(f"{name} (weight {weight:g})" for name, weight in weights.items())


def _exponent(settings: Settings) -> float | None:
    """Return b / a, where the objective is a log(seconds) + b log(bytes); None if a is 0."""
    if settings.objective == "latency":
        return 0.0
    weights = settings.weights
    time = weights.get("latency", 0.0) + weights.get("energy", 0.0)
    return weights.get("memory", 0.0) / time if time else None


def in_parts(assessment: Assessment, workload: Workload, most: float, model: CostModel) -> Assessment:
    """Return the assessment with as many rows at a time as keep within `most` bytes; unchanged where not one does.

    Every channel of the weights has equally many rows, so the number of rows is a multiple of the channels.
    """
    units, channels = workload.rows // workload.channels, workload.channels

    def part(count: int) -> Assessment:
        return assessor(workload.changed(rows=count * channels), model)(assessment.kernel)

    one = part(1).need
    each = max(0.0, part(2).need - one)
    count = chunks(units, each, most, fixed=max(0.0, one - each))
    while count > 1 and part(count).need > most:  # what a kernel takes need not be a straight line
        count //= 2
    if count == 0 or part(count).need > most:
        return assessment
    found, times = part(count), -(-units // count)
    return found._replace(seconds=times * found.seconds, forward=times * found.forward, rows=count * channels)


def _refused(assessment: Assessment, most: float, workload: Workload) -> Assessment:
    if assessment.refusal is not None or assessment.need <= most:
        return assessment
    allowed = f"{in_bytes(most)} ({setting_of(workload.device)})"
    return assessment._replace(refusal=f"it takes {in_bytes(assessment.need)} of memory, and a call may take {allowed}")
