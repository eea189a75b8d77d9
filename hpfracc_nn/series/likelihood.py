"""The Gaussian likelihood of a series with an ARFIMA(p, alpha, q) error, exact or conditional, and its derivatives.

    y = X b + x,   ar(z) (1 - z)**alpha x = ma(z) e,   e independent normal of variance s.

For each (alpha, ar, ma) the best b and s are those of generalised least squares, so that the likelihood is a function
of alpha and the lags. With T s the covariance of x and S the least weighted sum of squares, twice the negative
logarithm of the likelihood is

    N log(2 pi s) + S / s + D,   s = S / N,

where for the exact likelihood N = n and D = log det T; for the restricted one, which is that of the combinations of y
that no b changes (Harville, JASA 72 (1977) 320), N = n - k and D = log det T + log det(X' T**-1 X). The conditional
one is the restricted one with zeros before the first sample in place of the stationary past: the weighted squares are
those of the errors, and det T = 1.

A series has n rows, X has k columns, and a point is the vector of those of alpha, ar and ma that are sought, [size].
`gamma` is the first column of T, the autocovariance for s = 1, [n]. White columns are L**-1 [X y] with T = L L'.

A gap is treated as a regressor that is 1 at the gap's row alone: eliminated like the others, and with the logarithm of
its pivot added to D, such a regressor leaves the density of the samples that exist, and N counts these alone.

A search of the exact or restricted likelihood begins with the conditional one, and with that of a periodic sample,
whose T is the circulant matrix nearest to the real one: the likelihood of Whittle with the expected periodogram in
place of its limit (Sykulski, Olhede, Guillaumin, Lilly & Early, Biometrika 106 (2019) 251). A value of this periodic
likelihood costs no more than one of the conditional likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft, linalg

from hpfracc_nn.series.covariance import Filter, UnsettledError, autocovariance, circulant, solved, whitened

CONDITIONAL, EXACT, RESTRICTED = LIKELIHOODS = ("conditional", "exact", "restricted")
_SHIFT = 1e-5  # step of central differences of values and covariances
_SHIFT_OF_SLOPES = 1e-4  # the same where first derivatives are differenced for second ones
_DENSE = 300  # rows, up to which a dense factorisation costs less than the recursion
_LONGEST = 2**16  # `longest` of a periodic sample's autocovariance: a search goes no nearer to a unit root
_DIFFERENCED = 100  # rows, up to which differences of values cost less than conjugate gradients


@dataclass(frozen=True)
class Sample:
    """A series of n rows, m of which are gaps, and its k regressors.

    Attributes:
        y: The series, [n]; the numbers at gaps have no effect.
        x: The regressors X, [n, k].
        gaps: Rows without a sample, rising, [m].
        likelihood: "exact", "restricted" or "conditional".
        is_periodic: Whether the nearest circulant matrix stands for the covariance T; then there are no gaps.
    """

    y: np.ndarray
    x: np.ndarray
    gaps: np.ndarray
    likelihood: str
    is_periodic: bool = False

    @property
    def n(self) -> int:
        """The number of samples: that of the rows less that of the gaps."""
        return len(self.y) - len(self.gaps)

    @property
    def degrees(self) -> int:
        """The number of samples, less k unless the likelihood is exact: N in the module's formula."""
        return self.n if self.likelihood == EXACT else self.n - self.x.shape[1]

    @cached_property
    def columns(self) -> np.ndarray:
        return np.column_stack([self.x, self.y])

    @cached_property
    def filtered(self) -> Filter:
        return Filter(self.columns)

    @cached_property
    def transformed(self) -> np.ndarray:
        """The orthonormal real FFT of `columns`, the regressors and the series, [n // 2 + 1, k + 1]."""
        return fft.rfft(self.columns, axis=0, norm="ortho")


@dataclass(frozen=True)
class Reduced:
    """The matrix factor and the log determinants from which the likelihood at one point is computed.

    X are the k regressors, y the series, b the regressors' coefficients and T the covariance for errors of variance 1.

    Attributes:
        factor: Upper triangular, [k + 1, k + 1], `factor' factor = [X y]' T**-1 [X y]` where gaps are eliminated.
        logarithms: The sum of log determinants, D in the module's formula.
    """

    factor: np.ndarray
    logarithms: float

    @property
    def coefficients(self) -> np.ndarray:
        """The regressors' coefficients b with the least weighted sum of squares, [k]."""
        return linalg.solve_triangular(self.factor[:-1, :-1], self.factor[:-1, -1])

    @property
    def squares(self) -> float:
        """The least weighted sum of squares, S."""
        return float(self.factor[-1, -1] ** 2)

    def squares_at(self, coefficients: np.ndarray) -> float:
        """Return the weighted sum of squares at other coefficients b, [k]."""
        return float(((self.factor @ np.append(-coefficients, 1.0)) ** 2).sum())


