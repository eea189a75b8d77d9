"""The Mittag-Leffler function and its derivatives: one contour for all points, poles taken into account exactly.

    E(z) = sum_k z**k / Gamma(alpha k + beta) = 1 / (2 pi i) int exp(s) s**(alpha - beta) / (s**alpha - z) ds

Everything is written for F[m, n] = d^m/dz^m d^n/dbeta^n E, of orders m and n, a family that is closed under
differentiation:

    d/dz F[m, n] = F[m + 1, n],    d/dbeta F[m, n] = F[m, n + 1],
    d/dalpha F[m, n] = z F[m + 1, n + 1] + m F[m, n + 1].

In the integral F has m! s**(alpha - beta) (-log s)**n / (s**alpha - z)**(m + 1). The trapezoidal rule on a parabola
that does not depend on z converges as fast as if there were no poles once each pole's error is added in closed form:
with w = z**(1/alpha) on its branch and u the point of the parabola's plane that is mapped to w,

    E = rule + sum over |arg w| <= pi of w**(1 - beta) exp(w) / alpha * 1 / (1 - exp(-2 pi i u / h)).

The last factor is 1 where w lies far to the right of the parabola and 0 far to the left. A pole next to a node would
leave the difference of two large terms, so the nodes are shifted by h / 2 where that takes them further away.
For |z| >= 1 the first term of the expansion at infinity is taken out of the integral, which keeps the relative accuracy
where it vanishes (beta = alpha). For |z| <= 1/8 the series is summed.

Garrappa, Numerical evaluation of two and three parameter Mittag-Leffler functions, SIAM J. Numer. Anal. 53 (2015),
for the parabola; Matta & Reichel, Math. Comp. 25 (1971), for the poles.

The parabola is s(u) = MU (1 + i u)**2 and the step h = 2 pi / RATE. At the vertex the integrand is exp(MU) times f,
which is what rounding costs. A branch point at s = 0 costs about exp(-RATE) (RATE**2 / MU)**p / Gamma(2 p) where f
behaves like s**-p there; the nodes end where exp(s) is exp(-TAIL). Truncated Taylor series are lists of coefficients,
each an array, the lowest order first.

Weideman & Trefethen, Parabolic and hyperbolic contours for computing the Bromwich integral, Math. Comp. 76 (2007), for
the nodes; Griewank & Walther, Evaluating Derivatives (2008), section 13.2, for the series.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import comb
from typing import Any, NamedTuple

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace

Nodes = Callable[[Array, Array, slice], tuple[Array, Array]]

_RADIUS = 1 / 8  # of the series
_TERMS = 20  # 8**-20 = 1e-18


class Options(NamedTuple):
    """Settings of the computation of F, on which its values depend by rounding only.

    Attributes:
        poles: How many poles a point may have, 1 or 2; 1 is enough where no alpha is above 1.
        block: For how many points at once the integrand is kept: 39 complex numbers each, 77 for complex z.
        is_differentiated: Whether the formula will be differentiated as it stands. Elementary functions are then no
            special case: their formula does not hold beside their alpha and beta.
    """

    poles: int = 2
    block: int = 256
    is_differentiated: bool = False


ALONE = Options()


def partial_derivative(
    z: Array, alpha: Array, beta: Array, m: int, n: int, xp: Namespace, options: Options = ALONE
) -> Array:
    """Return F[m, n], the m-th derivative in z and n-th in beta of the Mittag-Leffler function E_(alpha, beta), at `z`.

    Args:
        z: float64 or complex128, shape [points].
        alpha: float64, shape [points] or [], in (0, 2]; anything else gives no sensible result.
        beta: float64, shape [points] or [], in [-1, 5].
        m: Order of the derivative in z.
        n: Order of the derivative in beta.
        xp: The namespace of the arrays.
        options: Settings of the computation.

    Returns:
        Shape and dtype of `z`.
    """
    is_near = xp.abs(z) <= _RADIUS
    near = _series(xp.where(is_near, z, 0.0), alpha, beta, m, n, xp)
    # Where the series is summed alpha may be 0, of which the poles would make a NaN in the second derivative.
    order = xp.where(alpha == 0, 1.0, alpha)
    return xp.where(is_near, near, _integral(xp.where(is_near, 1.0, z), order, beta, m, n, xp, options))


def is_wrong_alpha(alpha: Any) -> Any:
    """Return whether alpha, or each entry of it, is outside (0, 2]; NaN counts as inside, and gives NaN."""
    return (alpha <= 0) | (alpha > 2)


def is_wrong_beta(beta: Any) -> Any:
    """Return whether beta, or each entry of it, is outside [-1, 5]; NaN counts as inside."""
    return (beta < -1) | (beta > 5)


def check(owner: str, alpha: float, beta: float) -> None:
    """Raise ValueError if alpha is outside (0, 2] or beta outside [-1, 5]."""
    if is_wrong_alpha(alpha):
        raise ValueError(
            f"{owner}(alpha={alpha:g}): needs 0 < alpha <= 2; for a larger alpha average "
            "E_(alpha/m, beta) over the m-th roots of z."
        )
    if is_wrong_beta(beta):
        raise ValueError(
            f"{owner}(beta={beta:g}): needs -1 <= beta <= 5; come there by "
            "z E_(alpha, beta)(z) = E_(alpha, beta - alpha)(z) - 1 / Gamma(beta - alpha)."
        )


def check_each(owner: str, alpha: np.ndarray, beta: np.ndarray) -> None:
    """Raise ValueError for the first alpha or beta that is outside its range."""
    for wrong in alpha[is_wrong_alpha(alpha)][:1]:
        check(owner, float(wrong), 1.0)
    for wrong in beta[is_wrong_beta(beta)][:1]:
        check(owner, 1.0, float(wrong))


def combined(z: Array, derivative: tuple[int, int, int], member: Callable[[int, int], Array]) -> Array:
    """Return the derivative of E of these orders in z, alpha and beta, where `member` computes F[m, n] at z."""
    return sum(c * z**power * member(m, n) for (power, m, n), c in combination(derivative).items())


def combination(derivative: tuple[int, int, int]) -> dict[tuple[int, int, int], int]:
    """Return {(p, m, n): c} such that E's derivative of these orders in z, alpha, beta is the sum of c z**p F[m, n]."""
    in_z, in_alpha, in_beta = derivative
    terms = {(0, 0, in_beta): 1}
    for _ in range(in_alpha):
        terms = _collected(
            [((p + 1, m + 1, n + 1), c) for (p, m, n), c in terms.items()]
            + [((p, m, n + 1), c * m) for (p, m, n), c in terms.items()]
        )
    for _ in range(in_z):
        terms = _collected(
            [((p - 1, m, n), c * p) for (p, m, n), c in terms.items()]
            + [((p, m + 1, n), c) for (p, m, n), c in terms.items()]
        )
    return terms


