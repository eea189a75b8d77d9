"""Times of rows: which labels are times, what follows them, and where rows are missing.

Rows are steps of a series, whatever time lies between them. Their labels say whether rows go on where others end:
exactly where the labels have a frequency, else by the longest step. Indexes are those of pandas, which is not imported
here: it is loaded already where one of its objects is passed.

Arguments of the same meaning everywhere: `index` is a pandas index, of times unless said otherwise; `labels` is the
index as the user's table has it, before it was read as times; `name` is the table's name in messages; `dim` is the
dimension of time of an xarray object, None for a table of pandas; `before` and `after` are the times of two tables, the
second of which should go on where the first ends.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import numpy as np

_NEAR = 1e-3  # of a step, by which labels that are floats may miss it
_LATE = 1.5  # of the longest step of irregular times: a step that is longer leaves out a row
_FULL = 0.9  # of the rows of a regular index: with fewer of them it is taken for an irregular one
_PART = 1 / 3  # of the rows of a regular index: with fewer of them making gaps of the others is no way out
_BUSINESS = "BC"  # how the names of frequencies of working days begin, which have holidays that no index knows
_DAY = np.timedelta64(1, "D")
_DATE = re.compile(
    r"\d{4}([-/.])\d{1,2}(\1\d{1,2}([T ,].*)?)?|\d{1,2}([-/.])\d{1,2}\4\d{4}([T ,].*)?"
    r"|(1[89]|2[01])\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(T.*)?"
)


def as_times(owner: str, name: str, index: Any, dim: Any = None) -> Any:
    """Return a pandas index as increasing numbers, times or periods; None where its labels are names.

    Numbers are integers and floats; times are also `datetime.date`, spans and categories of times. Of an index of
    several levels the level that varies is returned, of intervals the left ends.

    Args:
        owner: Name of the public function, for messages.
        name: The table's name in messages.
        index: The labels of the table's rows, or None.
        dim: The dimension of an xarray object that the labels belong to.

    Raises:
        TypeError: The labels are texts, all of which are dates.
        ValueError: The times do not increase, or belong to several series.
    """
    if index is None:
        return None
    if index.nlevels > 1:
        index = _of_one_series(owner, name, index)
    index = _plain(index)
    if index.dtype.kind == "O" and not _are_periods(index):
        _raise_if_dates(owner, name, index, dim)
        return None
    if index.dtype.kind not in "iufmMO":
        return None
    if not (index.is_monotonic_increasing and index.is_unique) or index.hasnans:
        known = index.notna()
        later = np.asarray(index[1:] > index[:-1], dtype=bool) & known[1:]
        later[:1] &= known[0]
        if dim is None:
            way_out = f"sort them ({name}.sort_index()) and drop the later of two ({name}[~{name}.index.duplicated()])"
        else:
            way_out = f"sort them ({name}.sortby({dim!r})) and drop the later of two ({name}.drop_duplicates({dim!r}))"
        if not index.is_unique and dim is None:
            way_out += f", of several series make columns ({name}.pivot(...))"
        raise_unless(owner, name, later, index, way_out + ", or leave the index out where it holds no times")
    if index.dtype.kind == "f" and len(index) and not np.isfinite([index[0], index[-1]]).all():
        raise ValueError(
            f"{owner}({name}): needs finite times; they go from {index[0]} to {index[-1]}; leave such rows out."
        )
    return index


def raise_unless(owner: str, name: str, later: np.ndarray, labels: Any, way_out: str) -> None:
    """Raise ValueError where a time does not come later than the time before.

    Args:
        owner: The public function, for messages.
        name: The table's name in messages.
        later: Whether each row after the first comes later than the row before, bool [n - 1].
        labels: The times, [n], for messages.
        way_out: What the user may do about it, for messages.
    """
    if not later.all():
        row = int(np.argmin(later)) + 1
        raise ValueError(
            f"{owner}({name}): needs times that increase; row {row} is {labels[row]} and the row before "
            f"{labels[row - 1]}; {way_out}."
        )


def kind(index: Any) -> tuple[str, bool]:
    """Return the kind of an index's times, equal for times that can be compared.

    Kinds are numbers, spans, periods of each frequency, times with a zone and times without.
    """
    letter = index.dtype.kind
    if letter == "O":
        return str(index.dtype), True
    return "number" if letter in "iuf" else letter, getattr(index, "tz", None) is None


def is_counted(index: Any) -> bool:
    """Whether the labels are 0, 1, 2, ..., as pandas counts rows."""
    return bool(len(index) and index.dtype.kind == "i" and index[0] == 0 and index[-1] == len(index) - 1)


def following(index: Any, steps: int) -> Any:
    """Return the index of the `steps` times after those of an index, or None where the index has no frequency.

    The frequency is the index's own, or the one that pandas infers from 3 rows or more; numbers and periods have one
    where their steps are equal.
    """
    pandas = sys.modules["pandas"]
    if _are_periods(index):
        step = index.freq.n if len(index) == 1 else _equal_step(pandas.Index(index.asi8))
        if step is None:  # working days
            found = following(index.to_timestamp(), steps)
            return None if found is None else found.to_period(index.freq)
        ordinals = (int(index.asi8[-1] + step * k) for k in range(1, steps + 1))
        return pandas.PeriodIndex(
            [pandas.Period(ordinal=each, freq=index.freq) for each in ordinals], freq=index.freq, name=index.name
        )
    if index.dtype.kind in "iuf":
        step = _equal_step(index)
        if step is None:
            return None
        if index.dtype.kind != "f":
            return pandas.RangeIndex(index[-1] + step, index[-1] + (steps + 1) * step, step, name=index.name)
        return pandas.Index(index[-1] + step * np.arange(1.0, steps + 1), name=index.name)
    frequency = getattr(index, "freq", None) or _inferred(index)
    if frequency is None:
        return None
    span = pandas.date_range if index.dtype.kind == "M" else pandas.timedelta_range
    return span(index[-1], periods=steps + 1, freq=frequency, name=index.name)[1:].as_unit(index.unit)


def are_those(labels: Any, expected: Any, last: Any) -> np.ndarray:
    """Return which labels are the expected times, bool [n]; `expected` is an index as from `as_times`.

    The first expected time comes one step after `last`.
    """
    if labels.nlevels > 1:
        labels = labels.get_level_values((_varying(labels) or [-1])[-1])
    labels = _plain(labels)
    if kind(labels) != kind(expected):
        return np.zeros(len(labels), bool)
    return _are_near(labels, expected, last)


def gap(before: Any, after: Any) -> tuple[int, str] | None:
    """Return the row of the first of the times `after` that does not follow on those `before`, and why, or None.

    Where the times before have a frequency, all times after have to follow it. A frequency of working days that is only
    inferred, and a frequency of fewer than 3 rows, do not count. Without a frequency the first time after must come no
    later than the longest step between times before or between times after: counted in working days where most steps
    are one working day and no time lies on a week-end, else in time, with half of the step to spare.
    """
    if getattr(before, "tz", None) is not None:
        after = after.tz_convert(before.tz)
    if _are_periods(before) and not _is_complete(before):
        return gap(before.to_timestamp(), after.to_timestamp())
    expected = _expected(before, after)
    if expected is not None:
        near = _are_near(after, expected, before[-1])
        if near.all():
            return None
        row = int(np.argmin(near))
        return row, f"is not the row that comes next, {expected[row]}"
    if before.dtype.kind in "mM" and _inferred(before.append(after)) is not None:
        return None
    walls = (_wall(before), _wall(after)) if before.dtype.kind == "M" else ()
    fault = late(_clock(before), _clock(after), *walls)
    return None if fault is None else (0, fault)


def late(before: np.ndarray, after: np.ndarray, *walls: np.ndarray) -> str | None:
    """Return in words how much later than a step the first of the times `after` comes; None where it does not.

    `gap` says how late it may be.

    Args:
        before: Increasing numbers, datetime64 (in UTC) or timedelta64, at least one.
        after: Further ones, all after those of `before`.
        *walls: `before` and `after` in local time, datetime64, where they are times.
    """
    inside = np.concatenate([np.diff(before), np.diff(after)])
    if not len(inside):
        return None
    if walls:
        days = np.concatenate(walls).astype("datetime64[D]")
        steps = np.busday_count(days[:-1], days[1:])
        if np.is_busday(days).all() and (np.diff(days) >= _DAY).all() and np.median(steps) == 1:
            at = len(before) - 1
            most, found = int(np.delete(steps, at).max()), int(steps[at])
            if found <= most:
                return None
            return f"comes {found} working days after the row before, where steps are {most} at most"
    step, most = after[0] - before[-1], inside.max()
    if step <= _LATE * most:
        return None
    return f"comes {_shown(step)} after the row before, where steps are {_shown(most)} at most"


def raise_if_missing(owner: str, name: str, index: Any, labels: Any, dim: Any = None) -> None:
    """Raise where rows of a regular index are missing, and nine tenths or more of its rows are there.

    Equal steps, months, quarters and years are regular. Working days never count as missing: no index knows holidays.

    Args:
        owner: Name of the public function, for messages.
        name: The table's name in messages.
        index: The table's increasing times, see `as_times`, or None.
        labels: The index of the table from which the times were read.
        dim: The dimension of an xarray object that the times belong to.

    Raises:
        ValueError: Rows are missing.
    """
    found = _holed(index, _FULL)
    if found is None:
        return
    dates, counts = found
    row = int(np.argmax(counts > 1)) + 1
    raise ValueError(
        f"{owner}({name}): needs all rows of a regular index; before row {row}, {index[row]}, some are missing; make "
        f"them gaps, {_filled(_dated(name, index, labels, dim), index, dates, counts, dim)}, or, where the rows are "
        f"the steps of the series, number them, {numbered(name, dim)}."
    )


def left_out(name: str, index: Any, labels: Any, dim: Any = None) -> tuple[int, str] | None:
    """Return how many rows a regular index leaves out, and an expression that makes gaps of them, for messages.

    None where no row is missing, or less than a third of the rows are there. Arguments are those of `raise_if_missing`.
    """
    found = _holed(index, _PART)
    if found is None:
        return None
    dates, counts = found
    return int(counts.sum()) + 1 - len(dates), _filled(_dated(name, index, labels, dim), index, dates, counts, dim)


def without_holidays(name: str, index: Any, labels: Any) -> str | None:
    """Return an expression that makes gaps of working days without a row, for messages.

    None where the rows are not working days.
    """
    dates = index.to_timestamp() if _are_periods(index) else index
    if dates.dtype.kind != "M" or len(dates) < 3:
        return None
    wall = _wall(dates)
    rests = wall - wall.astype("datetime64[D]")
    if not ((rests == rests[0]).all() and _are_working_days(wall)):
        return None
    table = f"{name}.to_timestamp()" if _are_periods(index) else _dated(name, index, labels, None)
    return f"{table}.asfreq('B')"


def _holed(index: Any, least: float) -> tuple[Any, np.ndarray] | None:
    """Return the times of a regular index from which rows are missing, and the steps between them; else None.

    Args:
        index: Increasing times, or None.
        least: The share of the regular index's rows that have to be there, from 0 to 1.

    Returns:
        The times, [n], and by how many steps of the regular index each is later than the one before, [n - 1].
    """
    if index is None or len(index) < 3:
        return None
    dates = index.to_timestamp() if _are_periods(index) else index
    if dates.dtype.kind in "mM" and (getattr(dates, "freq", None) or _inferred(dates)):
        return None
    counts = _steps(dates)
    if counts is None or counts.max() == 1 or len(dates) < least * (counts.sum() + 1):
        return None
    return dates, counts


def _dated(name: str, index: Any, labels: Any, dim: Any) -> str:
    """Return the expression for the table `name` with its labels converted to times, for error messages."""
    is_plain = dim is not None or labels.dtype == index.dtype
    return name if is_plain else f"{name}.set_axis(pandas.to_datetime({name}.index))"


def numbered(name: str, dim: Any = None) -> str:
    """Return the expression that numbers a table's rows, for messages; `dim` is the dimension of an xarray object."""
    return f"{name}.reset_index(drop=True)" if dim is None else f"{name}.assign_coords({dim}=range(len({name})))"


