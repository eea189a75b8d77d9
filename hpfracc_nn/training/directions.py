"""Directions of fractional optimizers, in every framework: weights of past gradients, Caputo's derivative, options.

With r = 1 - alpha and GL_r(j), the coefficient of z**j in (1 - z)**r (Grünwald's weights, `schemes/differences.py`):

    integral     w_j = GL_(-r)(j): the weights of the fractional integral of order 1 - alpha, all positive, about
                 j**-alpha / Gamma(1 - alpha); divided by their sum, which makes them an average
    difference   w_j = GL_r(j): those of the fractional derivative of order 1 - alpha, 1 and then all negative; their
                 sum over K lags is prod_(j<K) (1 - r / j), between 0 and 1, about K**-r / Gamma(alpha)
    fcgd         w_j = (1 - (alpha + 1) / (j + 1)) w_(j-1) = GL_(alpha-1)(j) / (j + 1): all positive; their sum over K
                 lags is (1 - GL_(alpha-1)(K)) / alpha, between 1 and 1 / alpha

Each is 1, 0, 0, ... at alpha = 1.

The four exponentials stand for the integral's weights, tempered: k_0 = 1 and k_j = sum_q c_q exp(-rate_q (j - 1)) for
j >= 1, about w_j exp(-j / 50). The sum of exponentials is an approximation, and of a law that is cut off: gradients
much more than 50 steps back hardly count, where the power law would go on. The rates do not depend on alpha, so that
the moving averages that are kept remain valid when alpha changes; the rates come from a numerical search for a small
relative error over alpha, and are not shown to be the best. Measured for alpha from 0.01 to 1, k_j differs from
w_j exp(-j / 50) by less than 4 % at every lag up to 100, and the two, divided by their sums, by less than 1.3 % in all
(half the sum of the absolute differences, over all lags).

Sources: Oldham & Spanier (1974), section 3.4 (integral, difference); Zhou, Zhao & Huang, Mathematics 11(2) 316 (2023)
(fcgd); Sabzikar, Meerschaert & Chen, J. Comput. Phys. 293 (2015) 14 (tempering).

Directions may also be made of Caputo's derivative of the loss along the way of the parameters, to reproduce papers.

`caputo` is the closed form with the previous point as moving terminal, first term of the series:

    direction_t = gradient_t * abs(theta_t - theta_(t-1))**(1 - alpha) / Gamma(2 - alpha)

An optimizer with this direction can only converge to points where the gradient is zero, but near such points each step
shrinks with the length of the step before, and the optimizer stalls. A tensor that did not move at all, as under a
learning rate of 0, takes the gradient as it is, as at the first step, or the tensor would stay for good. Source: Wei,
Kang, Yin & Wang, J. Franklin Inst. 357(4) 2514 (2020).

`caputo_terminal` is Caputo's derivative from the fixed terminal 0, along the straight line from there to theta:

    direction = abs(theta)**(1 - alpha) / Gamma(1 - alpha) * integral_0^1 gradient(s theta) (1 - s)**-alpha ds

by Gauss-Jacobi quadrature, whose nodes are the eigenvalues of a small matrix, and the weights squares of the first
entries of its eigenvectors. Where the loss is a sum over coordinates this is the derivative in each coordinate. The
direction vanishes at another point than the gradient: at 3 (2 - alpha) for (theta - 3)**2 / 2. A step takes the
gradients at `NODES` more points. Sources: Shin, Darbon & Karniadakis, arXiv 2104.02259, section 2; Golub & Welsch,
Math. Comp. 23 (1969) 221.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np

from hpfracc_nn.errors import as_float, as_index
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.schemes.differences import binomial

RATES = (1.38, 0.24, 0.0385, 0.0014)  # per step, before tempering
TEMPER = 50.0  # steps
FITTED = 100  # lags


@dataclass(frozen=True)
class Law:
    """The law by which a kind of average weighs past gradients.

    Args:
        weights: Called as weights(alpha, count, xp); returns the weights of lags 0 to count - 1, [*alpha, count].
        is_normalised: Whether the weights are divided by their sum.
        drops: Whether one of the past gradients, drawn at random, is left out at each step.
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
    """Return the logarithm of the factor by which each exponential fades in a step: shape [4], float64."""
    return -np.array(RATES) - 1 / TEMPER


def decays() -> np.ndarray:
    """Return the factor by which each exponential fades in a step: shape [4], float64."""
    return np.exp(log_decays())


@lru_cache(maxsize=256)
def coefficients(alpha: float) -> np.ndarray:
    """Return the coefficients c_q of the exponentials, which are their values at lag 1: shape [4], float64."""
    matrix, target, scale = fit_problem(alpha, NUMPY)
    return scale * np.linalg.lstsq(matrix, target)[0]


