"""The Riesz derivative on an interval, outside of which the signal is zero."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.definitions.definition import Definition
from hpfracc_nn.fractional.namespace import Array, Namespace


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class Riesz(Definition):
    """The Riesz derivative -(-d^2/dt^2)^(alpha/2) x on an interval, for 0 <= alpha <= 2; x is zero outside of it.

    Its memory reaches both ways: it is -1 / (2 cos(pi alpha / 2)) times the sum of the left and right Riemann-Liouville
    derivatives, continued through alpha = 1, where it is the Hilbert transform of -x'. alpha = 0 is -x, alpha = 2 the
    second difference. It is minus the integral fractional Laplacian with an exterior of zeros; `PeriodicRiesz` is the
    one on a circle.

    The scheme, `centred`, has the symbol `-|2 sin(omega dt / 2) / dt|**alpha`: order 2 where x and enough of its
    derivatives vanish at both ends. Solutions of boundary value problems behave like `distance**(alpha / 2)` there: the
    order inside is then 1 + alpha / 2 (measured), and at the ends there is none. Everything is computed in float64.

    Attributes:
        side: "both"; "left" and "right" are the two halves of the sum, which alone approximate nothing.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Celik & Duman, J. Comput. Phys. 231 (2012) 1743; Getoor, Trans. AMS 101 (1961) 75, for the closed form.

    Examples:
        >>> import numpy as np
        >>> t = np.linspace(-1, 1, 2001)
        >>> float(Riesz(1.2)((1 - t**2) ** 0.6, dt=1e-3)[1000].round(2))  # -Gamma(2.2)
        -1.1
    """

    scheme: str = "centred"
    side: str = field(default="both", kw_only=True)

    schemes: ClassVar[tuple[str, ...]] = ("centred",)
    subtracts: ClassVar[bool] = False
    beyond: ClassVar[str] = "use PeriodicRiesz, which has no largest order."

    @property
    def differences(self) -> int:
        """Number of differences: 0, since one-sided differences do not help two-sided weights."""
        return 0

    @property
    def is_wide(self) -> bool:
        """Whether to compute in float64: True, since without differences float32 keeps no digit of smooth data."""
        return True

    def _weights(self, alpha: Array, m: int, lags: np.ndarray, xp: Namespace) -> Array:
        return -super()._weights(alpha, m, lags, xp)

    def _below(self, alpha: float) -> str:
        return f"for a potential use PeriodicRiesz({alpha:g})."
