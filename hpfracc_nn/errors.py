"""Checks of arguments whose messages state the rule, the value that broke it and the way out; and texts of exceptions.

In the messages `owner` is the public function or class, and `argument` the name of its parameter.
"""

from __future__ import annotations

import inspect
import logging
import math
import operator
import sys
from collections.abc import Callable, Container, Iterable
from numbers import Real
from typing import Any, cast

import numpy as np


def as_float(value: Any) -> float | None:
    """Return a real number as a float, infinite if too large for a float; None for anything else, bools too."""
    if type(value) is float:
        return value
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Real)):
        return None
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf
    except TypeError:  # np.timedelta64 counts as a number
        return None


def as_index(value: Any) -> int | None:
    """Return an integer as an int; None for anything else, floats and bools too."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # arrays and tensors have `__index__` whatever they hold
        return None


def as_pair(values: Any) -> tuple[float, float] | None:
    """Return two real numbers as floats; None where `values` holds anything else."""
    try:
        found = [as_float(each) for each in values]
    except (TypeError, RuntimeError):  # a tensor without axes or numbers
        return None
    return (found[0], found[1]) if len(found) == 2 and None not in found else None  # type: ignore[return-value]


def as_numbers(values: Any) -> np.ndarray | None:
    """Return a real number, or nested sequences of real numbers, as a float64 array; None where `values` is neither."""
    number = as_float(values)
    if number is not None:
        return np.asarray(number)
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # lists of different lengths, tensors that cannot be read
        return None
    return found.astype(np.float64) if found.dtype.kind in "fiu" else None


def positive_step(owner: str, dt: Any) -> float:
    """Return a positive, finite step, a number or an array without axes, as a float; raise for anything else."""
    if type(dt) is float and 0 < dt < math.inf:
        return dt
    step = _of_array(owner, dt) if hasattr(dt, "__array_namespace__") else as_float(dt)
    if step is None:
        raise TypeError(f"{owner}(dt={dt!r}): needs a real number; pass the spacing of the samples, such as dt=0.01.")
    if not (math.isfinite(step) and step > 0):
        raise ValueError(
            f"{owner}(dt={dt!r}): needs a finite dt > 0; pass the spacing of the samples, such as dt=0.01."
        )
    return step


def _of_array(owner: str, dt: Any) -> float | None:
    """Return a step `dt` that is an array as a float; None where the array has axes, or is not of a real dtype.

    Raise TypeError, in the name of the public function `owner`, where the array is traced and has no value yet.
    """
    if dt.shape != () or dt.dtype.kind in "bcmMOSU":
        return None
    try:
        return float(dt)
    except TypeError:
        raise TypeError(
            f"{owner}(dt={dt!r}): needs a step that is known when the call is traced, because the weights are made of "
            "it; pass a float that the traced function closes over, or make dt a static argument of it."
        ) from None


def real(owner: str, argument: str, value: Any, least: float, *, above: bool = False, example: float = 1) -> float:
    """Return a finite real number as a float; raise unless it is >= `least`, or > `least` where `above`.

    `example` is a value that the message proposes.
    """
    if type(value) is float and least < value < math.inf:
        return value
    limit = "" if least == -math.inf else f" {'>' if above else '>='} {least:g}"
    example_of = f"for example {argument}={example:g}"
    number = _number(owner, argument, value, limit, example_of)
    if not (least < number < math.inf or (number == least and not above)):
        raise ValueError(f"{owner}({argument}={value!r}): needs a finite {argument}{limit}; pass {example_of}.")
    return number


def probability(owner: str, argument: str, value: Any, *, example: float = 0.05) -> float:
    """Return `value` as a float; raise unless it lies strictly between 0 and 1."""
    number = _number(owner, argument, value, "", f"for example {argument}={example:g}")
    if not 0 < number < 1:
        way = f"a part of 1, such as {argument}={example:g}"
        raise ValueError(f"{owner}({argument}={value!r}): needs 0 < {argument} < 1; pass {way}.")
    return number


def part(owner: str, argument: str, value: Any) -> float:
    """Return `value` as a float; raise unless it is a real number in [0, 1]."""
    number = _number(owner, argument, value, "", f"a part of 1, such as {argument}=0.1")
    if not 0 <= number <= 1:
        raise ValueError(f"{owner}({argument}={value!r}): needs 0 <= {argument} <= 1; pass a part such as 0.1.")
    return number


def _number(owner: str, argument: str, value: Any, limit: str, way: str) -> float:
    number = as_float(value)
    if number is None:
        raise TypeError(f"{owner}({argument}={value!r}): needs a real number{limit}; pass {way}.")
    return number


def pair(owner: str, argument: str, values: Any, example: str = "(0, 1)") -> tuple[float, float]:
    """Return two real numbers as floats; raise TypeError where `values` holds anything else."""
    found = as_pair(values)
    if found is None:
        raise TypeError(f"{owner}({argument}={values!r}): needs two numbers; pass a pair such as {example}.")
    return found


def index(owner: str, argument: str, value: Any) -> int:
    """Return the index of an axis as an int; raise TypeError where it is no integer. Its range is not checked."""
    found = as_index(value)
    if found is None:
        raise TypeError(
            f"{owner}({argument}={value!r}): needs an integer; pass the index of the time axis, such as {argument}=-1."
        )
    return found


def axis(owner: str, dim: Any, ndim: int, *, argument: str = "dim", array: str = "x") -> int:
    """Return `dim` as a non-negative axis of an array with `ndim` axes; raise unless there is such an axis.

    In messages `argument` names the axis, and `array` the array.
    """
    place = dim if type(dim) is int else index(owner, argument, dim)
    if ndim == 0:
        raise ValueError(f"{owner}({array}): needs at least one axis; {array} has shape (), pass a series of samples.")
    if not -ndim <= place < ndim:
        raise ValueError(
            f"{owner}({argument}={place}): needs {-ndim} <= {argument} < {ndim} for {ndim} axes; "
            f"pass the index of the time axis, such as {argument}=-1."
        )
    return place % ndim


def one_of(owner: str, argument: str, value: Any, allowed: Iterable[str]) -> str:
    """Return `value`, or raise: it must be one of the allowed names."""
    names = sorted(allowed)
    if not isinstance(value, str) or value not in names:
        raise ValueError(
            f"{owner}({argument}={value!r}): needs one of {', '.join(map(repr, names))}; pass one of these names."
        )
    return value


def count(owner: str, argument: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int, or raise: it must be a whole number of at least `least`."""
    number = as_index(value)
    if number is None:
        raise TypeError(f"{owner}({argument}={value!r}): needs an integer; pass a whole number such as {least}.")
    if number < least:
        raise ValueError(
            f"{owner}({argument}={number}): needs {argument} >= {least}; pass a whole number such as {least}."
        )
    if number > sys.maxsize:
        raise ValueError(
            f"{owner}({argument}={number}): needs {argument} < 2**63; pass a whole number such as {least}."
        )
    return number


