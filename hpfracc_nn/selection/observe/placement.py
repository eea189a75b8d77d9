"""How to spread the rows of a workload over several devices, so that all are done at the same time.

Nothing is moved: the answer is for callers who may place their data, such as a loader that fills several devices.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.workload import Workload


@dataclass(frozen=True, slots=True)
class Share:
    """What one device gets.

    Args:
        device: The framework's name for it.
        rows: So many signals, beginning where those of the device before end.
        seconds: When it is predicted to be done: what it has to do before, the transfer, and the computation.

    Examples:
        >>> work = workload((256, 1024), Caputo(0.5), framework="numpy")
        >>> (share,) = BackendManager().place(work, ["cpu"])  # one device gets all
        >>> share.device, share.rows
        ('cpu', 256)
    """

    device: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a device takes: `start` seconds, and `each` for every row."""

    device: str
    start: float
    each: float
    most: int

    def seconds(self, rows: float) -> float:
        """Return when so many rows are done."""
        return self.start + self.each * rows


def paced(
    workload: Workload,
    device: str,
    plan: Callable[[Workload], Plan],
    *,
    start: float = 0.0,
    bandwidth: float = math.inf,
) -> Pace:
    """Return how long a device takes, a line through what is predicted of one row and of as many as it can take.

    Args:
        workload: All of it.
        device: Whose pace.
        plan: Returns the plan for a workload; it raises LookupError where no kernel accepts it.
        start: Seconds before the device can begin.
        bandwidth: Bytes per second between where the data are and the device, in either direction.
    """

    def seconds(rows: int) -> float:
        asked = replace(workload, device=device, rows=rows)
        return plan(asked).seconds + 2 * asked.bytes / bandwidth

    most = _most(workload.rows, seconds)
    if not most:
        return Pace(device, start, 1.0, 0)
    one = seconds(1)
    each = (seconds(most) - one) / (most - 1) if most > 1 else one
    each = max(each, one / most)  # a prediction may say that more rows take no longer; they take part of the time
    return Pace(device, start + max(one - each, 0.0), each, most)


def _most(rows: int, seconds: Callable[[int], float]) -> int:
    """Return how many rows some kernel accepts: all, or half as many until one does."""
    while rows:
        try:
            seconds(rows)
        except LookupError:  # too much memory, or no kernel for that device
            rows //= 2
        else:
            break
    return rows


def refuse(
    workload: Workload, devices: Sequence[str], busy: Mapping[str, float], bandwidths: Mapping[str, float] | None
) -> None:
    """Raise ValueError where `place` cannot be asked so."""
    if isinstance(devices, str):
        raise ValueError(f"place(devices={devices!r}): needs a list of devices; write [{devices!r}].")
    if not devices or len(set(devices)) < len(devices):
        raise ValueError(f"place(devices={list(devices)!r}): needs one device or more, each once.")
    if not workload.rows:
        raise ValueError("place(workload=...): needs one row or more; there are 0.")
    for name, given, known in (
        ("busy", busy, set(devices)),
        ("bandwidths", bandwidths or {}, {workload.device, *devices}),
    ):
        unknown = [device for device in given if device not in known]
        if unknown:
            raise ValueError(f"place({name}=...): {', '.join(map(repr, unknown))} is none of {sorted(known)}.")
    for device, seconds in busy.items():
        if not 0 <= seconds < math.inf:
            raise ValueError(f"place(busy={{{device!r}: {seconds}}}): needs seconds that are finite and not negative.")
    for device, bandwidth in (bandwidths or {}).items():
        if not bandwidth > 0:
            raise ValueError(f"place(bandwidths={{{device!r}: {bandwidth}}}): needs bytes per second > 0.")
    missing = [device for device in devices if device not in {workload.device, *(bandwidths or devices)}]
    if missing:
        raise ValueError(f"place(bandwidths=...): needs one for {', '.join(missing)} too, in bytes per second.")


def spread(rows: int, paces: Sequence[Pace]) -> list[Share]:
    """Return the shares that are all done as early as possible; a device that would be too late gets none.

    With T the time at which all are done, device d takes (T - start_d) / each_d rows, or as many as it can; T follows
    from their sum. Rows are whole: those that are left over go where they are done first.

    Raises:
        ValueError: The devices together cannot take so many rows.
    """
    if sum(pace.most for pace in paces) < rows:
        raise ValueError(f"spread(rows={rows}): needs room for all; the devices take {sum(p.most for p in paces)}.")
    low, high = min(pace.start for pace in paces), max(pace.seconds(rows) for pace in paces)
    for _ in range(60):  # to a part in 1e18
        middle = (low + high) / 2
        low, high = (low, middle) if sum(_taken(pace, middle) for pace in paces) >= rows else (middle, high)
    taken = [int(_taken(pace, low)) for pace in paces]
    for _ in range(rows - sum(taken)):
        free = [number for number, pace in enumerate(paces) if taken[number] < pace.most]
        taken[min(free, key=lambda number: paces[number].seconds(taken[number] + 1))] += 1
    return [Share(pace.device, count, pace.seconds(count)) for pace, count in zip(paces, taken, strict=True) if count]


def _taken(pace: Pace, until: float) -> float:
    """Return the rows that a device can do until then."""
    return min(max(0.0, (until - pace.start) / pace.each), float(pace.most)) if until > pace.start else 0.0
