"""The memory function as a sum of decaying exponentials, for every alpha from one set of nodes.

    w[lag] = sum_q c_q exp(-s_q (lag - first)),   lag >= first,

Nodes are the decay rates s_q per step, Q of them, and c_q the coefficients. The lags below `first` stay exact: 1 to 3
in float32, 1 to 7 in float64.

The nodes are 0, which integrals and learned orders need in float32, and the points of the trapezoidal rule for the
integral over exp(-s lag) that the weights are, in a variable u with log s = u - a exp(-u / b) up to constants: evenly
spaced in log s, and ever further apart towards the slow end, where a few nodes stand for the whole tail (as in double
exponential quadrature). One slowest node, a fifth of 1 / n, one a and one b serve every n, precision and number of
states. They were found by minimising the share of all definitions, schemes and bounds whose float32 weights miss half
the tolerance, at eight lengths from 128 to 2**17. The fastest node is as fast as that share wants it, until the terms
for the exact lags grow as exp(s lag) and cancel: at most 3.5 in float32.

The states, those of the exponentials and of the exact lags, fill whole vectors of 8, because compiled kernels fill them
up anyway. As many as most weights need at this n are tried first, and then one vector and two vectors more.

The coefficients are a weighted least-squares fit, linear in the weights: one factorisation serves every scheme and
alpha, and alpha's gradient flows through it. The rows are scaled by lag**0.75, between the decay of the slowest and the
fastest weights, and not by the weights, so that the factorisation does not depend on them (scaled by the lag itself,
weights that do not decay lose a digit in float64 at n = 65536). The factors stay factored: multiplied out they lose
digits.

Beylkin & Monzon, Appl. Comput. Harmon. Anal. 28 (2010) 131, for why few are enough.

The powers t**(p - 1) / Gamma(p), 0 <= p <= 1, on an interval of times as a sum of decaying exponentials.

With b = 1 - p, and because Gamma(b) Gamma(p) = pi / sin(pi b),

    t**(p - 1) / Gamma(p) = sin(pi b) / pi  integral over u of exp(b u - t exp(u)),

and the trapezoidal rule in u converges geometrically: its relative error is Gamma(b + 2 pi i / h) / Gamma(b), which is
largest at b = 1. Rates above `Rule.reach` / shortest have no part in it. The slow ones, below 1 / longest, fall off
slowly where b is small; over the interval their exponentials are nearly polynomials in the rate, so that a few points
of a Chebyshev grid on [0, 1 / longest] stand for all of them, with the weights of interpolation. The nodes do not
depend on p, and all coefficients but some of the slow ones are positive: nothing cancels, however long the interval.

Beylkin & Monzon, Appl. Comput. Harmon. Anal. 28 (2010) 131; McLean, Contemporary Computational Mathematics (2018) 911.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpfracc_nn.fractional.definitions import Definition, family
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace

# Where a learned alpha's bounds are certified, as parts of the way: densest at the ends, where weights vanish.
_GRID = (0, 1e-6, 1e-3, 0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98, 0.999, 1 - 1e-6, 1)

SHORTEST = 8  # samples that are a single chunk for every kernel, which needs no exponentials
LANES = 8  # states are a whole number of these
_TRIES = 3  # vectors of states: the fewest, one more, two more
_SLOWEST, _SPARSER, _REACH = 0.2, 2.5, 0.75  # smallest node but 0, times n; a and b of the substitution


@dataclass(frozen=True)
class Fit:
    """Settings of a sum of exponentials for one precision.

    They say how many lags stay exact, what the largest rate is, how many states are tried first, and how the
    coefficients are fitted.
    """

    first: int  # lags below it are exact
    fastest: float  # the largest rate, at most; with few states their number / 7.5
    states: tuple[float, float]  # (a, b): a + b log2(n) states, rounded up to whole vectors, are tried first
    cutoff: float  # singular values below this part of the largest are dropped
    refined: bool = False  # whether the residual of the fit is fitted once more

    def fewest(self, n: int) -> int:
        """Return how many states are tried first for up to `n` samples."""
        return LANES * math.ceil((self.states[0] + self.states[1] * math.log2(n)) / LANES)


FITS = {
    "float32": Fit(4, 3.5, (3.5, 1.5), 1e-10),
    "float64": Fit(8, 2.5, (6, 3), 1e-16),
    # One sample at a time, where exact lags cost little. Fitted twice: rounding leaves 1e-12 to 1e-11 of a weight the
    # first time, 1e-14 the second.
    "stream": Fit(16, 2.0, (27, 2.2), 1e-15, True),
}
# Relative error per weight up to n = 65536; it may grow with n beyond.
TOLERANCES = {"float32": 1e-7, "float64": 1e-11, "stream": 1e-13}


@dataclass(frozen=True, eq=False)
class Nodes:
    """The rates of a sum of exponentials, and the factorised least-squares fit of its coefficients to weights.

    Attributes:
        first: The first lag that the exponentials stand for.
        rates: The decay rates s, increasing, per sample; [Q].
        lags: The lags at which weights are fitted; [K].
        certified_lags: The lags at which the error is measured; denser, [P].
    """

    first: int
    rates: np.ndarray
    lags: np.ndarray
    certified_lags: np.ndarray
    _into: np.ndarray
    _out: np.ndarray
    _rows: np.ndarray | None = None  # the exponentials at `lags`, where the fit is refined

    @property
    def states(self) -> int:
        """How many states a recurrence has: one for each exponential, and the last samples, whose weights are exact."""
        return self.rates.size + self.first - 1

    def fit(self, weights: Array, xp: Namespace) -> Array:
        """Return the coefficients [*c, Q] for weights [*c, K] at `lags`."""
        coefficients = self._solved(weights, xp)
        if self._rows is None:
            return coefficients
        left_over = weights - xp.matmul(coefficients, xp.constant(self._rows, weights))
        return coefficients + self._solved(left_over, xp)

    def _solved(self, weights: Array, xp: Namespace) -> Array:
        return xp.matmul(xp.matmul(weights, xp.constant(self._into, weights)), xp.constant(self._out, weights))

    def error(self, definition: Definition) -> float:
        """Return the largest relative error per weight over the certified lags, for a fixed alpha."""
        stencil = definition.stencil(1, 1.0, NUMPY)  # its weights at any lag; the columns of n rows are not needed
        exact = np.atleast_2d(stencil.column(self.certified_lags))
        fitted = np.atleast_2d(self.fit(stencil.column(self.lags), NUMPY)) @ np.exp(
            -np.outer(self.rates, self.certified_lags - self.first)
        )
        # What rounding leaves of weights that vanish, as at a whole alpha, is not counted.
        first = np.abs(np.atleast_2d(stencil.column(np.arange(1))))
        wrong = np.maximum(np.abs(fitted - exact) - 3e-16 * first, 0)
        size = np.maximum(np.abs(exact), 1e-300)
        if definition.fades:  # steeper than every power law here, and summable
            size = np.maximum(size, first / (1.0 + self.certified_lags) ** 1.5)
        return float(np.max(wrong / size))


@lru_cache(maxsize=64)
def nodes(n: int, fit: Fit, states: int, fading: float = 0.0) -> Nodes:
    """Return the Nodes of a sum of exponentials with so many states, for up to `n` samples, n a power of two.

    For a memory that fades by exp(-fading) a step all rates but 0 lie higher, the slowest of them by `fading`, at most
    by a 16th of the fastest. The fastest rate stays as it is, and so does how far the terms cancel at the exact lags.
    """
    fastest = min(fit.fastest, states / 7.5)
    shift = min(fading, fastest / 16)
    rates = _rates(states - fit.first + 1, _SLOWEST / n, fastest - shift)
    rates[1:] += shift
    lags = _lags(fit.first, n, 128, 500)
    scale = lags[:, None] ** 0.75
    decays = np.exp(-np.outer(lags - fit.first, rates))
    rows = decays * scale
    norms = np.linalg.norm(rows, axis=0)
    u, s, vt = np.linalg.svd(rows / norms, full_matrices=False)
    keep = s > fit.cutoff * s[0]
    into = scale * u[:, keep] / s[keep]
    certified = _lags(fit.first, n, 400, 1500)
    return Nodes(fit.first, rates, lags, certified, into, vt[keep] / norms, decays.T.copy() if fit.refined else None)


def node_length(n: int) -> int:
    """Return the power of two, at least 128, for which the Nodes that serve `n` samples are made."""
    return max(128, 1 << (n - 1).bit_length())


def exponentials(definition: Definition, n: int, precision: str) -> Nodes | None:
    """Return the Nodes for a definition's weights on `n` samples, or None where their error is above the tolerance.

    The error is measured for the definition's own orders, or on a grid over the bounds of a tensor alpha. A definition
    with a time scale must be in steps (`Definition.in_steps`). `precision` is a key of `FITS`.
    """
    wanted = definition.approximated
    if wanted is None:
        return None
    is_fixed, length = wanted.is_fixed, node_length(n)
    if 0 < len(wanted.own_rates) <= LANES:
        found = _exact(wanted.own_rates, length)
        if len(wanted.own_rates) == 1 or found.error(wanted) <= tolerance(length, precision):
            return found
    return _accepted(wanted if is_fixed else family(wanted), is_fixed, length, precision)


def exponentials_over(bounded: Definition, n: int, precision: str) -> Nodes | None:
    """Return the Nodes for all orders within a definition's bounds, or None; arguments as in `exponentials`."""
    wanted = bounded.approximated
    return None if wanted is None else _accepted(family(wanted), False, node_length(n), precision)


