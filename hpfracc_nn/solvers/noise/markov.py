"""Noises that a few exponentially decaying states make: coloured noise and Markovian fractional Brownian motions.

The states y_n and the increments of such a noise are linear in standard normal numbers xi_n:

    increment_n = read . y_n + direct . xi_n,     y_(n+1) = decay * y_n + entry xi_n.

A chunk of s steps is linear in its normal numbers and in the state before the chunk: one product with a Toeplitz matrix
and one with the powers of the decays, instead of s small steps.

MarkovFractionalBrownian and MarkovRiemannLiouvilleBrownian are a few Ornstein-Uhlenbeck processes that share one
Brownian motion: rates and weights.

    B(t) ~ sum_i w_i [Y_i(t) - Y_i(0)],     dY_i = -rate_i Y_i dt + dW,

with weights that minimise E int_0^T (B - sum)**2 dt, a small linear system in closed form. Two forms: `Stationary`
begins with stationary states and approximates fractional Brownian motion, `AtRest` begins with zeros and approximates
Riemann and Liouville's.

What rates are good depends on the Hurst index. Without rates below `low` a share (low T)**(1 - hurst) of the paths is
lost, without rates above `high` a share (high dt)**-hurst, and with a ratio exp(delta) between neighbouring rates a
share exp(-pi**2 / delta). The range for which all three shares are equal is much wider than [1 / T, 1 / dt]: a good
part of a rough path is white noise on the mesh, made by states that forget everything within a step. From this range
the two ends are searched for the least error of the path, as long as the variance of an increment does not become
wrong: by the error of the path alone states would be too slow for the mesh, and above hurst 1/2 increments several
times too large.

Carmona, Coutin & Montseny, Stat. Inference Stoch. Process. 3 (2000) 161; Harms & Stefanovits, Stoch. Process. Appl. 129
(2019) 1198; Daems et al., ICLR 2024, proposition 5.

Shapes: k states, r normal numbers a step; T = n_steps dt is the duration. A `form` is one of the two approximations,
`Stationary` or `AtRest`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
from numpy.polynomial import chebyshev
from scipy import optimize, special

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.solvers.noise.fractional import HurstNoise, riemann_liouville_covariance
from hpfracc_nn.solvers.noise.noise import POSITIVE, Noise, Parameter, Shape, State, is_tensor, parameter, shape_of
from hpfracc_nn.solvers.noise.source import Source

_CHUNK = 64  # steps


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear process with k states and r normal numbers a step, float64 arrays of a namespace.

    Attributes:
        rates: The rates at which states decay in a step, [k]; a state is multiplied by exp(-rate).
        entry: The matrix that takes a step's normal numbers to what they add to the states, [k, r].
        read: The weights of the states in the increment, [k].
        direct: The weights of the normal numbers in the increment of their own step, [r].
    """

    rates: Array
    entry: Array
    read: Array
    direct: Array


def advance(
    process_of: Callable[..., Linear],
    parameters: tuple[Any, ...],
    n_steps: int,
    shape: Shape,
    state: Array,
    source: Source,
) -> tuple[Array, Array]:
    """Return the increments [n_steps, *shape] of a linear process, and the states [k, width] after these steps.

    `width` is the product of `shape`: all entries are independent paths.

    Args:
        process_of: Called as process_of(xp, *parameters); returns the process.
        parameters: Parameters of the process: single numbers, or arrays that may be learned.
        n_steps: How many steps.
        shape: The shape of one step's increments.
        state: The states before the first step, [k, width].
        source: Where normal numbers come from.
    """
    xp, width = source.xp, math.prod(shape)
    some = []
    steps = 0
    for begin in range(0, n_steps, _CHUNK):
        if steps != min(_CHUNK, n_steps - begin):
            steps = min(_CHUNK, n_steps - begin)
            own, past, kept, new = source.computed(partial(_chunk, process_of, steps), *parameters)
        numbers = source.normal((own.shape[-1], width))
        some.append(xp.matmul(own, numbers) + xp.matmul(past, state))
        state = kept * state + xp.matmul(new, numbers)
    found = some[0] if len(some) == 1 else source.joined(some, 0)
    return found.reshape(n_steps, *shape), state


