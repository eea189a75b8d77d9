"""The schemes: each is one file with `left`, `start` and the declared rates.

Those with a starting column have `start_index` besides, those that interpolate `pieces` and `power`, for samples at any
times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpfracc_nn.fractional.schemes import bdf2, centred, grunwald, l1, l1_2, trapezoid


@dataclass(frozen=True)
class Scheme:
    """A discretisation.

    Attributes:
        name: Its name at the public door.
        left: (alpha, taylor, differences, lags, xp) -> weights [*c, k] at the given lags, for dt = 1.
        start: (alpha, taylor, differences, rows, xp) -> the starting column [*c, k] at the given rows; None where there
            is none.
        start_index: (taylor) -> the entry of d that the starting column acts on, None where those terms have none; None
            where there is no column.
        rate: (alpha) -> the order of convergence on smooth data, at a fixed time.
        uniform_rate: (alpha, subtracts) -> the order of the largest error of all samples but the first, on smooth data
            that are zero at the first where no Taylor polynomial is subtracted. Not positive: it does not converge.
        pieces: (samples [..., n], steps [..., n - 1], xp) -> what stands on each cell of any times, [..., n - 1]: its
            mean and, where it is no constant, half its increase over the cell; None where the scheme needs equal steps.
        power: (alpha, taylor) -> the order of the integral that is taken of these pieces.
    """

    name: str
    left: Callable
    start: Callable | None
    start_index: Callable[[int], int | None] | None
    rate: Callable[[float], float]
    uniform_rate: Callable[[float, bool], float]
    pieces: Callable | None = None
    power: Callable | None = None


def _scheme(name: str, module) -> Scheme:  # type: ignore[no-untyped-def]
    start_index, *at_any_times = (getattr(module, each, None) for each in ("start_index", "pieces", "power"))
    return Scheme(name, module.left, module.start, start_index, module.rate, module.uniform_rate, *at_any_times)


SCHEMES = {
    "l1": _scheme("l1", l1),
    "l1_2": _scheme("l1_2", l1_2),
    "grunwald": _scheme("grunwald", grunwald),
    "bdf2": _scheme("bdf2", bdf2),
    "trapezoid": _scheme("trapezoid", trapezoid),
    "centred": _scheme("centred", centred),
}