def _collected(terms: list[tuple[tuple[int, int, int], int]]) -> dict[tuple[int, int, int], int]:
    found: dict[tuple[int, int, int], int] = {}
    for key, c in terms:
        found[key] = found.get(key, 0) + c
    return {key: c for key, c in found.items() if c}


def _series(z: Array, alpha: Array, beta: Array, m: int, n: int, xp: Namespace) -> Array:
    k = np.arange(m, m + _TERMS + 1.0)
    powers = np.array([math.perm(int(power), m) for power in k], dtype=np.float64)
    coefficients = xp.constant(powers, alpha) * reciprocal_gamma(
        alpha[..., None] * xp.constant(k, alpha) + beta[..., None], n, xp
    )
    total = coefficients[..., -1] + 0 * z
    for i in reversed(range(_TERMS)):
        total = total * z + coefficients[..., i]
    return total


def _integral(z: Array, alpha: Array, beta: Array, m: int, n: int, xp: Namespace, options: Options) -> Array:
    is_far = xp.abs(z) >= 1
    found = poles_of(z, alpha, xp, options.poles)
    is_shifted = away_from(found, xp)
    total = _rule(z, alpha, beta, m, n, is_shifted, is_far, xp, options.block)
    # exp, cosh, sinh, cos, sin: poles and finitely many powers of 1 / z, beyond the first none for beta <= 2 alpha.
    is_whole = ((alpha == 1) | (alpha == 2)) & (beta == xp.floor(beta)) & (beta <= 2 * alpha)
    is_elementary = is_whole & is_far & (n == 0 and not options.is_differentiated)
    total = xp.where(is_elementary, 0.0, total)
    for pole in found:
        residue = pole_residue(z, pole, alpha, beta, m, n, is_shifted, is_elementary, xp)
        total = total + xp.where(pole.counts, residue, 0.0)
    lead = reciprocal_gamma(beta - alpha, n, xp) * (-1) ** (m + 1) * math.factorial(m) * z ** (-1 - m)
    total = total + xp.where(is_far, lead, 0.0)
    return total if xp.iscomplexobj(z) else total.real


