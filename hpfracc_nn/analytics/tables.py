"""Summaries of a history as data frames of pandas, and as the rows of a table: dicts with the same columns."""

import importlib
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hpfracc_nn import lazy
from hpfracc_nn.analytics.history import History
from hpfracc_nn.selection import Measurement, Workload
from hpfracc_nn.selection.learning.model import quantile
from hpfracc_nn.selection.recorder import Choice, Defeat, Drift, Event, Failure, Quarantined, milliseconds
from hpfracc_nn.selection.workload import Direction

Row = dict[str, Any]

USAGE = ("op", "backend", "algorithm", "calls", "share")
PERFORMANCE = (
    "op",
    "rows",
    "n",
    "width",
    "dtype",
    "device",
    "gradient",
    "backend",
    "algorithm",
    "direction",
    "samples",
    "q20_ms",
    "median_ms",
    "max_ms",
    "compile_ms",
    "transfer_ms",
    "samples_per_second",
)
ERRORS = ("op", "backend", "algorithm", "error", "count", "quarantined", "first", "last", "message")
EVENTS = ("time", "kind", "op", "rows", "n", "width", "backend", "algorithm", "direction", "previous", "reason", "what")


def usage_rows(history: History) -> list[Row]:
    """Return a row for each kernel with how often it was consulted, most often first for each operation.

    `share` is the kernel's part of the operation's calls.
    """
    if not history.looks:
        return []
    found, whole = history.looks[-1].uses, Counter[str]()
    for (op, _), calls in found.items():
        whole[op] += calls
    return [
        {"op": op, **_parts(kernel), "calls": calls, "share": calls / whole[op]}
        for (op, kernel), calls in sorted(found.items(), key=lambda each: (each[0][0], -each[1]))
        if calls
    ]


def performance_rows(history: History) -> list[Row]:
    """Return a row for each kernel at each workload in each direction with its times, in milliseconds.

    Quantile (`q20_ms`, 20 %), median and maximum are those of the calls that did not compile; compile times are added
    up in `compile_ms`.
    """
    groups: dict[tuple[Workload, str, Direction], list[Measurement]] = {}
    for each in history.measurements:
        if each.succeeded and "/" in each.kernel:
            groups.setdefault((each.workload, each.kernel, each.direction), []).append(each)
    return [_performance(*group, measured) for group, measured in groups.items()]


def error_rows(history: History) -> list[Row]:
    """Return a row for each kernel and class of error: how often it failed, and how often it was quarantined for it."""
    groups: dict[tuple[str, str, str], list[Failure]] = {}
    held = Counter[tuple[str, str, str]]()
    for each in history.events:
        if isinstance(each, Failure | Quarantined):
            place = each.workload.op, each.kernel, each.error
            if isinstance(each, Failure):
                groups.setdefault(place, []).append(each)
            else:
                held[place] += 1
    return [
        {
            "op": op,
            **_parts(kernel),
            "error": error,
            "count": len(failures),
            "quarantined": held[op, kernel, error],
            "first": failures[0].time,
            "last": failures[-1].time,
            "message": failures[-1].message,
        }
        for (op, kernel, error), failures in groups.items()
    ]


def event_rows(history: History) -> list[Row]:
    """Return a row for each event, oldest first; `what` describes it in words, `time` is in seconds since 1970."""
    return [_event(each) for each in history.events]


def measured_seconds(history: History) -> dict[tuple[Workload, str], float]:
    """Return the measured seconds of each kernel at each workload, where each direction that it has was timed.

    They are the sum of the 20 % quantiles of forward and, where there is a gradient, backward calls without compiling.
    """
    groups: dict[tuple[Workload, str], dict[str, list[float]]] = {}
    for each in history.measurements:
        if each.succeeded and not each.compile_seconds and "/" in each.kernel:
            times = groups.setdefault((each.workload, each.kernel), {})
            times.setdefault(each.direction, []).append(each.seconds)
    return {
        place: sum(quantile(seconds) or 0.0 for seconds in times.values())
        for place, times in groups.items()
        if len(times) == 1 + _has_backward(place[0])
    }


def first_predictions(history: History) -> dict[tuple[Workload, str], float]:
    """Return the seconds predicted for each kernel at each workload when the first choice was made there."""
    found = {(each.workload, each.kernel): each.seconds for each in history.estimates}
    for each in history.events:
        if isinstance(each, Choice):
            for name, prediction in each.candidates.items():
                found.setdefault((each.workload, name), prediction.seconds)
    return found


def last_predictions(history: History) -> dict[tuple[Workload, str], float]:
    """Return the seconds predicted now for each kernel in use at each workload."""
    return {(each.workload, each.kernel): each.seconds for each in history.uses if each.calls}