def covariance(process: Linear, first: np.ndarray, n_steps: int) -> np.ndarray:
    """Return the covariance of the increments of a linear process, [n_steps, n_steps].

    `first` is a root [k, r] of the covariance of the first states: first @ first.T is [k, k].
    """
    decays = np.exp(-process.rates)
    powers = decays ** np.arange(n_steps)[:, None]  # by lag
    states, added = first @ first.T, process.entry @ process.entry.T
    own = process.direct @ process.direct
    found = np.empty((n_steps, n_steps))
    for i in range(n_steps):
        found[i, i] = process.read @ states @ process.read + own
        reached = decays * (states @ process.read) + process.entry @ process.direct  # the next state with increment i
        found[i + 1 :, i] = found[i, i + 1 :] = powers[: n_steps - i - 1] @ (process.read * reached)
        states = decays[:, None] * states * decays + added
    return found


def _chunk(
    process_of: Callable[..., Linear], steps: int, xp: Namespace, *parameters: Array
) -> tuple[Array, Array, Array, Array]:
    """Return the four matrices that take a chunk's normal numbers and first state to its increments and last state.

    The process is what `process_of(xp, *parameters)` returns, the chunk has `steps` steps. In the order of the result:

        numbers to increments [steps, steps * r], first state to increments [steps, k],
        first state to last state, as factors [k, 1], numbers to last state [k, steps * r].
    """
    process = process_of(xp, *parameters)
    k, r = process.entry.shape
    times = xp.constant(np.arange(float(steps)), process.rates)
    powers = xp.exp(-process.rates[:, None] * times)  # [k, steps]
    past = (process.read[:, None] * powers).T
    by_lag = xp.matmul(past, process.entry)  # [steps, r], from lag 1 on
    columns = xp.concat([process.direct, by_lag.reshape(steps * r), 0 * process.direct[:1]], axis=-1)
    lag = np.arange(steps)[:, None] - np.arange(steps)
    index = lag[:, :, None] * r + np.arange(r)
    index = np.where(lag[:, :, None] >= 0, index, (steps + 1) * r)  # the place of the zero at the end of `columns`
    own = xp.take(columns, index.reshape(steps, steps * r), axis=-1)
    kept = xp.exp(-process.rates * steps)[:, None]
    new = (xp.flip(powers, axis=-1)[:, :, None] * process.entry[:, None, :]).reshape(k, steps * r)
    return own, past, kept, new