def counts(owner: str, argument: str, value: Any, axes: int, least: int = 1) -> tuple[int, ...]:
    """Return a tuple of `axes` whole numbers >= `least`, given as a sequence or as one number for all; or raise."""
    each = tuple(value) if isinstance(value, list | tuple) else (value,) * axes
    if len(each) != axes:
        raise ValueError(
            f"{owner}({argument}={value}): needs one number, or one for each of {axes} axes; pass as many."
        )
    return tuple(count(owner, argument, one, least) for one in each)


def lengths(owner: str, argument: str, shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of ints; raise where it is no sequence of whole numbers >= 0."""
    try:
        given = list(shape)
    except (TypeError, RuntimeError):  # a tensor without axes or numbers
        given = [None]
    sizes = [as_index(each) for each in given]
    if None in sizes or any(size > sys.maxsize for size in sizes if size is not None):
        raise TypeError(
            f"{owner}({argument}={shape!r}): needs the lengths of axes; "
            "pass a tuple of whole numbers such as (8, 1024)."
        )
    return tuple(count(owner, argument, size, 0) for size in sizes)


def claim(owner: str, argument: str, value: Any) -> bool:
    """Return `value` as a bool; raise TypeError unless it is True or False itself, and not 1, 0 or None."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{owner}({argument}={value!r}): needs True or False; pass one of them.")
    return bool(value)


def function(owner: str, argument: str, value: Any) -> Callable[..., Any]:
    """Return `value`, or raise: it must be callable, and no class."""
    if not callable(value) or isinstance(value, type):
        raise TypeError(f"{owner}({argument}={value!r}): needs a function or a module; pass what is to be called.")
    return cast(Callable[..., Any], value)


def printable(text: str) -> str:
    """Return `text` with all characters that are not printable, such as newlines, as Python escape sequences."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def made_printable(record: logging.LogRecord) -> bool:
    """Make the message of a log record one printable line, and return True: a filter of a logger.

    Names and texts in a message may come out of a file.
    """
    text = record.getMessage()
    if not text.isprintable():
        record.msg, record.args = printable(text), None
    return True


def text_of(error: BaseException) -> str:
    """Return the text of an exception, "" where its `__str__` raises."""
    try:
        return str(error)
    except Exception:  # an exception's own text may be broken, and must not hide the exception
        return ""


def note(error: BaseException, text: str) -> None:
    """Add a note to an exception once, if the exception takes notes: frozen ones and broken ones do not."""
    try:
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)
    except Exception:  # an exception's own methods may be broken, and must not hide the exception
        return


def note_arguments(error: TypeError, owner: str, f: Callable[..., Any], arguments: str) -> None:
    """Add a note to an error of a call of `f`, where `f` does not take the arguments: it says which they are.

    Args:
        error: What the call has raised.
        owner: The public function and its parameter, such as "fdeint(f)".
        f: The user's function or module.
        arguments: The names of the positional arguments, such as "t, y".
    """
    try:
        signature = inspect.signature(f)
        if hasattr(f, "forward") and any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values()):
            signature = inspect.signature(f.forward)  # a module's `__call__` takes everything
    except (TypeError, ValueError):  # builtins may have none
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError:
        note(
            error, f"{owner}: needs a function of ({arguments}); let it take them all, those too that it does not use."
        )


def package_of(kind: type, packages: Container[str]) -> str | None:
    """Return the package, among `packages`, that defines a class or one of its bases; None where none does."""
    for cls in kind.__mro__:
        package = cls.__module__.partition(".")[0]
        if package in packages:
            return package
    return None
