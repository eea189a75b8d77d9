"""Tables of samples: what pandas, polars and xarray put around an array, told by the package of its class.

None of these packages is imported: what a table has to do it does itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.framework import package_of

PACKAGES = ("pandas", "polars", "xarray")
TIME = "time"  # the dimension of an xarray object that is taken where none is named

# (samples, axis) -> as many samples along that axis, or fewer, which are then the last ones
Operation = Callable[[np.ndarray, int], np.ndarray]


def is_table(a: Any) -> bool:
    """Whether `a` is an object of one of the packages."""
    return package_of(type(a), PACKAGES) is not None


def mapped(owner: str, name: str, a: Any, operation: Operation, axis: int | None, dim: Hashable | None) -> Any:
    """Return the table with its numbers replaced by those of an operation along time; `owner` is named in messages.

    Args:
        owner: Who asks.
        name: The table's name in messages.
        a: The table.
        operation: What is done to its numbers, those of one dtype at a time.
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
    """Return tables one after the other in time; {name: table}, where one is `a` and None is nothing."""
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
    concat = sys.modules[package].concat  # type: ignore[index]  # loaded, because a is one of its objects
    if package == "xarray":
        return concat(list(given.values()), dim=_dimension(owner, "a", a, axis, dim))
    if axis is not None and errors.axis(owner, axis, a.ndim, argument="axis", array="a") == 1:
        raise ValueError(f"{owner}(axis={axis}): needs rows to go on before or after a table; leave axis out.")
    return concat(list(given.values()))


def times_of(owner: str, name: str, a: Any) -> Any:
    """Return the increasing times of the rows as a pandas index; None where the rows have none, or names for labels.

    Raises:
        ValueError: They do not increase, or belong to several series.
    """
    package = package_of(type(a), PACKAGES)
    if package == "pandas":
        return _checked(owner, name, a.index)
    if package == "xarray" and len(a.dims):
        return _checked(owner, name, a.indexes.get(next(iter(a.dims))))
    return None


def with_numbers(a: Any, found: np.ndarray) -> Any:
    """Return numbers [rows, columns] as a table like `a`, the last of whose rows and all of whose columns they have.

    What is no table, or has another number of columns, gives the numbers as they are.
    """
    package = package_of(type(a), PACKAGES)
    if package is None or len(getattr(a, "shape", ())) != 2 or a.shape[1] != found.shape[1]:
        return found
    left_out = len(a) - len(found)
    if package == "pandas":
        return type(a)(found, index=a.index[left_out:], columns=a.columns)
    if package == "polars":
        return type(a)(found, schema=a.columns, orient="row")
    return a[left_out:].copy(data=found)


def _of_pandas(owner: str, name: str, a: Any, operation: Operation, axis: int | None) -> Any:
    axis = errors.axis(owner, 0 if axis is None else axis, a.ndim, argument="axis", array=name)
    if axis == 0:
        _checked(owner, name, a.index)
    if a.ndim == 1:
        values = operation(_of_column(owner, name, a.name, a), 0)
        return type(a)(values, index=a.index[len(a) - len(values) :], name=a.name).__finalize__(a)
    columns = [_of_column(owner, name, a.columns[j], a.iloc[:, j]) for j in range(a.shape[1])]
    if axis == 1:
        values = operation(np.stack(columns, axis=1), 1) if columns else np.empty(a.shape)
        return type(a)(values, index=a.index, columns=a.columns[a.shape[1] - values.shape[1] :]).__finalize__(a)
    found = _each(columns, operation)
    left_out = len(a) - len(found[0]) if found else 0
    # By position: names may stand twice.
    table = type(a)(dict(enumerate(found)), index=a.index[left_out:])
    table.columns = a.columns
    return table.__finalize__(a)


