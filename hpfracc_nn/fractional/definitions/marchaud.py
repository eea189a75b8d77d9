"""Marchaud's derivative: memory of a past without beginning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy.special import rgamma

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions.definition import Definition

_HISTORIES = ("constant", "zero")


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class Marchaud(Definition):
    """D^alpha x(t) = alpha / Gamma(1 - alpha) int_0^inf (x(t) - x(t - s)) s**(-1 - alpha) ds, for 0 <= alpha <= 1.

    It is the Liouville derivative, from minus infinity on, written without x'. Samples have a beginning, so that
    something must be said of the time before. A constant past, x(t) = x(0), gives Caputo's derivative, and a past of
    zeros that of Riemann and Liouville: here they are one operator with this choice, exact for both to the order of the
    scheme. Neither is the truth of a signal with another past; `history_bound` says how much that may matter.

    Attributes:
        history: What is before the first sample, "constant" or "zero".

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`; or `history` is none of the two.

    Source: Samko, Kilbas & Marichev, Fractional Integrals and Derivatives (1993), section 5.4.

    Examples:
        >>> import numpy as np
        >>> # exp(t) is an eigenfunction, and 2e-9 at the first sample
        >>> t = np.linspace(-20, 0, 2001)
        >>> float(Marchaud(0.7)(np.exp(t), dt=0.01)[-1].round(4))
        1.0
    """

    scheme: str = "l1_2"
    history: str = field(default="constant", kw_only=True)

    highest: ClassVar[float] = 1.0
    schemes: ClassVar[tuple[str, ...]] = ("l1", "l1_2", "bdf2", "grunwald")
    beyond: ClassVar[str] = (
        f"{Definition.beyond.removesuffix('.')}, with history='zero' where x was constant before the first sample."
    )

    def __post_init__(self) -> None:
        errors.one_of(self._name, "history", self.history, _HISTORIES)
        super().__post_init__()

    @property
    def terms(self) -> int:
        return 1 if self.history == "zero" else 0

    def history_bound(self, t: Any, deviation: float) -> np.ndarray:
        """Return a bound of the error that the unknown past makes at times `t` after the first sample.

        Args:
            t: Positive times.
            deviation: The largest difference, before the first sample, between x and what `history` says of it.

        Returns:
            `deviation t**-alpha / Gamma(1 - alpha)`, of the shape of `t`; units of `x / time**alpha`.

        Raises:
            ValueError: alpha is not one number.

        Examples:
            >>> # 0.1 / Gamma(1/2)
            >>> float(Marchaud(0.5).history_bound(100.0, deviation=1.0).round(4))
            0.0564
        """
        if not isinstance(self.alpha, float):
            raise ValueError(f"{self}.history_bound: needs one alpha; pass one definition per channel.")
        return deviation * np.asarray(t, np.float64) ** -self.alpha * rgamma(1 - self.alpha)
