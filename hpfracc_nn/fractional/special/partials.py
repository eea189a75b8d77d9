"""The Mittag-Leffler function and its derivatives: one contour for all points, poles taken into account exactly.

    E(z) = sum_k z**k / Gamma(alpha k + beta) = 1 / (2 pi i) int exp(s) s**(alpha - beta) / (s**alpha - z) ds

Everything is written for F[m, n] = d^m/dz^m d^n/dbeta^n E, a family that is closed under differentiation:

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
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.special import contour, poles
from hpfracc_nn.fractional.special.reciprocal_gamma import reciprocal_gamma

Nodes = Callable[[Array, Array, slice], tuple[Array, Array]]

_RADIUS = 1 / 8  # of the series
_TERMS = 20  # 8**-20 = 1e-18


class Options(NamedTuple):
    """How F is computed; the value does not depend on it but for rounding.

    Attributes:
        poles: At most how many there are; 1 is enough where no alpha is above 1.
        block: For how many points at once the integrand is kept: 39 complex numbers each, 77 for complex z.
        is_differentiated: Whether the formula will be differentiated as it stands. Elementary functions are then no
            special case: their formula does not hold beside their alpha and beta.
    """

    poles: int = 2
    block: int = 256
    is_differentiated: bool = False


ALONE = Options()


def partial(z: Array, alpha: Array, beta: Array, m: int, n: int, xp: Namespace, options: Options = ALONE) -> Array:
    """Return F[m, n] at `z`.

    Args:
        z: float64 or complex128, shape [points].
        alpha: float64, shape [points] or [], in (0, 2]; anything else gives no sensible result.
        beta: float64, shape [points] or [], in [-1, 5].
        m: Order of the derivative in z.
        n: Order of the derivative in beta.
        xp: The namespace of the arrays.
        options: See there.

    Returns:
        Shape and dtype of `z`.
    """
    is_near = xp.abs(z) <= _RADIUS
    near = _series(xp.where(is_near, z, 0.0), alpha, beta, m, n, xp)
    # Where the series is summed alpha may be 0, of which the poles would make a NaN in the second derivative.
    order = xp.where(alpha == 0, 1.0, alpha)
    return xp.where(is_near, near, _integral(xp.where(is_near, 1.0, z), order, beta, m, n, xp, options))


def is_wrong_alpha(alpha: Any) -> Any:
    """Return where alpha is outside (0, 2]; NaN is not, and gives NaN."""
    return (alpha <= 0) | (alpha > 2)


def is_wrong_beta(beta: Any) -> Any:
    """Return where beta is outside [-1, 5]."""
    return (beta < -1) | (beta > 5)


def check(owner: str, alpha: float, beta: float) -> None:
    """Raise ValueError if one number is outside its range."""
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


def combination(derivative: tuple[int, int, int]) -> dict[tuple[int, int, int], int]:
    """Return {(p, m, n): c}: E's derivative of these orders in z, alpha and beta is the sum of c z**p F[m, n]."""
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
    found = poles.poles(z, alpha, xp, options.poles)
    is_shifted = poles.away_from(found, xp)
    total = _rule(z, alpha, beta, m, n, is_shifted, is_far, xp, options.block)
    # exp, cosh, sinh, cos, sin: poles and finitely many powers of 1 / z, beyond the first none for beta <= 2 alpha.
    is_whole = ((alpha == 1) | (alpha == 2)) & (beta == xp.floor(beta)) & (beta <= 2 * alpha)
    is_elementary = is_whole & is_far & (n == 0 and not options.is_differentiated)
    total = xp.where(is_elementary, 0.0, total)
    for pole in found:
        residue = poles.residue(z, pole, alpha, beta, m, n, is_shifted, is_elementary, xp)
        total = total + xp.where(pole.counts, residue, 0.0)
    lead = reciprocal_gamma(beta - alpha, n, xp) * (-1) ** (m + 1) * math.factorial(m) * z ** (-1 - m)
    total = total + xp.where(is_far, lead, 0.0)
    return total if xp.is_complex(z) else total.real


def _rule(
    z: Array, alpha: Array, beta: Array, m: int, n: int, is_shifted: Array, is_far: Array, xp: Namespace, block: int
) -> Array:
    """Return the trapezoidal rule, of which far away the integrand's first term at infinity is taken out."""
    nodes = (_shared_nodes if alpha.ndim == beta.ndim == 0 else _own_nodes)(alpha, beta, n, xp.is_complex(z), xp)
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
            total = total + factor[part] * xp.sum(weights)
        sums.append(total)
    return math.factorial(m) * xp.concat(sums)


def _constants(n: int, is_complex: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return log s and the weights times (-log s)**n; real points need the upper half of the parabola."""
    logs, weights = (contour.LOGS, contour.WEIGHTS) if is_complex else (contour.UPPER_LOGS, contour.UPPER_WEIGHTS)
    return logs, weights * (-logs) ** n


def _shared_nodes(alpha: Array, beta: Array, n: int, is_complex: bool, xp: Namespace) -> Nodes:
    """Return what looks s**alpha and the weights of some points up in one table, [points, nodes] each.

    The weights hold s**(alpha - beta), far away s**(2 alpha - beta): one more factor s**alpha / z.
    """
    logs, weights = (xp.constant(values, alpha) for values in _constants(n, is_complex))
    base = xp.exp(alpha * logs)
    near = weights * xp.exp((alpha - beta) * logs)
    table = xp.stack([near, near * base]).reshape(4, -1)
    return lambda shift, far, part: (base[shift], table[2 * shift + far])


def _own_nodes(alpha: Array, beta: Array, n: int, is_complex: bool, xp: Namespace) -> Nodes:
    """Return the same where every point has an alpha or a beta of its own."""
    logs, weights = (xp.constant(values, alpha) for values in _constants(n, is_complex))

    def nodes(shift: Array, far: Array, part: slice) -> tuple[Array, Array]:
        its_alpha = alpha[part, None] if alpha.ndim else alpha
        its_beta = beta[part, None] if beta.ndim else beta
        its_logs = logs[shift]
        power = (1 + far)[:, None] * its_alpha - its_beta
        return xp.exp(its_alpha * its_logs), weights[shift] * xp.exp(power * its_logs)

    return nodes
