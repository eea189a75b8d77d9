"""Schemes for D^a y = f(t, y): their weights, how far explicit ones are stable, and how implicit steps are solved.

Caputo's problem is y(t) = P(t) + I^a f, P the Taylor polynomial of y at the start. On a mesh every scheme here reads

    m_n[c] = P(t_n) + sum over j < n of W[c, n, j] f_j,        one memory for each of its sets of weights c,

and makes y_n of the memories and of the weight W[c, n, n] on f_n itself. On a uniform mesh W is Toeplitz but for the
first columns. The classes hold numbers and formulas; frameworks bring the loop.

An explicit scheme is stable up to a rate of decay that the root condition of its characteristic equation gives.
For D^a y = -rate y and s = dt**a rate, y_n = rho**n solves the scheme's sums, far from the start, where

    F(rho) = 1 + s (T - a_0) (1 + z + ... + z**(m - 1)) + s z**m R = 0,        z = -s a_0,

m the corrections, R and T the generating functions of the rectangle's and the trapezoid's weights in 1 / rho, and a_0
the weight of f_n. Both are polylogarithms: with L_p = sum over k > 0 of k**p / rho**k

    R = (1 - 1 / rho) L_a / Gamma(1 + a),        T = (rho - 2 + 1 / rho) L_(1 + a) / Gamma(2 + a).

The scheme is stable where no root lies outside of the unit circle, which the phase of F along the circle counts.

The weights of BDF2 are the coefficients of (3/2 - 2z + z**2/2)**-alpha. Two columns, on f_0 and f_1, make the rule
exact where f is constant or goes like t**alpha (above alpha = 1, like t), as the right-hand side of Caputo's problem
begins; the first step stays an equation for y_1 alone.

Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3; Garrappa, Mathematics 6 (2018) 16; Lubich, IMA J. Numer. Anal.
6 (1986) 87 and SIAM J. Math. Anal. 17 (1986) 704; Garrappa, Int. J. Comput. Math. 87 (2010) 2281 and Math. Comput.
Simul. 110 (2015) 96.

Shapes: a orders alpha, one row for each; columns of weights by lag, from 0 to n_steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import zeta

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.cells import constant_block, linear_block
from hpfracc_nn.fractional.schemes.differences import bdf2_weights
from hpfracc_nn.fractional.schemes.powers import differences, power_weights

TOLERANCES = {"float32": 1e-6, "float64": 1e-13}  # of a step's equation by dtype: last change, relative to the state
ROUNDING = 1e3  # times the dtype's tolerance: cancellation in a stiff f leaves changes up to this size
STALLED = 16  # times the dtype's eps: changes of this size are rounding alone where nothing cancels
LARGEST_DENSE = 4096  # entries of a state up to which its Jacobian is dense where GMRES does not converge: 128 MiB


@dataclass(frozen=True)
class Newton:
    """Newton's method with a factorised Jacobian that is kept as long as the iteration converges fast.

    States of up to `dense` numbers have a dense Jacobian, made row by row; larger ones are solved by GMRES with
    products only, and up to 4096 numbers by a dense Jacobian after all where GMRES does not converge. The gradient is
    that of the solution, by the implicit function theorem.

    Args:
        tolerance: The largest last change, relative to the largest number of the state; None is 1e-13 in float64 and
            1e-6 in float32.
        iterations: The most iterations of a step; a step that needs more raises a RuntimeError, and is NaN where JAX
            traces it.
        dense: Numbers of a state up to which its Jacobian is dense.

    Raises:
        ValueError: A number is out of range.
        TypeError: `iterations` or `dense` is no whole number.

    Source: Hairer & Wanner, Solving Ordinary Differential Equations II (1996), section IV.8; Saad & Schultz, SIAM J.
    Sci. Stat. Comput. 7 (1986) 856, for GMRES.

    Examples:
        >>> # (1 - 1/2) / (1 + 1/2)
        >>> fdeint(lambda t, y: -y, torch.ones(1), [0, 1], 1.0, scheme=Trapezoid(Newton()))[-1]
        tensor([0.3333])
    """

    tolerance: float | None = None
    iterations: int = 50
    dense: int = 1024

    def __post_init__(self) -> None:
        _check("Newton", self.tolerance, self.iterations)
        errors.count("Newton", "dense", self.dense, least=0)


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point iteration y <- m + w f(y): without f's Jacobian, but convergent only where w times its size is < 1.

    m is the memory and w, about dt**alpha, the weight of f at the new step.

    Args:
        tolerance: As in `Newton`.
        iterations: The most iterations of a step; a step that needs more raises a RuntimeError, and is NaN where JAX
            traces it.

    Raises:
        ValueError: A number is out of range.
        TypeError: `iterations` is no whole number.

    Examples:
        >>> fdeint(lambda t, y: -y, torch.ones(1), [0, 1], 1.0, scheme=Trapezoid(FixedPoint()))[
        ...     -1
        ... ]
        tensor([0.3333])
    """

    tolerance: float | None = None
    iterations: int = 200

    def __post_init__(self) -> None:
        _check("FixedPoint", self.tolerance, self.iterations)