def tolerance(n: int, precision: str) -> float:
    """Return the relative error per weight that is accepted on `n` samples."""
    return TOLERANCES[precision] * max(1.0, n / 65536)


@lru_cache(maxsize=256)
def _exact(rates: tuple[float, ...], n: int) -> Nodes:
    """Return the Nodes, for up to n samples, of weights that are sums of exponentials with these decay rates per step.

    Only the weight at lag 0 stays exact.
    """
    first, certified = 1, _lags(1, n, 400, 1500)
    lags = certified[:1] if len(rates) == 1 else _lags(1, n, 64, 64)
    u, s, vt = np.linalg.svd(np.exp(-np.outer(lags - first, rates)), full_matrices=False)
    keep = s > 1e-14 * s[0]  # rates next to each other stand for each other
    return Nodes(first, np.array(rates), lags, certified, u[:, keep] / s[keep], vt[keep])


@lru_cache(maxsize=1024)
def _accepted(definition: Definition, fixed: bool, n: int, precision: str) -> Nodes | None:
    fit, largest = FITS[precision], tolerance(n, precision)
    fewest = fit.fewest(n)
    for states in range(fewest, fewest + _TRIES * LANES, LANES):
        found = nodes(n, fit, states, definition.fading)
        if all(found.error(each) <= largest for each in _certified(definition, fixed)):
            return found
    return None


