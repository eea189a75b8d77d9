"""The fractional Laplacian in one to three dimensions, on a periodic box or, in one, on the line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar

import numpy as np
from scipy.special import bernoulli

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions.multiplier import Multiplier, power
from hpfracc_nn.fractional.namespace import Array, Namespace

_SPACES = ("periodic", "line")
_SUMMED = 10  # terms; with seven corrections (2 pi 10.5)**-14 = 4e-26 is left
_CORRECTIONS = tuple(float(bernoulli(14)[2 * m]) / math.factorial(2 * m) for m in range(1, 8))


@dataclass(frozen=True)
class FractionalLaplacian(Multiplier):
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
        TypeError: As in `Multiplier`.
        ValueError: As in `Multiplier`; or `space` is none of the two, or on the line alpha is outside [0, 2].

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
        """`(-Laplacian)**(alpha/2)` of a unit mass is `-c / |t|**(1 + alpha)` at a distance: see there."""
        if self.space == "periodic":
            return None
        length = n * dt
        # c / alpha, with 1 / Gamma((2 - alpha) / 2) written so that it is 0 at alpha = 2.
        gammas = xp.exp(xp.lgamma((1 + alpha) / 2) - xp.lgamma((4 - alpha) / 2))
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
    """Return p times the sum of (k + q)**(-1 - p) over k >= 0, q > 0, by Euler and Maclaurin (DLMF 25.11.5).

    It has no pole at p = 0, where it is 1.
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