_SMALL = 0.1  # in x - 2 tanh(x / 2), below which the difference has lost too many digits
_SERIES = (1 / 12, -1 / 120, 17 / 20160, -31 / 362880, 691 / 79833600)  # of x - 2 tanh(x / 2): of x**3, x**5, ...


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
        TypeError: `correlation_time` is neither a number nor a tensor.
        ValueError: `correlation_time` is not positive, or not a single number.

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
        """See `Noise.regularity`; 1, because paths have a derivative."""
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
    """Return the linear process of coloured noise of correlation time tau, whose increments are integrals over steps.

    The only state eta is an Ornstein-Uhlenbeck process of variance 1. With x = dt / tau and u = 1 - exp(-x), given eta
    at the beginning of a step: eta at the end of the step has mean exp(-x) eta and variance u (2 - u); sqrt(2 / tau)
    times the increment has mean u eta, covariance u**2 with eta at the end, and variance
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


_WIDEST = 60.0  # bound of abs(log(low T)) and log(high dt): beyond, numbers would not fit single precision
_RIDGE = 1e-12  # added to the correlations of the states, so that weights stay as small as the error allows
_LEAST = 1e-6  # relative error of a path that is small enough: the root of the ridge
_DONE = 1e-12  # counts as the ratio of errors in a search that has reached `_LEAST`
_FORGOTTEN = 40.0  # rate times step: exp(-40) is 4e-18
_FAR = 300.0  # where exp(x) Q(a, x) is its asymptotic series


@dataclass(frozen=True)
class MarkovError:
    """How far a Markovian approximation on a mesh is from the fractional Brownian motion that it approximates.

    Attributes:
        path: Root of the mean square of the difference of the paths, over the whole time, relative to that of the exact
            path. At least 1.5e-8, below which the closed form is rounding.
        step: Relative error of the variance of an increment, the largest of all steps.
        end: Relative error of the variance of the path at the end.
    """

    path: float
    step: float
    end: float


@dataclass(frozen=True)
class Stationary:
    """The approximation of fractional Brownian motion, Mandelbrot and Van Ness': states stationary from the start."""

    def gram(self, rates: np.ndarray, duration: float) -> np.ndarray:
        """Return the matrix of int_0^T E (Y_i(t) - Y_i(0)) (Y_j(t) - Y_j(0)) dt for states of these rates, [k, k]."""
        own = _relaxed(rates * duration)
        return duration * (own[:, None] + own) / (rates[:, None] + rates)

    def cross(self, rates: np.ndarray, hurst: float, duration: float) -> np.ndarray:
        """Return int_0^T E B(t) (Y_i(t) - Y_i(0)) dt for each state Y_i, [k].

        B is the process to approximate, with the kernel t**(a - 1) / Gamma(a), a = hurst + 1/2.
        """
        a, x = hurst + 0.5, rates * duration
        return rates**-a * duration * _crossed(a, x)

    def variance(self, hurst: float) -> float:
        """Return the variance at time 1 of the process B that `cross` describes."""
        return 1 / (math.gamma(2 * hurst + 1) * math.sin(math.pi * hurst))

    def variances(self, rates: np.ndarray, weights: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return the variance of the weighted sum of states at some times, [times]."""
        grown = -np.expm1(-times[:, None] * rates)
        return 2 * (grown * weights) @ (1 / (rates[:, None] + rates)) @ weights

    def steps(self, rates: np.ndarray, weights: np.ndarray, starts: np.ndarray, dt: float) -> np.ndarray:
        """Return the variance of the weighted sum's increments over `dt` from the times `starts` on, [starts]."""
        return np.full(len(starts), self.variances(rates, weights, np.array([dt]))[0])

    def true_steps(self, hurst: float, starts: np.ndarray, dt: float) -> np.ndarray:
        """Return the variance of the exact increments over `dt` from the times `starts` on, for Var B_t = t**(2 H)."""
        return np.full(len(starts), dt ** (2 * hurst))

    def first(self, rates: np.ndarray) -> np.ndarray:
        """Return the covariance [k, k] of the states at the start, each divided by its stationary deviation."""
        return 2 * np.sqrt(rates[:, None] * rates) / (rates[:, None] + rates)

    def lowest(self, hurst: float, share: float) -> float:
        """Return log(rate * duration) of the slowest rate that is needed for an error of exp(-share)."""
        return max(-share / (1 - hurst), -_WIDEST)


@dataclass(frozen=True)
class AtRest:
    """The approximation of Riemann and Liouville's fractional Brownian motion: states that begin with zero."""

    def gram(self, rates: np.ndarray, duration: float) -> np.ndarray:
        """See `Stationary.gram`."""
        both = rates[:, None] + rates
        return duration * _relaxed(both * duration) / both

    def cross(self, rates: np.ndarray, hurst: float, duration: float) -> np.ndarray:
        """See `Stationary.cross`."""
        a, x = hurst + 0.5, rates * duration
        return rates**-a * duration * (special.gammainc(a, x) - a / x * special.gammainc(a + 1, x))

    def variance(self, hurst: float) -> float:
        """See `Stationary.variance`."""
        return 1 / (2 * hurst * math.gamma(hurst + 0.5) ** 2)

    def variances(self, rates: np.ndarray, weights: np.ndarray, times: np.ndarray) -> np.ndarray:
        """See `Stationary.variances`."""
        both = rates[:, None] + rates
        return np.array([weights @ (-np.expm1(-t * both) / both) @ weights for t in times])

    def steps(self, rates: np.ndarray, weights: np.ndarray, starts: np.ndarray, dt: float) -> np.ndarray:
        """See `Stationary.steps`."""
        moved = np.expm1(-dt * rates) * weights
        both = rates[:, None] + rates
        new = weights @ (-np.expm1(-dt * both) / both) @ weights
        return np.array([moved @ (-np.expm1(-t * both) / both) @ moved for t in starts]) + new

    def true_steps(self, hurst: float, starts: np.ndarray, dt: float) -> np.ndarray:
        """See `Stationary.true_steps`."""
        later, earlier = starts + dt, np.maximum(starts, dt * np.finfo(np.float64).tiny)
        both = later ** (2 * hurst) + starts ** (2 * hurst)
        return both - 2 * riemann_liouville_covariance(hurst, earlier, later)

    def first(self, rates: np.ndarray) -> np.ndarray:
        """See `Stationary.first`; zero, because the states begin with zero."""
        return np.zeros((len(rates), len(rates)))

    def lowest(self, hurst: float, share: float) -> float:
        """See `Stationary.lowest`; log(0.1) for every error, because there is no past that slow states would keep."""
        return math.log(0.1)


Form = Stationary | AtRest


def geometric(form: Form, n_states: int, low: float, high: float, n_steps: int, dt: float) -> np.ndarray:
    """Return rates of the states in geometric progression, [n_states], for Hurst indices from `low` to `high`.

    The mesh has `n_steps` steps of length `dt`.
    """
    return np.exp(np.linspace(*_ends(form, n_states, low, high, n_steps), n_states)) / (n_steps * dt)


@lru_cache(maxsize=256)
def _ends(form: Form, n_states: int, low: float, high: float, n_steps: int) -> tuple[float, float]:
    """Return log(rate T) of the slowest and of the fastest state, found by a search for the least error.

    The rates are for Hurst indices from `low` to `high`. The search begins at `_balanced`, relative to which the path's
    error is measured; the worse of the errors at both indices counts. The variances of increments, at both indices and
    half way between them, may be as wrong as at `_balanced` or as the path, and no worse.
    """
    start = _balanced(form, n_states, low, high, n_steps)
    widest = -_WIDEST, _WIDEST + math.log(n_steps)
    indices = [low] if low == high else [low, high, (low + high) / 2]
    measures = [_measure(form, n_states, hurst, n_steps) for hurst in indices]
    reference = [measure(*start) for measure in measures]

    def badness(ends: np.ndarray) -> float:
        if not widest[0] <= ends[0] < ends[1] <= widest[1]:
            return math.inf
        found = [measure(*ends) for measure in measures]
        paths = [new / old if new > _LEAST else _DONE for (new, _), (old, _) in zip(found, reference, strict=True)]
        excess = [max(1.0, step / max(old, path)) for (path, step), (_, old) in zip(found, reference, strict=True)]
        return math.log(max(paths[:2])) + 4 * sum(map(math.log, excess))

    tried = [np.add(start, (up, -down)) for up in (-3.0, 0.0, 3.0) for down in (0.0, 3.0, 6.0, 9.0)]
    first, last = min(tried, key=badness)
    simplex = [(first, last), (first - 1.5, last), (first, last - 1.5)]
    options = {"initial_simplex": simplex, "xatol": 0.03, "fatol": 0.003, "maxfev": 100}
    found = optimize.minimize(badness, (first, last), method="Nelder-Mead", options=options)
    return (float(found.x[0]), float(found.x[1])) if found.fun < 0 else start


def _balanced(form: Form, n_states: int, low: float, high: float, n_steps: int) -> tuple[float, float]:
    """Return log(rate T) of the slowest and of the fastest state for which three parts of the error are equal.

    These are the errors from slower rates left out, from faster rates left out and from the ratio between neighbouring
    rates, for Hurst indices from `low` to `high`.
    """
    mesh = math.log(n_steps)
    needed = math.pi**2 * (n_states - 1)
    # share * (mesh + share * spread) = needed, where the range of the logarithm is mesh + share * spread
    spread = 1 / low + (1 / (1 - high) if isinstance(form, Stationary) else 0.0)
    share = (math.sqrt(mesh**2 + 4 * spread * needed) - mesh) / (2 * spread)
    return form.lowest(high, share), min(share / low, _WIDEST) + mesh


def _measure(form: Form, n_states: int, hurst: float, n_steps: int) -> Callable[[float, float], tuple[float, float]]:
    """Return a function `(first, last) -> (error of the path, error of the increments' variances)`, both relative.

    `first` and `last` are log(rate T) of the slowest and of the fastest state. The path's error includes what single
    precision loses to weights that cancel; the variances are those of some increments.
    """
    dt, whole = 1 / n_steps, form.variance(hurst) / (2 * hurst + 1)
    some = 1 if isinstance(form, Stationary) else 6
    starts = np.unique(np.geomspace(1, n_steps, some).round() - 1) * dt
    true = form.true_steps(hurst, starts, dt) * form.variance(hurst)

    def measure(first: float, last: float) -> tuple[float, float]:
        rates = np.exp(np.linspace(first, last, n_states))
        cross = form.cross(rates, hurst, 1.0)
        weights = _fitted(form, rates, cross, 1.0, _RIDGE)
        path = math.sqrt(max(1 - weights @ cross / whole, np.finfo(np.float64).eps))
        return path, float(np.max(np.abs(form.steps(rates, weights, starts, dt) / true - 1)))

    return measure


def weights_of(form: Form, rates: np.ndarray, hurst: float, duration: float, ridge: float = _RIDGE) -> np.ndarray:
    """Return the weights [k] with which the sum of states has the least mean square error of the path.

    The path is that of B with the kernel t**(a - 1) / Gamma(a), a = hurst + 1/2; `ridge` is added to the diagonal of
    the states' correlations.
    """
    return _fitted(form, rates, form.cross(rates, hurst, duration), duration, ridge)


def _fitted(form: Form, rates: np.ndarray, cross: np.ndarray, duration: float, ridge: float) -> np.ndarray:
    gram = form.gram(rates, duration)
    size = np.sqrt(np.diag(gram))
    scaled = gram / size[:, None] / size + ridge * np.eye(len(rates))
    return np.linalg.solve(scaled, cross / size) / size


def mean_square(form: Form, rates: np.ndarray, weights: np.ndarray, hurst: float, duration: float) -> float:
    """Return the mean square error of the weighted sum of states: int_0^T E (B - sum)**2 dt / int_0^T E B**2 dt."""
    whole = form.variance(hurst) * duration ** (2 * hurst + 1) / (2 * hurst + 1)
    least = weights @ form.gram(rates, duration) @ weights - 2 * weights @ form.cross(rates, hurst, duration)
    return float(least / whole + 1)


def error_of(form: Form, rates: np.ndarray, weights: np.ndarray, hurst: float, n_steps: int, dt: float) -> MarkovError:
    """Return how far the weighted sum of states is from the exact process on a mesh of `n_steps` steps `dt`.

    `weights` have the scale of `weights_of`, that of B with the kernel t**(a - 1) / Gamma(a), a = hurst + 1/2.
    """
    duration = n_steps * dt
    rounding = float(np.finfo(np.float64).eps)  # of the mean square error, which is a difference of larger numbers
    path = math.sqrt(max(rounding, mean_square(form, rates, weights, hurst, duration)))
    normal = weights / math.sqrt(form.variance(hurst))
    starts = dt * np.arange(n_steps)
    wide = rates.astype(np.longdouble), normal.astype(np.longdouble)  # sums cancel, by a factor of 4e10 at H = 0.9
    steps = form.steps(*wide, starts, dt) / form.true_steps(hurst, starts, dt) - 1
    end = form.variances(*wide, np.array([duration]))[0] / duration ** (2 * hurst) - 1
    return MarkovError(path, float(np.max(np.abs(steps))), abs(float(end)))


@dataclass(frozen=True, eq=False)
class Transitions:
    """The law of the states, each divided by its stationary deviation: their start, and what a step adds to them.

    Attributes:
        rates: The rates at which the states decay, [k].
        first: A root of the states' covariance at the start, [k, r].
        added: A root of the covariance of what a step adds to the states, [k, r].
    """

    rates: np.ndarray
    first: np.ndarray
    added: np.ndarray


def transitions(form: Form, rates: np.ndarray, dt: float) -> Transitions:
    """Return the transitions of states with these rates [k] over steps of length `dt`, none of which are merged."""
    return Transitions(rates, _root(form.first(rates)), _root(_added(rates, dt)))


def merged(form: Form, rates: np.ndarray, weights: np.ndarray, dt: float) -> tuple[Transitions, np.ndarray]:
    """Return the transitions of fewer states with the same weighted sum, and the weights of these states.

    All states that forget everything within a step are merged into one, their sum with the weights [k].
    """
    is_slow = rates * dt < _FORGOTTEN
    sums = np.eye(len(rates))[is_slow]
    slow, of_sums = rates[is_slow], weights[is_slow]
    if not is_slow.all():
        sums = np.concatenate([sums, np.where(is_slow, 0.0, weights)[None]])
        slow, of_sums = np.append(slow, 2 * _FORGOTTEN / dt), np.append(of_sums, 1.0)
    first, added = (sums @ each @ sums.T for each in (form.first(rates), _added(rates, dt)))
    return Transitions(slow, _root(first), _root(added)), of_sums


def _added(rates: np.ndarray, dt: float) -> np.ndarray:
    both = rates[:, None] + rates
    return -np.expm1(-dt * both) / both * 2 * np.sqrt(rates[:, None] * rates)


def _root(covariance: np.ndarray) -> np.ndarray:
    """Return a root [k, r] of a covariance matrix [k, k], without eigenvectors whose eigenvalues are mere rounding.

    Weights may cancel all other directions, so that only rounding would be left of the sum.
    """
    size = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.where(size > 0, size[:, None] * size, 1.0))
    kept = values > len(values) * np.finfo(np.float64).eps * values[-1]
    return size[:, None] * vectors[:, kept] * np.sqrt(values[kept])


