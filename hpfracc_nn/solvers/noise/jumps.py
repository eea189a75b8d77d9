"""Noises with jumps: compound Poisson processes, the laws of their jumps, and alpha-stable Levy motion."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.solvers.noise.noise import (
    FINITE,
    POSITIVE,
    Noise,
    Parameter,
    Range,
    Shape,
    State,
    is_tensor,
    parameter,
    shape_of,
)
from hpfracc_nn.solvers.noise.source import Source


class Jumps(Protocol):
    """The probability law of a jump; a frozen value.

    Examples:
        >>> law: Jumps = NormalJumps(0.0, 0.5)
        >>> law.mean_square
        0.25
    """

    def __hash__(self) -> int: ...

    @property
    def trailing(self) -> Shape:
        """The last axes that a step's shape must have: those of the parameters; () if all parameters are numbers."""
        ...

    @property
    def mean_square(self) -> float:
        """The mean of the square of a jump, for parameters that are numbers."""
        ...

    def characteristic(self, k: np.ndarray) -> np.ndarray:
        """Return E exp(i k x), x a jump, for parameters that are numbers."""
        ...

    def total(self, counts: Array, source: Source) -> Array:
        """Return sums of independent jumps, an array like `counts`: each entry of `counts` says how many are summed.

        Random numbers come from `source`.
        """
        ...


@dataclass(frozen=True)
class FixedJumps:
    """Jumps of one size; of size 1 they make a Poisson process.

    E exp(i k x) = exp(i k size).

    Args:
        size: A number, one for each channel (the last axis), or a framework's tensor.

    Raises:
        TypeError: `size` is neither numbers nor a tensor.
        ValueError: `size` is not finite.

    Examples:
        >>> # exp(-2 rate dt)
        >>> float(CompoundPoisson(3.0, FixedJumps(1.0)).characteristic(np.pi, dt=0.5).real)
        0.0498
    """

    size: Parameter = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", parameter("FixedJumps", "size", self.size, FINITE, "1.0"))

    @property
    def trailing(self) -> Shape:
        """See `Jumps.trailing`."""
        return shape_of(self.size)

    @property
    def mean_square(self) -> float:
        """See `Jumps.mean_square`."""
        return self.size**2

    def characteristic(self, k: np.ndarray) -> np.ndarray:
        """See `Jumps.characteristic`."""
        return np.exp(1j * k * self.size)

    def total(self, counts: Array, source: Source) -> Array:
        """See `Jumps.total`."""
        return counts * source.cast(source.xp.asarray(self.size))


@dataclass(frozen=True)
class NormalJumps:
    """Normal jumps, as in Merton's model of prices: E exp(i k x) = exp(i k mean - (k deviation)**2 / 2).

    Args:
        mean: A number, one for each channel (the last axis), or a framework's tensor.
        deviation: The standard deviation, positive; a number, one for each channel, or a framework's tensor.

    Raises:
        TypeError: `mean` or `deviation` is neither numbers nor a tensor.
        ValueError: `mean` or `deviation` is not finite, or the deviation is not positive.

    Source: Merton, J. Financial Econ. 3 (1976) 125.

    Examples:
        >>> NormalJumps(1.0, 2.0).mean_square  # 1**2 + 2**2
        5.0
    """

    mean: Parameter = 0.0
    deviation: Parameter = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", parameter("NormalJumps", "mean", self.mean, FINITE, "0.0"))
        deviation = parameter("NormalJumps", "deviation", self.deviation, POSITIVE, "1.0")
        object.__setattr__(self, "deviation", deviation)

    @property
    def trailing(self) -> Shape:
        """See `Jumps.trailing`."""
        return max(shape_of(self.mean), shape_of(self.deviation), key=len)

    @property
    def mean_square(self) -> float:
        """See `Jumps.mean_square`."""
        return self.mean**2 + self.deviation**2

    def characteristic(self, k: np.ndarray) -> np.ndarray:
        """See `Jumps.characteristic`."""
        return np.exp(1j * k * self.mean - np.square(k * self.deviation) / 2)

    def total(self, counts: Array, source: Source) -> Array:
        """See `Jumps.total`: a sum of normal jumps is normal, with `counts` times their mean and their variance."""
        mean, deviation = (source.cast(source.xp.asarray(each)) for each in (self.mean, self.deviation))
        return counts * mean + counts**0.5 * deviation * source.normal(tuple(counts.shape))


