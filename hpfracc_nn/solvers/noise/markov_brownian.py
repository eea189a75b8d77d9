"""Fractional Brownian motion with a memory of fixed size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
from numpy.polynomial import chebyshev

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.solvers.noise import markov
from hpfracc_nn.solvers.noise.fractional import HurstNoise
from hpfracc_nn.solvers.noise.linear import Linear, advance, covariance
from hpfracc_nn.solvers.noise.noise import Parameter, Shape, State, is_tensor
from hpfracc_nn.solvers.noise.source import Source

_DEGREE = 32
_ROOM = 1.02  # by which a table reaches beyond its bounds, where the derivative of acos is infinite
_FEWEST = 2


@dataclass(frozen=True)
class MarkovNoise(HurstNoise):
    """What both approximations share: states that are drawn exactly on the mesh, and weights that depend on `hurst`.

    Attributes:
        hurst: In (0, 1); one number, or a framework's tensor of no axes.
        bounds: Where a tensor lies, within (0.05, 0.95); the narrower, the better the approximation. None is these.
        n_states: How many states.
    """

    n_states: int = 16

    is_whole: ClassVar[bool] = False
    widest: ClassVar[tuple[float, float]] = (0.05, 0.95)  # at 0 and 1 no number of states is enough
    form: ClassVar[markov.Form]

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        if self.trailing:
            raise ValueError(
                f"{owner}(hurst of shape {self.trailing}): needs one number; drive each channel by a noise of its own."
            )
        if is_tensor(self.hurst) and not self.widest[0] <= self.interval[0] < self.interval[1] <= self.widest[1]:
            raise ValueError(
                f"{owner}(bounds={self.bounds}): needs bounds of a tensor within {self.widest}, because at 0 and 1 no "
                "number of states is enough; pass bounds=None, or use the exact process."
            )
        object.__setattr__(self, "n_states", errors.count(owner, "n_states", self.n_states, _FEWEST))

    def rates(self, n_steps: int, dt: float) -> np.ndarray:
        """Return the rates at which the states decay, [n_states], on a mesh of so many steps.

        They are in geometric progression between two ends that are searched once for each number of steps and of
        states, Hurst index or, where that is a tensor, bounds.
        """
        return markov.geometric(self.form, self.n_states, *self.interval, n_steps, dt)

    def error(self, n_steps: int, dt: float, hurst: float | None = None) -> markov.MarkovError:
        """Return how far the approximation is from the process on a mesh, in closed form.

        Args:
            n_steps: How many steps.
            dt: Their length, in the caller's time unit.
            hurst: A Hurst index; needed where that of the noise is a tensor.

        Raises:
            ValueError: It is needed and missing.
        """
        if hurst is None and is_tensor(self.hurst):
            raise ValueError(
                f"{type(self).__name__}.error(hurst=None): needs a number where the noise has a tensor; pass for "
                "example hurst=0.3."
            )
        index = self.hurst if hurst is None else hurst
        rates = self.rates(n_steps, dt)
        weights = markov.weights_of(self.form, rates, index, n_steps * dt)
        return markov.error_of(self.form, rates, weights, index, n_steps, dt)

    def covariance(self, n_steps: int, dt: float) -> np.ndarray:
        """See `Noise.covariance`; of the approximation, not of what it approximates."""
        process_of, parameters, first = self._process(n_steps, dt)
        return covariance(process_of(NUMPY, *map(np.asarray, parameters)), first, n_steps)

    def start(self, n_steps: int, shape: Shape, dt: float, source: Source) -> State:
        """See `Noise.start`: the states over their deviations, and the process that they follow."""
        process_of, parameters, root = self._process(n_steps, dt)
        first = source.cast(root)
        states = source.xp.matmul(first, source.normal((first.shape[1], math.prod(shape))))
        return states, process_of, parameters

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        states, process_of, parameters = state
        found, after = advance(process_of, parameters, n_steps, shape, states, source)
        return found, (after, process_of, parameters)

    def _process(self, n_steps: int, dt: float) -> tuple[Callable[..., Linear], tuple[Parameter, ...], np.ndarray]:
        """Return the process that the states follow as a function of a namespace and of parameters, these, and a root
        of the states' covariance at first, [k, r].
        """
        rates = self.rates(n_steps, dt)
        if is_tensor(self.hurst):
            table = _table(self.form, self.n_states, self.interval, n_steps, dt)
            moves = markov.transitions(self.form, rates, dt)
            return partial(_process, moves, dt, partial(_learned, table, self.interval)), (self.hurst,), moves.first
        normal = _normalised(self.form, rates, self.hurst, n_steps * dt)
        moves, fixed = markov.merged(self.form, rates, normal, dt)
        return partial(_process, moves, dt, partial(_fixed, fixed)), (), moves.first


@dataclass(frozen=True)
class MarkovFractionalBrownian(MarkovNoise):
    """Fractional Brownian motion as a weighted sum of `n_states` Ornstein-Uhlenbeck processes driven by one noise.

    Time O(n), and a state of fixed size, from which blocks of steps can be drawn again. The states are drawn exactly on
    the mesh, and the weights minimise the mean square error of the path, which `error` knows in closed form: with 16
    states and 1000 steps it is 0.5 % of the path at hurst 0.3 and 0.7, 4 % at 0.1 and 7 % at 0.9; beyond, use the exact
    process. Their rates are searched for the least such error, some 50 ms for each new number of steps, of states and
    Hurst index, or bounds of a learned one. Normalised: Var B_t = t**(2 hurst) to the same errors. Differentiable in
    the Hurst index.

    Args:
        hurst: In (0, 1); one number, or a framework's tensor of no axes, which may be learned and is not checked.
        bounds: Where a tensor lies, within (0.05, 0.95); the narrower, the better the approximation. None is these.
        n_states: How many states, at least 2.

    Raises:
        TypeError: `hurst` is neither a number nor a tensor, or `n_states` no whole number.
        ValueError: One of them is out of range, or `hurst` is not within its bounds or several numbers, or a tensor's
            bounds are wider than (0.05, 0.95).

    Source: Daems et al., Variational Inference for SDEs Driven by Fractional Noise, ICLR 2024, with other rates.

    Examples:
        >>> error = MarkovFractionalBrownian(0.3).error(1000, dt=0.001)
        >>> round(error.path, 3), round(error.step, 4), round(error.end, 4)
        (0.004, 0.0008, 0.0004)
    """

    name: ClassVar[str] = "markov_fractional"
    form: ClassVar[markov.Form] = markov.Stationary()


@dataclass(frozen=True)
class MarkovRiemannLiouvilleBrownian(MarkovNoise):
    """Riemann and Liouville's fractional Brownian motion by states that begin with zero.

    As `MarkovFractionalBrownian`, whose arguments, errors and source it has, but for `RiemannLiouvilleBrownian`.

    Examples:
        >>> noise = MarkovRiemannLiouvilleBrownian(0.3)
        >>> round(noise.error(1000, dt=0.001).path, 4)
        0.0008
        >>> # of the path at 4: 4**(2 hurst)
        >>> round(noise.covariance(100, dt=0.04).sum().item(), 2)
        2.3
    """

    name: ClassVar[str] = "markov_riemann_liouville"
    form: ClassVar[markov.Form] = markov.AtRest()


def _process(
    moves: markov.Transitions, dt: float, weights_of: Callable[..., Array], xp: Namespace, *parameters: Array
) -> Linear:
    weights = weights_of(xp, *parameters)
    entry = xp.constant(moves.added, weights)
    read = weights * xp.constant(np.expm1(-moves.rates * dt), weights)
    direct = xp.matmul(weights[None], entry)[0]
    return Linear(xp.constant(moves.rates * dt, weights), entry, read, direct)


def _fixed(weights: np.ndarray, xp: Namespace) -> Array:
    return xp.asarray(weights)


def _learned(table: np.ndarray, interval: tuple[float, float], xp: Namespace, hurst: Array) -> Array:
    """Return the normalised weights times the deviations of the states, [k], from their Chebyshev coefficients."""
    low, high = interval
    angle = xp.acos((hurst - (low + high) / 2) * (2 / (_ROOM * (high - low))))
    terms = xp.cos(angle[..., None] * xp.constant(np.arange(float(_DEGREE)), hurst))
    return xp.matmul(terms[None], xp.constant(table, hurst))[0]


def _normalised(form: markov.Form, rates: np.ndarray, hurst: float, duration: float) -> np.ndarray:
    return markov.weights_of(form, rates, hurst, duration) / np.sqrt(2 * rates * form.variance(hurst))


@lru_cache(maxsize=8)
def _table(form: markov.Form, n_states: int, interval: tuple[float, float], n_steps: int, dt: float) -> np.ndarray:
    """Return the weights' Chebyshev coefficients over an interval of Hurst indices, [degree, k]."""
    low, high = interval
    rates = markov.geometric(form, n_states, low, high, n_steps, dt)
    nodes = np.cos(np.pi * (np.arange(_DEGREE) + 0.5) / _DEGREE)
    indices = (low + high + _ROOM * (high - low) * nodes) / 2
    values = [_normalised(form, rates, hurst, n_steps * dt) for hurst in indices]
    return chebyshev.chebfit(nodes, np.array(values), _DEGREE - 1)
