"""The orders of a bank of fractional differences: their first values, and where each of them stays."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from hpfracc_nn import errors

Bounds = tuple[float, float]
Part = tuple[np.ndarray, Bounds]


def middle(owner: str, bounds: Any) -> float:
    """Return the middle of the bounds, or raise unless they are two numbers."""
    low, high = errors.pair(owner, "bounds", bounds)
    return (low + high) / 2


def first_orders(
    owner: str, argument: str, given: Any, channels: int, orders: int, bounds: Bounds, learn_alpha: bool
) -> np.ndarray:
    """Return the first value of each order of a bank, [channels * orders], or raise.

    Args:
        owner: The layer, for messages.
        argument: What it calls the values.
        given: One, `orders`, or channels * orders of them; None spreads them evenly.
        channels: Channels of the input.
        orders: Orders per channel.
        bounds: Where they are spread.
        learn_alpha: Whether they are learned: then none begins at a whole number.
    """
    low, high = bounds
    count = channels * orders
    if given is None:
        spread = low + (high - low) * (np.arange(orders) + 1) / (orders + 1)
        whole = np.isclose(spread, np.round(spread), rtol=0, atol=1e-9)
        # A learned order starts between whole numbers, and far enough from them to move.
        given = np.where(whole, np.round(spread) + 0.05 * learn_alpha, spread).tolist()
    numbers = errors.as_numbers(given)
    if numbers is None:
        raise TypeError(
            f"{owner}({argument} of type {type(given).__name__}): needs real numbers; pass one, or one for every order."
        )
    values = numbers.ravel()
    if values.size not in (1, orders, count):
        raise ValueError(
            f"{owner}({argument} of {values.size} values): needs 1, orders={orders} or "
            f"channels * orders={count} values; pass one for every order."
        )
    if not np.isfinite(values).all():
        raise ValueError(f"{owner}({argument}={given}): needs finite orders; pass values within ({low:g}, {high:g}).")
    return np.tile(values, count // values.size)


def stretches(values: np.ndarray, low: float, high: float) -> list[Part]:
    """Return (which orders, where they stay) for each stretch of the bounds between whole numbers that has any."""
    edges = [low, *range(math.floor(low) + 1, math.ceil(high)), high]
    parts = []
    for first, last in pairwise(edges):
        last_part = last == high
        inside = (values >= first if first != low else values > -math.inf) & ((values < last) | last_part)
        index = np.flatnonzero(inside)
        if index.size:
            parts.append((index, (float(first), float(last))))
    return parts