Roots = Newton | FixedPoint


def _check(owner: str, tolerance: float | None, iterations: int) -> None:
    if tolerance is not None:
        errors.real(owner, "tolerance", tolerance, 0.0, above=True, example=1e-10)
    errors.count(owner, "iterations", iterations)


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a scheme on a uniform mesh.

    Attributes:
        columns: Weights by lag, from 0 on, [a, sets, n_steps + 1]: a orders alpha, and as many sets as the scheme has
            memories.
        starts: What the weights of the first k right-hand sides have beside `columns` at each step,
            [a, sets, n_steps + 1, k], or None.
    """

    columns: Array
    starts: Array | None


class Scheme(Protocol):
    """A scheme for D^a y = f(t, y): one way to take steps; a frozen value.

    Attributes:
        name: The name by which a caller selects the scheme.
        sets: How many memories, weighted sums over the past, a step needs.
        is_implicit: Whether a step solves an equation for y_n.
        needs_uniform: Why the scheme needs a uniform mesh, for messages; None if it takes any mesh.

    Examples:
        >>> from hpfracc_nn.fractional.namespace import NUMPY
        >>> scheme = Trapezoid()
        >>> scheme.order(0.5), scheme.is_implicit
        (1.5, True)
        >>> weights = scheme.weights(np.array([1.0]), 3, 0.1, NUMPY)
        >>> # the trapezoid rule, half a step to f_0 and to f_n
        >>> weights.columns[0, 0], weights.starts[0, 0, :, 0]
        (array([0.05, 0.1 , 0.1 , 0.1 ]), array([ 0.  , -0.05, -0.05, -0.05]))
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...
    @property
    def sets(self) -> int: ...
    @property
    def is_implicit(self) -> bool: ...
    @property
    def needs_uniform(self) -> str | None: ...

    def order(self, alpha: float) -> float:
        """Return the order of convergence at a fixed time on a uniform mesh, for y that begins like t**alpha."""
        ...

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return the weights for orders alpha [a] on a uniform mesh."""
        ...

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """Return the weights W on any mesh, of right-hand sides `columns` at steps `rows`, [a, sets, rows, columns].

        `times` are the times of the mesh points, [n_steps + 1].
        """
        ...


def lags(n_steps: int) -> np.ndarray:
    """Return 0, 1, ..., n_steps."""
    return np.arange(n_steps + 1)


def scaled(weights: Array, alpha: Array, dt: float, xp: Namespace) -> Array:
    """Return weights [a, k] times dt**alpha."""
    return weights * xp.exp(alpha * float(np.log(dt)))[..., None]


_ANGLES = np.pi * np.linspace(0, 1, 402)[1:] ** 4  # close to 0, where roots first come through 1
_TERMS = 60  # terms of a series whose terms halve
_SMALLEST, _FACTOR = 1e-3, 1.1  # the first s that is tried, and the factor to the next
_HALVINGS = 40


@lru_cache(maxsize=256)
def largest_decay(alpha: float, corrections: int) -> float:
    """Return the largest s = dt**alpha * rate up to which an explicit scheme is stable; 0 where it is for none.

    The root condition of the module's docstring is tested at each s that is tried.

    Args:
        alpha: The order.
        corrections: The number m of corrections; 0 is the rectangle rule alone.
    """
    own = 1 / math.gamma(2 + alpha)
    half = np.sin(_ANGLES / 2)  # from it 1 - 1 / rho keeps its digits towards rho = 1, where subtracting loses all
    first = 2j * half * np.exp(-0.5j * _ANGLES)  # 1 - 1 / rho
    predictor = first * _polylogarithm(alpha) / math.gamma(1 + alpha)
    corrector = -4 * half**2 * _polylogarithm(1 + alpha) * own - own
    bounded = first**alpha  # predictor and corrector grow like 1 / bounded towards 1; it has no roots outside

    def is_stable(s: float) -> bool:
        z = -s * own
        found = s * z**corrections * predictor
        if corrections:
            found = found + s * corrector * sum(z**k for k in range(corrections))
        found = bounded * (1 + found)
        return abs(np.angle(found[1:] / found[:-1]).sum()) < 1  # the phase's change is nearly a multiple of pi

    low, high = 0.0, _SMALLEST
    while is_stable(high):
        low, high = high, _FACTOR * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(middle) else (low, middle)
    return low


def _polylogarithm(power: float) -> np.ndarray:
    """Return `sum over k > 0 of k**power exp(-i k angle)` at the angles of `_ANGLES`, by the series about angle 0.

    The series converges for angles up to 2 pi.

    Source: DLMF 25.12.12.
    """
    terms = np.arange(_TERMS)
    factors = zeta(-power - terms) / np.array([math.factorial(k) for k in range(_TERMS)], dtype=float)
    series = (factors * (-1j * _ANGLES[:, None]) ** terms).sum(-1)
    return math.gamma(1 + power) * (1j * _ANGLES) ** (-1 - power) + series


@dataclass(frozen=True)
class Rectangle:
    """`y_n = P_n + dt**a sum_(j<n) b_(n-1-j) f_j`, `b_k = [(k + 1)**a - k**a] / Gamma(1 + a)`: Euler's method at a = 1.

    One evaluation a step, first order; unstable where dt**alpha times the size of the Jacobian is much above 1.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, equation (13).

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 101),
        ...     0.5,
        ...     scheme=Rectangle(),
        ... )
        >>> y[-1] - mittag_leffler(-1.0, 0.5)
        tensor([-0.0008], dtype=torch.float64)
        >>> round(Rectangle().stability(1.0), 6)  # of Euler's method
        2.0
    """

    name: ClassVar[str] = "rectangle"
    sets: ClassVar[int] = 1
    is_implicit: ClassVar[bool] = False
    needs_uniform: ClassVar[str | None] = None

    def order(self, alpha: float) -> float:
        """Return the order of convergence, 1."""
        return 1.0

    def stability(self, alpha: float) -> float:
        """Return the largest dt**alpha * rate with which the scheme is stable for a decay, D^alpha y = -rate y.

        Up to alpha = 1 the limit is where the characteristic function has a root at -1, so that steps alternate:
        Gamma(1 + alpha) / (2 eta(-alpha)), eta Dirichlet's function; 2 at alpha = 1, as for Euler's method, and 1 as
        alpha goes to 0. From 1.4 on roots leave the unit circle elsewhere, and at 2 there is no such rate.

        Source: Lubich, IMA J. Numer. Anal. 6 (1986) 87.
        """
        if alpha > 1:
            return largest_decay(alpha, 0)
        alternating = cohen_sum(lambda k: (k + 1) ** alpha - k**alpha)
        return math.gamma(1 + alpha) / alternating

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return the rectangle rule's weights for orders alpha [a] on a uniform mesh, without starts."""
        return Weights(xp.stack([predictor(alpha, n_steps, dt, xp)], axis=-2), None)

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """Return the rectangle rule's weights on any mesh: see `Scheme.block`."""
        return constant_block(alpha, times, rows, columns, xp)[:, None]


