"""Coloured noise: the integral of an Ornstein-Uhlenbeck process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.solvers.noise.linear import Linear, advance
from hpfracc_nn.solvers.noise.noise import POSITIVE, Noise, Parameter, Shape, State, parameter, shape_of
from hpfracc_nn.solvers.noise.source import Source

_SMALL = 0.1  # in x - 2 tanh(x / 2), below which the difference has lost too many digits
_SERIES = (1 / 12, -1 / 120, 17 / 20160, -31 / 362880, 691 / 79833600)  # of it, from x**3 on


@dataclass(frozen=True)
class Coloured(Noise):
    """The integral of stationary noise with covariance exp(-|t| / tau) / (2 tau), tau the correlation time.

    Exact at every step, however long: value and integral of the Ornstein-Uhlenbeck process are drawn together. Paths
    are differentiable, so that all integrals along them are the same; as tau goes to 0 they become Brownian motion,
    and solutions those of Stratonovich's equation.

    Args:
        correlation_time: Positive, in the caller's time unit; a number, or a framework's tensor of no axes, which may
            be learned.

    Raises:
        TypeError: It is neither a number nor a tensor.
        ValueError: It is not positive, or not a single number.

    Source: Gillespie, Phys. Rev. E 54 (1996) 2084; Wong & Zakai, Ann. Math. Stat. 36 (1965) 1560.

    Examples:
        >>> # dt - tau (1 - exp(-dt / tau)); of Brownian motion 0.5
        >>> Coloured(0.1).covariance(1, dt=0.5)
        array([[0.40067379]])
    """

    correlation_time: Parameter

    name: ClassVar[str] = "coloured"

    def __post_init__(self) -> None:
        value = parameter("Coloured", "correlation_time", self.correlation_time, POSITIVE, "0.1")
        if shape_of(value):
            raise ValueError(
                f"Coloured(correlation_time of shape {shape_of(value)}): needs one number; drive each channel by a "
                "noise of its own."
            )
        object.__setattr__(self, "correlation_time", value)

    @property
    def regularity(self) -> float:
        """Paths have a derivative: 1."""
        return 1.0

    @classmethod
    def examples(cls) -> tuple[Noise, ...]:
        """See `Noise.examples`."""
        return cls(1e-3), cls(0.3), cls(50.0)

    def covariance(self, n_steps: int, dt: float) -> np.ndarray:
        """See `Noise.covariance`."""
        steps = dt / self.correlation_time * np.arange(n_steps + 1)
        grown = self.correlation_time * np.expm1(-steps)  # the variance of the path, less a linear term
        lag = np.abs(np.arange(n_steps)[:, None] - np.arange(n_steps))
        bend = (grown[lag + 1] - 2 * grown[lag] + grown[np.abs(lag - 1)]) / 2
        return np.where(lag == 0, dt + grown[1], bend)

    def start(self, n_steps: int, shape: Shape, dt: float, source: Source) -> State:
        """See `Noise.start`."""
        return (source.normal((1, math.prod(shape))),)

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        process_of = partial(_integrated, dt)
        found, after = advance(process_of, (self.correlation_time,), n_steps, shape, state[0], source)
        return found, (after,)


def _integrated(dt: float, xp: Namespace, correlation_time: Array) -> Linear:
    """Return value and integral over a step, given the value at its start.

    With eta of variance 1, x = dt / tau and u = 1 - exp(-x): eta at the end has mean exp(-x) eta and variance
    u (2 - u); sqrt(2 / tau) times the integral has mean u eta, covariance u**2 with the other and variance
    u**3 / (2 - u) + 2 (x - 2 tanh(x / 2)).
    """
    tau = correlation_time[..., None]
    x = dt / tau
    u = -xp.expm1(-x)
    is_small = x < _SMALL
    small, large = xp.where(is_small, x, 0.0), xp.where(is_small, 1.0, x)
    series = sum(term * small ** (2 * i + 3) for i, term in enumerate(_SERIES))
    rest = xp.where(is_small, series, large + 2 * xp.expm1(-large) / (1 + xp.exp(-large)))
    entry = xp.concat([_sqrt(u * (2 - u), xp), 0 * u], axis=-1)[None]
    direct = xp.concat([u * _sqrt(u / (2 - u), xp), _sqrt(2 * rest, xp)], axis=-1)
    scale = _sqrt(tau / 2, xp)
    return Linear(x, entry, scale * u, scale * direct)


def _sqrt(x: Array, xp: Namespace) -> Array:
    return xp.exp(xp.log(x) / 2)
