"""The powers t**(p - 1) / Gamma(p), 0 <= p <= 1, on an interval of times as a sum of decaying exponentials.

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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace

_SINC = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(12))  # in z**2; (pi/2)**24 / 25! < 1e-20
_BERNOULLI = (1.0, 1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)  # (0.46 / 6.3)**14
_LISTED = 120  # slow terms that are added up one by one; the rest are at rate 0 to rounding


@dataclass(frozen=True)
class Rule:
    """A rule with a relative error.

    Attributes:
        step: h, of the trapezoidal rule.
        reach: The fastest rate times the shortest time.
        slow: Points that stand for the slow rates.
    """

    step: float
    reach: float
    slow: int


RULES = {"float32": Rule(0.46, 18.0, 8), "float64": Rule(0.33, 28.0, 11)}
TOLERANCES = {"float32": 1e-7, "float64": 1e-11}  # relative, at every time of the interval


@dataclass(frozen=True, eq=False)
class PowerNodes:
    """Nodes for times from `shortest` to `longest`.

    Attributes:
        rates: From 0 on, increasing, [Q], in units of 1 / time.
    """

    rule: Rule
    rates: np.ndarray
    _exponents: np.ndarray  # u of the trapezoidal rule's terms: the slow ones, then the others
    _into: np.ndarray  # from those terms to the nodes, [terms, Q]

    def coefficients(self, power: Array, xp: Namespace) -> Array:
        """Return those for powers p [..., 1], [..., Q]."""
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
    """Return the nodes for times from `shortest` to `longest`, positive, to the tolerance of a dtype."""
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
    """Return Lagrange's polynomials of `points` at other places, [at, points]."""
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
