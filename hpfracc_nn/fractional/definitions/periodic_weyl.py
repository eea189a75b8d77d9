"""Weyl's derivative and integral of a periodic signal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions.definition import SIDES
from hpfracc_nn.fractional.definitions.multiplier import Multiplier, power
from hpfracc_nn.fractional.namespace import Array, Namespace


@dataclass(frozen=True)
class PeriodicWeyl(Multiplier):
    """Weyl's derivative of a PERIODIC signal: the multiplier (i omega)**alpha.

    It is Marchaud's derivative of the signal repeated for ever into the past. alpha = 1 is the derivative of the
    trigonometric interpolant, alpha = -1 its integral of mean zero. Orders add to rounding, but for the mean and for
    what lies at the Nyquist frequency of an even number of samples; with side="both" they do not add. For signals that
    are not periodic use `Marchaud`, `Caputo` or `RiemannLiouville`.

    Attributes:
        side: "left" for `(i omega)**alpha`; "right" for reversed time, `(-i omega)**alpha`; "both" for their mean,
            `cos(pi alpha / 2) |omega|**alpha`.

    Raises:
        TypeError: As in `Multiplier`.
        ValueError: As in `Multiplier`; or `side` is not known.

    Source: Weyl, Vierteljahresschr. Naturforsch. Ges. Zürich 62 (1917) 296; Samko, Kilbas & Marichev, Fractional
        Integrals and Derivatives (1993), section 19.

    Examples:
        >>> import numpy as np
        >>> t = 2 * np.pi * np.arange(8) / 8
        >>> bool(np.allclose(PeriodicWeyl(0.5)(np.sin(t), dt=t[1]), np.sin(t + np.pi / 4)))
        True
    """

    side: str = field(default="left", kw_only=True)

    def __post_init__(self) -> None:
        errors.one_of(self._name, "side", self.side, SIDES)
        super().__post_init__()

    def symbol(self, alpha: Array, omega: Sequence[Array], xp: Namespace) -> tuple[Array, Array | None]:
        size, quarter = power(omega[0], alpha, xp), math.pi / 2 * alpha
        if self.side == "both":
            return size * xp.cos(quarter), None
        # At alpha = 0 and frequency 0 the size is 1 and the angle 0.
        turned = size * xp.sin(quarter)
        return size * xp.cos(quarter), turned if self.side == "left" else -turned
