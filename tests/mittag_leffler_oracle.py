"""E_(alpha, beta)(z) and its derivatives by mpmath: the series with enough digits, far away the one at infinity."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np

DIGITS = 25
_FAR = 90.0  # |z|**(1 / alpha); there the expansion's least term is exp(-90) = 1e-39


def oracle(z: complex, alpha: float, beta: float, m: int = 0, n: int = 0) -> Any:
    """Return d^m/dz^m d^n/dbeta^n E to DIGITS digits of its largest part."""
    is_far = z != 0 and math.log(abs(z)) / alpha > math.log(_FAR)
    return (_at_infinity if is_far else _series)(z, alpha, beta, m, n)


def random_points(count: int, rng: np.random.Generator) -> list[tuple[complex, float, float]]:
    """Return (z, alpha, beta) where E does not overflow, z positive, negative and complex, up to |z| = 1000."""
    found: list[tuple[complex, float, float]] = []
    while len(found) < count:
        alpha, beta = 2 - rng.uniform(0, 1.99), 4 - rng.uniform(0, 4)
        spaced = [rng.uniform(0, 1000), 10 ** rng.uniform(-3, 3), rng.uniform(0, 40) ** alpha]
        size, angle = spaced[len(found) % 3], (0.0, math.pi, rng.uniform(-math.pi, math.pi))[len(found) % 7 % 3]
        z = size if angle == 0 else -size if angle == math.pi else complex(size * np.exp(1j * angle))
        root = math.exp(min(math.log(size) / alpha, 50.0))
        if size <= 1000 and (abs(angle) > math.pi * alpha or root * math.cos(angle / alpha) < 650):
            found.append((z, alpha, beta))
    return found


def _series(z: complex, alpha: float, beta: float, m: int, n: int) -> Any:
    root = math.exp(math.log(abs(z)) / alpha) if z else 0.0
    with mpmath.workdps(DIGITS + 10 + int(root)):  # terms reach exp(root), and E may be exp(-root)
        z, alpha, beta = mpmath.mpmathify(z), mpmath.mpf(alpha), mpmath.mpf(beta)
        total, power, k = mpmath.mpf(0), mpmath.mpf(1), m
        least = mpmath.mpf(10) ** -mpmath.mp.dps
        while True:
            term = mpmath.ff(k, m) * power * reciprocal_gamma(alpha * k + beta, n)
            total += term
            if alpha * k > root + 2 and k > m + 3 and abs(term) < least:
                return total
            k, power = k + 1, power * z


def _at_infinity(z: complex, alpha: float, beta: float, m: int, n: int) -> Any:
    with mpmath.workdps(DIGITS + 15):
        z, alpha, beta = mpmath.mpmathify(z), mpmath.mpf(alpha), mpmath.mpf(beta)
        total, k, least = mpmath.mpf(0), 1, mpmath.mpf(10) ** (-DIGITS - 3)
        while True:
            size = mpmath.rf(k, m) * z ** (-k - m) * (-1) ** (m + 1)
            total += size * reciprocal_gamma(beta - alpha * k, n)
            bound = abs(size) * mpmath.gamma(max(1 - beta + alpha * k, 1)) * (2 + mpmath.log(k)) ** n
            if k > 3 and bound < least * abs(z) ** (-2 - m):
                break
            k += 1
        for turn in (-1, 0, 1):
            log = (mpmath.log(z) + 2j * mpmath.pi * turn) / alpha
            if -mpmath.pi < log.imag <= mpmath.pi:
                total += _residue(z, log, alpha, beta, m, n)
        return total


def _residue(z: Any, log: Any, alpha: Any, beta: Any, m: int, n: int) -> Any:
    def along(step: Any) -> Any:
        found = log + mpmath.log(1 + step) / alpha
        return mpmath.exp((1 - beta) * found + mpmath.exp(found)) * (-found) ** n / alpha

    with mpmath.workdps(80):  # mpmath takes differences
        return mpmath.taylor(along, 0, m)[m] * mpmath.factorial(m) / z**m


def reciprocal_gamma(x: Any, n: int) -> Any:
    """Return the n-th derivative of 1 / Gamma at real x."""
    if n == 0:
        return mpmath.rgamma(x)
    steps = max(0, int(mpmath.ceil(1 - x)))
    values = [mpmath.rgamma(x + steps)]
    for i in range(n):
        psi = (mpmath.binomial(i, j) * mpmath.polygamma(j, x + steps) * values[i - j] for j in range(i + 1))
        values.append(-mpmath.fsum(psi))
    for step in reversed(range(steps)):
        values = [(x + step) * g + (i * values[i - 1] if i else 0) for i, g in enumerate(values)]
    return values[n]
