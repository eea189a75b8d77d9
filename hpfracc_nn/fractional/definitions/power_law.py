"""Definitions whose memory is a power law, also tempered, in logarithmic time, of both sides, or as Marchaud."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import scipy

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions.definition import Definition, taylor_columns
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.powers import power_weights
from hpfracc_nn.fractional.schemes.sums import sum_before
from hpfracc_nn.fractional.stencil import Stencil


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class Caputo(Definition):
    """Caputo's derivative D^alpha x = I^(c - alpha) x^(c), c = max(1, ceil(alpha)), for 0 <= alpha <= 2.

    A constant has derivative zero; alpha = 0 gives x - x(0), alpha = 1 and 2 the scheme's ordinary differences. Above
    alpha = 1 the first samples are read to estimate x'(0).

    The default scheme `l1_2` has order 3 - alpha on smooth data for alpha <= 1 and 2 above, at the cost of `l1`.
    `bdf2` has order 2 for every alpha, `l1` order 2 - alpha (3 - alpha above 1) and positive weights, `grunwald` order
    1. These hold at a fixed time. The largest error of all samples is one of the first and falls like
    `dt**(2 - alpha)`, above alpha = 1 like `dt**(3 - alpha)`, of `grunwald` by one order less. On data like `t**alpha`,
    which are not smooth at 0, every scheme is of first order at a fixed time, above alpha = 1 of order alpha - 1.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Examples:
        >>> import numpy as np
        >>> t = np.linspace(0, 1, 101)
        >>> float(Caputo(0.5)(t**2, dt=0.01)[-1].round(4))
        1.5045

    Source: Diethelm, The Analysis of Fractional Differential Equations (2010), definition 3.2.
    """

    scheme: str = "l1_2"

    schemes: ClassVar[tuple[str, ...]] = ("l1", "l1_2", "bdf2", "grunwald")


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
    """The Riemann-Liouville integral of order 0 <= alpha <= 2.

        I^alpha x(t) = 1 / Gamma(alpha) int_0^t (t - s)**(alpha - 1) x(s) ds

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
        """Number of Taylor terms subtracted: 1, the constant."""
        return 1

    @property
    def differences(self) -> int:
        """Number of differences: 0, or -1 above order 1, where data are summed and weights differenced."""
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
        return xp.stack([power_weights(alpha, rows, xp, (-0.5, 0.5), (-1,))], axis=-2)

    def _below(self, alpha: float) -> str:
        return f"for a derivative of order {-alpha:g} use RiemannLiouville({-alpha:g})."


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class GrunwaldLetnikov(Definition):
    """The Grunwald-Letnikov derivative with zero history: `dt**-alpha (1 - z)**alpha x`, for -1 <= alpha <= 2.

    Nothing is subtracted and nothing looks ahead: it is the fractional difference of time series analysis (ARFIMA),
    and a negative alpha sums. Order 1 against the Riemann-Liouville derivative where x(0) = 0. Scheme `bdf2` replaces
    1 - z with (3/2)(1 - z/3)(1 - z), order 2 away from 0 where x(0) = 0.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Oldham & Spanier (1974), section 3.4; Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> # the coefficients of (1 - z)**0.5
        >>> GrunwaldLetnikov(0.5)([1.0, 0.0, 0.0, 0.0]).round(4)
        array([ 1.    , -0.5   , -0.125 , -0.0625])
    """

    scheme: str = "grunwald"

    lowest: ClassVar[float] = -1.0
    schemes: ClassVar[tuple[str, ...]] = ("grunwald", "bdf2")
    subtracts: ClassVar[bool] = False
    beyond: ClassVar[str] = "difference once with alpha=1, then use alpha={rest} on the result."

    def _below(self, alpha: float) -> str:
        return f"sum once with alpha=-1, then use alpha={alpha + 1:g} on the result."


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

    def _weights(self, alpha: Array, m: int, lags: np.ndarray, xp: Namespace) -> Array:
        weights = self._scheme.weights(alpha, self.taylor, m, lags, xp) * xp.constant(self._fading(lags), alpha)
        return weights + self._missed(alpha, lags, xp) if m else weights

    def _start(self, alpha: Array, m: int, rows: np.ndarray, xp: Namespace) -> Array:
        # Row 0 has no start, and exp(rate) may overflow.
        return super()._start(alpha, m, rows, xp) * xp.constant(self._fading(np.maximum(rows - 1, 0)), alpha)

    def _analytic(self, alpha: Array, rows: np.ndarray, xp: Namespace) -> Array:
        column = self._missed(alpha, rows, xp)
        if self._start_index:
            column = column - math.expm1(-self.rate) * self._start(alpha, self.differences, rows, xp)
        return xp.stack([column], axis=-2)

    def _missed(self, alpha: Array, lags: np.ndarray, xp: Namespace) -> Array:
        """Return the part of the tempered weights of one difference that r**k W[k] leaves out, at lags k, [*c, k].

            sum over j <= k of r**j w[j]  =  r**k W[k]  +  (1 - r) sum over j < k of r**j W[j],

        with r = exp(-rate) and dt = 1, w the scheme's weights without tempering and W[k] their sum up to lag k. What is
        returned is the last term. W is positive and smooth, so that nothing cancels there and the quadrature of
        `schemes/sums.py` needs few of its terms.

        Args:
            alpha: Orders, [*c].
            lags: Increasing, [k].
            xp: The namespace of alpha.
        """
        if self.rate == 0.0 or not lags.size:
            return 0 * xp.matmul(alpha[..., None], xp.constant(np.ones((1, lags.size)), alpha))
        how = sum_before(lags)
        whole, between = how.points[: how.whole].astype(np.int64), how.points[how.whole :]
        parts = [self._scheme.weights(alpha, self.taylor, 1, some, xp) for some in (whole, between) if some.size]
        if not parts:  # lag 0 alone
            return 0 * alpha[..., None]
        terms = xp.concat(parts, axis=-1) * xp.constant(how.weights * self._fading(how.points), alpha)
        sums = xp.concat([0 * alpha[..., None], xp.cumulative_sum(terms, axis=-1)], axis=-1)
        return -math.expm1(-self.rate) * xp.take(sums, how.ends, axis=-1)

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