def _relaxed(x: np.ndarray) -> np.ndarray:
    """Return `1 - (1 - exp(-x)) / x` for x > 0, accurate where x is small too."""
    small, large = np.minimum(x, 1.0), np.maximum(x, 1.0)
    series = sum((-1) ** k * small ** (k - 1) / math.factorial(k) for k in range(2, 20))
    return np.where(x < 1, series, 1 + np.expm1(-large) / large)


def _crossed(a: float, x: np.ndarray) -> np.ndarray:
    """Return the mean of `2 - exp(-y) - exp(y) Q(a, y)` over y in (0, x).

    Q is the upper incomplete gamma function, regularised.
    """
    small, large = np.minimum(x, 1.0), np.maximum(x, 1.0)
    powers = sum(small ** (a + k - 1) / math.gamma(a + k + 1) for k in range(1, 20))
    series = powers - 2 * sum(small ** (k - 1) / math.factorial(k) for k in range(3, 20, 2))
    near, far = np.minimum(large, _FAR), np.maximum(large, _FAR)
    terms = np.cumprod([np.ones_like(far), *[(a - k) / far for k in range(1, 9)]], axis=0).sum(0)
    scaled = np.where(large < _FAR, np.exp(near) * special.gammaincc(a, near), terms * far ** (a - 1) / math.gamma(a))
    return np.where(x < 1, series, _relaxed(large) + 1 - (scaled - 1 + large**a / math.gamma(a + 1)) / large)


