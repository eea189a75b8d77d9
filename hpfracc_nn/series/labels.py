"""Series and tables as arrays, and arrays labelled again with the index that a pandas series had."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpfracc_nn.labelled import times
from hpfracc_nn.labelled.tables import is_table, time_dimension, times_of


@dataclass(frozen=True)
class Labels:
    """The name of a series and the index of its rows.

    Attributes:
        name: The series' own name; "y" where it has none, or "y1", "y2", ... among several.
        index: The pandas index; None where the series is no pandas object.
    """

    name: str = "y"
    index: Any = None

    def labelled(self, values: np.ndarray, name: str | None = None, index: Any = None) -> Any:
        """Return `values` as a pandas Series with `index`, or the series' own index; as they are without pandas."""
        if self.index is None:
            return values
        from pandas import Series

        return Series(values, self.index if index is None else index, name=name)

    def following(self, steps: int, exog: Any) -> Any:
        """Return the index of the `steps` rows after the series; None where the series is no pandas object.

        The index goes on by the series' frequency. Without a frequency it is that of `exog`, the regressors of these
        rows, or else a count that goes on.

        Raises:
            ValueError: The index of `exog` has other times; an index that only counts rows is not compared.
        """
        if self.index is None:
            return None
        import pandas

        clock = times.as_times("forecast", "series", self.index)
        found = None if clock is None else times.following(clock, steps)
        is_labelled = is_pandas(exog) and len(exog) == steps and not self._are_counted(exog.index)
        if found is not None:
            if is_labelled:
                same = times.are_those(exog.index, found, clock[-1])
                _raise_unless_same("ArfimaResults.forecast", "each step", same, exog.index, found)
            return found
        if is_labelled and (clock is not None or type(exog.index) is type(self.index)):
            _check_later(exog, clock)
            return exog.index
        if clock is not None:
            self._warn_of_numbers(clock)
        return pandas.RangeIndex(len(self.index), len(self.index) + steps)

    def _are_counted(self, labels: Any) -> bool:
        """Whether the labels of rows after the series only count these rows from 0, and are no times.

        After a series whose own labels are no numbers they may also count on from its length.
        """
        rows = np.arange(len(labels))
        later = rows if self.index.dtype.kind in "iuf" else rows + len(self.index)
        return labels.dtype.kind in "iu" and any(np.array_equal(labels, each) for each in (rows, later))

    def _warn_of_numbers(self, clock: Any) -> None:
        """Warn that forecasts are numbered, because the series' times have no frequency, and say how to get times.

        `clock` holds the series' times, a pandas index.
        """
        missing = times.left_out("series", clock, self.index)
        way_out = times.without_holidays("series", clock, self.index) if missing is None else missing[1]
        filled = "" if way_out is None else f"give them one, which makes gaps of the missing rows ({way_out}), or "
        what = "dates" if clock.dtype.kind in "MO" else "times"
        warnings.warn(
            f"forecast: the {what} of the series have no frequency, so that forecasts are numbered from {len(clock)} "
            f"on; {filled}number the rows (series.reset_index(drop=True)), or pass exog with the {what} that follow.",
            UserWarning,
            stacklevel=_outside(),
        )


def _check_later(exog: Any, clock: Any) -> None:
    """Raise ValueError unless the times of a forecast's regressors are later than those of the series.

    Args:
        exog: The regressors, a pandas Series or DataFrame.
        clock: The times of the series as a pandas index; where the series has none, None, and nothing is checked.
    """
    owner = "ArfimaResults.forecast"
    if clock is None:
        return
    later = times.as_times(owner, "exog", exog.index)
    if later is None or times.kind(later) != times.kind(clock) or not later[0] > clock[-1]:
        raise ValueError(
            f"{owner}(exog): needs times after those of the series, the last of which is {clock[-1]}; row 0 is "
            f"{exog.index[0]}; pass the regressors of the times that are forecast."
        )