def _filled(name: str, index: Any, dates: Any, counts: np.ndarray, dim: Any) -> str:
    """Return the expression that adds the missing rows of a regular index to a table as NaN, for error messages.

    Args:
        name: The table, as an expression.
        index: The times or periods of its rows.
        dates: These times, or the periods as times.
        counts: By how many steps each time is later than the one before, see `_holed`.
        dim: The dimension of time of an xarray object, or None.
    """
    breaks = np.flatnonzero(np.concatenate([[2], counts, [2]]) > 1)
    longest = int(np.argmax(np.diff(breaks)))
    run = dates[breaks[longest] : breaks[longest + 1]]
    if dates.dtype.kind in "iu":
        wanted = f"range({dates[0]}, {dates[-1] + 1}, {run[1] - run[0]})"
    elif _are_periods(index):
        wanted = f"pandas.period_range({name}.index[0], {name}.index[-1])"
        every = int(np.diff(index.asi8).min()) // index.freq.n
        wanted += f"[::{every}]" if every > 1 else ""
    else:
        frequency = _inferred(run) if dates.dtype.kind in "mM" else None
        if frequency is not None and dim is not None:
            return f"{name}.resample({dim}={_named(frequency)!r}).asfreq()"
        if frequency is not None:
            return f"{name}.asfreq({_named(frequency)!r})"
        wanted = "..."
    return f"{name}.reindex({wanted})" if dim is None else f"{name}.reindex({dim}={wanted})"


