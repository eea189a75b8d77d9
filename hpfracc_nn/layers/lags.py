"""The ARMA part of `ARFIMA`, in every framework: from a series u to its errors e, and from one block to the next.

Coefficients are sequences of numbers or of arrays without axes: a_1 to a_p for lags of the series, b_1 to b_q for lags
of the errors:

    e[t] = u[t] - a_1 u[t - 1] - ... - a_p u[t - p] - b_1 e[t - 1] - ... - b_q e[t - q].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpfracc_nn.fractional.namespace import Array, Namespace

Lags = tuple[Sequence[Any], Sequence[Any]]  # the coefficients of the series and of the errors


def without_lags(u: Array, lags: Lags, axis: int, xp: Namespace) -> Array:
    """Return the errors e of the series u along `axis`; samples and errors before the first are taken as 0."""
    ar, ma = lags
    return divided(moving(u, [-each for each in ar], axis, xp), ma, axis, xp)


def advanced(u: Array, past: Array, lags: Lags, xp: Namespace) -> tuple[Array, Array]:
    """Return the errors of the next n samples, [n, *shape] in the dtype of `past`, and the past after these samples.

    Args:
        u: The next samples, [n, *shape].
        past: The last p samples and the last q errors, the newest first, [p + q, *shape].
        lags: The p coefficients of the samples and the q of the errors.
        xp: The array namespace.
    """
    ar, ma = lags
    u, p, n = xp.astype(u, past.dtype), len(ar), u.shape[0]
    values = xp.concat([xp.flip(past[:p], axis=0), u], axis=0)
    found = u
    for lag, weight in enumerate(ar, 1):
        found = found - weight * values[p - lag : p - lag + n]
    for lag, weight in enumerate(ma, 1):  # of the errors before u
        known = xp.flip(past[p : p + lag], axis=0)[:n]
        found = found - weight * xp.pad(known, 0, n - known.shape[0], axis=0)
    found = divided(found, ma, 0, xp)
    before = xp.concat([xp.flip(past[p:], axis=0), found], axis=0)
    return found, xp.concat([xp.flip(values, axis=0)[:p], xp.flip(before, axis=0)[: len(ma)]], axis=0)


def moving(u: Array, weights: Sequence[Any], axis: int, xp: Namespace, stride: int = 1) -> Array:
    """Return `u[t] + weights[0] u[t - stride] + weights[1] u[t - 2 stride] + ...` along `axis`, with zeros before u."""
    n, most, found = u.shape[axis], len(weights) * stride, u
    past = xp.pad(u, most, axis=axis)
    for lag, weight in enumerate(weights, 1):
        begin = most - lag * stride
        found = found + weight * xp.part(past, begin, begin + n, axis=axis)
    return found


def divided(u: Array, weights: Sequence[Any], axis: int, xp: Namespace) -> Array:
    """Return u divided by `1 + weights[0] z + weights[1] z**2 + ...` along `axis`, with zeros before u.

    By Graeffe's iteration `1 / a(z) = a(-z) / b(z**2)`, where b has as many coefficients as a. It ends when the power
    of z reaches n, the length of u, after about log2(n) products.
    """
    n, stride = u.shape[axis], 1
    while len(weights) and stride < n:
        weights = weights[: (n - 1) // stride]  # the others meet no sample, and squared again and again they overflow
        q = len(weights)
        mirrored = [-weight if lag % 2 else weight for lag, weight in enumerate(weights, 1)]
        u = moving(u, mirrored, axis, xp, stride)
        one, other = [1.0, *weights], [1.0, *mirrored]
        # The even coefficients of a(z) a(-z), the others being 0.
        weights = [
            sum(one[i] * other[lag - i] for i in range(max(0, lag - q), min(q, lag) + 1))
            for lag in range(2, 2 * q + 1, 2)
        ]
        stride *= 2
    return u