@dataclass(frozen=True)
class ExponentialJumps:
    """Exponential jumps, all of one sign: E exp(i k x) = 1 / (1 - i k mean).

    Args:
        mean: Negative for jumps downwards. A number, one for each channel (the last axis), or a tensor.

    Raises:
        TypeError: `mean` is neither numbers nor a tensor.
        ValueError: `mean` is not finite.

    Examples:
        >>> jumps = increments(CompoundPoisson(5.0, ExponentialJumps(-0.4)), 1000, dt=0.1)
        >>> (jumps <= 0).all()
        tensor(True)
        >>> # 2 rate dt 0.4**2
        >>> CompoundPoisson(5.0, ExponentialJumps(-0.4)).covariance(1, dt=0.1)
        array([[0.16]])
    """

    mean: Parameter = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", parameter("ExponentialJumps", "mean", self.mean, FINITE, "1.0"))

    @property
    def trailing(self) -> Shape:
        """See `Jumps.trailing`."""
        return shape_of(self.mean)

    @property
    def mean_square(self) -> float:
        """See `Jumps.mean_square`."""
        return 2 * self.mean**2

    def characteristic(self, k: np.ndarray) -> np.ndarray:
        """See `Jumps.characteristic`."""
        return 1 / (1 - 1j * k * self.mean)

    def total(self, counts: Array, source: Source) -> Array:
        """See `Jumps.total`: a sum of exponential jumps has the gamma distribution."""
        return source.gamma(counts) * source.cast(source.xp.asarray(self.mean))


@dataclass(frozen=True)
class CompoundPoisson(Noise):
    """A compound Poisson process: `rate` jumps per unit of time on average, with sizes of their own.

    Exact: the count of each step is drawn, then the sum of its jumps. Differentiable in the parameters of the jumps; a
    count has no derivative in the rate, so that a tensor is refused there.

    Args:
        rate: Positive, a number, per the caller's time unit.
        jumps: The law of the jumps: `NormalJumps`, `ExponentialJumps`, `FixedJumps`, or a class of yours like `Jumps`.

    Raises:
        TypeError: `rate` is not a number.
        ValueError: `rate` is not positive.

    Source: Cont & Tankov, Financial Modelling with Jump Processes (2004), section 3.2.

    Examples:
        >>> # rate dt 0.5**2
        >>> CompoundPoisson(3.0, NormalJumps(deviation=0.5)).covariance(1, dt=0.5)
        array([[0.375]])
    """

    rate: float
    jumps: Jumps = field(default_factory=NormalJumps)

    name: ClassVar[str] = "compound_poisson"
    is_continuous: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if is_tensor(self.rate) or errors.as_float(self.rate) is None:
            raise TypeError(
                f"CompoundPoisson(rate of type {type(self.rate).__name__}): needs one number, since counts have no "
                "derivative in it; pass a number, and learn the sizes of the jumps."
            )
        object.__setattr__(self, "rate", parameter("CompoundPoisson", "rate", self.rate, POSITIVE, "1.0"))

    @classmethod
    def examples(cls) -> tuple[Noise, ...]:
        """See `Noise.examples`."""
        return cls(0.5, NormalJumps(0.3, 0.5)), cls(3.0, ExponentialJumps(-0.4)), cls(40.0, FixedJumps(2.0))

    def covariance(self, n_steps: int, dt: float) -> np.ndarray:
        """See `Noise.covariance`."""
        return self.rate * dt * self.jumps.mean_square * np.eye(n_steps)

    def characteristic(self, k: np.ndarray, dt: float) -> np.ndarray:
        """See `Noise.characteristic`."""
        return np.exp(self.rate * dt * (self.jumps.characteristic(k) - 1))

    @property
    def regularity(self) -> float:
        """See `Noise.regularity`; 0, because paths jump."""
        return 0.0

    @property
    def trailing(self) -> Shape:
        """See `Noise.trailing`; the axes of the jumps' parameters."""
        return self.jumps.trailing

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        return self.jumps.total(source.poisson(self.rate * dt, (n_steps, *shape)), source), ()


_STABILITIES = Range(0.0, 2.0, has_high=True)
_SKEWNESSES = Range(-1.0, 1.0, has_low=True, has_high=True)
_TINY = 1e-37  # a normal number in single precision


