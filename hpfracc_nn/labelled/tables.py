"""Tables of samples, of pandas, polars and xarray; recognised by the package of their class.

None of these packages is imported here: a table's own methods do what has to be done with it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.errors import package_of
from hpfracc_nn.labelled import times

PACKAGES = ("pandas", "polars", "xarray")
TIME = "time"  # the dimension of an xarray object that is taken where none is named

# (samples, axis) -> as many samples along that axis, or fewer, which are then the last ones
Operation = Callable[[np.ndarray, int], np.ndarray]


def is_table(a: Any) -> bool:
    """Return whether `a` is an object of pandas, polars or xarray."""
    return package_of(type(a), PACKAGES) is not None


def mapped(owner: str, name: str, a: Any, operation: Operation, axis: int | None, dim: Hashable | None) -> Any:
    """Return the table with its numbers replaced by the results of an operation along time.

    Args:
        owner: Name of the public function, for messages.
        name: The table's name in messages.
        a: The table.
        operation: The operation on its numbers, called with those of one dtype at a time.
        axis: The time axis, None for the rows, or the dimension `dim`.
        dim: The dimension of an xarray object, or the column of a polars frame that holds the times.

    Raises:
        TypeError: A column holds no numbers.
        ValueError: The times do not increase, or there is no such axis or dimension.
    """
    package = package_of(type(a), PACKAGES)
    if package == "xarray":
        return _of_xarray(owner, name, a, operation, axis, dim)
    if package == "polars":
        return _of_polars(owner, name, a, operation, axis, dim)
    if dim is not None:
        raise ValueError(f"{owner}(dim={dim!r}): needs an xarray object or a polars frame; leave dim out, pass axis.")
    return _of_pandas(owner, name, a, operation, axis)


def joined(owner: str, parts: dict[str, Any], axis: int | None, dim: Hashable | None) -> Any:
    """Return one table with the rows of several, one after the other in time.

    Args:
        owner: The public function, for messages.
        parts: The tables by the names of their arguments, in the order of time; one is named "a", and None is left out.
        axis: The time axis, None for the rows, or the dimension `dim`.
        dim: The dimension of an xarray object, or the column of a polars frame that holds the times.

    Raises:
        TypeError: The tables are not of the same class.
        ValueError: Their rows overlap or leave a gap, their columns differ, or there is no such axis or dimension.
    """
    a = parts["a"]
    given = {name: each for name, each in parts.items() if each is not None}
    for name, each in given.items():
        if type(each) is not type(a):
            raise TypeError(
                f"{owner}({name} of type {type(each).__qualname__}): needs what a is, a {type(a).__qualname__}, whose "
                "times are known; pass the rows before or after as one."
            )
    if len(given) == 1:
        return a
    package = package_of(type(a), PACKAGES)
    if package == "xarray":
        return _joined_xarray(owner, given, _dimension(owner, "a", a, axis, dim))
    if package == "polars":
        return _joined_polars(owner, given, dim)
    if axis is not None and errors.axis(owner, axis, a.ndim, argument="axis", array="a") == 1:
        raise ValueError(f"{owner}(axis={axis}): needs rows to go on before or after a table; leave axis out.")
    return _joined_pandas(owner, given)


def times_of(owner: str, name: str, a: Any) -> Any:
    """Return the increasing times of the rows as a pandas index; None where rows have no labels, or names for labels.

    Raises:
        TypeError: The labels are texts, all of which are dates.
        ValueError: The times do not increase, or belong to several series; rows of a regular index are missing.
    """
    package, dim = package_of(type(a), PACKAGES), time_dimension(a)
    if package != "pandas" and dim is None:
        return None
    labels = a.index if dim is None else a.indexes.get(dim)
    if dim is not None:
        _raise_if_across(owner, name, a, dim)
    found = times.as_times(owner, name, labels, dim)
    times.raise_if_missing(owner, name, found, labels, dim)
    return found


def _raise_if_across(owner: str, name: str, a: Any, dim: Hashable) -> None:
    """Raise ValueError where the dimension `dim` of an xarray object, its rows, has no dates, but another one has.

    Args:
        owner: The public function that was called, for messages.
        name: The argument that `a` is, for messages.
        a: The DataArray or Dataset.
        dim: The dimension that is taken for time.
    """
    dated = [each for each in a.dims if each in a.indexes and a.indexes[each].dtype.kind == "M"]
    if dated and dim not in dated:
        raise ValueError(
            f"{owner}({name} of dimensions {tuple(a.dims)}): needs time along the rows, and {dated[0]!r} holds dates; "
            f"pass {name}.transpose({dated[0]!r}, ...)."
        )


def time_dimension(a: Any) -> Hashable | None:
    """Return the first dimension of an xarray object, that of its rows; None for other objects."""
    is_labelled = package_of(type(a), PACKAGES) == "xarray"
    return next(iter(a.dims), None) if is_labelled else None


def raise_if_dated(owner: str, name: str, a: Any) -> None:
    """Raise where a column of a pandas or polars frame holds times, which would otherwise become a feature.

    Raises:
        TypeError: A column holds times, as such or as texts that are dates; or the frame is a lazy one of polars.
    """
    package = package_of(type(a), PACKAGES)
    if package == "polars" and not hasattr(a, "to_numpy"):
        raise TypeError(f"{owner}({name} of type {type(a).__qualname__}): needs its rows; pass {name}.collect().")
    if package not in ("pandas", "polars") or not hasattr(a, "columns"):
        return
    columns = a.get_columns() if package == "polars" else [a.iloc[:, j] for j in range(a.shape[1])]
    for label, column in zip(a.columns, columns, strict=True):
        if package == "pandas" and _holds_times(column):
            way_out = f"make times the index, {_as_index(name, label, column)}"
        elif package == "polars" and (column.dtype.is_temporal() or _holds_texts_of_dates(column)):
            way_out = f"leave the column out, {name}.drop({label!r}): rows are taken in their order"
        else:
            continue
        raise TypeError(f"{owner}({name}: column {label!r} of dtype {column.dtype}): needs numbers; {way_out}.")


def _holds_times(column: Any) -> bool:
    """Whether a pandas column holds datetimes, timedeltas, or strings that are dates."""
    return column.dtype.kind in "mM" or (column.dtype.kind == "O" and times.are_dates(column))


def _holds_texts_of_dates(column: Any) -> bool:
    return str(column.dtype) == "String" and times.are_dates(column)


def _as_index(name: str, label: Any, column: Any) -> str:
    """Return the expression that makes the column `label` the index of the table `name`, for error messages."""
    parsed = "" if column.dtype.kind in "mM" else f".astype({{{label!r}: 'datetime64[ns]'}})"
    return f"{name}{parsed}.set_index({label!r})"


def with_numbers(a: Any, found: np.ndarray) -> Any:
    """Return numbers [rows, columns] as a table like `a`, with the labels of its last rows and of all its columns.

    Where `a` is no table, or has another number of columns, the numbers are returned as they are.
    """
    package = package_of(type(a), PACKAGES)
    if package is None or len(getattr(a, "shape", ())) != 2 or a.shape[1] != found.shape[1]:
        return found
    left_out = len(a) - len(found)
    if package == "pandas":
        return type(a)(found, index=a.index[left_out:], columns=a.columns).__finalize__(a)
    if package == "polars":
        return type(a)(found, schema=a.columns, orient="row")
    return a[left_out:].copy(data=found)


def _of_pandas(owner: str, name: str, a: Any, operation: Operation, axis: int | None) -> Any:
    axis = errors.axis(owner, 0 if axis is None else axis, a.ndim, argument="axis", array=name)
    if axis == 0:
        times.as_times(owner, name, a.index)
    if a.ndim == 1:
        values = operation(_of_column(owner, name, None, a), 0)
        return type(a)(values, index=a.index[len(a) - len(values) :], name=a.name).__finalize__(a)
    columns = [_of_column(owner, name, a.columns[j], a.iloc[:, j]) for j in range(a.shape[1])]
    if axis == 1:
        values = operation(np.stack(columns, axis=1), 1) if columns else np.empty(a.shape)
        return type(a)(values, index=a.index, columns=a.columns[a.shape[1] - values.shape[1] :]).__finalize__(a)
    found = _each(columns, operation)
    left_out = len(a) - len(found[0]) if found else 0
    # By position: names may be duplicates.
    table = type(a)(dict(enumerate(found)), index=a.index[left_out:])
    table.columns = a.columns
    return table.__finalize__(a)


def _of_column(owner: str, name: str, label: Any, column: Any) -> np.ndarray:
    """Return the values of a pandas column or Series as a numeric NumPy array, [n]; raise TypeError for other values.

    Missing values of pandas' nullable types become NaN.

    Args:
        owner: The public function that was called, for messages.
        name: The argument that holds the column, for messages.
        label: The column's label; None where it is a Series.
        column: The Series.
    """
    dtype = column.dtype
    if dtype.kind not in "biufc":
        ways = [f"turn digits into numbers ({name}.astype(float))"]
        if label is None:
            ways.append("make times the index")
        else:
            ways.append("leave the column out")
            if _holds_times(column):
                ways.insert(0, f"make times the index ({_as_index(name, label, column)})")
        raise TypeError(
            f"{owner}({name}{'' if label is None else f': column {label!r}'} of dtype {dtype}): needs numbers; "
            f"{', or '.join(ways)}."
        )
    if isinstance(dtype, np.dtype):
        return column.to_numpy()  # type: ignore[no-any-return]
    if column.hasnans:
        return column.to_numpy(np.float32 if dtype.itemsize == 4 and dtype.kind == "f" else np.float64, na_value=np.nan)  # type: ignore[no-any-return]
    return column.to_numpy(np.dtype(f"{dtype.kind}{dtype.itemsize}"))  # type: ignore[no-any-return]


def _of_polars(owner: str, name: str, a: Any, operation: Operation, axis: int | None, dim: Hashable | None) -> Any:
    if not hasattr(a, "to_numpy"):
        raise TypeError(f"{owner}({name} of type {type(a).__qualname__}): needs its rows; pass {name}.collect().")
    is_frame = hasattr(a, "columns")
    axis = errors.axis(owner, 0 if axis is None else axis, 2 if is_frame else 1, argument="axis", array=name)
    if axis == 1:
        raise ValueError(f"{owner}(axis={axis}): needs a series in each column of a polars frame; leave axis out.")
    columns = a.get_columns() if is_frame else [a]
    clock = _clock_of_polars(owner, name, a, dim) if is_frame else None
    others = [each for each in columns if clock is None or each.name != clock.name]
    for each in others:
        if not (each.dtype.is_numeric() or str(each.dtype) == "Boolean"):
            raise TypeError(
                f"{owner}({name}: column {each.name!r} of dtype {each.dtype}): needs numbers; cast the column, texts "
                f"that are times for example by str.to_datetime(), or leave it out."
            )
    found = _each([_of_polars_column(each) for each in others], operation)
    if not is_frame:
        return type(a)(a.name, found[0])
    left_out = len(a) - len(found[0]) if found else 0
    made = {each.name: type(each)(each.name, values) for each, values in zip(others, found, strict=True)}
    return type(a)([made.get(each.name, each[left_out:]) for each in columns])


def _of_polars_column(column: Any) -> np.ndarray:
    """Return the values of a polars column as an array, [n]; decimals become floats."""
    return (column.cast(float) if column.dtype.is_decimal() else column).to_numpy()  # type: ignore[no-any-return]


def _clock_of_polars(owner: str, name: str, a: Any, dim: Hashable | None) -> Any:
    """Return the one column of a polars frame that holds the times, or None where there is none.

    Args:
        owner: The public function that was called, for messages.
        name: The argument that `a` is, for messages.
        a: The DataFrame.
        dim: The column's name; None: the only one of a temporal type.

    Raises:
        ValueError: Several columns hold times, none is named `dim`, or the times do not increase.
    """
    found = [each for each in a.get_columns() if each.name == dim or (dim is None and each.dtype.is_temporal())]
    if len(found) > 1 or (dim is not None and not found):
        raise ValueError(
            f"{owner}(dim={dim!r}): needs one column of times at most, of {a.columns}; pass its name as dim."
        )
    for column in found:
        numbers = column.to_physical().to_numpy()
        times.raise_unless(owner, name, numbers[1:] > numbers[:-1], column, f"sort them, {name}.sort({column.name!r})")
    return next(iter(found), None)


def _joined_pandas(owner: str, parts: dict[str, Any]) -> Any:
    a = parts["a"]
    indexes = {name: times.as_times(owner, name, each.index) for name, each in parts.items() if len(each)}
    counted = all(index is not None and times.is_counted(index) for index in indexes.values())
    if not counted:
        _raise_unless_adjacent(owner, indexes)
    if a.ndim == 2:
        parts = {
            name: each[[*a.columns]] if _has_names(owner, name, each.columns, a.columns) else each
            for name, each in parts.items()
        }
    whole = sys.modules["pandas"].concat(list(parts.values()), ignore_index=counted)
    if a.ndim == 1:
        whole = whole.rename(a.name)
    whole.index = whole.index.set_names(a.index.names)
    return whole.__finalize__(a)


def _joined_polars(owner: str, parts: dict[str, Any], dim: Hashable | None) -> Any:
    polars, a = sys.modules["polars"], parts["a"]
    if not hasattr(a, "columns"):
        frames = [each.alias(a.name).to_frame() for each in parts.values()]
        return polars.concat(frames, how="vertical_relaxed").to_series()
    clocks = {name: _clock_of_polars(owner, name, each, dim) for name, each in parts.items() if len(each)}
    for (one, before), (name, after) in itertools.pairwise(clocks.items()):
        if before is None or after is None:
            continue
        pair = (before, after)
        kinds = [(each.dtype.base_type(), getattr(each.dtype, "time_zone", None)) for each in pair]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"{owner}({name} with times of {after.dtype}): needs times like those before, of {before.dtype}; cast "
                "one of the columns."
            )
        if None in (before[-1], after[0]):  # `_clock_of_polars` refuses missing times among rows
            continue
        if not before[-1] < after[0]:
            raise _overlapping(owner, one, before[-1], name, after[0])
        dated = all(str(each.dtype).startswith("Date") for each in pair)
        clocks_of = [each.to_numpy() if dated else each.to_physical().to_numpy() for each in pair]
        walls = [_wall_of_polars(each) for each in pair] if dated else []
        fault = times.late(*clocks_of, *walls)
        if fault is not None:
            raise _not_adjacent(owner, name, 0, after[0], fault)
    ordered = [
        each.select(a.columns) if _has_names(owner, name, each.columns, a.columns) else each
        for name, each in parts.items()
    ]
    return polars.concat(ordered, how="vertical_relaxed")


def _wall_of_polars(column: Any) -> np.ndarray:
    zone = getattr(column.dtype, "time_zone", None)
    return (column if zone is None else column.dt.replace_time_zone(None)).to_numpy()  # type: ignore[no-any-return]


def _joined_xarray(owner: str, parts: dict[str, Any], along: Hashable) -> Any:
    a = parts["a"]
    indexes = {
        name: times.as_times(owner, name, each.indexes.get(along), along)
        for name, each in parts.items()
        if each.sizes.get(along)
    }
    _raise_unless_adjacent(owner, indexes)
    ordered = []
    for name, each in parts.items():
        for other, index in a.indexes.items():
            is_there = other != along and other in a.dims and other in each.indexes
            if is_there and _has_names(owner, name, each.indexes[other], index, f"{other!r}"):
                each = each.sel({other: index})
        ordered.append(each)
    options = {"data_vars": "minimal", "coords": "minimal"} if hasattr(a, "data_vars") else {"coords": "minimal"}
    whole = sys.modules["xarray"].concat(ordered, dim=along, join="exact", compat="override", **options)
    whole = whole.assign_coords({key: each for key, each in a.coords.items() if along not in each.dims})
    whole.attrs = dict(a.attrs)
    if hasattr(a, "data_vars"):
        return whole.assign({key: each for key, each in a.data_vars.items() if along not in each.dims})
    return whole.rename(a.name).transpose(*a.dims)


def _has_names(owner: str, name: str, found: Any, wanted: Any, what: str = "columns") -> bool:
    """Whether two lists have the same names in another order; False where they are equal.

    Args:
        owner: The public function that was called, for messages.
        name: The argument with the names `found`, for messages.
        found: The names there are, such as columns.
        wanted: The names of the argument `a`, which `found` has to equal up to order.
        what: What has these names, for messages: "columns", or a dimension.

    Raises:
        ValueError: The names are not the same.
    """
    found, wanted = list(found), list(wanted)
    if found == wanted:
        return False
    if len(set(wanted)) < len(wanted) or len(found) != len(wanted) or set(found) != set(wanted):
        raise ValueError(f"{owner}({name} with {what} {found}): needs those of a, {wanted}; name them so.")
    return True


def _raise_unless_adjacent(owner: str, indexes: dict[str, Any]) -> None:
    """Raise ValueError unless the rows of each table follow those of the table before it, with none left out between.

    `times.gap` says how late the first row may be. Rows that have names instead of times are not compared.

    Args:
        owner: The public function that was called, for messages.
        indexes: The index of each table by the name of its argument, in the order of time; None where rows have no
            times.
    """
    for (one, before), (name, after) in itertools.pairwise(indexes.items()):
        kinds = [None if index is None else times.kind(index) for index in (before, after)]
        if kinds[0] != kinds[1]:
            first, second = ("names" if index is None else index.dtype for index in (before, after))
            raise ValueError(
                f"{owner}({name} with an index of {second}): needs labels like those of {one}, of {first}; convert "
                "one of them."
            )
        if before is None:
            continue
        if not before[-1] < after[0]:
            raise _overlapping(owner, one, before[-1], name, after[0])
        found = times.gap(before, after)
        if found is not None:
            raise _not_adjacent(owner, name, found[0], after[found[0]], found[1])


def _overlapping(owner: str, one: str, last: Any, name: str, first: Any) -> ValueError:
    return ValueError(
        f"{owner}({name}): needs rows after those of {one}; they overlap: row 0 of {name}, {first}, is not after the "
        f"last of {one}, {last}. Leave the rows that stand in both out of one of them."
    )


def _not_adjacent(owner: str, name: str, row: int, label: Any, fault: str) -> ValueError:
    return ValueError(
        f"{owner}({name}): needs rows that go on where those before end; row {row}, {label}, {fault}. Pass the rows "
        "between too, as NaN where they are unknown, or all parts without their times."
    )


def _of_xarray(owner: str, name: str, a: Any, operation: Operation, axis: int | None, dim: Hashable | None) -> Any:
    along = _dimension(owner, name, a, axis, dim)
    times.as_times(owner, name, a.indexes.get(along), along)
    if hasattr(a, "data_vars"):
        kept = {key: each for key, each in a.data_vars.items() if along not in each.dims}
        made = {
            key: _of_xarray(owner, f"{name}[{key!r}]", each, operation, None, along)
            for key, each in a.data_vars.items()
            if along in each.dims
        }
        if not made:
            return a
        first = next(iter(made.values()))
        rows = a.isel({along: slice(a.sizes[along] - first.sizes[along], None)})
        return rows.assign({key: (kept | made)[key] for key in a.data_vars})
    if a.dtype.kind not in "biufc":
        raise TypeError(f"{owner}({name} of dtype {a.dtype}): needs numbers; pass {name}.astype(float).")
    values = operation(a.to_numpy(), a.get_axis_num(along))
    return a.isel({along: slice(a.sizes[along] - values.shape[a.get_axis_num(along)], None)}).copy(data=values)


def _dimension(owner: str, name: str, a: Any, axis: int | None, dim: Hashable | None) -> Hashable:
    """Return the name of an xarray object's dimension of time.

    It is the dimension at `axis` or of the name `dim`; where both are None it is the only dimension, or "time".

    Args:
        owner: The public function that was called, for messages.
        name: The argument that `a` is, for messages.
        a: The object.
        axis: The number of a dimension, or None.
        dim: The name of a dimension, or None.

    Raises:
        ValueError: There is no such dimension, or both `axis` and `dim` are given.
    """
    dims = tuple(a.dims)
    if axis is not None and dim is None:
        return dims[errors.axis(owner, axis, len(dims), argument="axis", array=name)]
    found = dim if dim is not None else dims[0] if len(dims) == 1 else TIME
    if axis is not None or found not in dims:
        raise ValueError(
            f"{owner}(dim={dim!r}): needs the dimension of time, one of {dims}; pass for example "
            f"dim={(*dims, TIME)[0]!r}."
        )
    return found


def _each(columns: Sequence[np.ndarray], operation: Operation) -> list[np.ndarray]:
    """Return the results of an operation on columns, [n] each, in the order of the columns.

    Columns of one dtype are stacked to [n, columns], so that the operation is called once for each dtype.
    """
    found: dict[int, np.ndarray] = {}
    for dtype in dict.fromkeys(column.dtype for column in columns):
        which = [j for j, column in enumerate(columns) if column.dtype == dtype]
        found.update(zip(which, operation(np.stack([columns[j] for j in which]), 1), strict=True))
    return [found[j] for j in range(len(columns))]
