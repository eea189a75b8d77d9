"""Weights of past gradients: what a fractional optimizer averages with, by lag.

With r = 1 - alpha and GL_r(j), the coefficient of z**j in (1 - z)**r (Grünwald's weights, `schemes/differences.py`):

    integral     w_j = GL_(-r)(j): the weights of the fractional integral of order 1 - alpha, all positive, about
                 j**-alpha / Gamma(1 - alpha); divided by their sum, which makes them an average
    difference   w_j = GL_r(j): those of the fractional derivative of order 1 - alpha, 1 and then all negative; their
                 sum over K lags is prod_(j<K) (1 - r / j), between 0 and 1, about K**-r / Gamma(alpha)
    fcgd         w_j = (1 - (alpha + 1) / (j + 1)) w_(j-1) = GL_(alpha-1)(j) / (j + 1): all positive; their sum over K
                 lags is (1 - GL_(alpha-1)(K)) / alpha, between 1 and 1 / alpha

Each is 1, 0, 0, ... at alpha = 1.

The four exponentials stand for the integral's weights, tempered: k_0 = 1 and k_j = sum_q c_q exp(-rate_q (j - 1)) for
j >= 1, about w_j exp(-j / 50). They are an approximation, and of a law that is cut off: what lies much more than 50
steps back hardly counts, where the power law would go on. The rates do not depend on alpha, so that what was remembered
stays good when alpha changes; they come from a numerical search for a small relative error over alpha, and are not
shown to be the best. Measured for alpha from 0.01 to 1, k_j differs from w_j exp(-j / 50) by less than 4 % at every lag
up to 100, and the two, divided by their sums, by less than 1.3 % in all (half the sum of the absolute differences, over
all lags).

Sources: Oldham & Spanier (1974), section 3.4 (integral, difference); Zhou, Zhao & Huang, Mathematics 11(2) 316 (2023)
(fcgd); Sabzikar, Meerschaert & Chen, J. Comput. Phys. 293 (2015) 14 (tempering).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.schemes.differences import binomial

RATES = (1.38, 0.24, 0.0385, 0.0014)  # per step, before tempering
TEMPER = 50.0  # steps
FITTED = 100  # lags


@dataclass(frozen=True)
class Law:
    """How a kind of average weighs past gradients.

    Args:
        weights: By lag: of alpha, how many, and the namespace.
        is_normalised: Whether they are divided by their sum.
        drops: Whether one of the past gradients is left out at each step, at random.
        fades: Whether exponentials can stand for the weights.
    """

    weights: Callable[..., Array]
    is_normalised: bool
    drops: bool = False
    fades: bool = False


def integral(alpha: Array, count: int, xp: Namespace = NUMPY) -> Array:
    """Return the integral's weights of lags 0 to count - 1, not divided by their sum: [*alpha, count], float64."""
    return binomial(xp.asarray(alpha) - 1, np.arange(count), xp)


def difference(alpha: Array, count: int, xp: Namespace = NUMPY) -> Array:
    """Return the difference's weights of lags 0 to count - 1: shape [*alpha, count], float64."""
    return binomial(1 - xp.asarray(alpha), np.arange(count), xp)


def fcgd(alpha: Array, count: int, xp: Namespace = NUMPY) -> Array:
    """Return the weights of FCGD of lags 0 to count - 1: shape [*alpha, count], float64."""
    weights = binomial(xp.asarray(alpha) - 1, np.arange(count), xp)
    return weights / xp.constant(np.arange(1.0, count + 1), weights)


LAWS = {
    "integral": Law(integral, is_normalised=True, fades=True),
    "difference": Law(difference, is_normalised=False),
    "fcgd": Law(fcgd, is_normalised=False, drops=True),
}


def log_decays() -> np.ndarray:
    """Return the logarithms of what each exponential fades by in a step: shape [4], float64."""
    return -np.array(RATES) - 1 / TEMPER


def decays() -> np.ndarray:
    """Return by what factor each exponential fades in a step: shape [4], float64."""
    return np.exp(log_decays())


@lru_cache(maxsize=256)
def coefficients(alpha: float) -> np.ndarray:
    """Return the exponentials' values at lag 1: shape [4], float64."""
    matrix, target, scale = fit_problem(alpha, NUMPY)
    return scale * np.linalg.lstsq(matrix, target)[0]


def fit_problem(alpha: Array, xp: Namespace) -> tuple[Array, np.ndarray, Array]:
    """Return matrix, target and scale: the coefficients are the scale times the least-squares solution.

    What is fitted are the weights divided by 1 - alpha, GL_(alpha-2)(j - 1) / j, which do not vanish at alpha = 1:
    there the scale is 0, and no derivative is lost.

    Shapes: alpha [*c], matrix [*c, 100, 4], target [100], scale [*c].
    """
    alpha = xp.asarray(alpha)
    lags = np.arange(1, FITTED + 1)
    weights = binomial(alpha - 2, lags - 1, xp)
    octaves = 1 / np.sqrt(lags)  # every octave of lags counts alike
    shapes = np.exp(-np.array(RATES) * (lags[:, None] - 1)) * (lags * octaves)[:, None]
    return xp.constant(shapes, weights) / weights[..., None], octaves, (1 - alpha) * np.exp(-1 / TEMPER)
