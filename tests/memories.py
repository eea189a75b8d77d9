"""The formulas of the definitions' docstrings, taken at their word: slow sums, and weights at single lags."""

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
from scipy.special import gamma, rgamma

from hpfracc_nn.fractional import (
    AtanganaBaleanu,
    Caputo,
    CaputoFabrizio,
    CaputoHadamard,
    Definition,
    GrunwaldLetnikov,
    Hadamard,
    HadamardIntegral,
    Marchaud,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    Riesz,
    TemperedCaputo,
    TemperedRiemannLiouville,
    mittag_leffler,
)

# An O(n**2) reference for each definition, x piecewise linear: [n] samples -> [n] values. Only the first differs from
# the formula for a function with these samples, where that is infinite.
Reference = Callable[[np.ndarray, float, Any], np.ndarray]


def linear(x: np.ndarray, dt: float, integrated: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return int x'(s) g(t - s) ds for x linear on each cell; `integrated` is the integral of g from 0."""
    y, up_to = np.zeros(x.size), integrated(dt * np.arange(x.size + 1))
    for n in range(1, x.size):
        for j in range(n):
            y[n] += (x[j + 1] - x[j]) / dt * (up_to[n - j] - up_to[n - j - 1])
    return y


def caputo(x: np.ndarray, dt: float, d: Any) -> np.ndarray:
    return linear(x, dt, lambda t: t ** (1 - d.alpha) / gamma(2 - d.alpha))


def initial(x: np.ndarray, dt: float, alpha: float) -> np.ndarray:
    """Return x(0) t**-alpha / Gamma(1 - alpha), at t = 0 the mean that a Riemann-Liouville derivative takes."""
    t = dt * np.arange(x.size)
    t[0] = dt * gamma(1 - alpha) ** (-1 / alpha)
    return x[0] * t**-alpha / gamma(1 - alpha)


def riemann_liouville(x: np.ndarray, dt: float, d: Any) -> np.ndarray:
    return caputo(x, dt, d) + initial(x, dt, d.alpha)


def grunwald_letnikov(x: np.ndarray, dt: float, d: Any) -> np.ndarray:
    weights = [1.0]
    for k in range(1, x.size):
        weights.append(weights[-1] * (k - 1 - d.alpha) / k)
    return np.array([sum(weights[k] * x[n - k] for k in range(n + 1)) for n in range(x.size)]) / dt**d.alpha


def integral(x: np.ndarray, dt: float, d: Any) -> np.ndarray:
    rest = linear(x, dt, lambda t: t ** (1 + d.alpha) / gamma(2 + d.alpha))
    return rest + x[0] * (dt * np.arange(x.size)) ** d.alpha / gamma(1 + d.alpha)


def tempered(inner: Reference) -> Reference:
    def reference(x: np.ndarray, dt: float, d: Any) -> np.ndarray:
        growth = np.exp(d.rate * dt * np.arange(x.size))
        return inner(growth * x, dt, d) / growth

    return reference


def caputo_fabrizio(x: np.ndarray, dt: float, d: Any) -> np.ndarray:
    r = d.alpha / (1 - d.alpha) / d.unit
    return linear(x, dt, lambda t: (1 - np.exp(-r * t)) / r) / (1 - d.alpha)


def atangana_baleanu(x: np.ndarray, dt: float, d: Any) -> np.ndarray:
    c = d.alpha / (1 - d.alpha) / d.unit**d.alpha
    y = linear(x, dt, lambda t: t * mittag_leffler(-c * t**d.alpha, d.alpha, 2.0))
    if d.sense == "riemann_liouville":
        y = y + x[0] * mittag_leffler(-c * (dt * np.arange(x.size)) ** d.alpha, d.alpha)
    return y / (1 - d.alpha)


def marchaud(x: np.ndarray, dt: float, d: Any) -> np.ndarray:
    """Each cell of the hypersingular integral, where x(t) - x(t - s) = first + slope s."""
    a, y = d.alpha, np.zeros(x.size)
    for n in range(1, x.size):
        for j in range(n):
            s, slope = np.array([j, j + 1]) * dt, (x[n - j] - x[n - j - 1]) / dt
            first = x[n] - x[n - j] - slope * s[0]
            if j:
                y[n] += first * (s[0] ** -a - s[1] ** -a) / a
            y[n] += slope * (s[1] ** (1 - a) - s[0] ** (1 - a)) / (1 - a)
        before = x[0] if d.history == "constant" else 0.0
        y[n] += (x[n] - before) * (n * dt) ** -a / a
    return y * a / gamma(1 - a)


def riesz(x: np.ndarray, dt: float, d: Any) -> np.ndarray:
    k, half = np.arange(x.size), d.alpha / 2
    weights = (-1.0) ** k * gamma(1 + d.alpha) * rgamma(1 + half - k) * rgamma(1 + half + k) / dt**d.alpha
    return np.array([-sum(weights[abs(n - j)] * x[j] for j in range(x.size)) for n in range(x.size)])


REFERENCES: dict[type[Definition], Reference] = {
    Caputo: caputo,
    RiemannLiouville: riemann_liouville,
    GrunwaldLetnikov: grunwald_letnikov,
    RiemannLiouvilleIntegral: integral,
    TemperedCaputo: tempered(caputo),
    TemperedRiemannLiouville: tempered(riemann_liouville),
    CaputoFabrizio: caputo_fabrizio,
    AtanganaBaleanu: atangana_baleanu,
    Marchaud: marchaud,
    Hadamard: riemann_liouville,  # the samples' step is that of log t
    CaputoHadamard: caputo,
    HadamardIntegral: integral,
    Riesz: riesz,
}

# Weights at single lags in units of the step: (definition, lag) -> weight of d.


def fabrizio_weight(d: Any, lag: int) -> mpmath.mpf:
    alpha = mpmath.mpf(d.alpha)
    r = alpha / (1 - alpha) / mpmath.mpf(d.unit)
    return (mpmath.exp(-r * lag) - mpmath.exp(-r * (lag + 1))) / r / (1 - alpha)


def mittag_leffler_weight(d: Any, lag: int) -> float:
    """The mean over a cell of E(-c t**alpha), an integral over decaying exponentials (Gorenflo & Mainardi 1997, 3.24).

    All terms are positive, and in log r the trapezoidal rule converges like exp(-2 pi**2 (1 / alpha - 1) / step).
    """
    alpha, step = np.longdouble(d.alpha), np.longdouble(1) / 20
    c = alpha / (1 - alpha) / np.longdouble(d.unit) ** alpha
    r = np.exp(step * np.arange(-45 / step / alpha, 45 / step / alpha))  # the ends fall like r**alpha and r**-alpha
    at = r**alpha
    spectrum = c * at * np.sin(np.pi * alpha) / (at**2 + 2 * c * at * np.cos(np.pi * alpha) + c**2) / np.pi
    return float(step * np.sum(spectrum * np.exp(-r * lag) * -np.expm1(-r) / r) / (1 - alpha))


def centred_weight(d: Any, lag: int) -> mpmath.mpf:
    alpha = mpmath.mpf(d.alpha)
    half = alpha / 2
    # 1 / Gamma(1 + half - lag) = Gamma(lag - half) sin(pi (lag - half)) / pi, and (-1)**lag sin(...) = -sin(pi half)
    rest = mpmath.exp(mpmath.loggamma(lag - half) - mpmath.loggamma(1 + half + lag)) if lag else 0
    central = mpmath.gamma(1 + alpha) / mpmath.gamma(1 + half) ** 2
    return 2 * mpmath.gamma(1 + alpha) * mpmath.sinpi(half) / mpmath.pi * rest if lag else -central


WEIGHTS: dict[type[Definition], Callable[[Any, int], Any]] = {
    CaputoFabrizio: fabrizio_weight,
    AtanganaBaleanu: mittag_leffler_weight,
    Riesz: centred_weight,
}
