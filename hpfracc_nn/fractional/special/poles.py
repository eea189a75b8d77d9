"""The poles of E's integrand: the roots w of w**alpha = z, and what each of them adds to the trapezoidal rule."""

from __future__ import annotations

import math
from typing import NamedTuple

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.special import contour, taylor

_LEAST_ROOT = math.log(16 * contour.MU / contour.RATE**2)  # below it a pole and the branch point are one
_LARGEST_ROOT = 300.0  # log |w| above which exp(w) is infinite or zero, and w itself may overflow
_LARGEST_EXPONENT = 600.0  # of what is multiplied by other factors


class Pole(NamedTuple):
    """A root w of w**alpha = z."""

    w: Array
    log: Array
    root: Array  # sqrt(w / MU) = 1 + i u
    counts: Array


def poles(z: Array, alpha: Array, xp: Namespace, most: int) -> list[Pole]:
    """Return the roots that may have |arg w| <= pi; the second has it only for alpha > 1."""
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
        found.append(Pole(w, log, xp.exp(log / 2) / math.sqrt(contour.MU), counts))
    return found


def _root(x: Array, alpha: Array, xp: Namespace) -> Array:
    """Return x**(1 / alpha), accurate to about its last bit, because exp() of it follows.

    A power is; but 1 / alpha is rounded, which changes it by 1 - alpha (1 / alpha) times log(x) / alpha. That product
    is taken without rounding: Dekker, Numer. Math. 18 (1971).
    """
    inverse = 1 / alpha
    rounded = alpha * inverse
    high, low = _split(alpha)
    inverse_high, inverse_low = _split(inverse)
    rest = ((high * inverse_high - rounded) + high * inverse_low + low * inverse_high) + low * inverse_low
    return x**inverse * (1 + ((1 - rounded) - rest) * inverse * xp.log(x))


def _split(x: Array) -> tuple[Array, Array]:
    """Return two halves of the digits."""
    shifted = x * (2.0**27 + 1)
    high = shifted - (shifted - x)
    return high, x - high


def away_from(found: list[Pole], xp: Namespace) -> Array:
    """Return whether the pole next to the parabola is further from nodes that are shifted by half a step."""
    nearest, cosine = math.inf, -1.0
    for pole in found:
        distance = xp.where(pole.counts, xp.abs(pole.root.real - 1), math.inf)
        is_nearer = distance < nearest
        cosine = xp.where(is_nearer, xp.cos(contour.RATE * pole.root.imag), cosine)
        nearest = xp.where(is_nearer, distance, nearest)
    return cosine > 0


def residue(
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
    """Return the m-th derivative in z of (-log w)**n w**(1 - beta) exp(w) / alpha times the rule's factor.

    It is taken as a Taylor series in log w: z d/dz = (1 / alpha) d/dlog w.
    """
    orders = range(1, m + 1)
    w = pole.w
    excess = xp.where(w.real > _LARGEST_EXPONENT, w.real - _LARGEST_EXPONENT, 0.0)
    exponent = [(1 - beta) * pole.log + (w - excess)]
    exponent += [w / math.factorial(k) + ((1 - beta) if k == 1 else 0.0) for k in orders]
    distance = [-contour.RATE * (pole.root - 1)]
    distance += [-contour.RATE * pole.root / (2**k * math.factorial(k)) for k in orders]
    sign = xp.where(is_shifted, -1.0, 1.0)
    away = [sign * term for term in taylor.exponential(distance, xp)]
    factor = taylor.reciprocal([1 - away[0], *(-term for term in away[1:])])
    factor = [xp.where(is_elementary, float(k == 0), term) for k, term in enumerate(factor)]
    series = taylor.product(taylor.exponential(exponent, xp), factor)
    minus_log = [-pole.log, *(-1.0 * (k == 1) for k in orders)]
    for _ in range(n):
        series = taylor.product(series, minus_log)
    derivatives = [math.factorial(k) * term / alpha ** (k + 1) for k, term in enumerate(series)]
    total = sum(c * term for c, term in zip(_falling(m), derivatives, strict=True))
    total = total * z ** (-m)
    return (total if xp.is_complex(z) else total.real) * xp.exp(excess)  # a real one overflows to inf, and not to NaN


def _falling(m: int) -> list[int]:
    """Return the coefficients of x (x - 1) ... (x - m + 1), lowest first: z**m d^m/dz^m in powers of z d/dz."""
    coefficients = [1]
    for i in range(m):
        coefficients = [a - i * b for a, b in zip([0, *coefficients], [*coefficients, 0], strict=True)]
    return coefficients