def _certified(definition: Definition, fixed: bool) -> Iterator[Definition]:
    """Yield definitions of fixed alpha, at which the error of the exponentials is measured.

    If its alpha is `fixed` it is the definition itself, else there is one for each point of a grid over its bounds.
    """
    if fixed:
        yield definition
        return
    low, high = definition.interval
    for part in reversed(_GRID):  # the steepest weights first: what fails fails soon
        yield definition.at(low + part * (high - low))


def _rates(count: int, slowest: float, fastest: float) -> np.ndarray:
    """Return `count` decay rates: 0, then count - 1 from slowest to fastest, spaced as in the module's docstring."""
    span = math.log(fastest / slowest)
    u = np.linspace(0, span, count - 1)
    bent = u - _SPARSER * np.expm1(-u / _REACH)
    return np.concatenate([[0.0], slowest * np.exp(bent * (span / bent[-1]))])


def _lags(first: int, n: int, dense: int, scattered: int) -> np.ndarray:
    """Return every lag from `first` to below `dense`, then at most `scattered` ones, in geometric steps, to n - 1."""
    near = np.arange(first, min(dense, n))
    far = np.geomspace(min(dense, n - 1), n - 1, scattered).round().astype(np.int64)
    return np.unique(np.concatenate([near, far]))


