"""The point of the greatest likelihood, of one series or of several that share numbers.

A point, [size], is the vector of alpha and the coefficients of ar and ma that are sought; n is
the number of samples. `value` is the negative logarithm of the likelihood, so that a search goes down. The search has
free coordinates, [size]: alpha itself, for ma the partial autocorrelations, for ar the areas whose hyperbolic tangents
these are.
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

_STARTS = (-0.6, -0.25, 0.1, 0.3, 0.6, 0.9, 1.2, 1.6)  # of alpha: beside lags there may be several maxima
_FIRST_LAGS = (0.0, 0.9, -0.9)
_MARGIN, _MARGIN_OF_HALF = 2e-6, 2e-5  # from a bound of alpha, beyond which there may be no likelihood
_AT_BOUND = 1e-4  # of the width of the bounds
_AT_EDGE = 1e-5  # of a partial autocorrelation, or its area, from its limit
_AT_HALF = 2e-3  # below alpha = 1/2, where a variance without limit bends the likelihood down at the very end
_INVERTIBLE = 1e-7  # of a partial autocorrelation of ma from 1
_FAR, _BETWEEN = 20.0, 5.0  # the same over the samples: where a unit root may be better, and inside of what it attracts
_STATIONARY, _OF_SAMPLES, _OF_SEARCH = 2e-5, 0.02, 2e-3  # of one of ar: at least, over the samples, of a search
_FIRST, _SEARCH, _DESCENT = 8, 40, 100  # iterations: before starts are compared, of a search, and of the likelihood
_NEWTON, _HALVINGS = 25, 12
_DONE, _NEAR = 1e-11, 1e-6  # squared standard errors from the maximum: to stop, and to have arrived
_TRIALS, _FOLLOWED = 3, 4
_SAME = 3.0  # of the logarithm of the likelihood: starts that are no further from the best are followed
_WORTH = 6.0  # the same of the likelihood itself, at what its searches found
_SHORT = 100  # samples, of which the exact likelihood is searched from every start
_LONG_PAST = 4  # lags of the first regression of Hannan and Rissanen, times the logarithm of the samples


@dataclass(frozen=True)
class Block:
    """Some numbers of a joint point: alpha, or the lags of one kind; of one series, or of all."""

    kind: str
    place: slice


class Joint:
    """The likelihood of several problems, whose points are parts of one.

    Args:
        problems: One for each series.
        shared: "alpha", "all" or None: what of a point is one for all.
        bounds: Of alpha.
    """

    def __init__(self, problems: Sequence[Problem], shared: str | None, bounds: tuple[float, float]):
        self.problems, self.bounds = problems, bounds
        self.is_stationary = problems[0].sample.likelihood != CONDITIONAL  # and of what a search of it costs little by
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
        """Return its slopes."""
        found = np.zeros(self.size)
        for each, place in zip(self.problems, self.places, strict=True):
            found[place] += each.gradient(point[place])
        return found

    @property
    def degrees(self) -> list[float]:
        """What each series' variance is over: N, of the conditional likelihood less the numbers of its point.

        As in least squares; a number that several series share is each one's in part.
        """
        times = np.zeros(self.size)
        for place in self.places:
            times[place] += 1
        return [
            max(1.0, each.sample.degrees - (not self.is_stationary) * float((1 / times[place]).sum()))
            for each, place in zip(self.problems, self.places, strict=True)
        ]

    def information(self, point: np.ndarray) -> np.ndarray:
        """Return the observed information of the point and of every series' b and s, [size + sum of (k + 1)] twice.

        Of each series as its variance is over its `degrees`.
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
        """Return the second derivatives of `value`, [size, size]: b and s are at their best."""
        found, size = self._information(point, [1.0] * len(self.problems)), self.size
        return found[:size, :size] - found[:size, size:] @ np.linalg.solve(found[size:, size:], found[size:, :size])

    def at_bound(self, point: np.ndarray) -> dict[str, np.ndarray]:
        """Return which numbers of a point have gone to an end: alpha to one of its bounds, lags to a unit root."""
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

        The exact likelihood of more than 100 samples is searched by two that cost little, of periodic series and the
        conditional one, which is better far from a level. What they find is where Newton's steps begin; the exact one
        decides where they do, and between their ends.
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
        """Return the cheap likelihoods that a search begins with: itself, or a periodic and a conditional one.

        In these two gaps are bridged by straight lines.
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
        """Return, of pairs (point, whether it is a minimum), that with the least value."""
        return found[0] if len(found) == 1 else min(found, key=lambda each: self.value(each[0]))

    def _about_a_unit_root(self, point: np.ndarray) -> list[np.ndarray]:
        """Return further points to start from, for a point whose ma has nearly a unit root; none where it has not.

        One has the root itself, one a root a little further off: near a unit root the likelihood changes within a
        distance of a few parts of 1 / n, and may have two maxima.
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

        Some have several alphas and lags estimated by regression; the others have a first coefficient of ar and its
        negative in ma, which cancel.
        """
        low, high = self.bounds
        alphas = [start for start in _STARTS if low < start < high] or [(low + high) / 2]
        if self.problems[0].alpha is not None:
            alphas = [self.problems[0].alpha]
        least = [self._start(alphas[0], lag) for lag in (_FIRST_LAGS if sum(self.problems[0].sizes[1:]) else ())]
        return [*(self._start(alpha) for alpha in alphas), *least]

    def _apart(self, points: list[np.ndarray], within: float, apart: float = 0.01) -> list[np.ndarray]:
        """Return those points that differ from each other, the best first.

        Args:
            points: Any.
            within: By how much their value may exceed the least.
            apart: By how much two of them differ at least, in one coordinate.
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
        """Return a point to start from.

        Args:
            alpha: Its order.
            lag: The first coefficient of ar, and its negative of ma, the others 0; None: lags estimated by regression.
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

        Near a unit root the likelihood is a smooth function of the area of ar, and of the partial autocorrelation of
        ma, about whose end it is even.
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
        """Whether alpha is bounded by 1/2, where there is no exact likelihood."""
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
        """Return the derivatives of the point in the free coordinates, [size, size], one row for each of these."""
        steps = 1e-6 * np.eye(self.size)
        return np.array([(self._natural(free + step) - self._natural(free - step)) / 2e-6 for step in steps])

    def _descended(self, point: np.ndarray, iterations: int) -> np.ndarray:
        """Return the point that L-BFGS-B reaches from `point` in at most so many iterations.

        The value is divided by the number of samples: else the first step, of the length of the gradient, is too long.
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

        Where Newton's steps fail the search goes down by L-BFGS-B, and tries again.
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
        """Return where Newton's steps from a point end, within the limits, and whether that is a minimum."""
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
            if kept and left > 0.3 * kept:  # the curvature is another by now
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
    """Return which free coordinates may move, bool: all but those at a limit beyond which the value would fall further.

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
    """Return the coefficients of the autoregression with these partial autocorrelations, [p]."""
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
