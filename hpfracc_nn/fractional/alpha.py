"""Validation of a learned order's initial value, strictly inside finite bounds, for every framework."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpfracc_nn import errors

Bounds = tuple[float, float]


def finite_bounds(owner: str, bounds: Any) -> Bounds:
    """Return the bounds as two floats, or raise unless they are a finite interval."""
    low, high = errors.pair(owner, "bounds", bounds)
    if not (math.isfinite(high - low) and low < high):
        raise ValueError(f"{owner}(bounds={bounds!r}): needs finite low < high; pass a pair such as (0, 1).")
    return low, high


def first_values(owner: str, init: Any) -> np.ndarray:
    """Return initial values in float64, or raise unless they are real numbers."""
    values = errors.as_numbers(init)
    if values is None:
        raise TypeError(
            f"{owner}(alpha={init!r}): needs real numbers to begin with; pass for example 0.5, or one for each order."
        )
    return values


def order_shape(owner: str, shape: Any, values: np.ndarray) -> tuple[int, ...]:
    """Return the shape of orders; None means that of the initial values, which must broadcast to it."""
    if shape is None:
        return values.shape
    wanted = errors.lengths(owner, "shape", shape)
    axes = zip(reversed(values.shape), reversed(wanted), strict=False)
    if values.ndim > len(wanted) or any(own not in (1, size) for own, size in axes):
        raise ValueError(
            f"{owner}(shape={wanted}): needs a shape that first values of shape {values.shape} broadcast to; leave it "
            "out, or pass one first value."
        )
    return wanted


def check_inside(owner: str, given: Any, values: np.ndarray, bounds: Bounds) -> None:
    """Raise unless the initial values, in their own dtype and in float64, lie strictly inside the bounds."""
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
    """Raise unless a layer accepts the order module passed as its alpha.

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