def _plain(index: Any) -> Any:
    """Return an index whose dtype is that of the labels themselves.

    Categories become their values, intervals their left ends, and objects numbers or times where all of them are such.
    """
    if hasattr(index, "categories"):
        index = index.astype(index.categories.dtype)
    if hasattr(index, "closed") and hasattr(index, "left"):
        index = index.left
    if index.dtype == object:
        index = index.infer_objects()
    pandas = sys.modules["pandas"]
    held = pandas.api.types.infer_dtype(index, skipna=True) if index.dtype.kind == "O" else ""
    if held == "datetime":  # with several offsets from UTC, as in summer and winter
        return pandas.to_datetime(index, utc=True)
    is_bare = index.dtype.kind == "M" and not hasattr(index, "freq")  # of another package's arrays
    return pandas.DatetimeIndex(index, name=index.name) if held == "date" or is_bare else index


def _are_periods(index: Any) -> bool:
    return bool(index.dtype.name.startswith("period"))


def are_dates(texts: Any) -> bool:
    """Whether all of `texts` are strings that are dates in digits, with a year of four; False where there are none."""
    return len(texts) > 0 and all(isinstance(text, str) and _DATE.fullmatch(text) for text in texts)


def _raise_if_dates(owner: str, name: str, labels: Any, dim: Any) -> None:
    if are_dates(labels):
        where, way_out = "index", f"{name}.set_axis(pandas.to_datetime({name}.index))"
        if dim is not None:
            where = f"dimension {dim!r}"
            way_out = f"{name}.assign_coords({{{dim!r}: pandas.to_datetime({name}[{dim!r}])}})"
        raise TypeError(
            f"{owner}({name} whose {where} holds texts such as {labels[0]!r}): needs times as such; convert them, "
            f"{way_out}."
        )


