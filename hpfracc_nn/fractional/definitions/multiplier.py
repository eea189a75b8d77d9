"""What operators on periodic signals share: each is a factor for every frequency."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hpfracc_nn.fractional.definitions.definition import Alpha
from hpfracc_nn.fractional.definitions.reading import flat, read_fixed
from hpfracc_nn.fractional.dispatch import apply_multiplier
from hpfracc_nn.fractional.namespace import Array, Namespace


class Factors(NamedTuple):
    """What stands for a multiplier on a grid.

    Attributes:
        real: Real part of the symbol on the half spectrum, [*c, *half of sizes].
        imaginary: Its imaginary part, or None.
        images: See `Multiplier.images`.
    """

    real: Array
    imaginary: Array | None
    images: tuple[Array, Array] | None


@dataclass(frozen=True)
class Multiplier(ABC):
    """An operator on a periodic signal, as a value: y^(omega) = symbol(omega) x^(omega).

    The samples are one period: the one after the last would be the first again. A signal that is not periodic has a
    jump there, which the operator sees. Band-limited signals are exact to rounding; others to what of their spectrum
    lies beyond the Nyquist frequency. At that frequency only the symbol's real part counts. An alpha below 0
    integrates: the mean, which has no integral, is taken out.

    Attributes:
        alpha: The order, any finite real. A float, one per channel (then it broadcasts over the data's axes other than
            those transformed), or a framework's tensor, which may learn.

    Raises:
        TypeError: `alpha` is no real number, no numbers and no tensor.
        ValueError: An order is not finite, or out of the class's range.

    Examples:
        >>> # an operator of your own is its symbol, here (1 + omega**2)**(-alpha/2)
        >>> class BesselPotential(Multiplier):
        ...     def symbol(self, alpha, omega, xp):
        ...         return xp.exp(-alpha / 2 * xp.log1p(omega[0] ** 2)), None
        >>> t = 2 * np.pi * np.arange(8) / 8
        >>> bool(np.allclose(BesselPotential(2.0)(np.cos(t), dt=t[1]), np.cos(t) / 2))
        True
    """

    alpha: Alpha

    most_axes: ClassVar[int] = 1

    def __post_init__(self) -> None:
        fixed = read_fixed(self._name, self.alpha)
        if fixed is not None:
            object.__setattr__(self, "alpha", fixed)
            for value in flat(fixed):
                self.check(value)

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def interval(self) -> tuple[float, float]:
        """Where an order may lie."""
        return -math.inf, math.inf

    @property
    def is_of_fields(self) -> bool:
        """Whether it takes more axes than one, so that it must be told which of several are meant."""
        return self.most_axes > 1

    @property
    def is_fixed(self) -> bool:
        """Whether alpha is a number or numbers, and not a framework's tensor."""
        return isinstance(self.alpha, float | tuple)

    def __call__(self, x: Any, *, dt: float | Sequence[float] = 1.0, dim: int | Sequence[int] | None = None) -> Any:
        """Return the operator applied to `x` along `dim`; see `fractional.derivative`."""
        return apply_multiplier(self._name, x, self, dt, dim)

    @abstractmethod
    def symbol(self, alpha: Array, omega: Sequence[Array], xp: Namespace) -> tuple[Array, Array | None]:
        """Return the real and imaginary parts of the symbol; None where it is real.

        Args:
            alpha: float64, shape [*c, 1, ...] with one 1 for each axis.
            omega: Angular frequencies of each axis, shaped to broadcast; those of the last are not negative.
            xp: Their namespace.
        """

    def on_grid(self, alpha: Array, sizes: Sequence[int], steps: Sequence[float], xp: Namespace) -> Factors:
        """Return the factors of the half spectrum of so many samples on each axis, in float64.

        Args:
            alpha: [*c].
            sizes: Samples on each transformed axis.
            steps: Their spacing.
            xp: The namespace of alpha.
        """
        alpha = alpha.reshape(*alpha.shape, *(1,) * len(sizes))
        omega = []
        for axis, (n, step) in enumerate(zip(sizes, steps, strict=True)):
            frequencies = (np.fft.rfftfreq if axis == len(sizes) - 1 else np.fft.fftfreq)(n, step)
            omega.append(xp.constant(2 * math.pi * frequencies.reshape(-1, *(1,) * (len(sizes) - 1 - axis)), alpha))
        return Factors(*self.symbol(alpha, omega, xp), self.images(alpha, sizes[-1], steps[-1], xp))

    def images(self, alpha: Array, n: int, dt: float, xp: Namespace) -> tuple[Array, Array] | None:
        """Return columns [*c, n] that, times the sum and the first moment of x, take periodic images out; or None."""
        return None

    def check(self, alpha: float) -> None:
        """Raise unless a number is an order of this operator."""
        if not math.isfinite(alpha):
            raise ValueError(f"{self._name}(alpha={alpha}): needs a finite alpha; pass for example alpha=0.5.")


def power(size: Array, alpha: Array, xp: Namespace) -> Array:
    """Return size**alpha, 1 for alpha = 0 and else 0 where size = 0, differentiable in alpha."""
    is_zero = size == 0
    grown = xp.exp(alpha * xp.log(xp.where(is_zero, 1.0, size)))
    return xp.where(is_zero, xp.where(alpha == 0, 1.0, 0.0), grown)