class Problem:
    """The likelihood of one sample as a function of a point: of those of [alpha, ar, ma] that are sought.

    Below, y is the series, X are its k regressors, b their coefficients, s the variance of the errors, and T s is the
    covariance of y - X b.

    Args:
        sample: The series and its regressors.
        alpha: The order, or None where it is sought.
        ar: How many coefficients of ar are sought, or the fixed coefficients.
        ma: How many coefficients of ma are sought, or the fixed coefficients.
    """

    def __init__(
        self,
        sample: Sample,
        alpha: float | None,
        ar: int | np.ndarray,
        ma: int | np.ndarray,
    ):
        self.sample = sample
        self.alpha = alpha
        self.ar = None if isinstance(ar, int) else ar
        self.ma = None if isinstance(ma, int) else ma
        self.sizes = (int(alpha is None), ar if isinstance(ar, int) else 0, ma if isinstance(ma, int) else 0)

    def of(self, sample: Sample) -> Problem:
        """Return the problem that seeks the same parameters for another sample."""
        found = copy(self)
        found.sample = sample
        return found

    @property
    def size(self) -> int:
        """How many numbers a point has."""
        return sum(self.sizes)

    def parts(self, point: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return alpha, ar and ma at a point, the fixed ones included."""
        first, lags, _ = self.sizes
        alpha = float(point[0]) if self.alpha is None else self.alpha
        ar = point[first : first + lags] if self.ar is None else self.ar
        ma = point[first + lags :] if self.ma is None else self.ma
        return alpha, ar, ma

    def reduced(self, point: np.ndarray) -> Reduced:
        """Return the likelihood at a point for any b and s; an exact or restricted one costs O(n**2)."""
        sample, (alpha, ar, ma) = self.sample, self.parts(point)
        if sample.likelihood == CONDITIONAL:
            white, logarithms = sample.filtered(alpha, ar, ma), 0.0
        else:
            if sample.is_periodic:
                gamma = autocovariance(len(sample.y), alpha, ar, ma, longest=_LONGEST)
                white, logarithms = _periodic(gamma, sample.transformed)
            else:
                gamma = autocovariance(len(sample.y), alpha, ar, ma)
                white, logarithms = (_dense if len(gamma) <= _DENSE else _recursive)(gamma, sample.columns, sample.gaps)
        factor = linalg.qr(white, mode="r", check_finite=False)[0][: white.shape[1]]
        gaps = white.shape[1] - sample.columns.shape[1]
        pivots = np.log(np.abs(np.diag(factor)))
        eliminated = gaps if sample.likelihood == EXACT else white.shape[1] - 1
        return Reduced(factor[gaps:, gaps:], logarithms + 2 * float(pivots[:eliminated].sum()))

    def value(self, point: np.ndarray) -> float:
        """Return the negative logarithm of the likelihood at a point, for the best b and s."""
        found, degrees = self.reduced(point), self.sample.degrees
        return (degrees * (math.log(2 * math.pi * found.squares / degrees) + 1) + found.logarithms) / 2

    def gradient(self, point: np.ndarray) -> np.ndarray:
        """Return the gradient of `value` in the point, [size]."""
        solution = self._solved(point)
        if solution is not None:
            coefficients, squares = solution.coefficients, solution.squares
            return self._slopes(point, solution, coefficients, squares / self.sample.degrees)[: self.size]
        return self._differences(self.value, point)

    def curvature(self, point: np.ndarray, coefficients: np.ndarray, variance: float) -> np.ndarray:
        """Return the observed information: the second derivatives of the negative log-likelihood in (b, point, s).

        Args:
            point: Alpha, ar and ma that are sought, [size].
            coefficients: b, [k].
            variance: s.

        Returns:
            [k + size + 1, k + size + 1].
        """
        k, size, degrees = len(coefficients), self.size, self.sample.degrees
        found = np.zeros((k + size + 1, k + size + 1))
        solution = self._solved(point)
        if solution is not None:
            found[:k, :k] = solution.gram[:-1, :-1] / variance
        else:
            here = self.reduced(point).factor
            found[:k, :k] = here[:-1, :-1].T @ here[:-1, :-1] / variance
        inside = slice(k, k + size)
        for i in range(size):
            step = np.zeros(size)
            step[i] = self._step_inside(point, i, _SHIFT_OF_SLOPES)
            above, below = (self._score(point + side * step, coefficients, variance) for side in (1, -1))
            slopes = (above - below) / (2 * step[i])
            found[inside, k + i] = slopes[:size]
            found[:k, k + i] = found[k + i, :k] = slopes[size:-1] / variance
            found[-1, k + i] = found[k + i, -1] = -slopes[-1] / (2 * variance**2)
        found[inside, inside] = (found[inside, inside] + found[inside, inside].T) / 2
        found[-1, -1] = degrees / (2 * variance**2)
        return found

    def is_defined(self, point: np.ndarray) -> bool:
        """Return whether the likelihood exists at a point.

        An exact or restricted one does where the process is stationary, a conditional one where it is invertible.
        """
        alpha, ar, ma = self.parts(point)
        if self.sample.likelihood == CONDITIONAL:
            return self.ma is not None or is_stable(-ma)
        return alpha < 0.5 and (self.ar is not None or is_stable(ar))

    def _score(self, point: np.ndarray, coefficients: np.ndarray, variance: float) -> np.ndarray:
        """Return first derivatives at fixed b and s as one vector, [size + k + 1].

        The vector holds the gradient of the negative log-likelihood in the point, then `-X' T**-1 (y - X b)`, then the
        weighted sum of squares.

        Args:
            point: Alpha, ar and ma that are sought.
            coefficients: b.
            variance: s.
        """
        solution = self._solved(point)
        if solution is not None:
            slopes = self._slopes(point, solution, coefficients, variance)
            weights = np.append(-coefficients, 1.0)
            return np.concatenate([slopes, -(solution.gram @ weights)[:-1], [weights @ solution.gram @ weights]])

        def value(at: np.ndarray) -> float:
            found = self.reduced(at)
            return (found.squares_at(coefficients) / variance + found.logarithms) / 2

        here = self.reduced(point)
        left = here.factor @ np.append(-coefficients, 1.0)
        slopes = self._differences(value, point, _SHIFT_OF_SLOPES)
        return np.concatenate([slopes, -(here.factor[:, :-1].T @ left), [here.squares_at(coefficients)]])

    def _differences(
        self, value: Callable[[np.ndarray], float], point: np.ndarray, shift: float = _SHIFT
    ) -> np.ndarray:
        found = np.empty(len(point))
        for i in range(len(point)):
            step = np.zeros(len(point))
            step[i] = self._step_inside(point, i, shift)
            found[i] = (value(point + step) - value(point - step)) / (2 * step[i])
        return found

    def _step_inside(self, point: np.ndarray, i: int, shift: float) -> float:
        """Return a step, `shift` or less, so small that the likelihood exists at point[i] plus and minus the step."""
        step = np.zeros(len(point))
        for _ in range(12):
            step[i] = shift
            if self.is_defined(point + step) and self.is_defined(point - step):
                break
            shift /= 4
        return shift

    def _solved(self, point: np.ndarray) -> Solution | None:
        """Return `T**-1` times a unit column and the columns [X y], from which gradients are computed.

        None where gradients are computed by differences instead: for few samples, for gaps, for a conditional or
        periodic likelihood, and where T is nearly singular.
        """
        sample = self.sample
        if sample.likelihood == CONDITIONAL or sample.is_periodic or len(sample.gaps) or len(sample.y) <= _DIFFERENCED:
            return None
        gamma = autocovariance(len(sample.y), *self.parts(point))
        right = np.column_stack([np.zeros(len(gamma)), sample.columns])
        right[0, 0] = 1
        try:
            found = solved(gamma, right)
        except UnsettledError:
            return None
        return Solution(found[:, 0], found[:, 1:], sample.columns.T @ found[:, 1:])

    def _slopes(self, point: np.ndarray, solution: Solution, coefficients: np.ndarray, variance: float) -> np.ndarray:
        """Return the gradient of the negative log-likelihood in the point at fixed b and s, [size]; O(n log n).

        It is `(tr(T**-1 dT) - w' dT w / s) / 2` for each coordinate, with w = `T**-1 (y - X b)` and dT the derivative
        of T; a restricted likelihood adds the part of `log det(X' T**-1 X)`.

        Args:
            point: Alpha, ar and ma that are sought.
            solution: `T**-1` times the columns, at this point.
            coefficients: b.
            variance: s.
        """
        n = len(solution.first)
        w = solution.columns @ np.append(-coefficients, 1.0)
        weights = solution.trace - _autocorrelation(w[:, None]) / variance
        if self.sample.likelihood == RESTRICTED and len(coefficients):
            half = np.linalg.cholesky(np.linalg.inv(solution.gram[:-1, :-1]))
            weights = weights - _autocorrelation(solution.columns[:, :-1] @ half)
        found = np.empty(self.size)
        for i in range(self.size):
            step = np.zeros(self.size)
            step[i] = self._step_inside(point, i, _SHIFT)
            above, below = (autocovariance(n, *self.parts(point + side * step)) for side in (1, -1))
            found[i] = weights @ (above - below) / (4 * step[i])
        return found


@dataclass(frozen=True)
class Solution:
    """`T**-1` times a unit column and the columns [X y]: T is the covariance, X are k regressors, y is the series.

    Attributes:
        first: The first column of `T**-1`, [n].
        columns: `T**-1 [X y]`, [n, k + 1].
        gram: `[X y]' T**-1 [X y]`, [k + 1, k + 1].
    """

    first: np.ndarray
    columns: np.ndarray
    gram: np.ndarray

    @property
    def coefficients(self) -> np.ndarray:
        """The regressors' coefficients b with the least weighted sum of squares, [k]."""
        return np.linalg.solve(self.gram[:-1, :-1], self.gram[:-1, -1])

    @property
    def squares(self) -> float:
        """The least weighted sum of squares, S."""
        return float(self.gram[-1, -1] - self.gram[-1, :-1] @ self.coefficients)

    @property
    def trace(self) -> np.ndarray:
        """The vector, [n], whose product with the first column of a symmetric Toeplitz matrix M is `tr(T**-1 M)`.

        From the formula of Gohberg and Semencul: the sum along the k-th diagonal of `T**-1` is that of
        `(n - k - 2 i) a[i] a[i + k] / a[0]` over i, with a the first column of `T**-1`.
        """
        a, n = self.first, len(self.first)
        index = np.arange(n)
        plain, moved = _correlation(a, a), _correlation(index * a, a)
        sums = ((n - index) * plain - 2 * moved) / a[0]
        sums[1:] *= 2
        return sums


def _dense(gamma: np.ndarray, columns: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, float]:
    """Return columns whitened in the rows that are no gaps, [n - m, k + 1], and log det of these rows' covariance.

    Args:
        gamma: The autocovariance, first column of the covariance T, [n].
        columns: The regressors and the series, [X y], [n, k + 1].
        gaps: Rows without a sample, [m].
    """
    there = np.setdiff1d(np.arange(len(gamma)), gaps)
    factor = linalg.cholesky(gamma[np.abs(there[:, None] - there)], lower=True, check_finite=False)
    return linalg.solve_triangular(factor, columns[there], lower=True), 2 * float(np.log(np.diag(factor)).sum())


def _periodic(gamma: np.ndarray, transformed: np.ndarray) -> tuple[np.ndarray, float]:
    """Return columns whitened by the circulant matrix nearest to the covariance, and its log determinant.

    The rows of the result are the real parts, then the imaginary parts, at all frequencies from 0 to the highest.

    Args:
        gamma: The autocovariance, first column of the covariance, [n].
        transformed: The orthonormal real FFT of the columns, [n // 2 + 1, k + 1].
    """
    eigenvalues, times = circulant(gamma), np.full(len(transformed), 2.0)
    times[0] = 1
    if len(gamma) % 2 == 0:
        times[-1] = 1
    if not eigenvalues.min() > 0:  # rounding may make some of them negative
        raise ValueError(
            "periodic(gamma): needs a positive definite covariance; alpha or a root is too near its bound."
        )
    white = transformed * np.sqrt(times / eigenvalues)[:, None]
    return np.concatenate([white.real, white.imag]), float(times @ np.log(eigenvalues))


def _recursive(gamma: np.ndarray, columns: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, float]:
    """Return columns whitened by Durbin and Levinson's recursion, [n, m + k + 1], and log det of the covariance.

    The first m columns are those of the gaps, each 1 at its gap and else 0 before it is whitened. Arguments are those
    of `_dense`.
    """
    found, unit, variances = whitened(gamma, columns, gaps)
    return np.column_stack([unit, found]) / np.sqrt(variances)[:, None], float(np.log(variances).sum())


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the sums over i of `a[i] b[i + k]` for k = 0 ... n - 1, [n]."""
    padded = fft.next_fast_len(2 * len(a), real=True)
    return fft.irfft(fft.rfft(a, padded).conj() * fft.rfft(b, padded), padded)[: len(a)]


def _autocorrelation(columns: np.ndarray) -> np.ndarray:
    """Return the vector c, [n], for which `c @ t` is the sum of `w' M w` over the columns w of `columns`, [n, any].

    M is the symmetric Toeplitz matrix with the first column t.
    """
    n = len(columns)
    padded = fft.next_fast_len(2 * n, real=True)
    sums = fft.irfft((np.abs(fft.rfft(columns, padded, axis=0)) ** 2).sum(1), padded)[:n]
    sums[1:] *= 2
    return sums


def is_stable(ar: np.ndarray) -> bool:
    """Return whether all partial autocorrelations of the coefficients `ar` are inside (-1, 1).

    They are computed by Durbin and Levinson's recursion backwards.
    """
    left = np.array(ar, np.float64)
    while len(left):
        last = left[-1]
        if not abs(last) < 1 - 1e-9:
            return False
        left = (left[:-1] + last * left[-2::-1]) / (1 - last**2) if len(left) > 1 else left[:0]
    return True
