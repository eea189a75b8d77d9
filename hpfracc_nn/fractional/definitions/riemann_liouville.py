"""The Riemann-Liouville derivative and integral."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.definitions.definition import Definition
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.powers import power_weights
from hpfracc_nn.fractional.stencil import Stencil


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class RiemannLiouville(Definition):
    """The Riemann-Liouville derivative D^alpha x = (d/dt)^c I^(c - alpha) x, for 0 <= alpha <= 2.

    It is Caputo's plus `t**(j - alpha) / Gamma(j + 1 - alpha) x^(j)(0)` for j < c, taken in closed form: at t = 0 it is
    infinite where x(0) != 0, and the first sample is `dt**-alpha x(0)`. alpha = 0 is the identity.

    The default scheme `bdf2` has order 2 at a fixed time for every alpha, and the first samples order 2 - alpha, above
    alpha = 1 3 - alpha; the analytic terms do not disturb it.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Diethelm (2010), definition 2.2 and lemma 3.4.

    Examples:
        >>> y = RiemannLiouville(0.5)(np.ones(101), dt=0.01)
        >>> float(y[-1].round(4))  # 1 / Gamma(1/2) at t = 1
        0.5642
    """

    scheme: str = "bdf2"

    schemes: ClassVar[tuple[str, ...]] = ("l1", "l1_2", "bdf2", "grunwald")
    beyond: ClassVar[str] = "take alpha={rest} first, then differentiate the result once with alpha=1."

    @property
    def terms(self) -> int:
        return self.taylor


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class RiemannLiouvilleIntegral(Definition):
    """The Riemann-Liouville integral I^alpha x = t**(alpha-1) / Gamma(alpha) * x, for 0 <= alpha <= 2.

    alpha = 0 is the identity, alpha = 1 the trapezoid rule. Order 2 on smooth data. The result has the units of
    x time**alpha.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Diethelm (2010), definition 2.1.

    Examples:
        >>> t = np.linspace(0, 1, 101)
        >>> float(RiemannLiouvilleIntegral(0.5)(t, dt=0.01)[-1].round(4))  # 1 / Gamma(2.5)
        0.7523
    """

    scheme: str = "trapezoid"

    schemes: ClassVar[tuple[str, ...]] = ("trapezoid",)
    subtracts: ClassVar[bool] = False
    beyond: ClassVar[str] = "integrate once with alpha=1, then use alpha={rest} on the result."
    dt_power: ClassVar[float] = 1.0

    @property
    def taylor(self) -> int:
        """One term: the constant."""
        return 1

    @property
    def differences(self) -> int:
        """0, or -1 above order 1, where the data are summed first and the weights differenced once more."""
        return 0 if self.interval[1] <= 1 else -1

    def stencil(self, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        found = super().stencil(n, dt, xp, differences)
        if not (n and self.is_fixed and np.any(np.equal(self.alpha, 0))):
            return found
        # alpha = 0 is the identity, which the limit from above misses at the first sample
        column, whole = found.analytic_columns, np.equal(self.alpha, 0)[..., None, None]

        def with_identity(rows: np.ndarray) -> Array:
            assert column is not None, "an integral has a column on x(0)"
            limit = column(rows)
            return limit + xp.constant(1.0 * (whole & np.equal(rows, 0)), limit)

        return replace(found, analytic_columns=with_identity)

    @property
    def terms(self) -> int:
        return 1

    def _analytic(self, alpha: Array, rows: np.ndarray, xp: Namespace) -> Array:
        # x(0) has half a cell less than the other samples: k**alpha / Gamma(1 + alpha), what a constant gives, less
        # the column's sum. Nothing is subtracted from x: on noise the two large terms would cancel and cost float32
        # two digits.
        return xp.stack([power_weights(alpha, rows, xp, (-0.5, 0.5), (-1,))])

    def _below(self, alpha: float) -> str:
        return f"for a derivative of order {-alpha:g} use RiemannLiouville({-alpha:g})."
