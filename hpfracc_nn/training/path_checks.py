"""What losses for paths [time, batch, state] refuse, alike in every framework: they look at shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MOMENTS = 4


def check_batches(owner: str, ys: Any, observed: Any, least: int = 2, least_observed: int | None = None) -> None:
    """Raise unless two batches of paths can be compared, with so many paths or more in each."""
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
    """Raise unless what was observed broadcasts to the paths."""
    if not _broadcasts(observed, ys):
        raise ValueError(
            f"{owner}(ys of shape {tuple(ys.shape)}, observed of shape {tuple(observed.shape)}): needs observations "
            "that broadcast to the paths; pass [time, batch, state]."
        )


def check_mask(owner: str, ys: Any, mask: Any, is_boolean: bool) -> None:
    """Raise unless a mask is boolean and broadcasts to the paths."""
    if not is_boolean or not _broadcasts(mask, ys):
        raise ValueError(
            f"{owner}(mask of {mask.dtype} and shape {tuple(mask.shape)}): needs booleans that broadcast to the paths' "
            f"shape {tuple(ys.shape)}; pass for example observed == observed, False at NaN."
        )


def check_real(owner: str, name: str, dtype: Any, is_real: bool) -> None:
    """Raise unless paths are real: the square of a complex number is no distance."""
    if not is_real:
        raise TypeError(
            f"{owner}({name} of dtype {dtype}): needs real paths; pass real and imaginary parts as two entries."
        )


def check_orders(owner: str, orders: int) -> None:
    """Raise unless so many moments are compared."""
    if not 1 <= orders <= _MOMENTS:
        raise ValueError(f"{owner}(orders={orders}): needs 1 <= orders <= {_MOMENTS}; pass for example 2.")


def check_lags(owner: str, lags: Sequence[int], ys: Any) -> None:
    """Raise unless there are lags, each smaller than the number of times."""
    if not lags or not all(1 <= lag < ys.shape[0] for lag in lags):
        raise ValueError(
            f"{owner}(lags={tuple(lags)}): needs lags from 1 to {ys.shape[0] - 1}, one less than there are "
            "times; pass for example (1, 2)."
        )


def _broadcasts(some: Any, other: Any) -> bool:
    """Whether the shape of `some` broadcasts to that of `other`."""
    missing = other.ndim - some.ndim
    return missing >= 0 and all(a in (1, b) for a, b in zip(some.shape, other.shape[missing:], strict=True))