@dataclass(frozen=True)
class AlphaStable(Noise):
    """Alpha-stable Levy motion L: independent increments with heavy tails, for which moments from `stability` on are
    infinite.

    E exp(i k L_t) = exp(-t |k|**a (1 - i b sign(k) tan(pi a / 2))), a the stability and b the skewness; at a = 1 the
    tangent gives way to -(2 / pi) log |k|. So a = 2 is sqrt(2) times Brownian motion, a = 1 without skewness Cauchy's
    process, and a = 1/2 with skewness 1 the time at which Brownian motion first reaches sqrt(t).

    By Chambers, Mallows and Stuck's formula, of a uniform and an exponential number. Differentiable in both parameters
    where they are tensors; a tensor's stability must stay away from 1 unless the skewness is the number 0.

    Args:
        stability: In (0, 2]; a number, one for each channel (the last axis), or a framework's tensor.
        skewness: In [-1, 1]; a number, one for each channel, or a framework's tensor.

    Raises:
        TypeError: A parameter is neither numbers nor a tensor.
        ValueError: A parameter is out of range, or one of several stabilities is 1 and there is skewness.

    Source: Chambers, Mallows & Stuck, J. Amer. Stat. Assoc. 71 (1976) 340; Weron, Stat. Probab. Lett. 28 (1996) 165.

    Examples:
        >>> # Cauchy's: exp(-dt |k|)
        >>> abs(AlphaStable(1.0).characteristic(np.array([-1.0, 2.0]), dt=0.5))
        array([0.60653066, 0.36787944])
        >>> x = increments(
        ...     AlphaStable(1.0), 100_000, dt=0.5, generator=torch.Generator().manual_seed(0)
        ... )
        >>> round((x.abs() < 0.5).double().mean().item(), 2)  # within dt of 0
        0.5
    """

    stability: Parameter
    skewness: Parameter = 0.0

    name: ClassVar[str] = "alpha_stable"
    is_continuous: ClassVar[bool] = False

    def __post_init__(self) -> None:
        stability = parameter("AlphaStable", "stability", self.stability, _STABILITIES, "1.5")
        skewness = parameter("AlphaStable", "skewness", self.skewness, _SKEWNESSES, "0.0")
        if isinstance(stability, tuple) and 1 in stability and (is_tensor(skewness) or np.any(skewness)):
            raise ValueError(
                f"AlphaStable(stability={stability}, skewness={skewness}): needs no stability of 1 among several where "
                "there is skewness, for its formula is another one; drive that channel by a noise of its own."
            )
        object.__setattr__(self, "stability", stability)
        object.__setattr__(self, "skewness", skewness)

    @classmethod
    def examples(cls) -> tuple[Noise, ...]:
        """See `Noise.examples`."""
        parameters = ((0.5, 1.0), (0.8, 0.5), (1.0, 0.0), (1.0, -0.6), (1.2, -1.0), (1.5, 0.0), (1.9, 1.0), (2.0, 0.0))
        return tuple(cls(*each) for each in parameters)

    def covariance(self, n_steps: int, dt: float) -> np.ndarray | None:
        """See `Noise.covariance`; None, for an infinite one, unless the stability is 2."""
        return 2 * dt * np.eye(n_steps) if self.stability == 2 else None

    def characteristic(self, k: np.ndarray, dt: float) -> np.ndarray:
        """See `Noise.characteristic`."""
        size = np.abs(k)
        tangent = math.tan(math.pi / 2 * self.stability)
        turn = -2 / math.pi * np.log(np.where(size > 0, size, 1.0)) if self.stability == 1 else tangent
        return np.exp(-dt * size**self.stability * (1 - 1j * self.skewness * np.sign(k) * turn))

    @property
    def regularity(self) -> float:
        """See `Noise.regularity`; 0, because paths jump."""
        return 0.0

    @property
    def trailing(self) -> Shape:
        """See `Noise.trailing`; the longer of the shapes of both parameters."""
        return max(shape_of(self.stability), shape_of(self.skewness), key=len)

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        uniform, exponential = source.uniform((n_steps, *shape)), source.exponential((n_steps, *shape))
        if not is_tensor(self.stability) and self.stability == 1 and not self._is_symmetric:
            return _at_one(self.skewness, dt, uniform, exponential, source), ()
        return self._general(dt, uniform, exponential, source), ()

    @property
    def _is_symmetric(self) -> bool:
        return not is_tensor(self.skewness) and not np.any(self.skewness)

    def _general(self, dt: float, uniform: Array, exponential: Array, source: Source) -> Array:
        """Return increments over steps dt by Chambers, Mallows and Stuck's formula; not at stability 1 with skewness.

        With V = pi (uniform - 1/2), W exponential and t = arctan(b tan(pi a / 2)):

            S sin(t + a V) cos(V)**(-1/a) [cos(t + (a - 1) V) / W]**((1 - a) / a),     S = cos(t)**(-1/a).

        Each of the three trigonometric functions may vanish where V is close to -pi/2 or pi/2. Each is therefore
        computed as the sine of V's distance from the closer of these two ends, so that no digits are lost.

        `uniform` and `exponential` are independent numbers from (0, 1) and from the exponential distribution of mean 1,
        both [n_steps, *shape].
        """
        xp = source.xp
        formulas = partial(_constants, self._is_symmetric, dt)
        parameters = source.computed(formulas, self.stability, self.skewness)
        a, less, low, low_sign, high, high_sign, tail, scale, inverse = parameters
        is_low = uniform < 0.5
        distance = math.pi * xp.where(is_low, uniform, 1 - uniform)
        shift, sign = xp.where(is_low, low, high), xp.where(is_low, low_sign, high_sign)
        numerator = xp.sin(shift + a * distance) * xp.where(is_low, sign, -sign)
        middle = -sign * xp.sin(shift + less * distance)
        power = tail * (_log(middle, xp) - xp.log(exponential))
        return numerator * xp.exp(scale + power - inverse * xp.log(xp.sin(distance)))