_DEGREE = 32
_ROOM = 1.02  # how far a table reaches beyond its bounds, so that the derivative of acos is finite there
_FEWEST = 2


@dataclass(frozen=True)
class MarkovNoise(HurstNoise):
    """A Markovian approximation of fractional Brownian motion: what both of its kinds share.

    States are drawn exactly on the mesh; their weights in the path depend on `hurst`.

    Attributes:
        hurst: The Hurst index, in (0, 1); one number, or a framework's tensor of no axes.
        bounds: Where a tensor lies, within (0.05, 0.95); the narrower, the better the approximation. None is these.
        n_states: How many states.
    """

    n_states: int = 16

    is_whole: ClassVar[bool] = False
    widest: ClassVar[tuple[float, float]] = (0.05, 0.95)  # at 0 and 1 no number of states is enough
    form: ClassVar[Form]

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
        """Return the rates at which the states decay, [n_states], on a mesh of `n_steps` steps.

        The rates are in geometric progression between two ends. These ends are searched once for each number of steps
        and of states and each Hurst index, or bounds of a tensor.
        """
        return geometric(self.form, self.n_states, *self.interval, n_steps, dt)

    def error(self, n_steps: int, dt: float, hurst: float | None = None) -> MarkovError:
        """Return how far the approximation is from the process on a mesh, in closed form.

        Args:
            n_steps: How many steps.
            dt: The length of a step, in the caller's time unit.
            hurst: A Hurst index; needed where that of the noise is a tensor.

        Raises:
            ValueError: `hurst` is None and the noise has a tensor.
        """
        if hurst is None and is_tensor(self.hurst):
            raise ValueError(
                f"{type(self).__name__}.error(hurst=None): needs a number where the noise has a tensor; pass for "
                "example hurst=0.3."
            )
        index = self.hurst if hurst is None else hurst
        rates = self.rates(n_steps, dt)
        weights = weights_of(self.form, rates, index, n_steps * dt)
        return error_of(self.form, rates, weights, index, n_steps, dt)

    def covariance(self, n_steps: int, dt: float) -> np.ndarray:
        """See `Noise.covariance`; the result is that of the approximation, not of the exact process."""
        process_of, parameters, first = self._process(n_steps, dt)
        return covariance(process_of(NUMPY, *map(np.asarray, parameters)), first, n_steps)

    def start(self, n_steps: int, shape: Shape, dt: float, source: Source) -> State:
        """See `Noise.start`: the states divided by their deviations, then the states' process and its parameters."""
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
        """Return the states' process as a function, its parameters, and a root [k, r] of the first states' covariance.

        The function is called as process_of(xp, *parameters). Its only parameter is the Hurst index if this is a
        tensor; else the function has none.
        """
        rates = self.rates(n_steps, dt)
        if is_tensor(self.hurst):
            table = _table(self.form, self.n_states, self.interval, n_steps, dt)
            moves = transitions(self.form, rates, dt)
            return partial(_process, moves, dt, partial(_learned, table, self.interval)), (self.hurst,), moves.first
        normal = _normalised(self.form, rates, self.hurst, n_steps * dt)
        moves, fixed = merged(self.form, rates, normal, dt)
        return partial(_process, moves, dt, partial(_fixed, fixed)), (), moves.first


