"""What would make the calls so far faster: advice in words, each with the figures that it rests on."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.workload import Measurement, Workload

GAIN = 1.5  # times as fast, or nothing is said: a smaller gain is within what an estimate is off by
MOST_ROWS = 64  # times as many in a call
MOSTLY = 0.5  # of the time
TRANSFERS = 0.2  # of the time
HAND_OVER = 1e-3  # seconds of arithmetic, below which more threads gain little: handing over takes some 20 us


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the model says of a workload.

    Args:
        kernel: What would run.
        seconds: Predicted for it.
        launching: Its seconds of library calls, however much data they have.
        computing: Its seconds of arithmetic, by the roofline.
        moving: Its seconds of memory traffic, which overlap with the arithmetic.
        missing: By name, why a kernel refuses whose package is not installed, and its estimated seconds.
    """

    kernel: str
    seconds: float
    launching: float = 0.0
    computing: float = 0.0
    moving: float = 0.0
    missing: Mapping[str, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Case:
    """The calls of one workload at one site, whichever kernels ran."""

    label: str
    workload: Workload
    calls: int
    taken: float  # seconds so far: of a call, measured where they were, times the calls
    outlook: Outlook
    foresee: Callable[[Workload], Outlook | None]

    def described(self) -> str:
        work = self.workload
        return f"{self.label}: {self.calls} calls of {work.rows} x {work.n} x {work.width} {work.dtype}"


Advice = tuple[float, str]  # seconds that the calls so far would have been shorter by, and the words


def advice(
    sites: Iterable[tuple[str, Sequence[Plan]]],
    history: Sequence[Measurement],
    foresee: Callable[[Workload], Outlook | None],
    cores: int,
) -> list[str]:
    """Return what to do, the most seconds first; nothing where nothing was measured.

    Args:
        sites: The label and the plans of each.
        history: What was measured.
        foresee: What the model says of a workload, None where no kernel accepts it.
        cores: That the process may use.
    """
    known = {each.workload for each in history}
    cases = [case for label, plans in sites for case in _cases(label, plans, known, foresee)]
    found = [each for case in cases for ask in _OF_ONE for each in ask(case)]
    found += [*_more_threads(cases, cores), *_together(cases), *_kept_there(history)]
    found.sort(key=lambda each: -each[0])
    return list(dict.fromkeys(words for _, words in found))


def _cases(
    label: str, plans: Iterable[Plan], known: Collection[Workload], foresee: Callable[[Workload], Outlook | None]
) -> Iterator[_Case]:
    by_workload: dict[Workload, list[Plan]] = defaultdict(list)
    for plan in plans:
        if plan.workload in known:
            by_workload[plan.workload].append(plan)
    for workload, some in by_workload.items():
        calls, outlook = sum(plan.forwards for plan in some), foresee(workload)
        if calls and outlook is not None:
            yield _Case(label, workload, calls, sum(map(_taken, some)), outlook, foresee)


def _taken(plan: Plan) -> float:
    forward, backward = plan.quantile("forward"), plan.quantile("backward")
    if forward is None:
        return plan.forwards * plan.seconds
    return plan.forwards * forward + plan.backwards * (backward or 0.0)


def _more_rows(case: _Case) -> Iterator[Advice]:
    """Batch more: most of the time is launches, which a call pays once however many rows it has."""
    now, work = case.outlook, case.workload
    if now.launching < MOSTLY * now.seconds or case.calls < 2:
        return
    times = 1 << min(int(math.log2(MOST_ROWS)), int(math.log2(case.calls)))
    then = case.foresee(replace(work, rows=times * work.rows))
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
    """Change layout: the same samples with the time axis elsewhere."""
    work = case.workload
    if work.channels > 1:  # their axis is bound to the layout
        return
    if work.width > 1:
        other, where = replace(work, rows=work.rows * work.width, width=1), "last"
    elif work.rows > 1:
        other, where = replace(work, rows=1, width=work.rows), "in the middle"
    else:
        return
    then = case.foresee(other)
    if then is None or case.outlook.seconds < GAIN * then.seconds:
        return
    gain = case.outlook.seconds / then.seconds
    words = (
        f"change layout: {case.described()} are predicted to take {_us(case.outlook.seconds)} each, "
        f"and {_us(then.seconds)} with time {where}, {gain:.2g} times as fast; "
        "keep the data that way, a copy for each call costs time as well."
    )
    yield _saved(case, gain), words


def _install(case: _Case) -> Iterator[Advice]:
    """Install a package: a kernel that refuses for want of it would be faster."""
    for name, (refusal, seconds) in case.outlook.missing.items():
        if case.outlook.seconds >= GAIN * seconds > 0:
            gain = case.outlook.seconds / seconds
            words = (
                f"install a package: {case.described()} are predicted to take {_us(case.outlook.seconds)} each by "
                f"{case.outlook.kernel}, and {_us(seconds)} by {name}, {gain:.2g} times as fast: {refusal}."
            )
            yield _saved(case, gain), words


_OF_ONE = (_more_rows, _other_layout, _install)


def _more_threads(cases: Iterable[_Case], cores: int) -> Iterator[Advice]:
    """Raise parallelism: the arithmetic of one thread, spread over all cores, at best."""
    for case in cases:
        now, work = case.outlook, case.workload
        # NumPy's arrays are computed on the caller's thread, whatever is set.
        is_single = work.threads == 1 and work.device == "cpu" and work.framework != "numpy"
        parts = min(cores, work.rows * work.width)
        if not is_single or parts < 2 or now.computing < HAND_OVER:
            continue
        then = now.launching + max(now.computing / parts, now.moving)
        gain = (now.launching + max(now.computing, now.moving)) / then
        if gain >= GAIN:
            words = (
                f"raise parallelism: {case.described()} use 1 thread of {cores} cores, and "
                f"{_us(now.computing)} of each call is arithmetic; on {parts} threads they are predicted to be "
                f"up to {gain:.2g} times as fast."
            )
            yield _saved(case, gain), words


def _together(cases: Iterable[_Case]) -> Iterator[Advice]:
    """Fuse neighbours: sites that compute the same workload equally often."""
    alike: dict[tuple[Workload, int], list[_Case]] = defaultdict(list)
    for case in cases:
        alike[case.workload, case.calls].append(case)
    for (work, calls), group in alike.items():
        count, now = len(group), group[0].outlook
        then = None if count < 2 else group[0].foresee(replace(work, rows=count * work.rows))
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
    """Keep on device: transfers that were measured."""
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
