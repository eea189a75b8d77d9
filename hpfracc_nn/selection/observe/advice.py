"""Advice: what would make the calls so far faster, and how to spread the rows of a workload over several devices.

Each piece of advice is in words, with the figures that it rests on. Nothing is moved or changed: the answers are for
callers who may place their data, such as a loader that fills several devices.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpfracc_nn.selection.candidates import accepted, assessor
from hpfracc_nn.selection.machine import parts
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.planner import Planner
from hpfracc_nn.selection.workload import Measurement, Workload

GAIN = 1.5  # times as fast, or nothing is said: a smaller gain is within what an estimate is off by
MOST_ROWS = 64  # times as many rows in a call are advised, at most
MOSTLY = 0.5  # part of a call's time in launches, from which on batching is advised
TRANSFERS = 0.2  # part of a kernel's time in transfers, from which on keeping data is advised
HAND_OVER = 1e-3  # seconds of arithmetic, below which more threads gain little: handing over takes some 20 us


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is predicted for a workload.

    Args:
        kernel: Name of the kernel that would run.
        seconds: The predicted time of this kernel.
        launching: Its seconds of library calls, however much data they have.
        computing: Its seconds of arithmetic, by the roofline.
        moving: Its seconds of memory traffic, which overlap with the arithmetic.
        missing: Kernels whose package is not installed: name -> (why it refuses, its estimated seconds).
    """

    kernel: str
    seconds: float
    launching: float = 0.0
    computing: float = 0.0
    moving: float = 0.0
    missing: Mapping[str, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Case:
    """The calls of one workload at one call site, whichever kernels ran.

    Attributes:
        label: The site's name in reports.
        expected: What is predicted for the workload.
        foresee: Returns the Expectation of another workload, None if no kernel accepts it.
    """

    label: str
    workload: Workload
    calls: int
    taken: float  # seconds so far: of a call, measured where they were, times the calls
    expected: Expectation
    foresee: Callable[[Workload], Expectation | None]

    def described(self) -> str:
        work = self.workload
        return f"{self.label}: {self.calls} calls of {work.rows} x {work.n} x {work.width} {work.dtype}"


Advice = tuple[float, str]  # seconds that the calls so far would have been shorter by, and the words


def advice(
    sites: Iterable[tuple[str, Sequence[Plan]]],
    history: Sequence[Measurement],
    foresee: Callable[[Workload], Expectation | None],
    cores: int,
) -> list[str]:
    """Return in words what would make the calls faster, the most seconds first; nothing where nothing was measured.

    Args:
        sites: The label and the plans of each call site.
        history: Measurements of live calls.
        foresee: Returns the Expectation of a workload, None where no kernel accepts it.
        cores: How many the process may use.
    """
    known = {each.workload for each in history}
    cases = [case for label, plans in sites for case in _cases(label, plans, known, foresee)]
    found = [each for case in cases for ask in _OF_ONE for each in ask(case)]
    found += [*_more_threads(cases, cores), *_fused(cases), *_kept_there(history)]
    found.sort(key=lambda each: -each[0])
    return list(dict.fromkeys(words for _, words in found))


def _cases(
    label: str, plans: Iterable[Plan], known: Collection[Workload], foresee: Callable[[Workload], Expectation | None]
) -> Iterator[_Case]:
    by_workload: dict[Workload, list[Plan]] = defaultdict(list)
    for plan in plans:
        if plan.workload in known:
            by_workload[plan.workload].append(plan)
    for workload, some in by_workload.items():
        calls, expected = sum(plan.forwards for plan in some), foresee(workload)
        if calls and expected is not None:
            yield _Case(label, workload, calls, sum(map(_seconds_spent, some)), expected, foresee)


def _seconds_spent(plan: Plan) -> float:
    forward, backward = plan.quantile("forward"), plan.quantile("backward")
    if forward is None:
        return plan.forwards * plan.seconds
    return plan.forwards * forward + plan.backwards * (backward or 0.0)


def _more_rows(case: _Case) -> Iterator[Advice]:
    """Yield the advice to batch more rows into a call, if launches take most of it: a call pays them once."""
    now, work = case.expected, case.workload
    if now.launching < MOSTLY * now.seconds or case.calls < 2:
        return
    times = 1 << min(int(math.log2(MOST_ROWS)), int(math.log2(case.calls)))
    then = case.foresee(work.changed(rows=times * work.rows))
    if then is None or times * now.seconds < GAIN * then.seconds:
        return
    gain = times * now.seconds / then.seconds
    share = min(1.0, now.launching / now.seconds)
    words = (
        f"batch more: {case.described()}, {share:.0%} of each {_us(now.seconds)} is launches; "
        f"with {times * work.rows} rows a call they are predicted to take 1 / {gain:.2g} of the time."
    )
    yield _saved(case, gain), words


def _other_layout(case: _Case) -> Iterator[Advice]:
    """Yield the advice to move the time axis, if the same samples would take less time in the other layout."""
    work = case.workload
    if work.channels > 1:  # their axis is bound to the layout
        return
    if work.width > 1:
        other, where = work.changed(rows=work.rows * work.width, width=1), "last"
    elif work.rows > 1:
        other, where = work.changed(rows=1, width=work.rows), "in the middle"
    else:
        return
    then = case.foresee(other)
    if then is None or case.expected.seconds < GAIN * then.seconds:
        return
    gain = case.expected.seconds / then.seconds
    words = (
        f"change layout: {case.described()} are predicted to take {_us(case.expected.seconds)} each, "
        f"and {_us(then.seconds)} with time {where}, {gain:.2g} times as fast; "
        "keep the data that way, a copy for each call costs time as well."
    )
    yield _saved(case, gain), words


def _install(case: _Case) -> Iterator[Advice]:
    """Yield the advice to install the package without which a faster kernel refuses."""
    for name, (refusal, seconds) in case.expected.missing.items():
        if case.expected.seconds >= GAIN * seconds > 0:
            gain = case.expected.seconds / seconds
            words = (
                f"install a package: {case.described()} are predicted to take {_us(case.expected.seconds)} each by "
                f"{case.expected.kernel}, and {_us(seconds)} by {name}, {gain:.2g} times as fast: {refusal}."
            )
            yield _saved(case, gain), words


_OF_ONE = (_more_rows, _other_layout, _install)


def _more_threads(cases: Iterable[_Case], cores: int) -> Iterator[Advice]:
    """Yield the advice to raise parallelism, if one thread computes what all `cores` could share."""
    for case in cases:
        now, work = case.expected, case.workload
        # NumPy's arrays are computed on the caller's thread, whatever is set.
        is_single = work.threads == 1 and work.device == "cpu" and work.framework != "numpy"
        share = min(cores, work.rows * work.width)
        if not is_single or share < 2 or now.computing < HAND_OVER:
            continue
        then = now.launching + max(now.computing / share, now.moving)
        gain = (now.launching + max(now.computing, now.moving)) / then
        if gain >= GAIN:
            words = (
                f"raise parallelism: {case.described()} use 1 thread of {cores} cores, and "
                f"{_us(now.computing)} of each call is arithmetic; on {share} threads they are predicted to be "
                f"up to {gain:.2g} times as fast."
            )
            yield _saved(case, gain), words


def _fused(cases: Iterable[_Case]) -> Iterator[Advice]:
    """Yield the advice to fuse the calls of sites that compute the same workload equally often."""
    alike: dict[tuple[Workload, int], list[_Case]] = defaultdict(list)
    for case in cases:
        alike[case.workload, case.calls].append(case)
    for (work, calls), group in alike.items():
        count, now = len(group), group[0].expected
        then = None if count < 2 else group[0].foresee(work.changed(rows=count * work.rows))
        if then is None or count * now.seconds < GAIN * then.seconds:
            continue
        gain = count * now.seconds / then.seconds
        names = ", ".join(case.label for case in group)
        words = (
            f"fuse neighbours: {names} compute {work.rows} x {work.n} x {work.width} {work.dtype} {calls} times each, "
            f"{_us(now.seconds)} a call; where their inputs are there at once, one call of {count * work.rows} rows is "
            f"predicted to take {_us(then.seconds)} in place of {_us(count * now.seconds)}, {gain:.2g} times as fast."
        )
        yield sum(_saved(case, gain) for case in group), words


def _kept_there(history: Iterable[Measurement]) -> Iterator[Advice]:
    """Yield the advice to keep data on the device, for kernels with a large part of their time in transfers."""
    moved: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in history:
        sums = moved[each.workload.op, each.kernel]
        sums[0] += each.transfer_seconds
        sums[1] += each.seconds
    for (op, kernel), (moving, total) in moved.items():
        if moving >= TRANSFERS * total > 0:
            words = (
                f"keep on device: {op} by {kernel} spent {moving / total:.0%} of the {total:.3g} s that were "
                f"measured on moving data between devices; put its input where it computes, and leave the result there."
            )
            yield moving, words


def _saved(case: _Case, gain: float) -> float:
    return case.taken * (1 - 1 / gain)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} us" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a workload's rows that one device computes.

    Args:
        device: The framework's name for the device.
        rows: How many signals, beginning where those of the device before end.
        seconds: When the device is predicted to be done: its earlier work, the transfer, and the computation.

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
    """How long a device takes: `start` seconds, and `each` for every row; it can take `most` rows."""

    device: str
    start: float
    each: float
    most: int

    def seconds(self, rows: float) -> float:
        """Return after how many seconds so many rows are done."""
        return self.start + self.each * rows


