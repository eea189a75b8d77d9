"""The memory function as a sum of decaying exponentials, for every alpha from one set of nodes.

    w[lag] = sum_q c_q exp(-s_q (lag - first)),   lag >= first,

The lags below `first` stay exact: 1 to 3 in float32, 1 to 7 in float64.

The nodes are 0, which integrals and learned orders need in float32, and the points of the trapezoidal rule for the
integral over exp(-s lag) that the weights are, in a variable u with log s = u - a exp(-u / b) up to constants: evenly
spaced in log s, and ever further apart towards the slow end, where a few nodes stand for the whole tail (as in double
exponential quadrature). One slowest node, a fifth of 1 / n, one a and one b serve every n, precision and number of
states. They were found by minimising the share of all definitions, schemes and bounds whose float32 weights miss half
the tolerance, at eight lengths from 128 to 2**17. The fastest node is as fast as that share wants it, until the terms
for the exact lags grow as exp(s lag) and cancel: at most 3.5 in float32.

The states, exponentials and exact lags, are whole vectors, because compiled kernels fill them up to that anyway. As
many as most weights need at this n are tried first, and then one vector and two vectors more.

The coefficients are a weighted least-squares fit, linear in the weights: one factorisation serves every scheme and
alpha, and alpha's gradient flows through it. The rows are scaled by lag**0.75, between the decay of the slowest and the
fastest weights, and not by the weights, so that the factorisation does not depend on them (scaled by the lag itself,
weights that do not decay lose a digit in float64 at n = 65536). The factors stay factored: multiplied out they lose
digits.

Beylkin & Monzon, Appl. Comput. Harmon. Anal. 28 (2010) 131, for why few are enough.
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
    """How many nodes there are and how coefficients are found."""

    first: int  # lags below it are exact
    fastest: float  # largest node, at most; with few states their number / 7.5
    states: tuple[float, float]  # K = a + b log2(n), rounded up to whole vectors, is tried first
    cutoff: float  # singular values below it are dropped
    refined: bool = False  # whether what the fit leaves over is fitted once more

    def fewest(self, n: int) -> int:
        """Return the states that are tried first for up to `n` samples."""
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
    """A node set and its factorised fit.

    Attributes:
        first: The first lag that the exponentials stand for.
        rates: s, increasing from 0, per sample; [Q].
        lags: Where weights are fitted; [K].
        certified_lags: Where the error is measured; denser, [P].
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
        """What a recurrence carries: the exponentials and the last samples whose lags are exact."""
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
    """Return the node set of so many states for up to `n` samples, n a power of two.

    A memory that fades by exp(-fading) a step has its exponentials faster by as much, but the one that stays.
    The fastest one stays as it is, and so does how far the terms of the sum cancel at the exact lags.
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
    """Return the power of two, at least 128, whose node set serves `n` samples."""
    return max(128, 1 << (n - 1).bit_length())


def exponentials(definition: Definition, n: int, precision: str) -> Nodes | None:
    """Return the node set for a definition on `n` samples, or None where its error is above the dtype's tolerance.

    The error is measured for the definition's own orders, or on a grid over the bounds of a tensor alpha. A definition
    with a time scale is told in steps (`Definition.in_steps`).
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
    """Return the same for all orders between the bounds of a definition, whatever its own are; see `family`."""
    wanted = bounded.approximated
    return None if wanted is None else _accepted(family(wanted), False, node_length(n), precision)


def tolerance(n: int, precision: str) -> float:
    """Return the relative error per weight that is accepted on `n` samples."""
    return TOLERANCES[precision] * max(1.0, n / 65536)


@lru_cache(maxsize=256)
def _exact(rates: tuple[float, ...], n: int) -> Nodes:
    """Return the node set of weights that are one of these exponentials each: no lag but 0 is apart."""
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
    """Yield the definitions of fixed alpha whose weights must be right."""
    if fixed:
        yield definition
        return
    low, high = definition.interval
    for part in reversed(_GRID):  # the steepest weights first: what fails fails soon
        yield definition.at(low + part * (high - low))


def _rates(count: int, slowest: float, fastest: float) -> np.ndarray:
    """Return 0 and count - 1 nodes from slowest to fastest."""
    span = math.log(fastest / slowest)
    u = np.linspace(0, span, count - 1)
    bent = u - _SPARSER * np.expm1(-u / _REACH)
    return np.concatenate([[0.0], slowest * np.exp(bent * (span / bent[-1]))])


def _lags(first: int, n: int, dense: int, scattered: int) -> np.ndarray:
    """Every lag from `first` up to `dense`, then geometric ones up to n - 1."""
    near = np.arange(first, min(dense, n))
    far = np.geomspace(min(dense, n - 1), n - 1, scattered).round().astype(np.int64)
    return np.unique(np.concatenate([near, far]))