@dataclass(frozen=True)
class MarkovFractionalBrownian(MarkovNoise):
    """Fractional Brownian motion as a weighted sum of `n_states` Ornstein-Uhlenbeck processes driven by one noise.

    Time O(n), and a state of fixed size, from which blocks of steps can be drawn again. The states are drawn exactly on
    the mesh, and the weights minimise the mean square error of the path, which `error` gives in closed form: with 16
    states and 1000 steps its root is 0.5 % of the path at hurst 0.3 and 0.7, 4 % at 0.1 and 7 % at 0.9; beyond, use the
    exact process. The rates of the states are searched for the least such error, some 50 ms for each new number of
    steps, of states and Hurst index, or bounds of a learned index. Normalised: Var B_t = t**(2 hurst) to the same
    errors. Differentiable in the Hurst index.

    Args:
        hurst: In (0, 1); one number, or a framework's tensor of no axes, which may be learned and is not checked.
        bounds: Where a tensor lies, within (0.05, 0.95); the narrower, the better the approximation. None is these.
        n_states: How many states, at least 2.

    Raises:
        TypeError: `hurst` is neither a number nor a tensor, or `n_states` no whole number.
        ValueError: `hurst` or `n_states` is out of range, `hurst` is not within its bounds or is several numbers, or a
            tensor's bounds are wider than (0.05, 0.95).

    Source: Daems et al., Variational Inference for SDEs Driven by Fractional Noise, ICLR 2024, with other rates.

    Examples:
        >>> error = MarkovFractionalBrownian(0.3).error(1000, dt=0.001)
        >>> round(error.path, 3), round(error.step, 4), round(error.end, 4)
        (0.004, 0.0008, 0.0004)
    """

    name: ClassVar[str] = "markov_fractional"
    form: ClassVar[Form] = Stationary()