def _rule(
    z: Array, alpha: Array, beta: Array, m: int, n: int, is_shifted: Array, is_far: Array, xp: Namespace, block: int
) -> Array:
    """Return the part of F[m, n] at z [points] that is the trapezoidal rule; the poles' terms are no part of it.

    Args:
        z: Nowhere 0.
        alpha: [points] or [].
        beta: [points] or [].
        m: Order of the derivative in z.
        n: Order of the derivative in beta.
        is_shifted: For which points the nodes are shifted by h / 2, [points].
        is_far: For which points the first term at infinity is taken out of the integral, [points].
        xp: The namespace of z.
        block: How many points are evaluated together.
    """
    nodes = (_shared_nodes if alpha.ndim == beta.ndim == 0 else _own_nodes)(alpha, beta, n, xp.iscomplexobj(z), xp)
    inverse = 1 / z
    # The m-th derivative of 1 / (z (s - z)) / m! is the sum over i of -(-1 / z)**(i + 1) (s - z)**-(m + 1 - i).
    factors = [xp.where(is_far, -((-inverse) ** (i + 1)), float(i == 0)) for i in range(m + 1)]
    sums = []
    for begin in range(0, z.shape[0], block):
        part = slice(begin, begin + block)
        base, weights = nodes(1 * is_shifted[part], 1 * is_far[part], part)
        difference, total = base - z[part, None], 0.0
        for factor in reversed(factors):
            weights = weights / difference
            total = total + factor[part] * xp.sum(weights, axis=-1)
        sums.append(total)
    return math.factorial(m) * xp.concat(sums, axis=-1)