_SINC = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(12))  # in z**2; (pi/2)**24 / 25! < 1e-20
_BERNOULLI = (1.0, 1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)  # (0.46 / 6.3)**14
_LISTED = 120  # slow terms that are added up one by one; the rest are at rate 0 to rounding


@dataclass(frozen=True)
class Rule:
    """Settings of the trapezoidal rule for the powers t**(p - 1) / Gamma(p), for one precision.

    Attributes:
        step: The step h of the rule, in u.
        reach: The fastest rate times the shortest time.
        slow: Number of Chebyshev points that stand for the slow rates.
    """

    step: float
    reach: float
    slow: int


RULES = {"float32": Rule(0.46, 18.0, 8), "float64": Rule(0.33, 28.0, 11)}
POWER_TOLERANCES = {"float32": 1e-7, "float64": 1e-11}  # relative, at every time of the interval


@dataclass(frozen=True, eq=False)
class PowerNodes:
    """The rates of a sum of exponentials for the powers t**(p - 1) / Gamma(p) on an interval of times.

    Attributes:
        rule: Settings of the trapezoidal rule.
        rates: The decay rates, from 0 on, increasing, [Q], in units of 1 / time.
    """

    rule: Rule
    rates: np.ndarray
    _exponents: np.ndarray  # u of the trapezoidal rule's terms: the slow ones, then the others
    _into: np.ndarray  # from those terms to the nodes, [terms, Q]

    def coefficients(self, power: Array, xp: Namespace) -> Array:
        """Return the coefficients [..., Q] of the exponentials for t**(p - 1) / Gamma(p), p = `power` [..., 1]."""
        b, step = 1 - power, self.rule.step
        # sin(pi b) / 2 is b times what follows; the quotient has no 0 / 0 at b = 0, nor have its derivatives.
        reflected = _polynomial(_SINC, (b * (math.pi / 2)) ** 2) * xp.sin(power * (math.pi / 2)) * (math.pi / 2)
        terms = xp.exp(b * xp.constant(self._exponents, b))
        # The terms beyond the listed ones are a geometric series at rate 0, terms[0] / (exp(b h) - 1).
        rest = terms[..., :1] * _quotient(b * step)
        at_zero = xp.constant(np.eye(1, self.rates.size)[0], b)
        found = xp.matmul(terms, xp.constant(self._into, b)) * (b * step) + rest * at_zero
        return found * reflected * (2 / math.pi)


@lru_cache(maxsize=256)
def power_nodes(shortest: float, longest: float, precision: str) -> PowerNodes:
    """Return the PowerNodes for times from `shortest` to `longest`, positive, to the tolerance of a dtype."""
    rule = RULES[precision]
    edge = -math.log(longest)  # the fastest of the slow rates' exponents
    fast = math.ceil((math.log(rule.reach / shortest) - edge) / rule.step)
    slow_exponents = edge - rule.step * np.arange(_LISTED)[::-1]
    fast_exponents = edge + rule.step * np.arange(1, fast + 1)
    points = 0.5 * (1 - np.cos(np.pi * np.arange(rule.slow) / (rule.slow - 1)))  # in units of the fastest
    into = np.zeros((_LISTED + fast, rule.slow + fast))
    into[:_LISTED, : rule.slow] = _interpolation(points, np.exp(slow_exponents - edge))
    into[_LISTED:, rule.slow :] = np.eye(fast)
    rates = np.concatenate([points / longest, np.exp(fast_exponents)])
    return PowerNodes(rule, rates, np.concatenate([slow_exponents, fast_exponents]), into)


def _interpolation(points: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the Lagrange polynomials of `points` evaluated at `at`, [at, points]."""
    found = np.ones((at.size, points.size))
    for j, point in enumerate(points):
        for k, other in enumerate(points):
            if k != j:
                found[:, j] *= (at - other) / (point - other)
    return found


def _quotient(x: Array) -> Array:
    """Return x / (exp(x) - 1) for 0 <= x < 1/2, to its last digit, by its series: the Bernoulli numbers."""
    return _polynomial(_BERNOULLI, x**2) - x / 2


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    found = 0 * x + coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        found = found * x + coefficient
    return found