def _of_one_series(owner: str, name: str, index: Any) -> Any:
    """Return, of an index of several levels, the level whose labels vary, as an index; the last level where none does.

    Raises:
        ValueError: Several levels vary: the rows are those of several series.
    """
    varying = _varying(index)
    if len(varying) > 1:
        names = [index.names[level] for level in varying]
        raise ValueError(
            f"{owner}({name} with an index of {index.nlevels} levels): needs the rows of one series, and {names} both "
            f"vary; make the series columns ({name}.unstack()), or pass the rows of each with {name}.groupby(...)."
        )
    return index.get_level_values((varying or [-1])[-1])


def _varying(index: Any) -> list[int]:
    """Return the numbers of an index's levels that have more than one label."""
    return [level for level in range(index.nlevels) if index.get_level_values(level).nunique() > 1]


def _inferred(index: Any) -> Any:
    """Return the frequency that pandas infers from times, a string or an offset; None where there is no frequency."""
    if len(index) < 3:
        return None
    with warnings.catch_warnings():  # pandas changes whether it returns a string or an offset
        warnings.filterwarnings("ignore", "A future version of pandas will return")
        return sys.modules["pandas"].infer_freq(index)


def _named(frequency: Any) -> str:
    return str(getattr(frequency, "freqstr", frequency))


