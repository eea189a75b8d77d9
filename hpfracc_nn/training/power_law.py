"""Weights of past gradients: what a fractional optimizer averages with, by lag. In NumPy: they are a few numbers.

With r = 1 - alpha and GL_r(j), the coefficient of z**j in (1 - z)**r (Grünwald's weights, `schemes/grunwald.py`):

    integral     w_j = GL_(-r)(j): the weights of the fractional integral of order 1 - alpha, all positive, about
                 j**-alpha / Gamma(1 - alpha); divided by their sum, which makes them an average
    difference   w_j = GL_r(j): those of the fractional derivative of order 1 - alpha, 1 and then all negative; their
                 sum over K lags is prod_(j<K) (1 - r / j), between 0 and 1, about K**-r / Gamma(alpha)
    fcgd         w_j = (1 - (alpha + 1) / (j + 1)) w_(j-1) = -GL_alpha(j + 1) / alpha: all positive; their sum over K
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

from functools import lru_cache

import numpy as np

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.schemes.grunwald import binomial

RATES = (1.38, 0.24, 0.0385, 0.0014)  # per step, before tempering
TEMPER = 50.0  # steps
FITTED = 100  # lags


def integral(alpha: float, count: int) -> np.ndarray:
    """Return the integral's weights of lags 0 to count - 1, not divided by their sum: shape [count], float64."""
    return _grunwald(alpha - 1, np.arange(count))


def difference(alpha: float, count: int) -> np.ndarray:
    """Return the difference's weights of lags 0 to count - 1: shape [count], float64."""
    return _grunwald(1 - alpha, np.arange(count))


def fcgd(alpha: float, count: int) -> np.ndarray:
    """Return the weights of FCGD of lags 0 to count - 1: shape [count], float64."""
    return _grunwald(alpha, np.arange(1, count + 1)) / -alpha


def decays() -> np.ndarray:
    """Return by what factor each exponential fades in a step: shape [4], float64."""
    return np.exp(-np.array(RATES) - 1 / TEMPER)


@lru_cache(maxsize=256)
def coefficients(alpha: float) -> np.ndarray:
    """Return the exponentials' values at lag 1: shape [4], float64."""
    if alpha == 1:
        return np.zeros(len(RATES))  # nothing is left to be fitted
    lags = np.arange(1, FITTED + 1)
    shapes = np.exp(-np.array(RATES) * (lags[:, None] - 1))
    relative = shapes / integral(alpha, FITTED + 1)[1:, None]
    octaves = 1 / np.sqrt(lags)  # every octave of lags counts alike
    fitted, *_ = np.linalg.lstsq(relative * octaves[:, None], octaves)
    return fitted * np.exp(-1 / TEMPER)


def _grunwald(order: float, lags: np.ndarray) -> np.ndarray:
    return binomial(NUMPY.asarray(order), lags, NUMPY)
