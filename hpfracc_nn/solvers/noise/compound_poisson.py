"""Jumps at the times of a Poisson process."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.noise.jumps import Jumps, NormalJumps
from hpfracc_nn.solvers.noise.noise import Noise, Shape, State, is_tensor, parameter, shape_of
from hpfracc_nn.solvers.noise.source import Source


@dataclass(frozen=True)
class CompoundPoisson(Noise):
    """A compound Poisson process: `rate` jumps per unit of time on average, with sizes of their own.

    Exact: the count of each step is drawn, then the sum of its jumps. Differentiable in the parameters of the jumps; a
    count has no derivative in the rate, so that a tensor is refused there.

    Args:
        rate: Positive, a number.
        jumps: Their law: `NormalJumps`, `ExponentialJumps`, `FixedJumps`, or a class of yours with `total`.

    Raises:
        TypeError: `rate` is not a number.
        ValueError: It is not positive.

    Source: Cont & Tankov, Financial Modelling with Jump Processes (2004), section 3.2.
    """

    rate: float
    jumps: Jumps = field(default_factory=NormalJumps)

    name: ClassVar[str] = "compound_poisson"
    is_continuous: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if is_tensor(self.rate) or shape_of(self.rate):
            raise TypeError(
                f"CompoundPoisson(rate of type {type(self.rate).__name__}): needs one number, since counts have no "
                "derivative in it; pass a number, and learn the sizes of the jumps."
            )
        object.__setattr__(self, "rate", parameter("CompoundPoisson", "rate", self.rate, 0, math.inf, "1.0"))

    @property
    def regularity(self) -> float:
        """Paths jump: 0."""
        return 0.0

    @property
    def trailing(self) -> Shape:
        """Of the jumps' parameters."""
        return self.jumps.trailing

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        return self.jumps.total(source.poisson(self.rate * dt, (n_steps, *shape)), source), ()
