"""Checks of the arguments of losses for paths [time, batch, state], for every framework: of shapes and dtypes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MOMENTS = 4


def check_batches(owner: str, ys: Any, observed: Any, least: int = 2, least_observed: int | None = None) -> None:
    """Raise ValueError unless two batches of paths [time, batch, state] can be compared.

    Times and states must be as many in both; `least` is the least number of paths in `ys`, and `least_observed` that in
    `observed`, or None for `least`.
    """
    for name, paths in (("ys", ys), ("observed", observed)):
        if paths.ndim != 3:
            raise ValueError(
                f"{owner}({name} of shape {tuple(paths.shape)}): needs axes [time, batch, state]; add those that are "
                "missing, of length 1."
            )
    if (ys.shape[0], ys.shape[2]) != (observed.shape[0], observed.shape[2]):
        raise ValueError(
            f"{owner}(ys of shape {tuple(ys.shape)}, observed of shape {tuple(observed.shape)}): needs the same times "
            "and states; pass both as [time, batch, state], where only the batches may differ."
        )
    for name, paths, count in (("ys", ys, least), ("observed", observed, least_observed or least)):
        if paths.shape[1] < count:
            raise ValueError(
                f"{owner}({name} with {paths.shape[1]} paths): needs {count} or more; draw a larger batch, whose "
                "distribution is compared."
            )


def check_observed(owner: str, ys: Any, observed: Any) -> None:
    """Raise ValueError unless the shape of `observed` broadcasts to that of the paths `ys`."""
    if not _broadcasts(observed, ys):
        raise ValueError(
            f"{owner}(ys of shape {tuple(ys.shape)}, observed of shape {tuple(observed.shape)}): needs observations "
            "that broadcast to the paths; pass [time, batch, state]."
        )


def check_mask(owner: str, ys: Any, mask: Any, is_boolean: bool) -> None:
    """Raise ValueError unless a mask is boolean (`is_boolean`) and broadcasts to the paths `ys`."""
    if not is_boolean or not _broadcasts(mask, ys):
        raise ValueError(
            f"{owner}(mask of {mask.dtype} and shape {tuple(mask.shape)}): needs booleans that broadcast to the paths' "
            f"shape {tuple(ys.shape)}; pass for example observed == observed, False at NaN."
        )


def check_real(owner: str, name: str, dtype: Any, is_real: bool) -> None:
    """Raise TypeError unless paths are real (`is_real`): the square of a complex number is no distance."""
    if not is_real:
        raise TypeError(
            f"{owner}({name} of dtype {dtype}): needs real paths; pass real and imaginary parts as two entries."
        )


def check_orders(owner: str, orders: int) -> None:
    """Raise ValueError unless `orders`, the number of moments that are compared, is from 1 to 4."""
    if not 1 <= orders <= _MOMENTS:
        raise ValueError(f"{owner}(orders={orders}): needs 1 <= orders <= {_MOMENTS}; pass for example 2.")


def check_lags(owner: str, lags: Sequence[int], ys: Any) -> None:
    """Raise ValueError unless there are lags, each at least 1 and smaller than the number of times of `ys`."""
    if not lags or not all(1 <= lag < ys.shape[0] for lag in lags):
        raise ValueError(
            f"{owner}(lags={tuple(lags)}): needs lags from 1 to {ys.shape[0] - 1}, one less than there are "
            "times; pass for example (1, 2)."
        )


def _broadcasts(some: Any, other: Any) -> bool:
    """Return whether the shape of `some` broadcasts to that of `other`."""
    missing = other.ndim - some.ndim
    return missing >= 0 and all(a in (1, b) for a, b in zip(some.shape, other.shape[missing:], strict=True))
