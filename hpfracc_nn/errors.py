"""The checks behind every message: the rule, the value that broke it, the way out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any


def positive_step(owner: str, dt: Any) -> float:
    """Return `dt` as a float, or raise: a step is a positive, finite number."""
    if type(dt) is float and 0 < dt < math.inf:
        return dt
    if isinstance(dt, bool) or not isinstance(dt, Real):
        raise TypeError(f"{owner}(dt={dt!r}): needs a real number; pass the spacing of the samples, such as dt=0.01.")
    step = float(dt)
    if not (math.isfinite(step) and step > 0):
        raise ValueError(
            f"{owner}(dt={dt!r}): needs a finite dt > 0; pass the spacing of the samples, such as dt=0.01."
        )
    return step


def real(owner: str, argument: str, value: Any, least: float, *, above: bool = False) -> float:
    """Return `value` as a float, or raise: it must be a finite real number of at least `least`, or `above` it."""
    if type(value) is float and least < value < math.inf:
        return value
    sign = ">" if above else ">="
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{owner}({argument}={value!r}): needs a real number {sign} {least:g}; pass for example {argument}=1."
        )
    number = float(value)
    if not (least < number < math.inf or (number == least and not above)):
        raise ValueError(
            f"{owner}({argument}={value!r}): needs a finite {argument} {sign} {least:g}; pass for example {argument}=1."
        )
    return number


def probability(owner: str, argument: str, value: Any) -> float:
    """Return `value` as a float, or raise: it must lie strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{owner}({argument}={value!r}): needs a real number; pass for example {argument}=0.95.")
    if not 0 < float(value) < 1:
        raise ValueError(
            f"{owner}({argument}={value!r}): needs 0 < {argument} < 1; pass a part of 1, such as {argument}=0.95."
        )
    return float(value)


def axis(owner: str, dim: Any, ndim: int, *, argument: str = "dim", array: str = "x") -> int:
    """Return `dim` as a non-negative axis of an array with `ndim` axes, or raise; the others are names in messages."""
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        raise TypeError(
            f"{owner}({argument}={dim!r}): needs an integer; pass the index of the time axis, such as {argument}=-1."
        )
    index = dim.__index__()
    if ndim == 0:
        raise ValueError(f"{owner}({array}): needs at least one axis; {array} has shape (), pass a series of samples.")
    if not -ndim <= index < ndim:
        raise ValueError(
            f"{owner}({argument}={index}): needs {-ndim} <= {argument} < {ndim} for {ndim} axes; "
            f"pass the index of the time axis, such as {argument}=-1."
        )
    return index % ndim


def one_of(owner: str, argument: str, value: Any, allowed: Iterable[str]) -> str:
    """Return `value`, or raise: it must be one of the allowed names."""
    names = sorted(allowed)
    if value not in names:
        raise ValueError(
            f"{owner}({argument}={value!r}): needs one of {', '.join(map(repr, names))}; pass one of these names."
        )
    return value


def count(owner: str, argument: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int, or raise: it must be a whole number of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{owner}({argument}={value!r}): needs an integer; pass a whole number such as {least}.")
    number = value.__index__()
    if number < least:
        raise ValueError(
            f"{owner}({argument}={number}): needs {argument} >= {least}; pass a whole number such as {least}."
        )
    return number
