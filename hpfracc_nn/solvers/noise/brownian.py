"""Brownian motion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.noise.noise import Noise, Shape, State
from hpfracc_nn.solvers.noise.source import Source


@dataclass(frozen=True)
class Brownian(Noise):
    """Standard Brownian motion: independent normal increments of variance dt.

    Its unit is the root of the caller's time unit.

    Source: Kloeden & Platen, Numerical Solution of Stochastic Differential Equations (1992), section 2.4.

    Examples:
        >>> Brownian().covariance(2, dt=0.01)
        array([[0.01, 0.  ],
               [0.  , 0.01]])
    """

    name: ClassVar[str] = "brownian"
    is_brownian: ClassVar[bool] = True

    @classmethod
    def examples(cls) -> tuple[Noise, ...]:
        """See `Noise.examples`."""
        return (cls(),)

    def covariance(self, n_steps: int, dt: float) -> np.ndarray:
        """See `Noise.covariance`."""
        return dt * np.eye(n_steps)

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        found = source.normal((n_steps, *shape))
        found *= math.sqrt(dt)
        return found, ()
