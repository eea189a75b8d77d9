"""Operators on periodic signals, each a factor for every frequency: Weyl, Riesz, the fractional Laplacian."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions.definition import SIDES, Alpha, flat, read_fixed
from hpfracc_nn.fractional.dispatch import apply_multiplier
from hpfracc_nn.fractional.namespace import Array, Namespace


class Factors(NamedTuple):
    """The factors by which a multiplier is applied to samples on a grid.

    Attributes:
        real: Real part of the symbol on the half spectrum, [*c, *sizes] with n // 2 + 1 in place of the last size n.
        imaginary: Imaginary part of the symbol, or None where the symbol is real.
        images: The two columns of `FourierMultiplier.images`, or None.
    """

    real: Array
    imaginary: Array | None
    images: tuple[Array, Array] | None


@dataclass(frozen=True)
class FourierMultiplier(ABC):
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
        >>> class BesselPotential(FourierMultiplier):
        ...     def symbol(self, alpha, omega, xp):
        ...         return xp.exp(-alpha / 2 * xp.log1p(omega[0] ** 2)), None
        >>> t = 2 * np.pi * np.arange(8) / 8
        >>> bool(np.allclose(BesselPotential(2.0)(np.cos(t), dt=t[1]), np.cos(t) / 2))
        True
    """

    alpha: Alpha

    most_axes: ClassVar[int] = 1
    is_wide: ClassVar[bool] = False  # computed in the samples' precision

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
        """The interval within which orders are allowed."""
        return -math.inf, math.inf

    @property
    def is_of_fields(self) -> bool:
        """Whether the operator can transform more axes than one, so that `dim` must say which of several are meant."""
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
            omega: Angular frequencies of each axis, shaped to broadcast; those of the last axis are not negative.
            xp: The namespace of alpha and omega.
        """

    def on_grid(self, alpha: Array, sizes: Sequence[int], steps: Sequence[float], xp: Namespace) -> Factors:
        """Return the factors of the half spectrum of so many samples on each axis, in float64.

        Args:
            alpha: The orders, [*c].
            sizes: Number of samples on each transformed axis.
            steps: Spacing of the samples on each.
            xp: The namespace of alpha.
        """
        alpha = alpha.reshape(*alpha.shape, *(1,) * len(sizes))
        omega = []
        for axis, (n, step) in enumerate(zip(sizes, steps, strict=True)):
            frequencies = (xp.rfftfreq if axis == len(sizes) - 1 else xp.fftfreq)(n, step, alpha)
            omega.append(2 * math.pi * frequencies.reshape(-1, *(1,) * (len(sizes) - 1 - axis)))
        return Factors(*self.symbol(alpha, omega, xp), self.images(alpha, sizes[-1], steps[-1], xp))

    def images(self, alpha: Array, n: int, dt: float, xp: Namespace) -> tuple[Array, Array] | None:
        """Return two columns [*c, n] that take periodic images out of the result; None where they shall stay.

        The first one multiplies the sum of x, the second one the first moment of x about the middle.
        """
        return None

    def check(self, alpha: float) -> None:
        """Raise ValueError unless the number `alpha` is an order that this operator has."""
        if not math.isfinite(alpha):
            raise ValueError(f"{self._name}(alpha={alpha}): needs a finite alpha; pass for example alpha=0.5.")


def power(size: Array, alpha: Array, xp: Namespace) -> Array:
    """Return size**alpha, 1 for alpha = 0 and else 0 where size = 0, differentiable in alpha."""
    is_zero = size == 0
    grown = xp.exp(alpha * xp.log(xp.where(is_zero, 1.0, size)))
    return xp.where(is_zero, xp.where(alpha == 0, 1.0, 0.0), grown)


@dataclass(frozen=True)
class PeriodicWeyl(FourierMultiplier):
    """Weyl's derivative of a PERIODIC signal: the multiplier (i omega)**alpha.

    It is Marchaud's derivative of the signal repeated for ever into the past. alpha = 1 is the derivative of the
    trigonometric interpolant, alpha = -1 its integral of mean zero. Orders add to rounding, but for the mean and for
    what lies at the Nyquist frequency of an even number of samples; with side="both" they do not add. For signals that
    are not periodic use `Marchaud`, `Caputo` or `RiemannLiouville`.

    Attributes:
        side: "left" for `(i omega)**alpha`; "right" for reversed time, `(-i omega)**alpha`; "both" for their mean,
            `cos(pi alpha / 2) |omega|**alpha`.

    Raises:
        TypeError: As in `FourierMultiplier`.
        ValueError: As in `FourierMultiplier`; or `side` is not known.

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