@dataclass(frozen=True)
class MarkovRiemannLiouvilleBrownian(MarkovNoise):
    """Riemann and Liouville's fractional Brownian motion by states that begin with zero.

    This class approximates `RiemannLiouvilleBrownian` as `MarkovFractionalBrownian` approximates `FractionalBrownian`;
    arguments, errors and source are the same.

    Examples:
        >>> noise = MarkovRiemannLiouvilleBrownian(0.3)
        >>> round(noise.error(1000, dt=0.001).path, 4)
        0.0008
        >>> # of the path at 4: 4**(2 hurst)
        >>> round(noise.covariance(100, dt=0.04).sum().item(), 2)
        2.3
    """

    name: ClassVar[str] = "markov_riemann_liouville"
    form: ClassVar[Form] = AtRest()


def _process(
    moves: Transitions, dt: float, weights_of: Callable[..., Array], xp: Namespace, *parameters: Array
) -> Linear:
    weights = weights_of(xp, *parameters)
    entry = xp.constant(moves.added, weights)
    read = weights * xp.constant(np.expm1(-moves.rates * dt), weights)
    direct = xp.matmul(weights[None], entry)[0]
    return Linear(xp.constant(moves.rates * dt, weights), entry, read, direct)


def _fixed(weights: np.ndarray, xp: Namespace) -> Array:
    return xp.asarray(weights)


