"""Jumps at the times of a Poisson process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.noise.jumps import ExponentialJumps, FixedJumps, Jumps, NormalJumps
from hpfracc_nn.solvers.noise.noise import POSITIVE, Noise, Shape, State, is_tensor, parameter
from hpfracc_nn.solvers.noise.source import Source


@dataclass(frozen=True)
class CompoundPoisson(Noise):
    """A compound Poisson process: `rate` jumps per unit of time on average, with sizes of their own.

    Exact: the count of each step is drawn, then the sum of its jumps. Differentiable in the parameters of the jumps; a
    count has no derivative in the rate, so that a tensor is refused there.

    Args:
        rate: Positive, a number, per the caller's time unit.
        jumps: Their law: `NormalJumps`, `ExponentialJumps`, `FixedJumps`, or a class of yours with `total`.

    Raises:
        TypeError: `rate` is not a number.
        ValueError: It is not positive.

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
        """Paths jump: 0."""
        return 0.0

    @property
    def trailing(self) -> Shape:
        """Of the jumps' parameters."""
        return self.jumps.trailing

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        return self.jumps.total(source.poisson(self.rate * dt, (n_steps, *shape)), source), ()
