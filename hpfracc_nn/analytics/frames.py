"""Summaries of a history as data frames of pandas."""

import importlib
from collections.abc import Iterable
from typing import Any

from hpfracc_nn.analytics import tables
from hpfracc_nn.analytics.history import History


def usage(history: History) -> Any:
    """Return how often each kernel was consulted, as a data frame.

    Columns: op, backend, algorithm, calls (forward and backward), share (its part of the operation's calls).

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
    return _frame("usage", tables.usage(history), tables.USAGE)


def performance(history: History) -> Any:
    """Return the times of each kernel at each workload and in each direction, as a data frame.

    Columns: op, rows, n, width, dtype, device, gradient, backend, algorithm, direction, samples (calls that were
    timed), q20_ms (20 % quantile), median_ms, max_ms, compile_ms and transfer_ms (sums, of the calls that did),
    samples_per_second (of data).

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
    return _frame("performance", tables.performance(history), tables.PERFORMANCE)


def errors(history: History) -> Any:
    """Return the failures of each kernel by the class of the error, as a data frame.

    Columns: op, backend, algorithm, error, count, quarantined (how often it was left alone for that), first and last
    (times, UTC), message (of the last).

    Args:
        history: What a manager remembers.

    Raises:
        ModuleNotFoundError: pandas is not installed.

    Examples:
        >>> manager = BackendManager()
        >>> errors(History.of(manager)).empty  # no kernel has failed
        True
    """
    return _dated(_frame("errors", tables.errors(history), tables.ERRORS), ("first", "last"))


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
    return _dated(_frame("events", tables.events(history), tables.EVENTS), ("time",))


def _frame(name: str, rows: Iterable[tables.Row], columns: Iterable[str]) -> Any:
    try:
        pandas = importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise ModuleNotFoundError(
            f"{name}(): needs the package 'pandas'; pip install 'hpfracc-nn[data]'.", name=error.name
        ) from None
    return pandas.DataFrame(tables.columns(rows, columns))


def _dated(frame: Any, names: Iterable[str]) -> Any:
    pandas = importlib.import_module("pandas")
    for name in names:
        frame[name] = pandas.to_datetime(frame[name], unit="s", utc=True)
    return frame