def cohen_sum(term: Callable[[int], float], count: int = 24) -> float:
    """Return the alternating sum of term(k), k from 0 on, of a totally monotone sequence; to 1e-15 with 24 terms.

    Source: Cohen, Rodriguez Villegas & Zagier, Exp. Math. 9 (2000) 3, algorithm 1.
    """
    d = (3 + math.sqrt(8)) ** count
    d = (d + 1 / d) / 2
    b, c, total = -1.0, -d, 0.0
    for k in range(count):
        c = b - c
        total += c * term(k)
        b *= (k + count) * (k - count) / ((k + 0.5) * (k + 1))
    return total / d


def predictor(alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Array:
    """Return the weights of the rectangle rule by lag, [a, n_steps + 1]: dt**alpha times 0, b_0, b_1, ..."""
    alpha = xp.asarray(alpha)
    cells = power_weights(alpha, lags(n_steps - 1), xp, differences(1))
    return scaled(xp.concat([0 * alpha[..., None], cells], axis=-1), alpha, dt, xp)


@dataclass(frozen=True)
class Trapezoid:
    """y_n = P_n + dt**a (a_0 f_n + sum_(0<j<n) a_(n-j) f_j + c_n f_0): the implicit trapezoid rule at a = 1.

    For stiff problems. Order min(2, 1 + alpha) on a uniform mesh where y begins like t**alpha, 2 on a graded one.

    Args:
        roots: How the equation of a step is solved.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, equation (8); Garrappa, Mathematics 6 (2018) 16.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -100 * y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 101),
        ...     0.5,
        ...     scheme=Trapezoid(),
        ... )
        >>> # where the rectangle rule is stable up to a rate of 11
        >>> y[-1] - mittag_leffler(-100.0, 0.5)
        tensor([-6.6e-05], dtype=torch.float64)
    """

    roots: Roots = field(default_factory=Newton)
    name: ClassVar[str] = "trapezoid"
    sets: ClassVar[int] = 1
    is_implicit: ClassVar[bool] = True
    needs_uniform: ClassVar[str | None] = None

    def order(self, alpha: float) -> float:
        """Return the order of convergence, min(2, 1 + alpha), for y that begins like t**alpha."""
        return min(2.0, 1 + alpha)

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return the trapezoid rule's weights for orders alpha [a] on a uniform mesh, with starts for f_0."""
        column, start = corrector(alpha, n_steps, dt, xp)
        return Weights(xp.stack([column], axis=-2), start[:, None, :, None])

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """Return the trapezoid rule's weights on any mesh: see `Scheme.block`."""
        return linear_block(alpha, times, rows, columns, xp)[:, None]


def corrector(alpha: Array, n_steps: int, dt: float, xp: Namespace) -> tuple[Array, Array]:
    """Return the weights dt**alpha a_k of the trapezoid rule by lag, and the correction of f_0's weight at each step.

    The correction makes the rule exact for constants. Both have shape [a, n_steps + 1].
    """
    alpha = xp.asarray(alpha)
    column = power_weights(1 + alpha, lags(n_steps), xp, differences(2))
    return scaled(column, alpha, dt, xp), scaled(_start(alpha, n_steps, xp), alpha, dt, xp)


def _start(alpha: Array, n_steps: int, xp: Namespace) -> Array:
    """Return the correction of the trapezoidal weights for f_0 at step n, `n**a / Gamma(1 + a) - (a_0 + ... + a_n)`.

    The correction makes the rule exact for constants. Shape [a, n_steps + 1], at unit step; 0 at step 0.
    """
    n = lags(n_steps)[1:]
    power = alpha[..., None]
    exact = xp.exp(power * xp.constant(np.log(n), power) - xp.gammaln(1 + power))
    sums = power_weights(1 + alpha, n, xp, differences(1))
    return xp.concat([0 * power, exact - sums], axis=-1)


@dataclass(frozen=True)
class PredictorCorrector:
    """PECE: predict y_n by the rectangle rule, then correct it `corrections` times by the trapezoid rule.

    Both are sums over all of the past, also at a = 1: the predictor begins at y_0 there and not at y_(n-1), so that
    only the first step is Heun's.

    Order min(2, 1 + alpha) with one correction. Where alpha is small, ceil(1 / alpha) of them keep the predictor's
    error below the corrector's on a graded mesh too (Garrappa, Int. J. Comput. Math. 87 (2010) 2281).

    Args:
        corrections: How often a step is corrected; each costs one evaluation.

    Raises:
        ValueError: `corrections` is not positive.
        TypeError: `corrections` is no whole number.

    Source: Diethelm, Ford & Freed, Numer. Algorithms 36 (2004) 31.

    Examples:
        >>> ts = np.linspace(0, 1, 101)
        >>> y = fdeint(
        ...     lambda t, y: -y, torch.ones(1).double(), ts, 0.5, scheme=PredictorCorrector()
        ... )
        >>> y[-1] - mittag_leffler(-1.0, 0.5)
        tensor([2.9e-05], dtype=torch.float64)
    """

    corrections: int = 1
    name: ClassVar[str] = "predictor_corrector"
    sets: ClassVar[int] = 2
    is_implicit: ClassVar[bool] = False
    needs_uniform: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        errors.count("PredictorCorrector", "corrections", self.corrections)

    def order(self, alpha: float) -> float:
        """Return the order of convergence, min(2, 1 + alpha), for y that begins like t**alpha."""
        return min(2.0, 1 + alpha)

    def stability(self, alpha: float) -> float:
        """Return the largest dt**alpha * rate with which the scheme is stable for a decay, D^alpha y = -rate y.

        With an odd number of corrections the limit is Gamma(2 + alpha) up to alpha = 1.6, where the characteristic
        function has a root at 1: unstable solutions grow without alternating.
        """
        return largest_decay(alpha, self.corrections)

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return the predictor's weights, then the corrector's, for orders alpha [a] on a uniform mesh."""
        column, start = corrector(alpha, n_steps, dt, xp)
        columns = xp.stack([predictor(alpha, n_steps, dt, xp), column], axis=-2)
        return Weights(columns, xp.stack([0 * start, start], axis=-2)[..., None])

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """Return the predictor's weights, then the corrector's, on any mesh: see `Scheme.block`."""
        parts = [rule(alpha, times, rows, columns, xp) for rule in (constant_block, linear_block)]
        shape = parts[0].shape
        flat = [part.reshape(shape[0], -1) for part in parts]
        return xp.stack(flat, axis=-2).reshape(shape[0], 2, *shape[1:])


@dataclass(frozen=True)
class BDF2:
    """y_n = P_n + dt**a (sum_(j<=n) omega_(n-j) f_j + w_n0 f_0 + w_n1 f_1): BDF2 after a trapezoid step at a = 1.

    For stiff problems: A-stable for alpha <= 1. Order min(2, 1 + 2 alpha) where y begins like t**alpha. Steps must be
    equal: another mesh is a ValueError of the solve.

    Args:
        roots: How the equation of a step is solved.

    Source: Lubich, SIAM J. Math. Anal. 17 (1986) 704; Garrappa, Math. Comput. Simul. 110 (2015) 96.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -100 * y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 101),
        ...     0.5,
        ...     scheme=BDF2(),
        ... )
        >>> # where the rectangle rule is stable up to a rate of 11
        >>> y[-1] - mittag_leffler(-100.0, 0.5)
        tensor([1.2e-05], dtype=torch.float64)
    """

    roots: Roots = field(default_factory=Newton)
    name: ClassVar[str] = "bdf2"
    sets: ClassVar[int] = 1
    is_implicit: ClassVar[bool] = True
    needs_uniform: ClassVar[str | None] = "a convolution quadrature knows equal steps only"

    def order(self, alpha: float) -> float:
        """Return the order of convergence, min(2, 1 + 2 alpha), for y that begins like t**alpha."""
        return min(2.0, 1 + 2 * alpha)

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return the weights of BDF2 for orders alpha [a] on a uniform mesh, with starts for f_0 and f_1."""
        alpha = xp.asarray(alpha)
        omega = bdf2_weights(-alpha, 1, 0, lags(n_steps), xp)
        starts = _starts(alpha, omega, n_steps, xp)
        columns = scaled(omega, alpha, dt, xp)
        flat = scaled(starts, alpha, dt, xp).reshape(columns.shape[0], 1, 2, n_steps + 1)
        return Weights(xp.stack([columns], axis=-2), flat.swapaxes(2, 3))

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """Raise NotImplementedError: BDF2 has weights on a uniform mesh only."""
        raise NotImplementedError(f"bdf2 on a mesh that is not uniform: {self.needs_uniform}.")