def _of_column(owner: str, name: str, label: Any, column: Any) -> np.ndarray:
    """Return the numbers of a pandas column; missing ones of a type that has its own are NaN."""
    dtype = column.dtype
    if dtype.kind not in "biufc":
        raise TypeError(
            f"{owner}({name}: column {label!r} of dtype {dtype}): needs numbers; make times the index "
            f"({name}.set_index({label!r})), turn digits into numbers ({name}.astype(float)), or leave the column out."
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
    times = [each for each in columns if is_frame and (each.name == dim or (dim is None and each.dtype.is_temporal()))]
    if len(times) > 1 or (dim is not None and not times):
        raise ValueError(
            f"{owner}(dim={dim!r}): needs one column of times at most, of {[each.name for each in columns]}; pass its "
            "name as dim."
        )
    for column in times:
        numbers = column.to_physical().to_numpy()
        _raise_unless(owner, name, numbers[1:] > numbers[:-1], column, f"sort them, {name}.sort({column.name!r})")
    others = [each for each in columns if not any(each is column for column in times)]
    for each in others:
        if not (each.dtype.is_numeric() or str(each.dtype) == "Boolean"):
            raise TypeError(
                f"{owner}({name}: column {each.name!r} of dtype {each.dtype}): needs numbers; cast the column, or "
                "leave it out."
            )
    found = _each([each.to_numpy() for each in others], operation)
    if not is_frame:
        return type(a)(a.name, found[0])
    left_out = len(a) - len(found[0]) if found else 0
    made = {each.name: type(each)(each.name, values) for each, values in zip(others, found, strict=True)}
    return type(a)([made.get(each.name, each[left_out:]) for each in columns])


def _of_xarray(owner: str, name: str, a: Any, operation: Operation, axis: int | None, dim: Hashable | None) -> Any:
    along = _dimension(owner, name, a, axis, dim)
    _checked(owner, name, a.indexes.get(along))
    if hasattr(a, "data_vars"):
        kept = {key: each for key, each in a.data_vars.items() if along not in each.dims}
        made = {
            key: _of_xarray(owner, f"{name}[{key!r}]", each, operation, None, along)
            for key, each in a.data_vars.items()
            if along in each.dims
        }
        first = next(iter(made.values()))
        rows = a.isel({along: slice(a.sizes[along] - first.sizes[along], None)})
        return rows.assign({key: (kept | made)[key] for key in a.data_vars})
    if a.dtype.kind not in "biufc":
        raise TypeError(f"{owner}({name} of dtype {a.dtype}): needs numbers; pass {name}.astype(float).")
    values = operation(a.to_numpy(), a.get_axis_num(along))
    return a.isel({along: slice(a.sizes[along] - values.shape[a.get_axis_num(along)], None)}).copy(data=values)


def _dimension(owner: str, name: str, a: Any, axis: int | None, dim: Hashable | None) -> Hashable:
    """Return the dimension of time: the one that is named, the only one, or that of the name "time"."""
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
    """Return the operation on each column, those of one dtype together."""
    found: dict[int, np.ndarray] = {}
    for dtype in dict.fromkeys(column.dtype for column in columns):
        which = [j for j, column in enumerate(columns) if column.dtype == dtype]
        found.update(zip(which, operation(np.stack([columns[j] for j in which]), 1), strict=True))
    return [found[j] for j in range(len(columns))]


def _checked(owner: str, name: str, index: Any) -> Any:
    """Return a pandas index as increasing times, or raise; None where its labels are no times."""
    if index is None:
        return None
    if index.nlevels > 1:
        index = _of_one_series(owner, name, index)
    if index.dtype.name.startswith("period"):
        index = index.to_timestamp()
    if index.dtype.kind not in "iufmM":
        return None
    if not (index.is_monotonic_increasing and index.is_unique) or index.hasnans:
        known = index.notna()
        later = np.asarray(index[1:] > index[:-1], dtype=bool) & known[1:]
        later[:1] &= known[0]
        way_out = f"sort them ({name}.sort_index()) and drop the later of two ({name}[~{name}.index.duplicated()])"
        _raise_unless(owner, name, later, index, way_out + ", or leave the index out where it holds no times")
    return index


def _of_one_series(owner: str, name: str, index: Any) -> Any:
    """Return the one level of an index that varies, or raise."""
    levels = [index.get_level_values(level) for level in range(index.nlevels)]
    varying = [level for level in levels if level.nunique() > 1]
    if len(varying) > 1:
        names = [level.name for level in varying]
        raise ValueError(
            f"{owner}({name} with an index of {index.nlevels} levels): needs the rows of one series, and {names} both "
            f"vary; make the series columns ({name}.unstack()), or pass the rows of each with {name}.groupby(...)."
        )
    return (varying or levels)[-1]


def _raise_unless(owner: str, name: str, later: np.ndarray, labels: Any, way_out: str) -> None:
    """Raise where a time does not come later than the one before."""
    if not later.all():
        row = int(np.argmin(later)) + 1
        raise ValueError(
            f"{owner}({name}): needs times that increase; row {row} is {labels[row]} and the row before "
            f"{labels[row - 1]}; {way_out}."
        )