def logarithmic_times(first: float, last: float, n: int) -> tuple[np.ndarray, float]:
    """Return `n` times from `first` to `last` whose ratio is constant, and the logarithm of that ratio.

    At these times Hadamard's operators need their samples, and the logarithm is their `dt`.

    Args:
        first: The lower terminal of the operators; positive, because log(t / first) must be finite.
        last: Above `first`.
        n: At least 2.

    Returns:
        Times [n], float64, and their step in log t.

    Raises:
        ValueError: `first` is not positive, `last` is not above it, or there are fewer than two times.
        TypeError: An argument is no number.

    Examples:
        >>> t, dt = logarithmic_times(1.0, 16.0, 5)
        >>> t.round(6).tolist(), round(dt / math.log(2), 6)
        ([1.0, 2.0, 4.0, 8.0, 16.0], 1.0)
    """
    first = errors.real("logarithmic_times", "first", first, 0.0, above=True)
    last = errors.real("logarithmic_times", "last", last, first, above=True)
    n = errors.count("logarithmic_times", "n", n, least=2)
    step = math.log(last / first) / (n - 1)
    t = first * np.exp(step * np.arange(n))
    t[-1] = last
    return t, step


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class Hadamard(RiemannLiouville):
    """Hadamard's derivative (t d/dt)^c I^(c - alpha) x, with the memory log(t / s)**(c - alpha - 1) and ds / s.

    In u = log(t / t0) it is the Riemann-Liouville derivative: the samples are those at t0 exp(k dt), k = 0, 1, 2, ...
    (`logarithmic_times` makes them), and `dt` is the step of log t. All that is said of `RiemannLiouville` and its
    schemes holds in u. It has no unit, and does not change if time is counted in another one.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Kilbas, Srivastava & Trujillo, Theory and Applications of Fractional Differential Equations (2006),
        section 2.7.

    Examples:
        >>> t, dt = logarithmic_times(1.0, 4.0, 201)
        >>> y = Hadamard(0.5)(np.log(t) ** 2, dt=dt)
        >>> float((y[-1] / math.log(4) ** 1.5).round(4))  # Gamma(3) / Gamma(2.5)
        1.5045
    """


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class CaputoHadamard(Caputo):
    """Caputo's derivative in log t: I^(c - alpha) (t d/dt)^c x; a constant has derivative zero. See `Hadamard`.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Jarad, Abdeljawad & Baleanu, Adv. Differ. Equ. 2012:142.

    Examples:
        >>> t, dt = logarithmic_times(1.0, 4.0, 201)
        >>> y = CaputoHadamard(0.5)(1 + np.log(t), dt=dt)
        >>> # 1 / Gamma(1.5): the constant is not seen
        >>> float((y[-1] / math.log(4) ** 0.5).round(4))
        1.1284
    """

    beyond: ClassVar[str] = (
        "take the samples' own derivative in u = log(t) first, such as "
        "scipy.interpolate.CubicSpline(u, x, axis=-1)(u, 1), then alpha={rest} of it."
    )


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class HadamardIntegral(RiemannLiouvilleIntegral):
    """Hadamard's integral. See `Hadamard`.

        I x(t) = 1 / Gamma(alpha) int_t0^t log(t / s)**(alpha - 1) x(s) ds / s

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Hadamard, J. Math. Pures Appl. 8 (1892) 101; Kilbas, Srivastava & Trujillo (2006), equation 2.7.1.

    Examples:
        >>> t, dt = logarithmic_times(1.0, 4.0, 201)
        >>> y = HadamardIntegral(0.5)(np.ones(201), dt=dt)
        >>> float((y[-1] / math.log(4) ** 0.5).round(4))  # 1 / Gamma(1.5)
        1.1284
    """


_HISTORIES = ("constant", "zero")


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class Marchaud(Definition):
    """Marchaud's derivative: Liouville's, from minus infinity on, written without x', for 0 <= alpha <= 1.

        D^alpha x(t) = alpha / Gamma(1 - alpha) int_0^inf (x(t) - x(t - s)) s**(-1 - alpha) ds.

    Samples have a beginning, so that something must be said of the time before. A constant past, x(t) = x(0), gives
    Caputo's derivative, and a past of zeros that of Riemann and Liouville: here they are one operator with this choice,
    exact for both to the order of the scheme. Neither is the truth of a signal with another past; `history_bound` says
    how much that may matter.

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
        return deviation * np.asarray(t, np.float64) ** -self.alpha * scipy.special.rgamma(1 - self.alpha)


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
