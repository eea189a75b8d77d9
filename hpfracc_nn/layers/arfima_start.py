"""Where the order of an ARFIMA model begins, in every framework."""

from __future__ import annotations

from hpfracc_nn import errors

_USUAL = 0.3  # alpha, where nothing is said


def start_in(bounds: tuple[float, float] | None) -> float:
    """Return a first order: the usual one, or the middle of bounds that leave it out."""
    if bounds is None:
        return _USUAL
    low, high = errors.pair("ARFIMA", "bounds", bounds, "(-0.5, 0.5)")
    return _USUAL if low < _USUAL < high else (low + high) / 2
