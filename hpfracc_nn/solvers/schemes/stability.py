"""How large a rate of decay an explicit scheme can take: the root condition of its characteristic equation.

For D^a y = -rate y and s = dt**a rate, y_n = rho**n solves the scheme's sums, far from the start, where

    F(rho) = 1 + s (T - a_0) (1 + z + ... + z**(m - 1)) + s z**m R = 0,        z = -s a_0,

m the corrections, R and T the generating functions of the rectangle's and the trapezoid's weights in 1 / rho, and a_0
the weight of f_n. Both are polylogarithms: with L_p = sum over k > 0 of k**p / rho**k

    R = (1 - 1 / rho) L_a / Gamma(1 + a),        T = (rho - 2 + 1 / rho) L_(1 + a) / Gamma(2 + a).

The scheme is stable where no root lies outside of the unit circle, which the phase of F along the circle counts.

Lubich, IMA J. Numer. Anal. 6 (1986) 87; Garrappa, Int. J. Comput. Math. 87 (2010) 2281.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import zeta

_ANGLES = np.pi * np.linspace(0, 1, 402)[1:] ** 4  # close to 0, where roots first come through 1
_TERMS = 60  # of a series whose terms halve
_SMALLEST, _FACTOR = 1e-3, 1.1  # of what is tried, upwards
_HALVINGS = 40


@lru_cache(maxsize=256)
def largest_decay(alpha: float, corrections: int) -> float:
    """Return the least upper bound of s up to which a scheme is stable; 0 where it is for none.

    Args:
        alpha: The order.
        corrections: m; 0 is the rectangle rule alone.
    """
    own = 1 / math.gamma(2 + alpha)
    half = np.sin(_ANGLES / 2)  # the differences below are made of it: towards 1 they would lose all digits
    first = 2j * half * np.exp(-0.5j * _ANGLES)  # 1 - 1 / rho
    predictor = first * _polylogarithm(alpha) / math.gamma(1 + alpha)
    corrector = -4 * half**2 * _polylogarithm(1 + alpha) * own - own
    bounded = first**alpha  # both grow like its reciprocal towards 1, and it has no roots outside

    def is_stable(s: float) -> bool:
        z = -s * own
        found = s * z**corrections * predictor
        if corrections:
            found = found + s * corrector * sum(z**k for k in range(corrections))
        found = bounded * (1 + found)
        return abs(np.angle(found[1:] / found[:-1]).sum()) < 1  # it is a multiple of pi, nearly

    low, high = 0.0, _SMALLEST
    while is_stable(high):
        low, high = high, _FACTOR * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(middle) else (low, middle)
    return low


def _polylogarithm(power: float) -> np.ndarray:
    """Return the sum of k**power exp(-i k angle) over k > 0, by its series about 0, which ends at 2 pi.

    Source: DLMF 25.12.12.
    """
    terms = np.arange(_TERMS)
    factors = zeta(-power - terms) / np.array([math.factorial(k) for k in range(_TERMS)], dtype=float)
    series = (factors * (-1j * _ANGLES[:, None]) ** terms).sum(-1)
    return math.gamma(1 + power) * (1j * _ANGLES) ** (-1 - power) + series
