"""Closed forms: what the operators give for powers, exponentials and sinusoids.

With E the two-parameter Mittag-Leffler function, order = alpha for a derivative and -alpha for an integral,

    D^order t**b          = Gamma(b + 1) / Gamma(b + 1 - order) t**(b - order)
    D^order exp(rate t)   = t**-order E_(1, 1 - order)(rate t)

and a sinusoid is the real or imaginary part of an exponential with an imaginary rate. Caputo's derivative is the
derivative of what remains of x without its Taylor polynomial at 0. Grunwald-Letnikov's equals Riemann-Liouville's here.

A derivative tempered at rate l is exp(-l t) times the derivative of exp(l t) x: of a power it has Kummer's function
1F1(-order; b + 1 - order; -l t) as a further factor. The memories of Caputo-Fabrizio and Atangana-Baleanu, with
c = alpha / (1 - alpha) and unit = 1, give

    t**b          Gamma(b + 1) t**b / (1 - alpha) times E_(1, b + 1)(-c t) or E_(alpha, b + 1)(-c t**alpha)
    exp(rate t)   rate / ((1 - alpha) rate + alpha) (exp(rate t) - exp(-c t)) for the first of them.

Hadamard's operators are those of Riemann-Liouville and Caputo in log t; Marchaud's derivative is Caputo's or, after a
past of zeros, that of Riemann and Liouville.

Podlubny, Fractional Differential Equations (1999), sections 1.2 and 2.3; Diethelm (2010), appendix B.
"""

from __future__ import annotations

import math
from functools import singledispatch

import numpy as np
from scipy.special import gamma, hyp1f1, rgamma

from hpfracc_nn.fractional.definitions import (
    AtanganaBaleanu,
    CaputoFabrizio,
    Definition,
    RiemannLiouvilleIntegral,
    Riesz,
    TemperedCaputo,
    TemperedRiemannLiouville,
)
from hpfracc_nn.fractional.special.functions import mittag_leffler


def power(t: np.ndarray, exponent: float, definition: Definition) -> np.ndarray:
    """Return the operator's value on t**exponent at the times `t`.

    Args:
        t: Times, not negative; infinite values at t = 0 are returned as such.
        exponent: Above -1; for Caputo, unless it is whole, above the degree of the Taylor polynomial.
        definition: Which operator; its alpha must be one number.

    Returns:
        float64, the shape of `t`.

    Raises:
        ValueError: The operator does not exist for this power.
    """
    _, terms = _order(definition)
    is_whole = exponent == int(exponent)
    least = -1 if is_whole else terms - 1
    if exponent <= least:
        raise ValueError(
            f"power(exponent={exponent:g}, {definition}): needs exponent > {least}, or the integral "
            "diverges; pass a larger exponent."
        )
    t = np.asarray(t, dtype=np.float64)
    if is_whole and exponent < terms:
        return np.zeros_like(t)
    return _power(definition, t, exponent)


def exponential(t: np.ndarray, rate: float, definition: Definition) -> np.ndarray:
    """Return the operator's value on exp(rate t), to about 1e-13 of the largest term; see `power`."""
    return _exponential(t, complex(rate), definition).real


def sine(t: np.ndarray, frequency: float, definition: Definition) -> np.ndarray:
    """Return the operator's value on sin(frequency t); see `power`."""
    return _exponential(t, 1j * frequency, definition).imag


def cosine(t: np.ndarray, frequency: float, definition: Definition) -> np.ndarray:
    """Return the operator's value on cos(frequency t); see `power`."""
    return _exponential(t, 1j * frequency, definition).real


def variable_power(t: np.ndarray, exponent: float, alpha: np.ndarray) -> np.ndarray:
    """Return Caputo's derivative of t**exponent of the order alpha(t) at each time, [n]; see `variable_order`.

    The exponent must be above the degree of the Taylor polynomial; a negative alpha is an integral.
    """
    t, alpha = np.asarray(t, np.float64), np.asarray(alpha, np.float64)
    with np.errstate(divide="ignore"):
        return gamma(exponent + 1) * rgamma(exponent + 1 - alpha) * t ** (exponent - alpha)


