"""The point of the greatest likelihood, of one series or of several that share parameters.

A point, [size], is the vector of alpha and the coefficients of ar and ma that are sought; n is the number of samples, b
the regressors' coefficients and s the variance of the errors. `value` is the negative logarithm of the likelihood, so
that a search goes down. The search has free coordinates, [size]: alpha itself, the partial autocorrelations of ma, and
the inverse hyperbolic tangents of those of ar (for a conditional likelihood ar itself).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg, optimize

from hpfracc_nn.series.covariance import difference_weights
from hpfracc_nn.series.likelihood import CONDITIONAL, Problem, Sample, is_stable

_STARTS = (-0.6, -0.25, 0.1, 0.3, 0.6, 0.9, 1.2, 1.6)  # alphas to start from: with lags there may be several maxima
_FIRST_LAGS = (0.0, 0.9, -0.9)  # first coefficients of ar, and with the opposite sign of ma, of further starts
_MARGIN, _MARGIN_OF_HALF = 2e-6, 2e-5  # least distances of alpha from a bound, and from 1/2: nearer it may be invalid
_AT_BOUND = 1e-4  # distance from a bound, over the width of both, up to which alpha counts as at the bound
_AT_EDGE = 1e-5  # distance of a free coordinate of ar or ma from its limit, up to which it counts as at the limit
_AT_HALF = 2e-3  # the same of alpha from 1/2: its variance grows without limit, and bends the likelihood down there
_INVERTIBLE = 1e-7  # least distance of a partial autocorrelation of ma from 1
_FAR, _BETWEEN = 20.0, 5.0  # over n: distance of ma from 1 up to which a unit root is tried, and that of a start beside
_STATIONARY, _OF_SAMPLES, _OF_SEARCH = 2e-5, 0.02, 2e-3  # least distances of ar from 1: always, over n, in cheap search
_FIRST, _SEARCH, _DESCENT = 8, 40, 100  # iterations: before starts are compared, of a search, and between Newton trials
_NEWTON, _HALVINGS = 25, 12  # Newton's steps, at most, and halvings of one step
_DONE, _NEAR = 1e-11, 1e-6  # squared standard errors from the maximum: to stop, and to count as arrived
_TRIALS, _FOLLOWED = 3, 4  # trials of Newton's method, and points that go on to the next stage
_SAME = 3.0  # logarithm of a cheap likelihood below the best, up to which a start goes on
_WORTH = 6.0  # logarithm of the likelihood itself below the best, up to which a point that a search found goes on
_SHORT = 100  # samples up to which the exact likelihood itself is searched from every start
_LONG_PAST = 4  # lags of the first regression of Hannan and Rissanen, times the logarithm of the samples


@dataclass(frozen=True)
class Block:
    """The slice `place` of a joint point that holds "alpha", "ar" or "ma" (its `kind`): of one series, or of all."""

    kind: str
    place: slice


class Joint:
    """The joint likelihood of several series, whose points are parts of one joint point.

    A point, [size], holds alpha and the coefficients of ar and ma that are sought. A search moves in free coordinates,
    [size], which `_natural` turns into a point.

    Args:
        problems: The likelihood of each series.
        shared: What of a point all series have in common: "alpha", "all", or None for nothing.
        bounds: The lower and the upper bound of alpha.
    """

    def __init__(self, problems: Sequence[Problem], shared: str | None, bounds: tuple[float, float]):
        self.problems, self.bounds = problems, bounds
        self.is_stationary = problems[0].sample.likelihood != CONDITIONAL  # kept in cheap searches, see `_searched`
        self.nearest = max(_STATIONARY, _OF_SAMPLES / max(each.sample.n for each in problems))  # of ar to a unit root
        self.blocks: list[Block] = []
        self.places = [np.empty(0, int)] * len(problems)
        for kind, size in zip(("alpha", "ar", "ma"), problems[0].sizes, strict=True):
            once = shared == "all" or (shared == "alpha" and kind == "alpha")
            for i in range(len(problems)):
                if i == 0 or not once:
                    self.blocks.append(Block(kind, slice(self.size, self.size + size)))
                place = np.arange(self.size)[self.blocks[-1].place]
                self.places[i] = np.concatenate([self.places[i], place])

    @property
    def size(self) -> int:
        """How many numbers a joint point has."""
        return self.blocks[-1].place.stop if self.blocks else 0

    def value(self, point: np.ndarray) -> float:
        """Return the negative logarithm of the likelihood; infinite where there is none."""
        try:
            found = sum(each.value(point[place]) for each, place in zip(self.problems, self.places, strict=True))
        except (ValueError, FloatingPointError, linalg.LinAlgError):
            return np.inf
        return float(found) if np.isfinite(found) else np.inf

    def gradient(self, point: np.ndarray) -> np.ndarray:
        """Return the gradient of `value`, [size]."""
        found = np.zeros(self.size)
        for each, place in zip(self.problems, self.places, strict=True):
            found[place] += each.gradient(point[place])
        return found

    @property
    def degrees(self) -> list[float]:
        """What each series' weighted sum of squares is divided by for its variance, one number for each series.

        For the exact likelihood it is the number of samples, for the restricted one less the columns of regressors, and
        for the conditional one less the estimates in the series' point too, as in least squares; an estimate that m
        series share counts as 1 / m in each.
        """
        times = np.zeros(self.size)
        for place in self.places:
            times[place] += 1
        return [
            max(1.0, each.sample.degrees - (not self.is_stationary) * float((1 / times[place]).sum()))
            for each, place in zip(self.problems, self.places, strict=True)
        ]

    def information(self, point: np.ndarray) -> np.ndarray:
        """Return the observed information of the point, and of each series' k regression coefficients and variance.

        It is square, with size + sum of (k + 1) rows. Each series' part is scaled to a variance over `degrees`.
        """
        parts = [n / each.sample.degrees for n, each in zip(self.degrees, self.problems, strict=True)]
        return self._information(point, parts)

    def _information(self, point: np.ndarray, parts: Sequence[float]) -> np.ndarray:
        sizes = [each.sample.x.shape[1] + 1 for each in self.problems]
        found = np.zeros((self.size + sum(sizes),) * 2)
        start = self.size
        for each, place, size, part in zip(self.problems, self.places, sizes, parts, strict=True):
            here = each.reduced(point[place])
            curvature = each.curvature(point[place], here.coefficients, here.squares / each.sample.degrees)
            where = np.concatenate([start + np.arange(size - 1), place, [start + size - 1]])
            found[np.ix_(where, where)] += part * curvature
            start += size
        return found

    def curvature(self, point: np.ndarray) -> np.ndarray:
        """Return the second derivatives of `value`, [size, size]; regressors and variances follow as the best ones."""
        found, size = self._information(point, [1.0] * len(self.problems)), self.size
        return found[:size, :size] - found[:size, size:] @ np.linalg.solve(found[size:, size:], found[size:, :size])

    def at_bound(self, point: np.ndarray) -> dict[str, np.ndarray]:
        """Return the indices, by kind, of a point's numbers at an end: alpha at one of its bounds, lags at a unit root.

        All lags of a series' ar or ma count where one of their partial autocorrelations is at its limit.
        """
        low, high = self.bounds
        near = _AT_BOUND * (high - low)
        above = _AT_HALF if self.ends_at_half else near
        free, most, is_there = self._free(point), self._limits[1], np.zeros(self.size, bool)
        for block in self._of("alpha"):
            is_there[block.place] = (free[block.place] <= low + near) | (free[block.place] >= high - above)
        for block in self._partial():
            is_there[block.place] = (np.abs(free[block.place]) >= most[block.place] - _AT_EDGE).any()
        numbers = np.arange(self.size)
        return {
            kind: np.concatenate([numbers[block.place][is_there[block.place]] for block in self._of(kind)])
            for kind in {block.kind for block in self.blocks}
        }

    def best(self) -> tuple[np.ndarray, bool]:
        """Return the point of the greatest likelihood found, and whether the slopes vanish there.

        In place of an exact or restricted likelihood of more than 100 samples two cheap ones are searched: the periodic
        one and the conditional one, which is better for series far from their level. Newton's steps on the likelihood
        itself begin at the best points that these searches find, and the best point that they reach is returned.
        """
        if not self.size:
            return np.empty(0), True
        starts, found = self._starts(), []
        for searched in self._searched():
            reached = searched._apart([searched._descended(start, _FIRST) for start in starts], _SAME)[:_FOLLOWED]
            found += searched._apart([searched._descended(point, _SEARCH) for point in reached], _SAME)
        found = self._apart(found, _WORTH, 0.05) if len(found) > 1 else found
        best = self._least([self._arrived(point) for point in found[:_FOLLOWED]])
        return self._least([best, *(self._arrived(point) for point in self._about_a_unit_root(best[0]))])

    def _searched(self) -> list[Joint]:
        """Return the joint likelihoods to search first: self if it is cheap, else a periodic and a conditional one.

        In the latter two, gaps are bridged by straight lines.
        """
        samples = [each.sample for each in self.problems]
        if samples[0].likelihood == CONDITIONAL or max(len(each.y) for each in samples) <= _SHORT:
            return [self]
        found = []
        each_way: tuple[dict[str, Any], ...] = ({"is_periodic": True}, {"likelihood": CONDITIONAL})
        for changes in each_way:
            whole = [replace(each, y=_bridged(each), gaps=each.gaps[:0], **changes) for each in samples]
            other = copy(self)
            other.problems = [each.of(sample) for each, sample in zip(self.problems, whole, strict=True)]
            other.nearest = _OF_SEARCH
            found.append(other)
        return found

    def _least(self, found: list[tuple[np.ndarray, bool]]) -> tuple[np.ndarray, bool]:
        """Return, of pairs (point, whether it is a minimum of `value`), the pair with the least value."""
        return found[0] if len(found) == 1 else min(found, key=lambda each: self.value(each[0]))

    def _about_a_unit_root(self, point: np.ndarray) -> list[np.ndarray]:
        """Return further points to start from, for a point whose ma has nearly a unit root; none where it has not.

        For each such partial autocorrelation there are two points, with it at the unit root and a little further off:
        near a unit root the likelihood changes within a few times 1 / n, and may have two maxima.
        """
        free, n = self._free(point), max(each.sample.n for each in self.problems)
        found: list[np.ndarray] = []
        if not self.is_stationary:
            return found
        for block in self._of("ma"):
            for i in range(block.place.start, block.place.stop):
                if 1 - abs(free[i]) < _FAR / n:
                    for left in (_INVERTIBLE, _BETWEEN / n):
                        other = free.copy()
                        other[i] = np.copysign(1 - left, free[i])
                        found.append(self._natural(other))
        return found

    def _starts(self) -> list[np.ndarray]:
        """Return the points that a search starts from.

        The first have different alphas, and lags estimated by regression. The others have the first of these alphas, a
        first coefficient of ar and its negative in ma, which cancel.
        """
        low, high = self.bounds
        alphas = [start for start in _STARTS if low < start < high] or [(low + high) / 2]
        if self.problems[0].alpha is not None:
            alphas = [self.problems[0].alpha]
        least = [self._start(alphas[0], lag) for lag in (_FIRST_LAGS if sum(self.problems[0].sizes[1:]) else ())]
        return [*(self._start(alpha) for alpha in alphas), *least]

    def _apart(self, points: list[np.ndarray], within: float, apart: float = 0.01) -> list[np.ndarray]:
        """Return the best points, the best first, without those that are nearly the same as a better one.

        Args:
            points: Points, [size] each.
            within: By how much the value of a returned point may exceed the least value.
            apart: By how much two returned points differ at least, in one coordinate.
        """
        values = np.array([self.value(point) for point in points])
        found: list[np.ndarray] = []
        for i in np.argsort(values, kind="stable"):
            if values[i] <= values.min() + within and not any(np.allclose(points[i], p, atol=apart) for p in found):
                found.append(points[i])
        return found

    def _of(self, kind: str) -> list[Block]:
        return [block for block in self.blocks if block.kind == kind]

    def _start(self, alpha: float, lag: float | None = None) -> np.ndarray:
        """Return a joint point to start from; a number that series share is the mean of theirs.

        Args:
            alpha: The order.
            lag: The first coefficient of ar, whose negative is the first of ma, all other coefficients being 0; None
                estimates the lags by regression.
        """
        found, times = np.zeros(self.size), np.zeros(self.size)
        for each, place in zip(self.problems, self.places, strict=True):
            first, p, q = each.sizes
            lags = _regressed(each, alpha, p, q) if lag is None else np.append(lag * _unit(p), -lag * _unit(q))
            found[place] += np.concatenate([np.full(first, alpha), lags])
            times[place] += 1
        return found / times

    def _natural(self, free: np.ndarray) -> np.ndarray:
        """Return the point that free coordinates stand for, [size] both.

        Near a unit root the likelihood is smooth in these coordinates: in the inverse hyperbolic tangent of a partial
        autocorrelation of ar, and in a partial autocorrelation of ma itself, about whose limit it is an even function.
        """
        found = free.copy()
        for block in self._partial():
            here = free[block.place]
            found[block.place] = _lags(np.tanh(here)) if block.kind == "ar" else -_lags(here)
        return found

    def _free(self, point: np.ndarray) -> np.ndarray:
        found = point.copy()
        for block in self._partial():
            here = point[block.place]
            found[block.place] = np.arctanh(_partial(here)) if block.kind == "ar" else _partial(-here)
        return found

    def _partial(self) -> list[Block]:
        return [*(self._of("ar") if self.is_stationary else []), *self._of("ma")]

    @property
    def ends_at_half(self) -> bool:
        """Whether the upper bound of alpha is 1/2, where an exact or restricted likelihood ends."""
        return self.bounds[1] == 0.5 and self.is_stationary

    @property
    def _limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper limits of the free coordinates, [size] each."""
        (low, high), most = self.bounds, np.full(self.size, np.inf)
        least = -most
        for block in self._partial():
            most[block.place] = np.arctanh(1 - self.nearest) if block.kind == "ar" else 1 - _INVERTIBLE
            least[block.place] = -most[block.place]
        for block in self._of("alpha"):
            above = _MARGIN_OF_HALF if self.ends_at_half else _MARGIN
            least[block.place], most[block.place] = low + _MARGIN, high - above
        return least, most

    def _free_slopes(self, free: np.ndarray) -> np.ndarray:
        """Return the gradient of `value` in the free coordinates, [size]."""
        return self._chain(free) @ self.gradient(self._natural(free))

    def _chain(self, free: np.ndarray) -> np.ndarray:
        """Return the derivatives of the point in the free coordinates, [size, size], a row for each free coordinate."""
        steps = 1e-6 * np.eye(self.size)
        return np.array([(self._natural(free + step) - self._natural(free - step)) / 2e-6 for step in steps])

    def _descended(self, point: np.ndarray, iterations: int) -> np.ndarray:
        """Return the point that L-BFGS-B reaches from `point` in at most `iterations` iterations.

        The value is divided by the number of samples, because the first step has the length of the gradient and would
        be too long.
        """
        low, high = self._limits
        n = sum(each.sample.n for each in self.problems)

        def value_and_slope(free: np.ndarray) -> tuple[float, np.ndarray]:
            value = self.value(self._natural(free))
            try:
                slopes = self._free_slopes(free)
            except (ValueError, linalg.LinAlgError):  # the likelihood ends there
                value = np.inf
            return (1e300, np.zeros(self.size)) if value == np.inf else (value / n, slopes / n)

        free = np.clip(self._free(point), low, high)
        options = {"maxiter": iterations, "ftol": 1e-13, "gtol": 1e-9}
        bounds = optimize.Bounds(low, high)
        found = optimize.minimize(value_and_slope, free, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return self._natural(found.x)

    def _arrived(self, point: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return the minimum near a point by Newton's method, to the last digits, and whether it is reached.

        Where Newton's steps fail, L-BFGS-B goes on from where they ended, before they are tried again.
        """
        for _ in range(_TRIALS):
            try:
                point, has_arrived = self._newton(point)
            except (ValueError, linalg.LinAlgError):  # the likelihood ends there
                has_arrived = False
            if has_arrived:
                break
            point = self._descended(point, _DESCENT)
        return point, has_arrived

    def _newton(self, point: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return the point within the limits where Newton's steps from `point` end, and whether it is a minimum."""
        low, high = self._limits
        free = np.clip(self._free(point), low, high)
        slopes, curvature, kept = self._free_slopes(free), self._free_curvature(free), 0.0
        for _ in range(_NEWTON):
            loose = _loose(free, slopes, low, high)
            convex, is_minimum = _convex(curvature[np.ix_(loose, loose)])
            step = np.zeros(self.size)
            step[loose] = -np.linalg.solve(convex, slopes[loose])
            left = -float(slopes @ step)
            if left <= _DONE:
                return self._natural(free), is_minimum
            if kept and left > 0.3 * kept:  # the curvature has changed
                curvature, kept = self._free_curvature(free), 0.0
                continue
            for _ in range(_HALVINGS):
                reached = np.clip(free + step, low, high)
                following = self._free_slopes(reached)
                rest = np.where(_loose(reached, following, low, high), following, 0.0)[loose]
                if rest @ np.linalg.solve(convex, rest) < left:
                    break
                step /= 2
            else:
                return self._natural(free), is_minimum and left <= _NEAR
            free, slopes, kept = reached, following, left
        return self._natural(free), False

    def _free_curvature(self, free: np.ndarray) -> np.ndarray:
        """Return the second derivatives of `value` in the free coordinates, [size, size].

        Exact where the gradient is 0: the curvature of the coordinates themselves is left out.
        """
        chain = self._chain(free)
        return chain @ self.curvature(self._natural(free)) @ chain.T


def _loose(free: np.ndarray, slopes: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return which free coordinates may move, bool [size]: all but those at a limit beyond which the value would fall.

    Arguments are the coordinates, the gradient and both limits, [size] each.
    """
    return ~(((free <= low) & (slopes > 0)) | ((free >= high) & (slopes < 0)))


def _bridged(sample: Sample) -> np.ndarray:
    y, there = sample.y.copy(), np.setdiff1d(np.arange(len(sample.y)), sample.gaps)
    y[sample.gaps] = np.interp(sample.gaps, there, y[there])
    return y


def _regressed(problem: Problem, alpha: float, p: int, q: int) -> np.ndarray:
    """Return the coefficients of ar and ma, [p + q], estimated by two regressions (Hannan & Rissanen).

    The first is on a long past of the differenced series, the second on p of its values and q errors of the first.

    Args:
        problem: The series and its regressors, which are taken out first.
        alpha: The order of the difference.
        p: How many coefficients ar has.
        q: How many ma has.
    """
    if not p + q:
        return np.empty(0)
    given, x = _bridged(problem.sample), problem.sample.x
    if x.shape[1]:
        given = given - x @ np.linalg.lstsq(x, given, rcond=None)[0]
    n = len(given)
    size = 2 * n
    u = np.fft.irfft(np.fft.rfft(difference_weights(n, alpha), size) * np.fft.rfft(given, size), size)[:n]
    long = min(max(p + q, int(_LONG_PAST * np.log(n))), n // 4)
    past = _past(u, long)
    e = np.append(np.zeros(long), u[long:] - past[long:] @ np.linalg.lstsq(past[long:], u[long:], rcond=None)[0])
    start = long + q
    columns = np.column_stack([_past(u, p), _past(e, q)])[start:]
    found = np.linalg.lstsq(columns, u[start:], rcond=None)[0]
    ar, ma = found[:p], found[p:]
    while not is_stable(ar * 1.02):
        ar = ar * 0.9
    while not is_stable(-ma * 1.02):
        ma = ma * 0.9
    return np.concatenate([ar, ma])


def _unit(lags: int) -> np.ndarray:
    return np.eye(1, lags)[0]


def _past(u: np.ndarray, lags: int) -> np.ndarray:
    """Return the `lags` values before each of u, the latest first, [n, lags]; zeros before the first."""
    padded = np.concatenate([np.zeros(lags), u])
    return np.column_stack(
        [padded[lags - lag : len(padded) - lag] for lag in range(1, lags + 1)] or [u[:, None][:, :0]]
    )


def _convex(curvature: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return a matrix of second derivatives made positive definite, so that Newton's step goes down.

    Its eigenvalues become their absolute values, at least a small part of the largest.

    Returns:
        The matrix, and whether no eigenvalue was negative, up to rounding.
    """
    if not len(curvature):
        return curvature, True
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    convex = (vectors * np.maximum(np.abs(values), 1e-8 * np.abs(values).max())) @ vectors.T
    return convex, bool(values.min() >= -1e-6 * np.abs(values).max())


def _lags(partial: np.ndarray) -> np.ndarray:
    """Return the coefficients of the autoregression with the partial autocorrelations `partial`, [p]."""
    found = partial[:0]
    for each in partial:
        found = np.append(found - each * found[::-1], each)
    return found


def _partial(lags: np.ndarray) -> np.ndarray:
    """Return the partial autocorrelations, [p], of an autoregression's coefficients; zeros unless it is stable."""
    left, found = lags.copy(), np.zeros(len(lags))
    for i in range(len(lags) - 1, -1, -1):
        last = left[i]
        if not abs(last) < 1:
            return np.zeros(len(lags))
        found[i] = last
        left = (left[:i] + last * left[:i][::-1]) / (1 - last**2)
    return found
