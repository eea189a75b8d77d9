"""Which kernels fit into the memory that there is, and how many rows at a time where none does."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from hpfracc_nn.selection.cost import CostModel
from hpfracc_nn.selection.memory import chunks, free, in_bytes, limit_of, setting_of
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.verdict import Verdict, accepted, assess
from hpfracc_nn.selection.workload import Workload

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
        most = limit_of(there, workload.device, settings)
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