def distributed_power(t: np.ndarray, exponent: float, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Return the integral over alpha from low to high of Gamma(exponent + 1 - alpha) D^alpha t**exponent, for t > 0.

    It is Gamma(exponent + 1) (t**(exponent - low) - t**(exponent - high)) / log(t), of which the limit at 1 is
    Gamma(exponent + 1) (high - low).
    """
    log_t = np.log(np.asarray(t, np.float64))
    is_one = log_t == 0
    spread = -np.expm1((low - high) * log_t) / np.where(is_one, 1.0, log_t)
    return gamma(exponent + 1) * np.exp((exponent - low) * log_t) * np.where(is_one, high - low, spread)


def getoor(alpha: float) -> float:
    """Return the constant that (-Laplacian)**(alpha/2) makes on (-1, 1) of the function (1 - t**2)**(alpha/2) there.

    The function is zero outside. Getoor, Trans. AMS 101 (1961) 75.
    """
    return float(gamma(1 + alpha))


def gaussian(distance: np.ndarray, alpha: float, dimensions: int = 1) -> np.ndarray:
    """Return (-Laplacian)**(alpha/2) of exp(-|t|**2) in 1 to 3 dimensions, at a distance from 0.

    2**alpha Gamma((d + alpha) / 2) / Gamma(d / 2) 1F1((d + alpha) / 2; d / 2; -|t|**2).
    """
    half = dimensions / 2
    scale = 2**alpha * gamma(half + alpha / 2) * rgamma(half)
    return scale * hyp1f1(half + alpha / 2, half, -np.square(distance))


@singledispatch
def _power(definition: Definition, t: np.ndarray, exponent: float) -> np.ndarray:
    """Return the operator applied to t**exponent, at times t [n]; the value at t = 0 may be infinite."""
    order = _order(definition)[0]
    return _times_power(gamma(exponent + 1) * rgamma(exponent + 1 - order), t, exponent - order)


@_power.register
def _(definition: TemperedCaputo, t: np.ndarray, exponent: float) -> np.ndarray:
    order, faded = definition.alpha, -definition.rate * t
    if exponent < 0 and not isinstance(definition, TemperedRiemannLiouville):
        raise ValueError(f"power(exponent={exponent:g}, {definition}): needs exponent >= 0; pass a larger exponent.")
    if exponent + 1 == order:  # there Kummer's function has a pole where the factor before it is 0
        return gamma(order + 1) * definition.rate * hyp1f1(1 - order, 2, faded)
    y = _times_power(gamma(exponent + 1) * rgamma(exponent + 1 - order), t, exponent - order)
    y = y * hyp1f1(-order, exponent + 1 - order, faded)
    if exponent == 0 and not isinstance(definition, TemperedRiemannLiouville):
        y = y - _times_power(rgamma(1 - order), t, -order) * np.exp(faded)
    return y


@_power.register
def _(definition: CaputoFabrizio, t: np.ndarray, exponent: float) -> np.ndarray:
    return _remembered(t, exponent, definition.alpha, t / definition.unit, 1.0)


@_power.register
def _(definition: AtanganaBaleanu, t: np.ndarray, exponent: float) -> np.ndarray:
    alpha = definition.alpha
    return _remembered(t, exponent, alpha, (t / definition.unit) ** alpha, alpha)


def _remembered(t: np.ndarray, exponent: float, alpha: float, scaled: np.ndarray, memory: float) -> np.ndarray:
    found = mittag_leffler(-_speed(alpha) * scaled, memory, exponent + 1)
    return gamma(exponent + 1) / (1 - alpha) * t**exponent * found


def _exponential(t: np.ndarray, rate: complex, definition: Definition) -> np.ndarray:
    """Return the operator applied to exp(rate t), at times t [n]; the rate may be complex."""
    order, first = _order(definition)
    t = np.asarray(t, dtype=np.float64)
    if isinstance(definition, AtanganaBaleanu):
        raise ValueError(
            f"{definition}: has no closed form for exponentials and sinusoids here; "
            "take powers, or sum those of a series."
        )
    if isinstance(definition, CaputoFabrizio):
        speed, scaled = _speed(order), rate * definition.unit
        gain = scaled / ((1 - order) * scaled + order)
        return gain * (np.exp(rate * t) - np.exp(-speed * t / definition.unit))
    if isinstance(definition, TemperedCaputo):
        first = 0 if isinstance(definition, TemperedRiemannLiouville) else 1
        return np.exp(-definition.rate * t) * _grown(t, rate + definition.rate, order, first)
    return _grown(t, rate, order, first)


def _grown(t: np.ndarray, rate: complex, order: float, first: int) -> np.ndarray:
    """Return the Riemann-Liouville derivative of order `order` of exp(rate t) less `first` terms of its Taylor series.

    It is taken at times t [n]; a negative order is that of an integral.
    """
    rest = max(first, math.ceil(1 + order))  # from there on no power of t is negative
    # The first terms rate**j t**(j - order) / Gamma(j + 1 - order) of the series, then all others together.
    y = np.zeros(t.shape, dtype=np.complex128)
    for j in range(first, rest):
        y += rate**j * _times_power(rgamma(j + 1 - order), t, j - order)
    return y + rate**rest * t ** (rest - order) * mittag_leffler(rate * t, 1.0, rest + 1 - order)


def _speed(alpha: float) -> float:
    """Return c = alpha / (1 - alpha), the rate in the memory functions of Caputo-Fabrizio and Atangana-Baleanu."""
    if alpha == 1:
        raise ValueError("alpha=1: the memory is shorter than anything; take the ordinary derivative.")
    return alpha / (1 - alpha)


def _times_power(factor: float, t: np.ndarray, exponent: float) -> np.ndarray:
    """Return factor t**exponent at times t: infinite at t = 0 for an exponent below 0, but 0 where the factor is."""
    if factor == 0:
        return np.zeros_like(t)
    with np.errstate(divide="ignore"):
        return factor * t**exponent


def _order(definition: Definition) -> tuple[float, int]:
    """Return the order, negative for integrals, and the number of powers 1, t, ... that the operator annihilates."""
    if not isinstance(definition.alpha, float):
        raise ValueError(f"{definition}: needs one alpha for a closed form; pass one definition per channel.")
    if isinstance(definition, Riesz):
        raise ValueError(f"{definition}: needs a signal that is zero outside an interval; take `getoor` or `gaussian`.")
    if definition.side != "left":
        raise ValueError(f"{definition}: needs side='left' for a closed form; take that of the reversed signal.")
    if isinstance(definition, RiemannLiouvilleIntegral):
        return -definition.alpha, 0
    loses = definition.subtracts and definition.terms == 0
    return definition.alpha, definition.taylor if loses else 0
