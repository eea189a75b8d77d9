"""The orders of layers that solve an equation from the state at the start alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions.definition import read_fixed


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
    low, high = errors.pair(owner, "bounds", bounds)
    if not 0 <= low < high <= 1:
        raise ValueError(f"{owner}(bounds={(low, high)}): needs 0 <= low < high <= 1; pass for example (0, 1).")


def fixed_orders(owner: str, alpha: Any) -> np.ndarray:
    """Return the orders that a layer is given as numbers, float64.

    Raises:
        TypeError: It is given a framework's array, which it would not learn.
    """
    fixed = read_fixed(owner, alpha)
    if fixed is None:
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; pass learn_alpha=True "
            "to train it, an Alpha that several layers share, or use the function for an alpha that you compute."
        )
    return np.asarray(fixed, dtype=np.float64)
