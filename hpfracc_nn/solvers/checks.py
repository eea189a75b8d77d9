"""What is asked of a solve's arguments before a step is taken; without a framework."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpfracc_nn import errors


def named(owner: str, argument: str, value: Any, known: Mapping[str, type], kinds: Sequence[type]) -> Any:
    """Return an option: itself, or that of a name with its defaults.

    Raises:
        ValueError: There is none of that name.
        TypeError: It is neither a name nor an option.
    """
    if isinstance(value, str):
        return known[errors.one_of(owner, argument, value, known)]()
    if not isinstance(value, tuple(kinds)):
        names = ", ".join(map(repr, sorted(known)))
        classes = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"{owner}({argument} of type {type(value).__name__}): needs one of {names}, or an object of {classes}; "
            "pass one of these."
        )
    return value


def increasing(owner: str, ts: np.ndarray) -> np.ndarray:
    """Return output times as float64.

    Raises:
        ValueError: There are fewer than two, one is not finite, or they do not increase.
    """
    times = np.asarray(ts, dtype=np.float64)
    if times.ndim != 1 or times.size < 2:
        raise ValueError(times_message(owner, times.shape))
    if not np.isfinite(times).all():
        i = int(np.argmin(np.isfinite(times)))
        raise ValueError(f"{owner}(ts=...): times must be finite; ts[{i}]={times[i]}; leave it out.")
    falls = np.flatnonzero(np.diff(times) <= 0)
    if falls.size:
        i = int(falls[0]) + 1
        raise ValueError(
            f"{owner}(ts=...): times must increase; ts[{i}]={times[i]:g} follows ts[{i - 1}]={times[i - 1]:g}; sort "
            "them and leave out what comes twice."
        )
    return times


def times_message(owner: str, shape: tuple[int, ...]) -> str:
    """Return what is said of times of that shape, which is none."""
    return (
        f"{owner}(ts of shape {tuple(shape)}): needs two times or more in one axis, the first where y0 is given; pass "
        "for example numpy.linspace(0, 1, 101)."
    )


def fitting_orders(owner: str, alpha: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of alpha's axes, as many as a state of that shape has: 1 where alpha does not vary.

    Raises:
        ValueError: alpha does not broadcast to the state.
    """
    if math.prod(alpha) == 1:
        return (1,) * len(shape)
    padded = (1,) * (len(shape) - len(alpha)) + tuple(alpha)
    if len(padded) != len(shape) or any(size not in (1, shape[axis]) for axis, size in enumerate(padded)):
        raise ValueError(
            f"{owner}(alpha of shape {tuple(alpha)}): needs one number, or a shape that broadcasts to y0's "
            f"{tuple(shape)}; pass one alpha for all, or one for each entry along some of y0's axes."
        )
    return padded


def orders(owner: str, alpha: np.ndarray, has_slope: bool, may_change: bool = False) -> None:
    """Raise unless all orders are in (0, 2), and a derivative is given above 1 and only there.

    Where orders may change, as those that are learned, one may be given that the present ones do not need.

    Raises:
        ValueError: They are not.
    """
    wrong = alpha[~((alpha > 0) & (alpha < 2))]
    if wrong.size:
        system = "write an equation of higher order as a system, one entry of the state for each derivative"
        ways = [system] if wrong[0] >= 2 else [] if may_change else ["pass an order in between"]
        ways += ["keep a learned order within bounds"] if may_change else []
        raise ValueError(f"{owner}(alpha={wrong[0]:g}): needs 0 < alpha < 2; {'; '.join(ways)}.")
    if (alpha > 1).any() and not has_slope:
        raise ValueError(
            f"{owner}(alpha={alpha.max():g}): needs the derivative at the start above alpha = 1; pass dy0, of y0's "
            f"shape{', or keep a learned order below 1' if may_change else ''}."
        )
    if has_slope and not may_change and not (alpha > 1).any():
        raise ValueError(
            f"{owner}(dy0): is a condition for orders above 1, and alpha is {alpha.max():g}; leave dy0 out."
        )