def fit_problem(alpha: Array, xp: Namespace) -> tuple[Array, np.ndarray, Array]:
    """Return (matrix, target, scale) of the fit of the exponentials to the integral's weights.

    The coefficients c_q are the scale times the least-squares solution of matrix x = target. The fit is to the weights
    divided by 1 - alpha, GL_(alpha-2)(j - 1) / j, which do not vanish at alpha = 1: there the scale is 0, and no
    derivative is lost.

    Shapes: alpha [*c], matrix [*c, 100, 4], target [100], scale [*c].
    """
    alpha = xp.asarray(alpha)
    lags = np.arange(1, FITTED + 1)
    weights = binomial(alpha - 2, lags - 1, xp)
    octaves = 1 / np.sqrt(lags)  # every octave of lags counts alike
    shapes = np.exp(-np.array(RATES) * (lags[:, None] - 1)) * (lags * octaves)[:, None]
    return xp.constant(shapes, weights) / weights[..., None], octaves, (1 - alpha) * np.exp(-1 / TEMPER)


NODES = 8  # exact for gradients that are polynomials of degree 15 along the line


def quadrature(alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes in (0, 1] and the weights of Gauss-Jacobi quadrature, [8] each.

    The quadrature is for integrals over s in (0, 1) with the factor (1 - s)**-alpha; the weights have the sum 1.
    """
    nodes, vectors = np.linalg.eigh(jacobi_matrix(alpha, NUMPY))
    return nodes, vectors[0] ** 2


def jacobi_matrix(alpha: Array, xp: Namespace) -> Array:
    """Return the symmetric tridiagonal matrix whose eigenvalues are the nodes of `quadrature`.

    At alpha = 1 its first row holds nothing but a 1 on the diagonal: that node has all the weight.

    Shapes: alpha [*c], result [*c, 8, 8].
    """
    a = xp.asarray(alpha)[..., None]
    k = xp.constant(np.arange(1.0, NODES), a)
    even = 2 * k - a
    diagonal = xp.concat([a / (2 - a), -(a**2) / (even * (even + 2))], axis=-1)  # of Jacobi's polynomials on (-1, 1)
    later = 4 * k[1:] ** 2 * (k[1:] - a) ** 2 / (even[..., 1:] ** 2 * (even[..., 1:] ** 2 - 1))
    first = 4 * (1 - a) / ((2 - a) ** 2 * (3 - a))  # without the factor 1 - a that would make it 0 / 0
    roots = xp.concat([first, later], axis=-1) ** 0.5  # not of the 0, where a root has no slope
    beside = xp.concat([roots, 0 * a], axis=-1)
    above, below = (xp.constant(np.eye(NODES, k=side), a) for side in (1, -1))
    matrix = (
        diagonal[..., None] * xp.constant(np.eye(NODES), a) + beside[..., None] * above + beside[..., None, :] * below
    )
    return (xp.constant(np.eye(NODES), a) + matrix) / 2


EXPONENTIALS = "exponentials"
IN_RANGE = "needs 0 < alpha <= 1; pass alpha=1 for the base optimizer"


def check_alpha(alpha: Any) -> None:
    """Raise an error unless an order alpha is a number in (0, 1].

    Raises:
        TypeError: alpha is no number.
        ValueError: alpha is not in (0, 1].
    """
    order = as_float(alpha)
    if order is None:
        raise TypeError(f"Invalid alpha type: {type(alpha).__name__}: needs a number; pass a float such as alpha=0.9")
    if not 0 < order <= 1:
        raise ValueError(f"Invalid alpha value: {alpha}: {IN_RANGE}")


def check_kind(kind: Any, kinds: Iterable[str]) -> None:
    """Raise ValueError unless `kind`, an optimizer's option, is one of the names `kinds`."""
    names = tuple(kinds)
    if not (isinstance(kind, str) and kind in names):
        raise ValueError(f"Invalid kind: {kind!r}: needs one of {', '.join(map(repr, names))}; pass one of these names")


def check_memory(memory: Any) -> None:
    """Raise an error unless `memory`, an optimizer's option, is a whole number of at least 1, or "exponentials".

    Raises:
        TypeError: `memory` is neither a whole number nor "exponentials".
        ValueError: `memory` is less than 1, or 2**63 or more.
    """
    if isinstance(memory, str) and memory == EXPONENTIALS:
        return
    length = as_index(memory) if isinstance(memory, Integral) else None
    if length is None:
        raise TypeError(
            f"Invalid memory type: {type(memory).__name__}: needs a whole number or {EXPONENTIALS!r}; "
            "pass the number of gradients to average, such as memory=10"
        )
    if length > sys.maxsize:
        raise ValueError(f"Invalid memory value: {memory}: needs memory < 2**63; pass such as memory=10")
    if length < 1:
        raise ValueError(
            f"Invalid memory value: {memory}: needs memory >= 1; pass the number of gradients to average, such as "
            "memory=10"
        )


def cannot_fade(kind: str) -> str:
    """Return the error message for memory="exponentials" with a kind of average whose weights are no such sum."""
    return (
        f"Invalid memory value: {EXPONENTIALS!r} with kind {kind!r}: exponentials stand for the "
        "weights of kind='integral'; pass the number of gradients, such as memory=10"
    )


def keeps_no_gradients(kind: str) -> str:
    """Return the error message for memory="exponentials" with a kind that is no average."""
    return (
        f"Invalid memory value: {EXPONENTIALS!r} with kind {kind!r}, which keeps no past gradients; pass "
        "a number, such as memory=10, which it leaves unused"
    )
