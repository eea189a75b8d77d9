"""The spectrum of fractional Gaussian noise, and its energies after differences of any order."""

import math

import numpy as np
from scipy.special import zeta


def density(frequency, hurst):
    """Return the spectral density of fractional Gaussian noise of variance 1 (Sinai, 1976)."""
    power, turn = 2 * hurst + 1, frequency / (2 * math.pi)
    images = (2 * math.pi) ** -power * (zeta(power, turn) + zeta(power, 1 - turn))
    scale = math.sin(math.pi * hurst) * math.gamma(power) / math.pi
    return scale * 2 * np.sin(frequency / 2) ** 2 * images


def energy(alpha, hurst):
    """Return the variance of the noise after the difference of order alpha, by the integral over its spectrum.

    With w = pi u**20 the integrand, a power above -1 of w at 0, is smooth there.
    """
    u, weights = np.polynomial.legendre.leggauss(200)
    u = (u + 1) / 2
    w = np.pi * u**20
    return float(np.sum(weights * density(w, hurst) * (2 * np.sin(w / 2)) ** (2 * alpha) * 20 * np.pi * u**19))
