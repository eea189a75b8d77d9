"""The orders that a module around a stochastic equation is given as numbers, and where learned ones stay."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_stochastic_orders(owner: str, alpha: Any, values: np.ndarray) -> None:
    """Raise unless orders are in (1/2, 1].

    Args:
        owner: Who asks, for messages.
        alpha: The orders as they were given.
        values: Their numbers.
    """
    if not ((values > 0.5) & (values <= 1)).all():
        raise ValueError(f"{owner}(alpha={alpha}): needs 1/2 < alpha <= 1; pass for example 0.8.")


def stochastic_bounds(owner: str, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return where learned orders stay, (1/2, 1) where nothing is said; or raise."""
    low, high = (0.5, 1.0) if bounds is None else bounds
    if not 0.5 <= low < high <= 1:
        raise ValueError(f"{owner}(bounds={(low, high)}): needs 1/2 <= low < high <= 1; pass for example (0.5, 1).")
    return low, high
