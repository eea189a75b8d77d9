"""Short polynomials in the delay z applied to the powers F_k = (k + 1)**P and to the cell moments Q_k.

F_k (1 - z) is the integral of P t**(P - 1) over cell k; Q_k is the error of the trapezoid rule for t**P on it:

    Q_k = [(k + 1)**(1 + P) - k**(1 + P)] / (1 + P) - [(k + 1)**P + k**P] / 2.

Every scheme that integrates the memory function exactly (l1, l1_2, trapezoid) is such a polynomial, divided by
Gamma(1 + P). Subtracting powers loses every digit at large lags, so beyond lag 16 the polynomial is applied to the
binomial series of (k + s)**P in 1/k, term by term and exactly; the terms that cancel are then absent.

`powers` and `moments` are the coefficients of 1, z, z**2, ... of the polynomials that are applied to F and to Q, where
(z F)_k = F_(k-1). The exponent P is an array [*c, 1] in private functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace

_HEAD = 16  # lags below it are summed directly
_SEGMENTS = (
    (_HEAD, 1024, 28),
    (1024, None, 10),
)  # (from lag, to lag, terms): (4 / 16)**28 and (4 / 1024)**10
_CELL_POINTS = 12  # Gauss-Legendre; t**P on [1, 2] has its singularity at distance 1: error 5.8**-24

Polynomial = Sequence[float | Fraction]


def power_weights(
    exponent: Array, lags: np.ndarray, xp: Namespace, powers: Polynomial, moments: Polynomial = ()
) -> Array:
    """Return the weights (powers(z) F + moments(z) Q)_k / Gamma(1 + P) at the given lags k, P = exponent in [0, 3].

    F_k is (k + 1)**P and Q_k the cell moments of the module's docstring, of which every scheme that integrates the
    memory function exactly is made.

    Args:
        exponent: P, float64, shape [*c].
        lags: Non-negative integers, increasing, shape [k].
        xp: The namespace of `exponent`.
        powers: Coefficients of 1, z, z**2, ... applied to F; at most six.
        moments: Coefficients of the polynomial that is applied to Q.

    Returns:
        Shape [*c, k]; relative error about 1e-14 at lags of 16 and more, below up to 1e-12 for second differences and
        1e-11 for third ones, unless the weight itself crosses zero.
    """
    on_powers, on_moments = (tuple(Fraction(a) for a in some) for some in (powers, moments))
    exponent = xp.asarray(exponent)[..., None]
    parts = []
    near = lags[lags < _HEAD]
    if near.size:
        parts.append(xp.take(_head(exponent, xp, on_powers, on_moments), near, axis=-1))
    binomials = _binomials(exponent, xp, _SEGMENTS[0][2])
    for first, last, terms in _SEGMENTS:
        k = lags[(lags >= first) & (lags < last)] if last else lags[lags >= first]
        if k.size:
            k = k.astype(np.float64)
            series = _series(on_powers, on_moments, terms)
            used = np.flatnonzero(series)
            inverse = series[used][:, None] * k[None, :] ** -used[:, None].astype(np.float64)
            scale = xp.exp(exponent * xp.constant(np.log(k), exponent))
            parts.append(scale * xp.matmul(xp.take(binomials, used, axis=-1), xp.constant(inverse, exponent)))
    return xp.concat(parts, axis=-1) * xp.exp(-xp.gammaln(1 + exponent))


def multiply(*factors: Polynomial) -> tuple[Fraction, ...]:
    """Return the product of polynomials given by their coefficients of 1, z, z**2, ..."""
    product: tuple[Fraction, ...] = (Fraction(1),)
    for factor in factors:
        out = [Fraction(0)] * (len(product) + len(factor) - 1)
        for i, a in enumerate(product):
            for j, b in enumerate(factor):
                out[i + j] += a * Fraction(b)
        product = tuple(out)
    return product


def differences(order: int) -> tuple[Fraction, ...]:
    """Return the coefficients of the polynomial (1 - z)**order, order >= 0."""
    return multiply(*[(1, -1)] * order)


@lru_cache(maxsize=256)
def _series(powers: tuple[Fraction, ...], moments: tuple[Fraction, ...], terms: int) -> np.ndarray:
    """Return the coefficients of C(P, r) k**(P - r), r < terms, in powers(z) F + moments(z) Q at a large lag k.

    C is the binomial coefficient, in (k + s)**P = sum over r of C(P, r) s**r k**(P - r). So each coefficient is what
    the polynomials make of s**r; it is computed in fractions and does not depend on P.
    """
    out = []
    for r in range(terms):
        total = sum((a * (1 - i) ** r for i, a in enumerate(powers)), Fraction(0))
        for i, a in enumerate(moments):
            mean = Fraction((1 - i) ** (r + 1) - (-i) ** (r + 1), r + 1)
            total += a * (mean - Fraction((1 - i) ** r + (-i) ** r, 2))
        out.append(float(total))
    return np.array(out)


def _binomials(exponent: Array, xp: Namespace, terms: int) -> Array:
    r = np.arange(1, terms, dtype=np.float64)
    ratios = (exponent + xp.constant(1 - r, exponent)) / xp.constant(r, exponent)
    return xp.concat([0 * exponent + 1, xp.cumulative_prod(ratios, axis=-1)], axis=-1)


def _head(exponent: Array, xp: Namespace, powers: tuple[Fraction, ...], moments: tuple[Fraction, ...]) -> Array:
    """Return powers(z) F + moments(z) Q of `power_weights` at lags below 16, [*c, 16], right also where they vanish.

    Where `powers` has a zero of order j + 1 at z = 1, powers(z) F vanishes at later lags as the exponent P nears j, or
    nears 0. There F_k = (k+1)**P is (k+1)**j (1 + expm1((P - j) log(k+1))), with j = 0 for P below 1/2: powers(z)
    applied to (k+1)**j is computed in fractions.
    """
    j = max(0, _zeros_at_one(powers) - 1)
    head = _near_power(j, exponent, xp, powers)
    if j:
        head = xp.where(exponent < 0.5, _near_power(0, exponent, xp, powers), head)
    if not moments:
        return head
    return head + xp.matmul(_cell_moments(exponent, xp), xp.constant(_toeplitz(moments), exponent))


def _near_power(j: int, exponent: Array, xp: Namespace, powers: tuple[Fraction, ...]) -> Array:
    """Return powers(z) F, F_k = (k + 1)**P, at the lags below 16, [*c, 16], without cancellation for P near j."""
    k = np.arange(1.0, _HEAD + 1)
    exact = [
        float(sum((a * (lag + 1 - i) ** j for i, a in enumerate(powers[: lag + 1])), Fraction(0)))
        for lag in range(_HEAD)
    ]
    grown = xp.expm1((exponent - j) * xp.constant(np.log(k), exponent)) * xp.constant(k**j, exponent)
    return xp.matmul(grown, xp.constant(_toeplitz(powers), exponent)) + xp.constant(np.array(exact), exponent)


def _zeros_at_one(polynomial: tuple[Fraction, ...]) -> int:
    """Return how many factors 1 - z a polynomial has; its coefficients begin with that of 1."""
    count, rest = 0, list(polynomial)
    while len(rest) > 1 and sum(rest) == 0:
        rest = [sum(rest[: i + 1], Fraction(0)) for i in range(len(rest) - 1)]
        count += 1
    return count


def _cell_moments(exponent: Array, xp: Namespace) -> Array:
    """Return Q_k, the error of the trapezoid rule for t**P on cell k, for k < 16: [*c, 16].

    It is exact for k = 0, for other cells by Gauss-Legendre quadrature.

    With t = k + s the rule is applied to k**P expm1(P log1p(s / k)), which is t**P - k**P: no digit is lost.
    """
    nodes, rule, log_k = _cell_quadrature()
    means = xp.matmul(xp.expm1(exponent * xp.constant(nodes, exponent)), xp.constant(rule, exponent))
    later = means * xp.exp(exponent * xp.constant(log_k, exponent))
    return xp.concat([1 / (1 + exponent) - 0.5, later], axis=-1)


@lru_cache(maxsize=1)
def _cell_quadrature() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log1p(s / k) at the points k + s of cells 1 to 15, one cell after the other, their weights, and log k.

    The weights are a matrix [points, cells], with -1/2 at the end of a cell for the trapezoid rule that Q subtracts.
    """
    points, weights = np.polynomial.legendre.leggauss(_CELL_POINTS)
    points, weights = np.append((points + 1) / 2, 1.0), np.append(weights / 2, -0.5)
    k = np.arange(1.0, _HEAD)
    return np.log1p(points / k[:, None]).ravel(), np.kron(np.eye(k.size), weights[:, None]), np.log(k)


@lru_cache(maxsize=256)
def _toeplitz(polynomial: tuple[Fraction, ...]) -> np.ndarray:
    """Return the matrix M [16, 16] with F M = polynomial(z) F for rows F [..., 16], the first 16 coefficients."""
    matrix = np.zeros((_HEAD, _HEAD))
    for i, a in enumerate(polynomial):
        matrix += float(a) * np.eye(_HEAD, k=i)
    return matrix
