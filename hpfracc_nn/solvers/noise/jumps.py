"""The sizes of jumps: how many there were is known, their sum is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.noise.noise import Parameter, Shape, parameter, shape_of
from hpfracc_nn.solvers.noise.source import Source


class Jumps(Protocol):
    """The law of a jump; a frozen value."""

    def __hash__(self) -> int: ...

    @property
    def trailing(self) -> Shape:
        """The last axes that parameters with a value per channel ask for."""
        ...

    def total(self, counts: Array, source: Source) -> Array:
        """Return the sum of that many independent jumps, for each entry."""
        ...


@dataclass(frozen=True)
class FixedJumps:
    """Jumps of one size; of size 1 they make a Poisson process.

    Args:
        size: A number, one for each channel (the last axis), or a framework's tensor.
    """

    size: Parameter = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", parameter("FixedJumps", "size", self.size, -math.inf, math.inf, "1.0"))

    @property
    def trailing(self) -> Shape:
        """See `Jumps.trailing`."""
        return shape_of(self.size)

    def total(self, counts: Array, source: Source) -> Array:
        """See `Jumps.total`."""
        return counts * source.cast(source.xp.asarray(self.size))


@dataclass(frozen=True)
class NormalJumps:
    """Normal jumps, as in Merton's model of prices.

    Args:
        mean: A number, one for each channel (the last axis), or a framework's tensor.
        deviation: Positive; the same.
    """

    mean: Parameter = 0.0
    deviation: Parameter = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", parameter("NormalJumps", "mean", self.mean, -math.inf, math.inf, "0.0"))
        deviation = parameter("NormalJumps", "deviation", self.deviation, 0, math.inf, "1.0")
        object.__setattr__(self, "deviation", deviation)

    @property
    def trailing(self) -> Shape:
        """See `Jumps.trailing`."""
        return max(shape_of(self.mean), shape_of(self.deviation), key=len)

    def total(self, counts: Array, source: Source) -> Array:
        """See `Jumps.total`: normal with mean and variance times the count."""
        mean, deviation = (source.cast(source.xp.asarray(each)) for each in (self.mean, self.deviation))
        return counts * mean + counts**0.5 * deviation * source.normal(tuple(counts.shape))


@dataclass(frozen=True)
class ExponentialJumps:
    """Exponential jumps.

    Args:
        mean: Not 0; negative for jumps downwards. A number, one for each channel (the last axis), or a tensor.
    """

    mean: Parameter = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", parameter("ExponentialJumps", "mean", self.mean, -math.inf, math.inf, "1.0"))

    @property
    def trailing(self) -> Shape:
        """See `Jumps.trailing`."""
        return shape_of(self.mean)

    def total(self, counts: Array, source: Source) -> Array:
        """See `Jumps.total`: a gamma number."""
        return source.gamma(counts) * source.cast(source.xp.asarray(self.mean))
