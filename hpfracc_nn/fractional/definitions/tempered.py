"""The tempered derivatives: power-law memory that fades exponentially."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions.definition import Definition, taylor_columns
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.sums import sum_before


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class TemperedCaputo(Definition):
    """Tempered Caputo derivative D x = exp(-rate t) D^alpha (exp(rate t) x), D^alpha Caputo's, for alpha in [0, 1].

    The memory function t**-alpha / Gamma(1 - alpha) is multiplied by exp(-rate t) and acts on x' + rate x. rate = 0 is
    Caputo's derivative, alpha = 0 gives x - exp(-rate t) x(0), alpha = 1 the scheme's x' + rate x.

    A scheme keeps its order: it is the same scheme on exp(rate t) x, with both exponentials taken into the weights,
    where none of them overflows. The error's constant grows with rate dt; beyond rate dt = 1 the memory is shorter than
    a step.

    Attributes:
        rate: How fast memory fades, in units of 1 / time; not negative.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`; or `rate` is negative.

    Source: Sabzikar, Meerschaert & Chen, J. Comput. Phys. 293 (2015) 14, for the tempering; Li, Deng & Zhao, Discrete
        Contin. Dyn. Syst. B 24 (2019) 1989, definition 2.3.

    Examples:
        >>> import numpy as np
        >>> t = np.linspace(0, 1, 101)
        >>> y = TemperedCaputo(0.5, rate=2.0)(np.exp(-2 * t) * t**2, dt=0.01)
        >>> float(y[-1].round(4))  # exp(-2) times Caputo's of t**2, 1.5045
        0.2036
    """

    scheme: str = "l1_2"
    rate: float = field(default=1.0, kw_only=True)

    highest: ClassVar[float] = 1.0
    schemes: ClassVar[tuple[str, ...]] = ("l1", "l1_2", "bdf2", "grunwald")
    beyond: ClassVar[str] = "use alpha={rest} on x' + rate x."

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", errors.real(self._name, "rate", self.rate, 0.0))
        super().__post_init__()

    def in_steps(self, dt: float) -> Definition:
        return self if dt == 1.0 or self.rate == 0.0 else replace(self, rate=self.rate * dt)

    @property
    def fading(self) -> float:
        return self.rate

    @property
    def terms(self) -> int:
        return 1

    # With r = exp(-rate) in steps, E = diag(r**-k) and an operator T(w)(x - x(0)) + start d[1], E^-1 (...) E has the
    # weights r**k w[k]. Differences stay ordinary ones, of x - x(0): what that leaves over multiplies x(0).

    def _left(self, alpha: Array, m: int, lags: np.ndarray, xp: Namespace) -> Array:
        weights = self._scheme.left(alpha, self.taylor, m, lags, xp) * xp.constant(self._fading(lags), alpha)
        return weights + self._missed(alpha, lags, xp) if m else weights

    def _start(self, alpha: Array, m: int, rows: np.ndarray, xp: Namespace) -> Array:
        # Row 0 has no start, and exp(rate) may overflow.
        return super()._start(alpha, m, rows, xp) * xp.constant(self._fading(np.maximum(rows - 1, 0)), alpha)

    def _analytic(self, alpha: Array, rows: np.ndarray, xp: Namespace) -> Array:
        column = self._missed(alpha, rows, xp)
        if self._start_index:
            column = column - math.expm1(-self.rate) * self._start(alpha, self.differences, rows, xp)
        return xp.stack([column])

    def _missed(self, alpha: Array, lags: np.ndarray, xp: Namespace) -> Array:
        """Return (1 - r) sum over j < lag of r**j W[j]: the sum of r**j w[j] less r**lag W[lag].

        W is their sum without fading, the weights of one difference. It is positive and smooth: there is no
        cancellation, and few terms stand for many.
        """
        if self.rate == 0.0 or not lags.size:
            return 0 * xp.matmul(alpha[..., None], xp.constant(np.ones((1, lags.size)), alpha))
        how = sum_before(lags)
        whole, between = how.points[: how.whole].astype(np.int64), how.points[how.whole :]
        parts = [self._scheme.left(alpha, self.taylor, 1, some, xp) for some in (whole, between) if some.size]
        if not parts:  # lag 0 alone
            return 0 * alpha[..., None]
        terms = xp.concat(parts) * xp.constant(how.weights * self._fading(how.points), alpha)
        sums = xp.concat([0 * alpha[..., None], xp.cumsum(terms)])
        return -math.expm1(-self.rate) * xp.take(sums, how.ends)

    def _fading(self, lags: np.ndarray) -> np.ndarray:
        return np.exp(-self.rate * lags)


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class TemperedRiemannLiouville(TemperedCaputo):
    """The Riemann-Liouville derivative of exp(rate t) x, times exp(-rate t), alpha in [0, 1].

    It is `TemperedCaputo` plus `exp(-rate t) t**-alpha / Gamma(1 - alpha) x(0)`, taken in closed form: at t = 0 it is
    infinite where x(0) != 0, and the first sample is `dt**-alpha x(0)`. alpha = 0 is the identity. Subtract
    `rate**alpha * x` for the normalised operator of tempered diffusion, whose symbol vanishes at frequency 0.

    Attributes:
        rate: How fast memory fades, in units of 1 / time; not negative.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`; or `rate` is negative.

    Source: Baeumer & Meerschaert, J. Comput. Appl. Math. 233 (2010) 2438, equation 6; Sabzikar, Meerschaert & Chen
        (2015), section 2.

    Examples:
        >>> t = np.linspace(0, 1, 101)
        >>> y = TemperedRiemannLiouville(0.5, rate=2.0)(np.exp(-2 * t), dt=0.01)
        >>> float(y[-1].round(4))  # exp(-2) / Gamma(1/2)
        0.0764
    """

    scheme: str = "bdf2"

    beyond: ClassVar[str] = "take alpha={rest} first, then y' + rate y of the result."

    def _analytic(self, alpha: Array, rows: np.ndarray, xp: Namespace) -> Array:
        faded = taylor_columns(alpha, 1, rows, xp) * xp.constant(self._fading(rows), alpha)
        return super()._analytic(alpha, rows, xp) + faded
