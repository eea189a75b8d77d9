"""The sizes of jumps: how many there were is known, their sum is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.noise.noise import FINITE, POSITIVE, Parameter, Shape, parameter, shape_of
from hpfracc_nn.solvers.noise.source import Source


class Jumps(Protocol):
    """The law of a jump; a frozen value.

    Examples:
        >>> law: Jumps = NormalJumps(0.0, 0.5)
        >>> law.mean_square
        0.25
    """

    def __hash__(self) -> int: ...

    @property
    def trailing(self) -> Shape:
        """The last axes that parameters with a value per channel ask for."""
        ...

    @property
    def mean_square(self) -> float:
        """The mean of the square of a jump, for parameters that are numbers."""
        ...

    def characteristic(self, k: np.ndarray) -> np.ndarray:
        """Return E exp(i k x), x a jump, for parameters that are numbers."""
        ...

    def total(self, counts: Array, source: Source) -> Array:
        """Return the sum of that many independent jumps, for each entry."""
        ...


@dataclass(frozen=True)
class FixedJumps:
    """Jumps of one size; of size 1 they make a Poisson process.

    E exp(i k x) = exp(i k size).

    Args:
        size: A number, one for each channel (the last axis), or a framework's tensor.

    Raises:
        TypeError: `size` is neither numbers nor a tensor.
        ValueError: It is not finite.

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
        deviation: Positive; the same.

    Raises:
        TypeError: One of them is neither numbers nor a tensor.
        ValueError: One of them is not finite, or the deviation is not positive.

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
        """See `Jumps.total`: normal with mean and variance times the count."""
        mean, deviation = (source.cast(source.xp.asarray(each)) for each in (self.mean, self.deviation))
        return counts * mean + counts**0.5 * deviation * source.normal(tuple(counts.shape))


@dataclass(frozen=True)
class ExponentialJumps:
    """Exponential jumps, all of one sign: E exp(i k x) = 1 / (1 - i k mean).

    Args:
        mean: Negative for jumps downwards. A number, one for each channel (the last axis), or a tensor.

    Raises:
        TypeError: `mean` is neither numbers nor a tensor.
        ValueError: It is not finite.

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
        """See `Jumps.total`: a gamma number."""
        return source.gamma(counts) * source.cast(source.xp.asarray(self.mean))
