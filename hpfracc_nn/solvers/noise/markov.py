"""Fractional Brownian motion as a few Ornstein-Uhlenbeck processes that share one Brownian motion: rates and weights.

    B(t) ~ sum_i w_i [Y_i(t) - Y_i(0)],     dY_i = -rate_i Y_i dt + dW,

with weights that minimise E int_0^T (B - sum)**2 dt, a small linear system in closed form. Two forms: `Stationary`
begins with stationary states and approximates fractional Brownian motion, `AtRest` begins with zeros and approximates
Riemann and Liouville's.

What rates are good depends on the Hurst index. Rates below `low` leave out a share (low T)**(1 - hurst) of the paths,
rates above `high` a share (high dt)**-hurst, and a ratio exp(delta) between neighbours one of exp(-pi**2 / delta). The
range where all three are equal is much wider than [1 / T, 1 / dt]: of a rough path a good part is white noise on the
mesh, made by states that forget it within a step. From there the two ends are searched for the least error of the path,
as long as the variance of an increment does not pay for it: the path alone would have states too slow for the mesh, and
above 1/2 increments several times too large.

Carmona, Coutin & Montseny, Stat. Inference Stoch. Process. 3 (2000) 161; Harms & Stefanovits, Stoch. Process. Appl. 129
(2019) 1198; Daems et al., ICLR 2024, proposition 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from hpfracc_nn.solvers.noise.covariance import riemann_liouville_covariance

_WIDEST = 60.0  # of the logarithm of low T, and of high dt: beyond, numbers would not fit single precision
_RIDGE = 1e-12  # added to the correlations of the states, so that weights stay as small as the error allows
_LEAST = 1e-6  # error of a path, the root of the ridge: no search below
_DONE = 1e-12  # less than any share of an error that a search may reach
_FORGOTTEN = 40.0  # rate times step: exp(-40) is 4e-18
_FAR = 300.0  # where exp(x) Q(a, x) is its asymptotic series


@dataclass(frozen=True)
class MarkovError:
    """How far an approximation on a mesh is from what it approximates.

    Attributes:
        path: Root of the mean square of the difference of the paths, over the whole time, relative to the path's. At
            least 1.5e-8, below which its closed form is rounding.
        step: Relative error of the variance of an increment, the largest of all steps.
        end: Relative error of the variance at the end.
    """

    path: float
    step: float
    end: float


@dataclass(frozen=True)
class Stationary:
    """States that are stationary from the start; Mandelbrot and Van Ness' fractional Brownian motion."""

    def gram(self, rates: np.ndarray, duration: float) -> np.ndarray:
        """Return int_0^T E (Y_i(t) - Y_i(0)) (Y_j(t) - Y_j(0)) dt, [k, k]."""
        own = _relaxed(rates * duration)
        return duration * (own[:, None] + own) / (rates[:, None] + rates)

    def cross(self, rates: np.ndarray, hurst: float, duration: float) -> np.ndarray:
        """Return int_0^T E B(t) (Y_i(t) - Y_i(0)) dt for B with the kernel t**(a - 1) / Gamma(a), a = H + 1/2, [k]."""
        a, x = hurst + 0.5, rates * duration
        return rates**-a * duration * _crossed(a, x)

    def variance(self, hurst: float) -> float:
        """Return the variance of B(1)."""
        return 1 / (math.gamma(2 * hurst + 1) * math.sin(math.pi * hurst))

    def variances(self, rates: np.ndarray, weights: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return the variance of the sum at some times."""
        grown = -np.expm1(-times[:, None] * rates)
        return 2 * (grown * weights) @ (1 / (rates[:, None] + rates)) @ weights

    def steps(self, rates: np.ndarray, weights: np.ndarray, starts: np.ndarray, dt: float) -> np.ndarray:
        """Return the variance of the increments over `dt` from some times on."""
        return np.full(len(starts), self.variances(rates, weights, np.array([dt]))[0])

    def true_steps(self, hurst: float, starts: np.ndarray, dt: float) -> np.ndarray:
        """Return what `steps` approximates, for B of variance t**(2 H)."""
        return np.full(len(starts), dt ** (2 * hurst))

    def first(self, rates: np.ndarray) -> np.ndarray:
        """Return the covariance of the first states, each divided by its deviation, [k, k]."""
        return 2 * np.sqrt(rates[:, None] * rates) / (rates[:, None] + rates)

    def lowest(self, hurst: float, share: float) -> float:
        """Return the logarithm of the least rate times the duration that is needed for an error of exp(-share)."""
        return max(-share / (1 - hurst), -_WIDEST)


@dataclass(frozen=True)
class AtRest:
    """States that begin with zero; Riemann and Liouville's fractional Brownian motion."""

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
        """See `Stationary.first`: zero."""
        return np.zeros((len(rates), len(rates)))

    def lowest(self, hurst: float, share: float) -> float:
        """See `Stationary.lowest`: nothing came before the start, which slow states would have to remember."""
        return math.log(0.1)


Form = Stationary | AtRest


def geometric(form: Form, n_states: int, low: float, high: float, n_steps: int, dt: float) -> np.ndarray:
    """Return rates in geometric progression, [n_states], for Hurst indices from `low` to `high` on a mesh."""
    return np.exp(np.linspace(*_ends(form, n_states, low, high, n_steps), n_states)) / (n_steps * dt)


@lru_cache(maxsize=256)
def _ends(form: Form, n_states: int, low: float, high: float, n_steps: int) -> tuple[float, float]:
    """Return the logarithms of the least and of the largest rate, times the duration.

    The path's error is measured relative to that of `_balanced`, and the worse of both Hurst indices counts. Variances
    of increments may be as wrong as there, or as the path; also half way between the indices.
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
    """Return the ends for which the three shares are equal."""
    mesh = math.log(n_steps)
    needed = math.pi**2 * (n_states - 1)
    # share * (mesh + share * spread) = needed, where the range of the logarithm is mesh + share * spread
    spread = 1 / low + (1 / (1 - high) if isinstance(form, Stationary) else 0.0)
    share = (math.sqrt(mesh**2 + 4 * spread * needed) - mesh) / (2 * spread)
    return form.lowest(high, share), min(share / low, _WIDEST) + mesh


def _measure(form: Form, n_states: int, hurst: float, n_steps: int) -> Callable[[float, float], tuple[float, float]]:
    """Return the errors of the path and of some increments' variances as a function of the ends.

    The path's holds the ridge: what single precision loses to weights that cancel.
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
    """Return the weights [k] of least mean square error, for the form's kernel t**(a - 1) / Gamma(a)."""
    return _fitted(form, rates, form.cross(rates, hurst, duration), duration, ridge)


def _fitted(form: Form, rates: np.ndarray, cross: np.ndarray, duration: float, ridge: float) -> np.ndarray:
    gram = form.gram(rates, duration)
    size = np.sqrt(np.diag(gram))
    scaled = gram / size[:, None] / size + ridge * np.eye(len(rates))
    return np.linalg.solve(scaled, cross / size) / size


def mean_square(form: Form, rates: np.ndarray, weights: np.ndarray, hurst: float, duration: float) -> float:
    """Return (1 / T) int_0^T E (B - sum)**2 dt relative to the same of B."""
    whole = form.variance(hurst) * duration ** (2 * hurst + 1) / (2 * hurst + 1)
    least = weights @ form.gram(rates, duration) @ weights - 2 * weights @ form.cross(rates, hurst, duration)
    return float(least / whole + 1)


def error_of(form: Form, rates: np.ndarray, weights: np.ndarray, hurst: float, n_steps: int, dt: float) -> MarkovError:
    """Return the errors on a mesh of weights for the form's kernel."""
    duration = n_steps * dt
    rounding = float(np.finfo(np.float64).eps)  # of a mean square that is a difference
    path = math.sqrt(max(rounding, mean_square(form, rates, weights, hurst, duration)))
    normal = weights / math.sqrt(form.variance(hurst))
    starts = dt * np.arange(n_steps)
    wide = rates.astype(np.longdouble), normal.astype(np.longdouble)  # of sums that cancel, 4e10 to one at H = 0.9
    steps = form.steps(*wide, starts, dt) / form.true_steps(hurst, starts, dt) - 1
    end = form.variances(*wide, np.array([duration]))[0] / duration ** (2 * hurst) - 1
    return MarkovError(path, float(np.max(np.abs(steps))), abs(float(end)))


@dataclass(frozen=True, eq=False)
class Transitions:
    """What the states, each divided by its deviation, are at first and what a step adds to them.

    Attributes:
        rates: At which they decay, [k].
        first: A root of their covariance at first, [k, r].
        added: A root of the covariance of what a step adds, [k, r].
    """

    rates: np.ndarray
    first: np.ndarray
    added: np.ndarray


def transitions(form: Form, rates: np.ndarray, dt: float) -> Transitions:
    """Return the transitions of the states as they are."""
    return Transitions(rates, _root(form.first(rates)), _root(_added(rates, dt)))


def merged(form: Form, rates: np.ndarray, weights: np.ndarray, dt: float) -> tuple[Transitions, np.ndarray]:
    """Return the transitions of as few states as will do for given weights [k], and the weights of these.

    States that forget everything within a step matter as their weighted sum alone.
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
    """A root [k, r] without the directions that are rounding: weights may cancel all the others."""
    size = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.where(size > 0, size[:, None] * size, 1.0))
    kept = values > len(values) * np.finfo(np.float64).eps * values[-1]
    return size[:, None] * vectors[:, kept] * np.sqrt(values[kept])


def _relaxed(x: np.ndarray) -> np.ndarray:
    """1 - (1 - exp(-x)) / x."""
    small, large = np.minimum(x, 1.0), np.maximum(x, 1.0)
    series = sum((-1) ** k * small ** (k - 1) / math.factorial(k) for k in range(2, 20))
    return np.where(x < 1, series, 1 + np.expm1(-large) / large)


def _crossed(a: float, x: np.ndarray) -> np.ndarray:
    """The mean of 2 - exp(-y) - exp(y) Q(a, y) over y in (0, x), Q(a, .) the upper incomplete gamma function."""
    small, large = np.minimum(x, 1.0), np.maximum(x, 1.0)
    powers = sum(small ** (a + k - 1) / math.gamma(a + k + 1) for k in range(1, 20))
    series = powers - 2 * sum(small ** (k - 1) / math.factorial(k) for k in range(3, 20, 2))
    near, far = np.minimum(large, _FAR), np.maximum(large, _FAR)
    terms = np.cumprod([np.ones_like(far), *[(a - k) / far for k in range(1, 9)]], axis=0).sum(0)
    scaled = np.where(large < _FAR, np.exp(near) * special.gammaincc(a, near), terms * far ** (a - 1) / math.gamma(a))
    return np.where(x < 1, series, _relaxed(large) + 1 - (scaled - 1 + large**a / math.gamma(a + 1)) / large)