def _learned(table: np.ndarray, interval: tuple[float, float], xp: Namespace, hurst: Array) -> Array:
    """Return the weights of the states, [k], at a Hurst index that may be learned, from the coefficients of `_table`.

    `interval` are the bounds of the Hurst index for which the table was made.
    """
    low, high = interval
    angle = xp.acos((hurst - (low + high) / 2) * (2 / (_ROOM * (high - low))))
    terms = xp.cos(angle[..., None] * xp.constant(np.arange(float(_DEGREE)), hurst))
    return xp.matmul(terms[None], xp.constant(table, hurst))[0]


def _normalised(form: Form, rates: np.ndarray, hurst: float, duration: float) -> np.ndarray:
    return weights_of(form, rates, hurst, duration) / np.sqrt(2 * rates * form.variance(hurst))


@lru_cache(maxsize=8)
def _table(form: Form, n_states: int, interval: tuple[float, float], n_steps: int, dt: float) -> np.ndarray:
    """Return Chebyshev coefficients of the states' weights as functions of the Hurst index in `interval`, [degree, k].

    The weights belong to states multiplied by sqrt(2 rate), and give `Var B(t) = t**(2 hurst)`.
    """
    low, high = interval
    rates = geometric(form, n_states, low, high, n_steps, dt)
    nodes = np.cos(np.pi * (np.arange(_DEGREE) + 0.5) / _DEGREE)
    indices = (low + high + _ROOM * (high - low) * nodes) / 2
    values = [_normalised(form, rates, hurst, n_steps * dt) for hurst in indices]
    return chebyshev.chebfit(nodes, np.array(values), _DEGREE - 1)