def _expected(before: Any, after: Any) -> Any:
    """Return the `len(after)` times that follow `before` at its frequency.

    None where `before` has no frequency of its own, and the inferred one does not tell which rows are missing.
    """
    if not hasattr(before, "step") and getattr(before, "freq", None) is None:
        if len(before) < 3:
            return None
        if before.dtype.kind in "mM":
            frequency = _inferred(before)
            if frequency is None or _named(frequency)[0] in _BUSINESS or _inferred(before.append(after)) is not None:
                return None
    return following(before, len(after))


def _are_near(found: Any, expected: Any, last: Any) -> np.ndarray:
    """Return which of the times `found` equal those in `expected`, up to rounding for numbers; bool, [n].

    Args:
        found: The times of the rows, [n].
        expected: The times that the rows should have, [n].
        last: The time one step before `expected[0]`.
    """
    if expected.dtype.kind in "iuf":
        return np.abs(_clock(found) - _clock(expected)) <= _NEAR * (expected[0] - last)  # type: ignore[no-any-return]
    return np.asarray(found == expected)


def _is_complete(periods: Any) -> bool:
    return bool(periods[-1].ordinal - periods[0].ordinal == len(periods) - 1)


def _equal_step(index: Any) -> Any:
    """Return the step of a numeric index with equal steps; None where they differ, or there is one row."""
    if hasattr(index, "step"):
        return index.step
    steps = np.diff(_clock(index))
    if not len(steps):
        return None
    step = (index[-1] - index[0]) / len(steps) if index.dtype.kind == "f" else index[1] - index[0]
    return step if (np.abs(steps - step) <= (_NEAR * step if index.dtype.kind == "f" else 0)).all() else None


def _clock(index: Any) -> np.ndarray:
    """Return an index as a NumPy array: int64, uint64, float64, or times in UTC."""
    letter = index.dtype.kind
    if letter in "iuf":
        return np.asarray(index.to_numpy(np.float64 if letter == "f" else np.dtype(f"{letter}8")))
    if getattr(index, "tz", None) is not None:
        index = index.tz_convert(None)
    return np.asarray(index.to_numpy())


def _wall(index: Any) -> np.ndarray:
    return np.asarray((index if index.tz is None else index.tz_localize(None)).to_numpy())


def _shown(step: Any) -> str:
    if not isinstance(step, np.timedelta64):
        return f"{step:g}"
    days = step / _DAY
    return f"{days:g} days" if days >= 1 else f"{step / np.timedelta64(1, 's'):g} s"


def _steps(index: Any) -> np.ndarray | None:
    """Return how far each row is from the one before as a multiple of the shortest distance, [n - 1].

    None if some distance is no whole multiple, and for working days. Distances are calendar months where all rows stand
    at the same place in a month, or at month ends; wall-clock time where rows are a day or more apart; else plain
    differences.
    """
    if index.dtype.kind == "M":
        wall = _wall(index)
        months = wall.astype("datetime64[M]")
        rests = wall - months
        if (rests == rests[0]).all() or bool(index.is_month_end.all()):
            found = np.diff(months).astype(np.int64)
            return _multiples(found) if found.min() > 0 else None
        if (np.diff(wall) >= _DAY).all():
            if _are_working_days(wall):
                return None
            return _multiples(np.diff(wall).astype(np.int64))
    if index.dtype.kind == "f":
        steps = np.diff(_clock(index))
        counts = np.round(steps / steps.min())
        return counts if (np.abs(steps / steps.min() - counts) <= _NEAR * counts).all() else None
    return _multiples(np.diff(_clock(index)).astype(np.int64))


def _are_working_days(wall: np.ndarray) -> bool:
    """Whether times without zone, datetime64 [n], have none on a week-end and most steps are one working day."""
    days = wall.astype("datetime64[D]")
    return bool(np.is_busday(days).all() and np.median(np.busday_count(days[:-1], days[1:])) == 1)


def _multiples(steps: np.ndarray) -> np.ndarray | None:
    least = steps.min()
    return steps // least if (steps % least == 0).all() else None