@dataclass(frozen=True)
class PeriodicRiesz(FourierMultiplier):
    """The Riesz derivative of a PERIODIC signal: the multiplier -|omega|**alpha, minus `FractionalLaplacian`.

    alpha = 2 is the second derivative, alpha = 0 minus the identity; below 0 it is minus the Riesz potential. For a
    signal that is zero outside of its interval use `Riesz`.

    Raises:
        TypeError: As in `FourierMultiplier`.
        ValueError: As in `FourierMultiplier`.

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


_SPACES = ("periodic", "line")
_SUMMED = 10  # terms; with seven corrections (2 pi 10.5)**-14 = 4e-26 is left
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)  # B_2, B_4, ... B_14
_CORRECTIONS = tuple(number / math.factorial(2 * m) for m, number in enumerate(_BERNOULLI, 1))


@dataclass(frozen=True)
class FractionalLaplacian(FourierMultiplier):
    """`(-Laplacian)**(alpha/2)`: the multiplier `|omega|**alpha`, omega the vector of 2 pi times the frequencies.

    On one to three axes: `dim` and `dt` take a sequence, and `dim` must be given where there are more axes than one and
    those of alpha. The box is PERIODIC: a function that decays on the whole space
    meets the images of itself in the neighbouring boxes. Its result falls like `distance**-(d + alpha)` however fast it
    decays itself, so that the images are seen: for a box of length L the error falls like `L**-(d + alpha)` only.

    With space="line", in one dimension and for alpha in [0, 2], what the images add is taken out again, to the second
    order of the distance from the middle of the box: the error falls like L**-(3 + alpha). The mass should lie around
    the middle, and be zero towards both ends.

    alpha = 2 is minus the Laplacian, alpha = 0 the identity; below 0 it is the Riesz potential, without the mean.

    Attributes:
        space: "periodic" or "line".

    Raises:
        TypeError: As in `FourierMultiplier`.
        ValueError: As in `FourierMultiplier`; or `space` is none of the two, or on the line alpha is outside [0, 2].

    Source: Kwasnicki, Fract. Calc. Appl. Anal. 20 (2017) 7, theorem 1.1: it equals the singular integral, whose
        constant the images have.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-32, 32, 512, endpoint=False)
        >>> y = FractionalLaplacian(0.8, space="line")(np.exp(-(x**2)), dt=x[1] - x[0])
        >>> float(y[256].round(5))  # 2**0.8 Gamma(0.9) / Gamma(0.5), on the whole line
        1.04973
    """

    space: str = field(default="periodic", kw_only=True)

    most_axes: ClassVar[int] = 3

    def __post_init__(self) -> None:
        errors.one_of(self._name, "space", self.space, _SPACES)
        super().__post_init__()

    def symbol(self, alpha: Array, omega: Sequence[Array], xp: Namespace) -> tuple[Array, Array | None]:
        if self.space == "line" and len(omega) > 1:
            raise ValueError(
                f"{self._name}(space='line') on {len(omega)} axes: needs one axis, because the images are known "
                "in closed form there; pass space='periodic' and a larger box."
            )
        squared = reduce(lambda a, b: a + b, [each * each for each in omega])
        found = power(squared, alpha / 2, xp)
        if self.space == "line":  # at alpha = 0 too: the images give the mean back, as they do beside it
            found = xp.where(squared == 0, 0.0, found)
        return found, None

    def images(self, alpha: Array, n: int, dt: float, xp: Namespace) -> tuple[Array, Array] | None:
        """Return the columns that take the images out for space="line", else None; see `FourierMultiplier.images`.

        They come from the operator's value `-c / |t|**(1 + alpha)` at the distance t from a unit mass.
        """
        if self.space == "periodic":
            return None
        length = n * dt
        # c / alpha, with 1 / Gamma((2 - alpha) / 2) written so that it is 0 at alpha = 2.
        gammas = xp.exp(xp.gammaln((1 + alpha) / 2) - xp.gammaln((4 - alpha) / 2))
        c = 2**alpha * gammas * (2 - alpha) / (4 * math.sqrt(math.pi))
        offset = xp.constant((np.arange(n) - n // 2) / n, alpha)
        ahead, behind = (_hurwitz(alpha, 1 + way * offset, xp) for way in (1, -1))
        ahead_next, behind_next = (_hurwitz(1 + alpha, 1 + way * offset, xp) for way in (1, -1))
        mass = c * dt * length ** (-1 - alpha) * (ahead + behind)
        moment = c * alpha * dt * length ** (-2 - alpha) * (ahead_next - behind_next)
        return mass, moment

    @property
    def is_of_fields(self) -> bool:
        return self.space == "periodic"  # on the line one axis is all that it takes

    @property
    def interval(self) -> tuple[float, float]:
        return (0.0, 2.0) if self.space == "line" else super().interval

    def check(self, alpha: float) -> None:
        super().check(alpha)
        if self.space == "line" and not 0 <= alpha <= 2:
            raise ValueError(
                f"{self._name}(alpha={alpha:g}, space='line'): needs 0 <= alpha <= 2; pass space='periodic'."
            )


def _hurwitz(p: Array, q: Array, xp: Namespace) -> Array:
    """Return p zeta(1 + p, q), zeta(s, q) Hurwitz's function, the sum of (k + q)**-s over k >= 0; q > 0.

    At p = 0, where zeta has its pole, the result is 1. It is computed by Euler's and Maclaurin's formula (DLMF
    25.11.5), entry by entry; p and q broadcast.
    """
    total = 0.0
    for k in range(_SUMMED):
        total = total + xp.exp((-1 - p) * xp.log(q + k))
    log = xp.log(q + _SUMMED)
    pole = xp.exp(-p * log)
    rest, rising = pole * xp.exp(-log), 1 + p
    total = total + rest / 2
    for m, coefficient in enumerate(_CORRECTIONS, 1):
        total = total + coefficient * rising * rest * xp.exp((1 - 2 * m) * log)
        rising = rising * (p + 2 * m) * (p + 2 * m + 1)
    return p * total + pole