def what(event: Event) -> str:
    """Return a description of an event in a few words."""
    match event:
        case Choice(previous="", reason=reason):
            return f"first, {reason}"
        case Choice(previous=previous, kernel=kernel, elapsed=elapsed) if previous == kernel:
            return f"stays, chosen in {1e3 * elapsed:.2g} ms"
        case Choice(previous=previous, reason=reason):
            return f"in place of {previous}, {reason}"
        case Drift(factor=factor):
            return f"takes {factor:.2g} times as long"
        case Failure(error=error):
            return f"failed: {error}"
        case Quarantined(seconds=seconds):
            return "left alone" + (f" for {seconds:.0f} s" if math.isfinite(seconds) else "")
        case Defeat(error=error):
            return f"every kernel failed, the first by {error}"
    return ""


def _performance(workload: Workload, kernel: str, direction: Direction, measured: list[Measurement]) -> Row:
    plain = [each.seconds for each in measured if not each.compile_seconds]
    q20 = quantile(plain)
    return {
        "op": workload.op,
        **_sizes(workload),
        "dtype": workload.dtype,
        "device": workload.device,
        "gradient": _has_backward(workload),
        **_parts(kernel),
        "direction": direction,
        "samples": len(plain),
        "q20_ms": milliseconds(q20),
        "median_ms": milliseconds(statistics.median(plain) if plain else None),
        "max_ms": milliseconds(max(plain, default=None)),
        "compile_ms": 1e3 * sum(each.compile_seconds for each in measured),
        "transfer_ms": 1e3 * sum(each.transfer_seconds for each in measured),
        "samples_per_second": workload.samples / q20 if q20 else None,
    }


def _event(event: Event) -> Row:
    return {
        "time": event.time,
        "kind": type(event).__name__.lower(),
        "op": event.workload.op,
        **_sizes(event.workload),
        **_parts(event.kernel),
        "direction": getattr(event, "direction", "forward"),
        "previous": getattr(event, "previous", ""),
        "reason": getattr(event, "reason", ""),
        "what": what(event),
    }


def _sizes(workload: Workload) -> Row:
    return {"rows": workload.rows, "n": workload.n, "width": workload.width}


def _parts(kernel: str) -> Row:
    backend, algorithm = kernel.split("/", 1)
    return {"backend": backend, "algorithm": algorithm}


def _has_backward(workload: Workload) -> bool:
    return workload.needs_gradient or workload.learns_weights


def usage(history: History) -> Any:
    """Return how often each kernel was consulted, as a data frame.

    Columns: op, backend, algorithm, calls (forward and backward), share (the kernel's part of the operation's calls).

    Args:
        history: What a manager remembers.

    Raises:
        ModuleNotFoundError: pandas is not installed.

    Examples:
        >>> manager = BackendManager()
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> int(usage(History.of(manager)).calls.sum())
        1
    """
    return _frame("usage", usage_rows(history), USAGE)


def performance(history: History) -> Any:
    """Return the times of each kernel at each workload and in each direction, as a data frame.

    Columns: op, rows, n, width, dtype, device, gradient, backend, algorithm, direction, samples (calls that were
    timed without compiling), q20_ms (20 % quantile), median_ms, max_ms, compile_ms and transfer_ms (sums over all timed
    calls), samples_per_second (samples of data).

    Args:
        history: What a manager remembers.

    Raises:
        ModuleNotFoundError: pandas is not installed.

    Examples:
        >>> manager = BackendManager()
        >>> times = performance(History.of(manager))  # of what has run so far: nothing
        >>> times.empty, "median_ms" in times.columns
        (True, True)
    """
    return _frame("performance", performance_rows(history), PERFORMANCE)


def errors(history: History) -> Any:
    """Return the failures of each kernel by the class of the error, as a data frame.

    Columns: op, backend, algorithm, error, count, quarantined (how often the kernel was quarantined for the error),
    first and last (times, UTC), message (that of the last failure).

    Args:
        history: What a manager remembers.

    Raises:
        ModuleNotFoundError: pandas is not installed.

    Examples:
        >>> manager = BackendManager()
        >>> errors(History.of(manager)).empty  # no kernel has failed
        True
    """
    return _dated(_frame("errors", error_rows(history), ERRORS), ("first", "last"))


def events(history: History) -> Any:
    """Return choices, changes of speed and failures in their order, as a data frame.

    Columns: time (UTC), kind (choice, drift, failure, quarantined, defeat), op, rows, n, width, backend, algorithm,
    direction, previous (the kernel before), reason, what (in words).

    Args:
        history: What a manager remembers.

    Raises:
        ModuleNotFoundError: pandas is not installed.

    Examples:
        >>> manager = BackendManager()
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> ", ".join(events(History.of(manager)).kind)
        'choice'
    """
    return _dated(_frame("events", event_rows(history), EVENTS), ("time",))


def _frame(name: str, rows: Sequence[Row], columns: Sequence[str]) -> Any:
    pandas = lazy.required("pandas", f"{name}(): needs")
    return pandas.DataFrame({column: [row[column] for row in rows] for column in columns})


def _dated(frame: Any, names: Iterable[str]) -> Any:
    pandas = importlib.import_module("pandas")
    for name in names:
        frame[name] = pandas.to_datetime(frame[name], unit="s", utc=True)
    return frame