def _constants(is_symmetric: bool, dt: float, xp: Namespace, a: Array, b: Array) -> tuple[Array, ...]:
    """Return the terms of the formula of `AlphaStable._general` that depend on stability a and skewness b alone.

    These are a, a - 1, the reduced angle and sign (see `_reduced`) that belong to V = -pi/2, the reduced angle and sign
    that belong to V = pi/2, (1 - a) / a, log(S dt**(1/a)) and 1 / a.
    """
    tangent = 0 * a if is_symmetric else b * xp.sin(math.pi / 2 * a) / xp.cos(math.pi / 2 * a)
    turn = xp.angle(1 + 1j * tangent)
    ends = [*_reduced(turn - math.pi / 2 * a, xp), *_reduced(-turn - math.pi / 2 * a, xp)]
    scale = (xp.log(1 + tangent * tangent) / 2 + math.log(dt)) / a
    return a, a - 1, *ends, (1 - a) / a, scale, 1 / a


def _at_one(skewness: Parameter, dt: float, uniform: Array, exponential: Array, source: Source) -> Array:
    """Return increments over steps dt at stability 1, by the formula of Chambers, Mallows and Stuck for that case.

    A shift makes increments over steps of different lengths those of one process. `uniform` and `exponential` are
    independent numbers from (0, 1) and from the exponential distribution of mean 1, both [n_steps, *shape].
    """
    xp = source.xp
    b = source.cast(xp.asarray(skewness))
    is_low = uniform < 0.5
    distance = math.pi * xp.where(is_low, uniform, 1 - uniform)
    own = xp.where(is_low, b, -b)
    corner = math.pi / 2 * (1 - own) + own * distance  # pi / 2 + b V, of which b = 1 leaves nothing at V = -pi / 2
    tangent = xp.cos(distance) / xp.sin(distance)
    first = corner * xp.where(is_low, -tangent, tangent)
    second = b * (xp.log(math.pi / 2 * exponential * xp.sin(distance)) - _log(corner, xp))
    return dt * (2 / math.pi) * (first - second + b * math.log(dt))


def _reduced(angle: Array, xp: Namespace) -> tuple[Array, Array]:
    """Return (reduced, sign): the angle less the closest multiple of pi, and the sign by which the sine changes.

    So sin(angle + x) = sign * sin(reduced + x) for all x. The angle lies between -3 pi / 2 and pi / 2.
    """
    turns = xp.floor(angle / math.pi + 0.5)  # 0 or -1
    return angle - math.pi * turns, 1 + 2 * turns


def _log(x: Array, xp: Namespace) -> Array:
    """Return the logarithm of x, which only rounding can make 0 or negative: such entries count as 1e-37."""
    return xp.log(xp.where(x > _TINY, x, _TINY))