def _starts(alpha: Array, omega: Array, n_steps: int, xp: Namespace) -> Array:
    """Return the starting weights of BDF2: those of f_0 at all steps, then those of f_1, [a, 2 (n_steps + 1)].

    Added to `omega`, the convolution's weights by lag [a, n_steps + 1] at unit step, the starting weights make the rule
    exact for 1 and `t**min(alpha, 1)`.
    """
    alpha = alpha[..., None]
    exponent = xp.where(alpha <= 1, alpha, 0 * alpha + 1)  # min(alpha, 1), with the slope from the left where they meet
    log_n = xp.constant(np.log(lags(n_steps)[1:]), alpha)
    powers = xp.concat([0 * alpha, xp.exp(exponent * log_n)], axis=-1)  # n**exponent
    exact = xp.exp(xp.gammaln(1 + exponent) - xp.gammaln(1 + exponent + alpha) + (exponent + alpha) * log_n)
    second = xp.concat([0 * alpha, exact], axis=-1) - xp.convolve(omega, powers)
    constant = xp.concat([0 * alpha, xp.exp(alpha * log_n - xp.gammaln(1 + alpha))], axis=-1)
    ones = 0 * powers + 1
    first = constant - xp.convolve(omega, ones) - second
    after = xp.constant((lags(n_steps) > 0).astype(np.float64), alpha)  # nothing at step 0
    return xp.concat([first * after, second * after], axis=-1)


SCHEMES: dict[str, type[Rectangle] | type[PredictorCorrector] | type[Trapezoid] | type[BDF2]] = {
    scheme.name: scheme for scheme in (Rectangle, PredictorCorrector, Trapezoid, BDF2)
}
