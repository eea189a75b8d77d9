"""The orders of features of roughness, checked before the bank of differences is made."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn import errors

Pair = tuple[float, float]


def checked_orders(
    owner: str, alpha: Any, bounds: Any, channels: int, orders: int, learn_alpha: bool
) -> tuple[list[float] | None, Pair]:
    """Return the orders of a bank and where they stay as `FractionalDifference` takes them, or raise.

    Args:
        owner: Who asks, for messages.
        alpha: What was given: None, or numbers.
        bounds: What was given; None is (-1, 1).
        channels: Of the input.
        orders: Per channel.
        learn_alpha: Whether they are to be learned.
    """
    low, high = _pair(owner, (-1.0, 1.0) if bounds is None else bounds)
    if alpha is None:
        return None, (low, high)
    values = _numbers(owner, alpha)
    count = channels * orders
    if values.size not in (1, orders, count):
        raise ValueError(
            f"{owner}(alpha of {values.size} values): needs 1, orders={orders} or channels * orders={count} values; "
            "pass one for every order."
        )
    if not ((values >= low) & (values <= high)).all():
        raise ValueError(
            f"{owner}(alpha={alpha}): needs {low:g} <= alpha <= {high:g}; pass other orders, or bounds around them."
        )
    if learn_alpha and ((values == np.round(values)) | (values == low) | (values == high)).any():
        raise ValueError(
            f"{owner}(alpha={alpha}, learn_alpha=True): needs first orders inside ({low:g}, {high:g}) and beside whole "
            "numbers, which a learned order does not cross; start for example 0.05 above, or pass an Alpha, whose "
            "orders cross."
        )
    return values.tolist(), (low, high)


def _pair(owner: str, bounds: Any) -> Pair:
    low, high = errors.pair(owner, "bounds", bounds, "(-1, 1)")
    if not low < high:
        raise ValueError(f"{owner}(bounds={bounds!r}): needs low < high; pass a pair such as (-1, 1).")
    return low, high


def _numbers(owner: str, alpha: Any) -> np.ndarray:
    values = errors.as_numbers(alpha)
    if values is None:
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; "
            "pass learn_alpha=True to train them."
        )
    return values.ravel()
