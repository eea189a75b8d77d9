"""Sizes that a program leaves open, those of `jax.export.symbolic_shape`: a plan is chosen all the same."""

from __future__ import annotations

from typing import Any

from jax.export import is_symbolic_dim

ASSUMED = 256  # of whatever is left open: which kernel runs changes nothing of the result but its rounding


def assumed(size: Any) -> int:
    """Return a size that a plan is chosen for: itself, or where it is open `ASSUMED`."""
    return ASSUMED if is_symbolic_dim(size) else size


def fits(count: int, size: Any) -> bool:
    """Return whether so many are all of a size; one that is open is not taken in parts."""
    return is_symbolic_dim(size) or size <= count


def check_known(owner: str, name: str, size: Any) -> None:
    """Raise ValueError where a size is open that weights are made for."""
    if is_symbolic_dim(size):
        raise ValueError(
            f"{owner}({name}={size}): needs a number that is known when the call is traced, because weights are made "
            "for it; leave other axes open, and export one program for each number of samples."
        )
