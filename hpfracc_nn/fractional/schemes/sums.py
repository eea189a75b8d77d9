"""Sums over many terms of a smooth sequence, at lags far apart: Gauss quadrature for sums in place of integrals.

The sum of f(j) over N whole numbers j is an integral over a measure of N points of weight 1. Its orthogonal
polynomials are the discrete Chebyshev polynomials, whose recurrence is known in closed form, so that a few points, no
whole numbers, sum polynomials of twice the degree exactly.

Gautschi, Orthogonal Polynomials: Computation and Approximation (2004), section 1.4.4 and theorem 3.1.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

_DIRECT = 128  # terms below it are all added
_RATIO = 1.5  # the longest panel begins at a and ends before 1.5 a
_POINTS = 8  # (5 + sqrt(24))**-16 = 1e-16 for a power of j on such a panel


class Sum(NamedTuple):
    """Quadrature points and weights of the sums of f(j) from j = 0 up to several lags.

    Attributes:
        points: The j at which f is needed, increasing; [p]. The first `whole` of them are 0, 1, 2, ...
        weights: The weight of each point, [p].
        whole: How many points lie below all panels, where every term is added.
        ends: How many points, from the first on, make up the sum for each lag, [k].
    """

    points: np.ndarray
    weights: np.ndarray
    whole: int
    ends: np.ndarray


def sum_before(lags: np.ndarray) -> Sum:
    """Return the quadrature of sum f(j), j = 0, ..., lag - 1, for each of the increasing `lags`.

    The sum is right to 1e-16 of itself where f is, from j = 128 on, a power of j, or one times a decaying exponential.
    """
    last = int(lags[-1]) if lags.size else 0
    whole = min(last, _DIRECT)
    edges = np.unique(np.concatenate([[whole], lags[lags > whole], _panels(last)]))
    first, lengths = edges[:-1], np.diff(edges)
    counts = np.minimum(lengths, _POINTS)
    reached = np.concatenate([[0], np.cumsum(counts)])
    points = np.repeat(first - reached[:-1], counts) + np.arange(reached[-1], dtype=np.float64)
    weights = np.ones(points.size)
    for length in np.unique(lengths[lengths > _POINTS]):
        panels = np.flatnonzero(lengths == length)
        at = reached[panels][:, None] + np.arange(_POINTS)
        offsets, weights[at] = _gauss(int(length))
        points[at] = first[panels][:, None] + offsets
    ends = np.where(lags <= whole, lags, whole + reached[np.searchsorted(edges, np.maximum(lags, whole))])
    head = np.arange(float(whole))
    return Sum(np.concatenate([head, points]), np.concatenate([np.ones(whole), weights]), whole, ends.astype(np.int64))


def _panels(last: int) -> np.ndarray:
    """Return where panels, the intervals that a quadrature serves, may end so that none is too long for it.

    The ends go from 128, below which all terms are added, to at most `last`, each about 1.5 times the one before.
    """
    if last <= _DIRECT:
        return np.empty(0, np.int64)
    count = int(np.log(last / _DIRECT) / np.log(_RATIO)) + 1
    return np.floor(_DIRECT * _RATIO ** np.arange(count)).astype(np.int64)


@lru_cache(maxsize=4096)
def _gauss(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points and weights, eight each, that stand for the sum over 0, ..., length - 1; length is above 8."""
    i = np.arange(1.0, _POINTS)
    beside = np.sqrt(i**2 * (length**2 - i**2) / (4 * (4 * i**2 - 1)))
    points, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return points + (length - 1) / 2, length * vectors[0] ** 2
