"""The orders of layers that solve an equation from the state at the start alone."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_block_orders(owner: str, alpha: Any, values: np.ndarray, bounds: tuple[float, float] | None) -> None:
    """Raise unless orders are in (0, 1], where the state at the start is all that a solve begins with.

    Args:
        owner: Who asks, for messages.
        alpha: The orders as they were given.
        values: Their numbers.
        bounds: Where they stay; None is (0, 1).
    """
    if not ((values > 0) & (values <= 1)).all():
        raise ValueError(
            f"{owner}(alpha={alpha}): needs 0 < alpha <= 1, where the state at the start says all; above 1 use "
            "NeuralFDE, which takes its derivative too."
        )
    check_block_bounds(owner, (0.0, 1.0) if bounds is None else bounds)


def check_block_bounds(owner: str, bounds: tuple[float, float]) -> None:
    """Raise unless the bounds are an interval within (0, 1)."""
    low, high = bounds
    if not 0 <= low < high <= 1:
        raise ValueError(f"{owner}(bounds={(low, high)}): needs 0 <= low < high <= 1; pass for example (0, 1).")
