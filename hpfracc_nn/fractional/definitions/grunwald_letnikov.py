"""The Grunwald-Letnikov derivative: the filter (1 - z)**alpha."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpfracc_nn.fractional.definitions.definition import Definition


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class GrunwaldLetnikov(Definition):
    """The Grunwald-Letnikov derivative with zero history: `dt**-alpha (1 - z)**alpha x`, for -1 <= alpha <= 2.

    Nothing is subtracted and nothing looks ahead: it is the fractional difference of time series analysis (ARFIMA),
    and a negative alpha sums. Order 1 against the Riemann-Liouville derivative where x(0) = 0. Scheme `bdf2` replaces
    1 - z with (3/2)(1 - z/3)(1 - z), order 2 away from 0 where x(0) = 0.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Oldham & Spanier (1974), section 3.4; Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> # the coefficients of (1 - z)**0.5
        >>> GrunwaldLetnikov(0.5)([1.0, 0.0, 0.0, 0.0]).round(4)
        array([ 1.    , -0.5   , -0.125 , -0.0625])
    """

    scheme: str = "grunwald"

    lowest: ClassVar[float] = -1.0
    schemes: ClassVar[tuple[str, ...]] = ("grunwald", "bdf2")
    subtracts: ClassVar[bool] = False
    beyond: ClassVar[str] = "difference once with alpha=1, then use alpha={rest} on the result."

    def _below(self, alpha: float) -> str:
        return f"sum once with alpha=-1, then use alpha={alpha + 1:g} on the result."
