"""The point of the greatest likelihood, of one series or of several that share numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, optimize

from hpfracc_nn.series.covariance import difference_weights
from hpfracc_nn.series.likelihood import CONDITIONAL, Problem, is_stable

_STARTS = (-0.6, -0.25, 0.1, 0.3, 0.6, 0.9, 1.2, 1.6)  # of alpha: beside lags there may be several maxima
_MARGIN = 2e-6  # from a bound of alpha, beyond which there may be no likelihood
_AT_BOUND = 1e-4  # of the width of the bounds
_AT_HALF = 2e-3  # below alpha = 1/2, where a variance without limit bends the likelihood down at the very end
_PARTIAL = 1 - 1e-5  # of partial autocorrelations
_DESCENT, _FIRST = 200, 8  # iterations at most, and before the starts are compared
_NEWTON, _HALVINGS = 25, 12
_DONE = 1e-11  # squared standard errors from the maximum
_SAME = 3.0  # of the logarithm of the likelihood: starts that are no further from the best are followed
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

    def information(self, point: np.ndarray) -> np.ndarray:
        """Return the observed information of the point and of every series' b and s, [size + sum of (k + 1)] twice."""
        sizes = [each.sample.x.shape[1] + 1 for each in self.problems]
        found = np.zeros((self.size + sum(sizes),) * 2)
        start = self.size
        for each, place, size in zip(self.problems, self.places, sizes, strict=True):
            here = each.reduced(point[place])
            curvature = each.curvature(point[place], here.coefficients, here.squares / each.sample.degrees)
            where = np.concatenate([start + np.arange(size - 1), place, [start + size - 1]])
            found[np.ix_(where, where)] += curvature
            start += size
        return found

    def curvature(self, point: np.ndarray) -> np.ndarray:
        """Return the second derivatives of `value`, [size, size]: b and s are at their best."""
        found, size = self.information(point), self.size
        return found[:size, :size] - found[:size, size:] @ np.linalg.solve(found[size:, size:], found[size:, :size])

    def is_defined(self, point: np.ndarray) -> bool:
        """Return whether there is a likelihood."""
        return all(each.is_defined(point[place]) for each, place in zip(self.problems, self.places, strict=True))

    def at_bound(self, point: np.ndarray) -> np.ndarray:
        """Return which numbers of a point are an alpha that has gone to a bound."""
        low, high = self.bounds
        near = _AT_BOUND * (high - low)
        above = _AT_HALF if high == 0.5 and self.problems[0].sample.likelihood != CONDITIONAL else near
        places = np.concatenate(
            [np.arange(self.size)[block.place] for block in self._of("alpha")] or [np.empty(0, int)]
        )
        return places[(point[places] <= low + near) | (point[places] >= high - above)]

    def best(self) -> np.ndarray:
        """Return the point of the greatest likelihood found."""
        if not self.size:
            return np.empty(0)
        conditional = Joint([_conditional(each) for each in self.problems], None, self.bounds)
        conditional.blocks, conditional.places = self.blocks, self.places
        exact = self.problems[0].sample.likelihood != CONDITIONAL
        low, high = self.bounds
        alphas = [start for start in _STARTS if low < start < high] or [(low + high) / 2]
        if self.problems[0].alpha is not None:
            alphas = [self.problems[0].alpha]
        starts = [self._start(alpha, lags=True) for alpha in alphas] + [self._start(alphas[0], lags=False)]
        searched = self if exact and max(len(each.sample.y) for each in self.problems) <= _SHORT else conditional
        reached = [searched._descended(start, _FIRST) for start in starts]
        values = np.array([searched.value(point) for point in reached])
        found: list[np.ndarray] = []
        for i in np.argsort(values, kind="stable"):
            if values[i] <= values.min() + _SAME and not any(np.allclose(reached[i], p, atol=1e-2) for p in found):
                found.append(reached[i])
        found = [self._polished(searched._descended(point, _DESCENT)) for point in found[:2]]
        return found[0] if len(found) == 1 else min(found, key=self.value)

    def _of(self, kind: str) -> list[Block]:
        return [block for block in self.blocks if block.kind == kind]

    def _start(self, alpha: float, lags: bool) -> np.ndarray:
        """A first point: with no lags, or with those of a regression."""
        found, times = np.zeros(self.size), np.zeros(self.size)
        for each, place in zip(self.problems, self.places, strict=True):
            first, p, q = each.sizes
            guess = np.concatenate([np.full(first, alpha), _regressed(each, alpha, p, q) if lags else np.zeros(p + q)])
            found[place] += guess
            times[place] += 1
        return found / times

    def _natural(self, free: np.ndarray) -> np.ndarray:
        """Lags from their partial autocorrelations."""
        found = free.copy()
        for block in self._partial():
            lags = _lags(free[block.place])
            found[block.place] = lags if block.kind == "ar" else -lags
        return found

    def _free(self, point: np.ndarray) -> np.ndarray:
        found = point.copy()
        for block in self._partial():
            found[block.place] = _partial(point[block.place] if block.kind == "ar" else -point[block.place])
        return found

    def _partial(self) -> list[Block]:
        exact = self.problems[0].sample.likelihood != CONDITIONAL
        return [*(self._of("ar") if exact else []), *self._of("ma")]

    def _descended(self, point: np.ndarray, iterations: int) -> np.ndarray:
        """Go down from a point."""
        limits = [(-np.inf, np.inf)] * self.size
        low, high = self.bounds
        for block in self.blocks:
            limit = (low + _MARGIN, high - _MARGIN) if block.kind == "alpha" else (-_PARTIAL, _PARTIAL)
            if block.kind == "alpha" or block in self._partial():
                limits[block.place] = [limit] * (block.place.stop - block.place.start)

        def value_and_slope(free: np.ndarray) -> tuple[float, np.ndarray]:
            natural = self._natural(free)
            value = self.value(natural)
            if value == np.inf:
                return 1e300, np.zeros(self.size)
            slopes = self.gradient(natural)
            steps = 1e-6 * np.eye(self.size)
            chain = np.array([(self._natural(free + step) - self._natural(free - step)) / 2e-6 for step in steps])
            return value, chain @ slopes

        free = np.clip(self._free(point), [a for a, _ in limits], [b for _, b in limits])
        options = {"maxiter": iterations, "ftol": 1e-12, "gtol": 1e-7}
        found = optimize.minimize(value_and_slope, free, jac=True, method="L-BFGS-B", bounds=limits, options=options)
        return self._natural(found.x)

    def _polished(self, point: np.ndarray) -> np.ndarray:
        """Newton's steps to the last digits; none where they do not go down."""
        try:
            return self._newton(point)
        except (ValueError, linalg.LinAlgError):  # the likelihood ends there
            return point

    def _newton(self, point: np.ndarray) -> np.ndarray:
        low, high = self.bounds
        curvature, slopes, kept = _convex(self.curvature(point)), self.gradient(point), 0.0
        for _ in range(_NEWTON):
            held = np.zeros(self.size, bool)
            for block in self._of("alpha"):
                a, g = point[block.place], slopes[block.place]
                held[block.place] = ((a <= low + 2 * _MARGIN) & (g > 0)) | ((a >= high - 2 * _MARGIN) & (g < 0))
            loose = ~held
            step = np.zeros(self.size)
            step[loose] = -np.linalg.solve(curvature[np.ix_(loose, loose)], slopes[loose])
            left = -float(slopes @ step)
            if left <= _DONE:
                return point
            if kept and left > 0.3 * kept:  # the curvature is another by now
                curvature, kept = _convex(self.curvature(point)), 0.0
                continue
            for _ in range(_HALVINGS):
                reached = self._clipped(point + step)
                if self.is_defined(reached):
                    following = self.gradient(reached)
                    if following[loose] @ np.linalg.solve(curvature[np.ix_(loose, loose)], following[loose]) < left:
                        break
                step /= 2
            else:
                return point
            point, slopes, kept = reached, following, left
        return point

    def _clipped(self, point: np.ndarray) -> np.ndarray:
        low, high = self.bounds
        found = point.copy()
        for block in self._of("alpha"):
            found[block.place] = np.clip(found[block.place], low + _MARGIN, high - _MARGIN)
        return found


