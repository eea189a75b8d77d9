"""What a learned order must be given, in every framework: a first value strictly inside finite bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Bounds = tuple[float, float]


def finite_bounds(owner: str, bounds: Any) -> Bounds:
    """Return the bounds as two floats, or raise unless they are a finite interval."""
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise TypeError(f"{owner}(bounds={bounds!r}): needs two numbers; pass a pair such as (0, 1).") from None
    if not (math.isfinite(high - low) and low < high):
        raise ValueError(f"{owner}(bounds={bounds!r}): needs finite low < high; pass a pair such as (0, 1).")
    return low, high


def check_inside(owner: str, given: Any, values: np.ndarray, bounds: Bounds) -> None:
    """Raise unless the first values, as they were given and in float64, lie strictly inside the bounds."""
    low, high = bounds
    outside = values[~((values > low) & (values < high))]
    if outside.size:
        margin = 0.01 * (high - low)
        near = np.clip(np.nan_to_num(outside[0], nan=(low + high) / 2), low + margin, high - margin)
        raise ValueError(
            f"{owner}(alpha={given}): needs low < alpha < high to be learned within bounds ({low:g}, {high:g}); "
            f"start inside, for example at {near:g}."
        )


def check_taken(owner: str, kind: str, own: Bounds, own_shape: tuple, bounds: Any, shape: tuple) -> None:
    """Raise unless a layer may have an order that it was given.

    Args:
        owner: The layer.
        kind: The class of the order.
        own: The order's bounds.
        own_shape: The order's shape.
        bounds: What the layer was given as bounds besides, which must be None.
        shape: The shape that the layer needs.
    """
    if bounds is not None:
        raise ValueError(
            f"{owner}(alpha of type {kind}, bounds={bounds}): needs the order's own bounds, which "
            f"are ({own[0]:g}, {own[1]:g}); leave them out, or make the order with others."
        )
    if own_shape != shape:
        raise ValueError(
            f"{owner}(alpha: {kind} of shape {own_shape}): needs an order of shape {shape}; make it with shape={shape}."
        )
