"""How the memory that a batch takes grows with its rows, from the requests that torch's CPU allocator gets."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

Levels = NDArray[np.float64]  # bytes in use, one after another
Point = tuple[int, Levels]  # rows, and what they took

FIRST = 2  # rows; one alone is refused by batch normalisation, which training divides by
_STEP = 4  # from one measured batch to the next, where there is room for it
_LEAST_STEP = 1.25
_CONVINCING = 128  # rows: a batch of so many that was foreseen ends the measuring
_TOLERANCE = 0.01  # of the growth since the batch before


def profiled(run: Callable[[int], None], rows: int) -> Levels:
    """Return how many bytes torch's CPU allocator had handed out after each time it was asked or given back."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run(rows)
    results = record.profiler.kineto_results  # type: ignore[union-attr]
    events = sorted((event for event in results.events() if event.name() == "[memory]"), key=lambda e: e.start_ns())
    return np.cumsum([0, *(event.nbytes() for event in events)], dtype=np.float64)


def foreseen(levels: Callable[[int], Levels], room: int, most: int) -> int:
    """Return the largest batch that keeps within `room`, from the memory that small ones take."""
    rows = min(FIRST, most)
    points = [(rows, levels(rows))]
    if rows == FIRST < most and 1.5 * points[0][1].max() <= room:  # three rows take at most half as much again
        points.append((rows + 1, levels(rows + 1)))
        _measure_on(points, levels, room, most)

    def fits(rows: int) -> bool:
        found = levels(rows) if rows < points[0][0] else _continued(points, rows)
        return found.max() <= room

    return largest(fits, most, points[0][1].max() <= room)


def _measure_on(points: list[Point], levels: Callable[[int], Levels], room: int, most: int) -> None:
    """Add larger and larger batches to `points`, until a large one was foreseen or the next might not fit."""
    while points[-1][0] < most:
        rows, last = points[-1]
        following = _next(points, room, most)
        if following < min(_LEAST_STEP * rows, most):
            return
        expected, measured = _continued(points, following).max(), levels(following)
        points.append((following, measured))
        was_foreseen = abs(measured.max() - expected) <= _TOLERANCE * abs(measured.max() - last.max())
        if following >= _CONVINCING and was_foreseen and _are_alike(points[-3:]):
            return


def _next(points: list[Point], room: int, most: int) -> int:
    """Return how many rows to measure next: four times as many, or what keeps within `room` in any case.

    That is, if the growth is at most four times as steep as the last; a parabola's is over four times as many rows.
    """
    rows = points[-1][0]
    now = _continued(points[-2:], rows)

    def keeps(following: int) -> bool:
        steep = now + _STEP * (_continued(points[-2:], following) - now)
        return max(steep.max(), _continued(points, following).max()) <= room

    low, high = rows, min(_STEP * rows, most) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _are_alike(points: list[Point]) -> bool:
    """Whether the same requests were made in the same order, so that only their sizes differ."""
    requests = [np.sign(np.diff(levels)) for _, levels in points]
    return all(np.array_equal(request, requests[-1]) for request in requests)


def _continued(points: list[Point], rows: int) -> Levels:
    """Return the levels for `rows`, each on the parabola through its last three values.

    None falls or bends downwards. Each is continued for itself, because the highest of a small batch, where gradients
    of weights count most, need not be that of a large one. Where the requests differ only the highest levels are
    continued, as if they were one. Newton's form; through two points it is a line, through one the line from nothing.
    """
    points = points[-3:]
    if not _are_alike(points):
        points = [(count, levels.max(keepdims=True)) for count, levels in points]
    if len(points) == 1:
        return points[0][1] * (rows / points[0][0])
    (before, lower), (last, upper) = points[-2:]
    slope = np.maximum((upper - lower) / (last - before), 0)
    bend = np.zeros_like(slope)
    if len(points) > 2:
        first, lowest = points[0]
        bend = np.maximum((slope - (lower - lowest) / (before - first)) / (last - first), 0)
    return upper + slope * (rows - last) + bend * ((rows - last) * (rows - before))


def largest(fits: Callable[[int], bool], most: int, first_fits: bool) -> int:
    """Return the largest number up to `most` that fits, 0 where not even one does, by doubling and bisection.

    Args:
        fits: Whether a number does; smaller ones than one that does are taken to fit too.
        most: The largest in question.
        first_fits: Whether `FIRST` does, or `most` where that is less; it is not asked again.
    """
    first = min(FIRST, most)
    low, high = (first, first) if first_fits else (0, first)
    while low == high < most:
        high = min(2 * low, most)
        low = high if fits(high) else low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