def _conditional(problem: Problem) -> Problem:
    """The same problem with the conditional likelihood, gaps bridged by straight lines."""
    sample = problem.sample
    y, there = sample.y.copy(), np.setdiff1d(np.arange(len(sample.y)), sample.gaps)
    y[sample.gaps] = np.interp(sample.gaps, there, y[there])
    found = Problem.__new__(Problem)
    found.__dict__.update(problem.__dict__)
    found.sample = type(sample)(y, sample.x, np.empty(0, int), CONDITIONAL)
    return found


def _regressed(problem: Problem, alpha: float, p: int, q: int) -> np.ndarray:
    """Lags by two regressions: on a long past, and on a short one and the errors of the first (Hannan & Rissanen)."""
    if not p + q:
        return np.empty(0)
    sample = _conditional(problem).sample
    level = np.linalg.lstsq(sample.x, sample.y, rcond=None)[0] if sample.x.shape[1] else np.empty(0)
    given = sample.y - sample.x @ level
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


def _past(u: np.ndarray, lags: int) -> np.ndarray:
    """The values before each, [n, lags]."""
    padded = np.concatenate([np.zeros(lags), u])
    return np.column_stack(
        [padded[lags - lag : len(padded) - lag] for lag in range(1, lags + 1)] or [u[:, None][:, :0]]
    )


def _convex(curvature: np.ndarray) -> np.ndarray:
    """The same with eigenvalues above zero, which makes a step go down."""
    values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
    return (vectors * np.maximum(np.abs(values), 1e-8 * np.abs(values).max())) @ vectors.T


def _lags(partial: np.ndarray) -> np.ndarray:
    """An autoregression from its partial autocorrelations."""
    found = partial[:0]
    for each in partial:
        found = np.append(found - each * found[::-1], each)
    return found


def _partial(lags: np.ndarray) -> np.ndarray:
    """Its partial autocorrelations; zeros where it is not stationary."""
    left, found = lags.copy(), np.zeros(len(lags))
    for i in range(len(lags) - 1, -1, -1):
        last = left[i]
        if not abs(last) < 1:
            return np.zeros(len(lags))
        found[i] = last
        left = (left[:i] + last * left[:i][::-1]) / (1 - last**2)
    return found
