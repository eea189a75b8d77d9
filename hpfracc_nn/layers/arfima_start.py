"""Where the order of an ARFIMA model begins, in every framework."""

from __future__ import annotations

_USUAL = 0.3  # alpha, where nothing is said


def start_in(bounds: tuple[float, float] | None) -> float:
    """Return a first order: the usual one, or the middle of bounds that leave it out."""
    if bounds is None or bounds[0] < _USUAL < bounds[1]:
        return _USUAL
    return (bounds[0] + bounds[1]) / 2
