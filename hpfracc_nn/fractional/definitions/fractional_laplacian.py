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
_SUMMED, _CORRECTIONS = 10, 7  # (2 pi 10.5)**-14 = 4e-26


@dataclass(frozen=True)
class FractionalLaplacian(Multiplier):
    """(-Laplacian)**(alpha/2): the multiplier |omega|**alpha, omega the vector of 2 pi times the frequencies.

    On one to three axes: `dim` and `dt` take a sequence. The box is PERIODIC: a function that decays on the whole space
    meets the images of itself in the neighbouring boxes. Its result falls like distance**-(d + alpha) however fast it
    decays itself, so that the images are seen: for a box of length L the error falls like L**-(d + alpha) only.

    With space="line", in one dimension and for alpha in [0, 2], what the images add is taken out again, to the second
    order of the distance from the middle of the box: the error falls like L**-(3 + alpha). The mass should lie around
    the middle, and be zero towards both ends.

    alpha = 2 is minus the Laplacian, alpha = 0 the identity; below 0 it is the Riesz potential, without the mean.

    Attributes:
        space: "periodic" or "line".

    Source: Kwasnicki, Fract. Calc. Appl. Anal. 20 (2017) 7, theorem 1.1: it equals the singular integral, whose
        constant the images have.

    Example:
        >>> import numpy as np
        >>> x = np.linspace(-32, 32, 512, endpoint=False)
        >>> y = FractionalLaplacian(0.8, space="line")(np.exp(-(x**2)), dt=x[1] - x[0])
        >>> float(y[256].round(5))
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
        return power(squared, alpha / 2, xp), None

    def images(self, alpha: Array, n: int, dt: float, xp: Namespace) -> tuple[Array, Array] | None:
        """(-Laplacian)**(alpha/2) of a unit mass is -c / |t|**(1 + alpha) at a distance: see there."""
        if self.space == "periodic":
            return None
        length, p = n * dt, 1 + alpha
        gammas = xp.lgamma((1 + alpha) / 2) - xp.lgamma((2 - alpha).clip(1e-300) / 2)
        c = 2**alpha * xp.exp(gammas) * alpha / (2 * math.sqrt(math.pi))
        offset = xp.constant((np.arange(n) - n // 2) / n, alpha)
        ahead, behind = (_hurwitz(p, 1 + way * offset, xp) for way in (1, -1))
        ahead_next, behind_next = (_hurwitz(p + 1, 1 + way * offset, xp) for way in (1, -1))
        mass = c * dt * length**-p * (ahead + behind)
        moment = c * dt * p * length ** (-p - 1) * (ahead_next - behind_next)
        return mass, moment

    def _check(self, alpha: float) -> None:
        super()._check(alpha)
        if self.space == "line" and not 0 <= alpha <= 2:
            raise ValueError(
                f"{self._name}(alpha={alpha:g}, space='line'): needs 0 <= alpha <= 2; pass space='periodic'."
            )


def _hurwitz(s: Array, q: Array, xp: Namespace) -> Array:
    """Return the sum of (k + q)**-s over k >= 0, s > 1 and q > 0, by Euler and Maclaurin (DLMF 25.11.5)."""
    total = 0.0
    for k in range(_SUMMED):
        total = total + xp.exp(-s * xp.log(q + k))
    log = xp.log(q + _SUMMED)
    rest = xp.exp(-s * log)
    total = total + rest / 2 + rest * xp.exp(log) / (s - 1).clip(1e-300)
    numbers, rising = bernoulli(2 * _CORRECTIONS), s
    for m in range(1, _CORRECTIONS + 1):
        total = total + float(numbers[2 * m]) / math.factorial(2 * m) * rising * rest * xp.exp((1 - 2 * m) * log)
        rising = rising * (s + 2 * m - 1) * (s + 2 * m)
    return total