def _outside() -> int:
    """Return the `stacklevel` by which the caller of `warnings.warn` names the line that called this package."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("hpfracc_nn."):
        level, frame = level + 1, frame.f_back
    return level + 1


def is_pandas(values: Any) -> bool:
    """Return whether `values` is a pandas Series or DataFrame."""
    return type(values).__module__.split(".")[0] == "pandas" and hasattr(values, "index")


def numbers(owner: str, argument: str, values: Any) -> np.ndarray:
    """Return `values` as a new float64 array, missing ones as NaN; raise TypeError unless they are real numbers."""
    if is_pandas(values):
        from pandas.api import types

        for dtype in values.dtypes if hasattr(values, "columns") else [values.dtype]:
            if not types.is_numeric_dtype(dtype) or types.is_complex_dtype(dtype):
                raise TypeError(f"{owner}({argument} of dtype {dtype}): needs real samples; pass floats.")
        return np.array(values.to_numpy(dtype=np.float64, na_value=np.nan))
    try:
        found = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):  # lists of different lengths, tensors with a gradient
        found = np.empty(0, object)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"{owner}({argument} of dtype {found.dtype}): needs real samples; pass floats.")
    return np.array(found, np.float64)


def several(series: Any) -> list[Any] | None:
    """Return the series in a list or tuple, or the columns of a table or array; None where `series` is one series."""
    if is_pandas(series) and hasattr(series, "columns"):
        return [series.iloc[:, j] for j in range(series.shape[1])]  # by position: names may be duplicates
    if isinstance(series, list | tuple) and len(series) and np.ndim(series[0]) == 1:
        return list(series)
    if isinstance(series, np.ndarray) and series.ndim == 2:
        return list(series.T)
    return None


def read(owner: str, series: Any, position: int | None = None) -> tuple[np.ndarray, Labels]:
    """Return the samples of a series as a float64 array, and its labels; `position` is its place among several.

    Raises:
        TypeError: The samples are not real numbers, or the index holds texts that are dates.
        ValueError: The times do not increase, or rows of a regular index are missing.
    """
    default = "y" if position is None else f"y{position + 1}"
    values = numbers(owner, "series", series)
    clock = times_of(owner, "series", series)  # raises where they do not increase, or rows are missing
    _warn_of_missing(owner, clock, series)
    name = getattr(series, "name", None) if is_table(series) else None
    return values, Labels(default if name in (None, "") else str(name), series.index if is_pandas(series) else None)


def _warn_of_missing(owner: str, clock: Any, series: Any) -> None:
    """Warn where a regular index leaves out a tenth to two thirds of its rows; `read` raises where it leaves out fewer.

    Args:
        owner: The public function, for the message.
        clock: The times of the series as a pandas index, or None.
        series: The series as the user passed it.
    """
    if clock is None:
        return
    dim = time_dimension(series)
    missing = times.left_out("series", clock, series.index if dim is None else series.indexes[dim], dim)
    if missing is not None:
        warnings.warn(
            f"{owner}(series): takes its rows for the steps of the series, although {missing[0]} of a regular index "
            f"are missing; make them gaps, {missing[1]}, or, where the rows are the steps, number them, "
            f"{times.numbered('series', dim)}.",
            UserWarning,
            stacklevel=_outside(),
        )


def _raise_unless_same(owner: str, what: str, same: np.ndarray, found: Any, wanted: Any) -> None:
    if not same.all():
        wrong = int(np.argmin(same))
        raise ValueError(
            f"{owner}(exog): needs the index of {what}; row {wrong} is {found[wrong]} in place of {wanted[wrong]}; "
            "reindex the table, or pass its values (to_numpy()) if the rows are in order."
        )


def table(owner: str, exog: Any, rows: int, what: str, index: Any = None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return regressors as a float64 array [rows, k], and their k names; k is 0 where `exog` is None.

    Args:
        owner: Name of the public function, for messages.
        exog: The regressors as the user passed them, or None.
        rows: How many rows they must have.
        what: What each row is for, in messages: "each sample" or "each step".
        index: The index that a pandas object must have; None allows any.

    Raises:
        TypeError: The regressors are not real numbers.
        ValueError: They have another shape or another index, or are not finite.
    """
    if exog is None:
        return np.empty((rows, 0)), ()
    values = numbers(owner, "exog", exog)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or len(values) != rows:
        raise ValueError(
            f"{owner}(exog of shape {np.shape(exog)}): needs [{rows}] or [{rows}, regressors], a row for {what}; "
            "pass as many rows."
        )
    if is_pandas(exog) and index is not None:  # `equals` tells units of time apart
        _raise_unless_same(owner, what, np.asarray(exog.index == index), exog.index, index)
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0].tolist()
        raise ValueError(
            f"{owner}(exog): needs finite numbers; exog[{row}, {column}]={values[row, column]}; a gap may be in the "
            "series alone, fill those of its regressors."
        )
    if is_table(exog) and hasattr(exog, "columns"):
        return values, tuple(str(name) for name in exog.columns)
    if is_table(exog) and values.shape[1] == 1:
        return values, (str(exog.name or "x1"),)
    return values, tuple(f"x{i + 1}" for i in range(values.shape[1]))
