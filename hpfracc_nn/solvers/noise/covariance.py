"""Covariances of fractional noises, which samplers, estimators and tests share."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.powers import differences, power_weights


def fgn_autocovariance(hurst: Array, n: int, xp: Namespace) -> Array:
    """Return the autocovariance of fractional Gaussian noise of unit step and variance at lags 0 to n - 1.

    (|k + 1|**2H - 2 |k|**2H + |k - 1|**2H) / 2, to 1e-11 of each value however large the lag.

    Shapes: hurst [*c], result [*c, n].

    Source: Mandelbrot & Van Ness, SIAM Review 10 (1968) 422.
    """
    power = 2 * xp.asarray(hurst)
    later = power_weights(power, np.arange(1, n), xp, differences(2)) if n > 1 else None
    first = 0 * power[..., None] + 1
    if later is None:
        return first
    return xp.concat([first, later * xp.exp(xp.gammaln(1 + power))[..., None] / 2], axis=-1)


def riemann_liouville_covariance(hurst: float, s: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return E B_s B_t of Riemann and Liouville's fractional Brownian motion, of variance t**(2 H), for times > 0.

    Source: Marinucci & Robinson, J. Statist. Plann. Inference 80 (1999) 111; Gradshteyn & Ryzhik, 3.197.8.
    """
    earlier, later = np.minimum(s, t), np.maximum(s, t)
    ratio = earlier / later
    part = special.hyp2f1(0.5 - hurst, 1.0, hurst + 1.5, np.where(ratio < 1, ratio, 0.0))
    mixed = 2 * hurst / (hurst + 0.5) * earlier ** (hurst + 0.5) * later ** (hurst - 0.5) * part
    return np.where(ratio < 1, mixed, later ** (2 * hurst))


def circulant_roots(hurst: Array, n: int, xp: Namespace) -> Array:
    """Return the square roots of the eigenvalues, over the size, of a circulant that contains n steps' covariance.

    The circulant's first row is the autocovariance up to lag m >= n and back; m makes the FFT fast. None of its
    eigenvalues is negative for any Hurst index in (0, 1).

    Shapes: hurst [*c], result [*c, 2 m].

    Source: Davies & Harte, Biometrika 74 (1987) 95; nonnegative by Craigmile, J. Time Series Anal. 24 (2003) 505, for
    hurst <= 1/2, and by Perrin et al., IEEE Signal Process. Lett. 9 (2002) 382, for all.
    """
    m = fast_length(n)
    covariance = fgn_autocovariance(hurst, m + 1, xp)
    mirrored = xp.flip(xp.take(covariance, np.arange(1, max(2, m)), axis=-1), axis=-1)
    row = xp.concat([covariance, mirrored], axis=-1) if m > 1 else covariance
    eigenvalues = xp.fft(row).real / (2 * m)
    # Rounding may leave -1e-17 where there is almost nothing; the inner `where` keeps the gradient finite there.
    is_positive = eigenvalues > 0
    roots = xp.exp(xp.log(xp.where(is_positive, eigenvalues, 1.0)) / 2)
    return xp.where(is_positive, roots, 0.0)


def fast_length(n: int) -> int:
    """Return the least number from n on that is 2**a 3**b 5**c."""
    best = 1 << max(0, (n - 1).bit_length())
    five = 1
    while five < best:
        three = five
        while three < best:
            twos = 1 << max(0, math.ceil(math.log2(n / three))) if three < n else 1
            best = min(best, three * twos) if three * twos >= n else best
            three *= 3
        five *= 5
    return best
