"""The Riesz derivative of a periodic signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpfracc_nn.fractional.definitions.multiplier import Multiplier, power
from hpfracc_nn.fractional.namespace import Array, Namespace


@dataclass(frozen=True)
class PeriodicRiesz(Multiplier):
    """The Riesz derivative of a PERIODIC signal: the multiplier -|omega|**alpha, minus `FractionalLaplacian`.

    alpha = 2 is the second derivative, alpha = 0 minus the identity; below 0 it is minus the Riesz potential. For a
    signal that is zero outside of its interval use `Riesz`.

    Raises:
        TypeError: As in `Multiplier`.
        ValueError: As in `Multiplier`.

    Source: Samko, Kilbas & Marichev (1993), section 12.1 and equation 25.61.

    Examples:
        >>> import numpy as np
        >>> t = 2 * np.pi * np.arange(8) / 8
        >>> bool(
        ...     np.allclose(
        ...         PeriodicRiesz(0.5)(np.sin(2 * t), dt=t[1]), -(2**0.5) * np.sin(2 * t)
        ...     )
        ... )
        True
    """

    def symbol(self, alpha: Array, omega: Sequence[Array], xp: Namespace) -> tuple[Array, Array | None]:
        return -power(omega[0], alpha, xp), None