def paced(
    workload: Workload,
    device: str,
    plan: Callable[[Workload], Plan],
    *,
    start: float = 0.0,
    bandwidth: float = math.inf,
) -> Pace:
    """Return the Pace of a device: a line through the predicted times of one row and of as many as it can take.

    Args:
        workload: The whole workload.
        device: The framework's name of the device.
        plan: Returns the plan for a workload; it raises LookupError where no kernel accepts it.
        start: Seconds before the device can begin.
        bandwidth: Bytes per second between where the data are and the device, in either direction.
    """

    def seconds(rows: int) -> float:
        asked = workload.changed(device=device, rows=rows)
        return plan(asked).seconds + 2 * asked.bytes / bandwidth

    most = _most(workload.rows, seconds)
    if not most:
        return Pace(device, start, 1.0, 0)
    one = seconds(1)
    each = (seconds(most) - one) / (most - 1) if most > 1 else one
    each = max(each, one / most)  # a prediction may say that more rows take no longer; they take part of the time
    return Pace(device, start + max(one - each, 0.0), each, most)


def _most(rows: int, seconds: Callable[[int], float]) -> int:
    """Return the largest of `rows`, `rows // 2`, ... that some kernel accepts, 0 if none.

    `seconds` predicts the time of so many rows, and raises LookupError if no kernel accepts them.
    """
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
    """Raise ValueError where these arguments of `place` are not valid."""
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
    """Return a share of the rows for each device, so that all are done early; one that would be too late gets none.

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
        low, high = (low, middle) if sum(_rows_by(pace, middle) for pace in paces) >= rows else (middle, high)
    taken = [int(_rows_by(pace, low)) for pace in paces]
    for _ in range(rows - sum(taken)):
        free = [number for number, pace in enumerate(paces) if taken[number] < pace.most]
        taken[min(free, key=lambda number: paces[number].seconds(taken[number] + 1))] += 1
    return [Share(pace.device, count, pace.seconds(count)) for pace, count in zip(paces, taken, strict=True) if count]


def _rows_by(pace: Pace, until: float) -> float:
    """Return how many rows, in fractions too, a device computes in the first `until` seconds."""
    return min(max(0.0, (until - pace.start) / pace.each), float(pace.most)) if until > pace.start else 0.0


def place(
    planner: Planner,
    workload: Workload,
    devices: Sequence[str],
    busy: Mapping[str, float],
    bandwidths: Mapping[str, float] | None,
) -> list[Share]:
    """Return how to spread the rows of `workload`; see `BackendManager.place`."""
    refuse(workload, devices, busy, bandwidths)
    named = {workload.device: math.inf, **(bandwidths or dict.fromkeys(devices, math.inf))}
    paces = [
        paced(workload, device, planner.plan, start=busy.get(device, 0.0), bandwidth=named[device])
        for device in devices
    ]
    if not any(pace.most for pace in paces):
        planner.plan(workload.changed(device=devices[0]))  # which says why not
    return spread(workload.rows, paces)


def foreseen(planner: Planner, workload: Workload) -> Expectation | None:
    """Return the Expectation of a workload, None where no kernel accepts it; the manager's lock is held."""
    candidates = planner.candidates
    assessments = candidates.fitting(workload)
    if not accepted(assessments):
        return None
    chosen, model = planner.planned(workload), candidates.model(workload.framework)
    assess = assessor(workload, model)
    launching, computing, moving = parts(chosen.kernel.ask("cost", workload), model.rates(workload))
    missing = {
        each.kernel.name: (each.refusal, assess(each.kernel).seconds)
        for each in assessments
        if each.refusal is not None and "not installed" in each.refusal
    }
    return Expectation(
        chosen.kernel.name, chosen.seconds, launching=launching, computing=computing, moving=moving, missing=missing
    )