def _constants(n: int, is_complex: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return log s and the weights times (-log s)**n at the nodes s of the quadrature, [2, nodes] each.

    Row 0 is for the nodes as they are, row 1 for those shifted by h / 2. n is the order of the derivative in beta. For
    z that are not complex the upper half of the parabola is enough.
    """
    logs, weights = (LOGS, WEIGHTS) if is_complex else (UPPER_LOGS, UPPER_WEIGHTS)
    return logs, weights * (-logs) ** n


def _shared_nodes(alpha: Array, beta: Array, n: int, is_complex: bool, xp: Namespace) -> Nodes:
    """Return a function of points that looks up s**alpha and the weights, [points, nodes] each, for one alpha and beta.

    Called as nodes(shift, far, part), with numbers 0 or 1 in arrays [points]: whether the nodes are shifted by h / 2,
    and whether a point has |z| >= 1. The slice `part` says which of all points these are. The weights have the factor
    s**(alpha - beta); those of far points have one more, s**alpha, and the 1 / z beside that is left to `_rule`.
    """
    logs, weights = (xp.constant(values, alpha) for values in _constants(n, is_complex))
    base = xp.exp(alpha * logs)
    near = weights * xp.exp((alpha - beta) * logs)
    table = xp.stack([near, near * base], axis=-2).reshape(4, -1)
    return lambda shift, far, part: (base[shift], table[2 * shift + far])


def _own_nodes(alpha: Array, beta: Array, n: int, is_complex: bool, xp: Namespace) -> Nodes:
    """Return a function that computes s**alpha and the weights of some points, [points, nodes] each.

    It is for points with an alpha or a beta each, [points] or [], and called as nodes(shift, far, part) for the slice
    `part` of them, with 0 or 1 for each: whether its nodes are shifted by h / 2, and whether it has |z| >= 1.
    """
    logs, weights = (xp.constant(values, alpha) for values in _constants(n, is_complex))

    def nodes(shift: Array, far: Array, part: slice) -> tuple[Array, Array]:
        its_alpha = alpha[part, None] if alpha.ndim else alpha
        its_beta = beta[part, None] if beta.ndim else beta
        its_logs = logs[shift]
        power = (1 + far)[:, None] * its_alpha - its_beta
        return xp.exp(its_alpha * its_logs), weights[shift] * xp.exp(power * its_logs)

    return nodes


MU = 2.0
RATE = 52.0
TAIL = 40.0

_LAST = math.ceil(math.sqrt(1 + TAIL / MU) * RATE / (2 * math.pi))


def _nodes_of(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log s and the weight h / (2 pi i) exp(s) s'(u) at the nodes u = index h; [nodes], as `index`."""
    step = 2 * math.pi / RATE
    root = 1 + 1j * step * index
    return np.log(MU) + 2 * np.log(root), step * MU / math.pi * np.exp(MU * root**2) * root


def _rules(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log s and the weights of `_nodes_of`, [2, nodes] each: row 0 at u = index h, row 1 at u = (index + 1/2) h.

    `index` may be negative. No symmetry is used: the caller doubles the weights of a half.
    """
    logs, weights = zip(_nodes_of(index), _nodes_of(index + 0.5), strict=True)
    return np.stack(logs), np.stack(weights)


# log s and the weights [2, nodes]. Where the integrand at conj(s) is the conjugate, the upper half is enough.
LOGS, WEIGHTS = _rules(np.arange(-_LAST, _LAST + 1.0))
UPPER_LOGS, UPPER_WEIGHTS = _rules(np.arange(_LAST + 1.0))
UPPER_WEIGHTS *= 2
UPPER_WEIGHTS[0, 0] /= 2  # the node on the real axis has no other half


_LEAST_ROOT = math.log(16 * MU / RATE**2)  # below it a pole and the branch point are one
_LARGEST_ROOT = 300.0  # log |w| above which exp(w) is infinite or zero, and w itself may overflow
_LARGEST_EXPONENT = 600.0  # of what is multiplied by other factors


class Pole(NamedTuple):
    """A root w of w**alpha = z, for each point z, and whether it counts as a pole of the integrand there."""

    w: Array
    log: Array
    root: Array  # sqrt(w / MU) = 1 + i u
    counts: Array


def poles_of(z: Array, alpha: Array, xp: Namespace, most: int) -> list[Pole]:
    """Return the roots w of w**alpha = z that may have |arg w| <= pi, the first `most` of two.

    The second one has such an argument only for alpha > 1.
    """
    size, angle = xp.log(xp.abs(z)) / alpha, xp.angle(z)
    is_huge = size > _LARGEST_ROOT
    radius = xp.where(is_huge, math.exp(_LARGEST_ROOT), _root(xp.where(is_huge, 1.0, xp.abs(z)), alpha, xp))
    size = xp.where(is_huge, _LARGEST_ROOT, size)
    turned = xp.where(angle < 0, angle + 2 * math.pi, angle - 2 * math.pi)
    found = []
    for argument, exists in [(angle / alpha, alpha > 0), (turned / alpha, alpha > 1)][:most]:
        log = size + 1j * argument
        direction = xp.sin(math.pi / 2 - xp.abs(argument)) + 1j * xp.sin(argument)  # the cosine of pi / 2 must be zero
        counts = exists & (xp.abs(argument) <= math.pi) & (size > _LEAST_ROOT)
        # Harmless numbers in place of those that overflow, so that they have harmless derivatives.
        log = xp.where(counts, log, 0.0)
        w = xp.where(counts, radius * direction, 1.0)
        found.append(Pole(w, log, xp.exp(log / 2) / math.sqrt(MU), counts))
    return found


def _root(x: Array, alpha: Array, xp: Namespace) -> Array:
    """Return x**(1 / alpha), x > 0, right to about its last bit, because its exponential is taken.

    A power x**b is right to its last bit, but b = 1 / alpha is rounded: the power is then wrong by the part
    (1 - alpha b) log(x) / alpha, which is added. alpha b is computed without rounding: Dekker, Numer. Math. 18 (1971).
    """
    inverse = 1 / alpha
    rounded = alpha * inverse
    high, low = _split(alpha)
    inverse_high, inverse_low = _split(inverse)
    rest = ((high * inverse_high - rounded) + high * inverse_low + low * inverse_high) + low * inverse_low
    return x**inverse * (1 + ((1 - rounded) - rest) * inverse * xp.log(x))


def _split(x: Array) -> tuple[Array, Array]:
    """Return (high, low) with x = high + low, half the digits each, so that products of such parts are exact."""
    shifted = x * (2.0**27 + 1)
    high = shifted - (shifted - x)
    return high, x - high


def away_from(found: list[Pole], xp: Namespace) -> Array:
    """Return for each point whether nodes that are shifted by half a step are further from its poles.

    Only the pole next to the parabola is looked at.
    """
    nearest, cosine = math.inf, -1.0
    for pole in found:
        distance = xp.where(pole.counts, xp.abs(pole.root.real - 1), math.inf)
        is_nearer = distance < nearest
        cosine = xp.where(is_nearer, xp.cos(RATE * pole.root.imag), cosine)
        nearest = xp.where(is_nearer, distance, nearest)
    return cosine > 0


def pole_residue(
    z: Array,
    pole: Pole,
    alpha: Array,
    beta: Array,
    m: int,
    n: int,
    is_shifted: Array,
    is_elementary: Array,
    xp: Namespace,
) -> Array:
    """Return what a pole adds to F[m, n] besides the trapezoidal rule.

    That is the m-th derivative in z of (-log w)**n w**(1 - beta) exp(w) / alpha times the factor 1 / (1 - exp(...)) of
    the module's docstring, computed as a Taylor series in log w: z d/dz = (1 / alpha) d/dlog w.
    """
    orders = range(1, m + 1)
    w = pole.w
    excess = xp.where(w.real > _LARGEST_EXPONENT, w.real - _LARGEST_EXPONENT, 0.0)
    exponent = [(1 - beta) * pole.log + (w - excess)]
    exponent += [w / math.factorial(k) + ((1 - beta) if k == 1 else 0.0) for k in orders]
    distance = [-RATE * (pole.root - 1)]
    distance += [-RATE * pole.root / (2**k * math.factorial(k)) for k in orders]
    sign = xp.where(is_shifted, -1.0, 1.0)
    away = [sign * term for term in series_exponential(distance, xp)]
    factor = series_reciprocal([1 - away[0], *(-term for term in away[1:])])
    factor = [xp.where(is_elementary, float(k == 0), term) for k, term in enumerate(factor)]
    series = series_product(series_exponential(exponent, xp), factor)
    minus_log = [-pole.log, *(-1.0 * (k == 1) for k in orders)]
    for _ in range(n):
        series = series_product(series, minus_log)
    derivatives = [math.factorial(k) * term / alpha ** (k + 1) for k, term in enumerate(series)]
    total = sum(c * term for c, term in zip(_falling(m), derivatives, strict=True))
    total = total * z ** (-m)
    return (total if xp.iscomplexobj(z) else total.real) * xp.exp(excess)  # a real one overflows to inf, and not to NaN


def _falling(m: int) -> list[int]:
    """Return the coefficients of the polynomial x (x - 1) ... (x - m + 1), that of x**0 first.

    With x = z d/dz it is z**m d^m/dz^m.
    """
    coefficients = [1]
    for i in range(m):
        coefficients = [a - i * b for a, b in zip([0, *coefficients], [*coefficients, 0], strict=True)]
    return coefficients


_SHIFT = 4


def reciprocal_gamma(x: Any, n: int, xp: Namespace) -> Any:
    """Return the n-th derivative of 1 / Gamma at real x > -4, exactly zero at 0, -1, -2, -3 for n = 0.

    The recursion 1 / Gamma(x) = x / Gamma(x + 1), from x + 4 down, keeps the relative accuracy near the zeros.
    """
    values = _derivatives(x + _SHIFT, n, xp)
    for step in reversed(range(_SHIFT)):
        values = [(x + step) * g + (i * values[i - 1] if i else 0.0) for i, g in enumerate(values)]
    return values[n]


def _derivatives(x: Any, n: int, xp: Namespace) -> list[Any]:
    """Return the derivatives of order 0 to n of 1 / Gamma at x > 0, from (1 / Gamma)' = -psi / Gamma."""
    psi = [xp.polygamma(j, x) for j in range(n)]
    values = [xp.exp(-xp.gammaln(x))]
    for i in range(n):
        values.append(-sum(comb(i, j) * psi[j] * values[i - j] for j in range(i + 1)))
    return values


Series = list[Any]


def series_product(f: Series, g: Series) -> Series:
    """Return the product f g of two power series."""
    return [sum(f[j] * g[k - j] for j in range(k + 1)) for k in range(len(f))]


def series_exponential(f: Series, xp: Namespace) -> Series:
    """Return the power series g = exp(f), from g' = f' g."""
    g = [xp.exp(f[0])]
    for k in range(1, len(f)):
        g.append(sum(j * f[j] * g[k - j] for j in range(1, k + 1)) / k)
    return g


def series_reciprocal(f: Series) -> Series:
    """Return the power series g = 1 / f, from f g = 1."""
    g = [1 / f[0]]
    for k in range(1, len(f)):
        g.append(-g[0] * sum(f[j] * g[k - j] for j in range(1, k + 1)))
    return g
