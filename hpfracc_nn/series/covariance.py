"""The autocovariance of ARFIMA(p, alpha, q), and two ways to whiten series.

They are whitened by this autocovariance, or by the model's filter with zeros before the first sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import fft, signal

Lags = Sequence[float] | np.ndarray  # coefficients of ar or ma

_SETTLED = 45.0  # a filter's start counts as forgotten once it has decayed by exp(-45)
_LONGEST = 2**24  # lags before 0, at most, from which a filter starts
_MANY = 2**12  # lags before 0, beyond which their sum is computed as an integral in place of filtering
_STEP = 0.25  # step of the trapezoidal rule for this integral, whose error is exp(-pi**2 / step)
_CONDITION = 1e7  # largest condition number of Yule and Walker's equations, a loss of digits; double roots exceed it
_NEAR = 1e-9  # least distance of a root from the unit circle
_TOLERANCE, _STEPS = 1e-13, 300  # of conjugate gradients: the residual over the right-hand side, and the iterations


def autocovariance(n: int, alpha: float, ar: Lags = (), ma: Lags = (), *, longest: int = _LONGEST) -> np.ndarray:
    """Return the autocovariance of ARFIMA(p, alpha, q) at lags 0 to n - 1, for innovations of variance 1.

    The autocovariance of fractional noise, known in closed form, is filtered by `ma(z) / ar(z)` forwards and backwards
    over its lags, from a lag so far below 0 that the filter's start has decayed; the largest root decides how far. No
    root is divided by, so that multiple and nearly cancelling roots are as good as others. This costs O(n + decay), but
    only O(n) for single roots near the unit circle, for which the sum over all lags below 0 is an integral.

    Args:
        n: Number of lags.
        alpha: The order, below 1/2.
        ar: Coefficients of x[t] = ar[0] x[t - 1] + ... + u[t], stationary.
        ma: Coefficients of u[t] = e[t] + ma[0] e[t - 1] + ...
        longest: From how many lags below 0 the filter may start; 2**24 are those of a root 3e-6 from the unit circle.

    Raises:
        ValueError: The process is not stationary, or a root is so near to the unit circle that more lags are needed.

    Source: Hosking, Biometrika 68 (1981), theorem 1; the two filters, Bertelli & Caporin, J. Time Series Analysis 23
    (2002) 503.
    """
    over, under = polynomials(ar, ma)
    if not alpha < 0.5:
        raise ValueError(f"autocovariance(alpha={alpha}): needs alpha < 1/2; take differences, and alpha - 1.")
    if len(over) == len(under) == 1:
        return noise(n, alpha)
    size = largest_root(ar)
    if not size < 1 - _NEAR:
        raise ValueError(f"autocovariance(ar={list(ar)}): needs a stationary process; a root's modulus is {size:.6g}.")
    ahead = 10 * (len(over) + len(under)) + (math.ceil(_SETTLED / -math.log(size)) if size > 0 else 0)
    ahead += ahead // 8 * (len(under) - 2) if len(under) > 2 else 0  # multiple roots decay later
    if ahead > _MANY:
        found, condition = _summed(n, alpha, over, under)
        if condition < _CONDITION:
            return found
    if ahead > longest:
        raise ValueError(
            f"autocovariance(ar={list(ar)}): needs roots away from the unit circle; a modulus is {size:.9g}."
        )
    lags = noise(n + ahead, alpha)
    both = np.concatenate([lags[ahead:0:-1], lags])
    forwards = signal.lfilter(over, under, both)[ahead:]
    return signal.lfilter(over, under, forwards[::-1])[::-1][:n]


def _summed(n: int, alpha: float, over: np.ndarray, under: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the autocovariance at lags 0 to n - 1 for errors of variance 1, computed by an integral.

    The second result is the condition number of the equations of Yule and Walker, which are solved on the way. `over`
    and `under` are the coefficients of ma(z) and ar(z), constant first.

    `g[k]`, the autocovariance of fractional noise, is `sin(pi alpha) / pi` times the integral of
    `t**(k + alpha - 1) (1 - t)**(-2 alpha)` over (0, 1). With the weights `w[j]` of `1 / ar(z)` the sum of
    `w[j] g[m + j]` over all j is that integral with a factor `1 / ar(t)`. The value of the factor at t = 1 brings
    `g[m] / ar(1)`; what the rest of it brings is smooth in `u = log(t / (1 - t))`, and integrated by the trapezoidal
    rule. Filters by ma(z) and `1 / ar(z)` follow, the last of which begins with the solution of the equations of Yule
    and Walker.
    """
    p, q = len(under) - 1, len(over) - 1
    first = n + p + q
    g = noise(first + p + 2 * q + 1, alpha)
    u = np.arange(-60, 60, _STEP)  # beyond, the integrand is below 1e-26
    left, right = -np.logaddexp(0, -u), -np.logaddexp(0, u)  # log t, log(1 - t)
    at, value = np.polynomial.polynomial.polyval(np.exp(left), under), under.sum()
    slope = np.polynomial.polynomial.polyval(np.exp(left), np.cumsum(under[:0:-1])[::-1])  # (ar(1) - ar(t)) / (1 - t)
    lag = np.arange(first + 1, first + p + q + 1)
    integrand = np.exp(np.outer(lag + alpha, left) + (2 - 2 * alpha) * right) @ (slope / (at * value))
    sums = g[lag] / value + math.sin(math.pi * alpha) / math.pi * _STEP * integrand
    before = signal.lfiltic(over, under, [over @ sums[i : i + q + 1] for i in range(p)], g[first + 1 : first + 1 + q])
    once = signal.lfilter(over, under, np.concatenate([g[first:0:-1], g[: q + 1]]), zi=before)[0]
    twice = signal.lfilter(over, [1.0], once[::-1])[q : q + n]
    equations = np.zeros((p + 1, p + 1))
    for k in range(p + 1):
        np.add.at(equations[k], np.abs(k - np.arange(p + 1)), under)
    start = np.linalg.solve(equations, twice[: p + 1])
    found = signal.lfilter([1.0], under, twice, zi=signal.lfiltic([1.0], under, start[1:]))[0]
    return found, float(np.linalg.cond(equations))


def noise(n: int, alpha: float) -> np.ndarray:
    """Return the autocovariance of fractional noise, ARFIMA(0, alpha, 0), at lags 0 to n - 1."""
    variance = math.exp(math.lgamma(1 - 2 * alpha) - 2 * math.lgamma(1 - alpha))
    if alpha >= 1 or alpha <= -171:  # the signs of the gamma function, and its range
        raise ValueError(f"noise(alpha={alpha}): needs -171 < alpha < 1/2.")
    lag = np.arange(1, n)
    return variance * np.concatenate([[1.0], np.cumprod((lag - 1 + alpha) / (lag - alpha))])


def polynomials(ar: Lags, ma: Lags) -> tuple[np.ndarray, np.ndarray]:
    """Return the polynomials ma(z) and ar(z), the constant first, without zeros at their ends."""
    over = np.trim_zeros(np.concatenate([[1.0], np.asarray(ma, np.float64)]), "b")
    under = np.trim_zeros(np.concatenate([[1.0], -np.asarray(ar, np.float64)]), "b")
    return over, under


def largest_root(ar: Lags) -> float:
    """Return the largest modulus of the inverse roots of `1 - ar[0] z - ...`; 0 where there are no lags."""
    coefficients = np.trim_zeros(np.asarray(ar, np.float64), "b")
    return float(np.abs(np.roots(np.concatenate([[1.0], -coefficients]))).max(initial=0.0))


def difference_weights(n: int, alpha: float) -> np.ndarray:
    """Return the first n coefficients of `(1 - z)**alpha`."""
    lag = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod((lag - 1 - alpha) / lag)])


def whitened(gamma: np.ndarray, columns: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the innovations of `columns`, those of a unit column for each of `gaps`, and the innovations' variances.

    By the recursion of Durbin and Levinson: with T the Toeplitz matrix of gamma, L lower triangular with ones on its
    diagonal and D diagonal, `L D L' = T`, the innovations are `L**-1` columns, and the variances the diagonal of D. A
    unit column, which is 1 at the row of a gap and else 0, costs no product: its innovations are the predictor's
    coefficients. O(n**2).

    Shapes: gamma [n], columns [n, c], gaps [m] whole numbers, rising; results [n, c], [n, m], [n].
    """
    n = len(gamma)
    backwards, past = np.ascontiguousarray(gamma[::-1]), np.ascontiguousarray(columns[::-1])
    found, unit, variances = np.empty_like(columns), np.zeros((n, len(gaps))), np.empty(n)
    predictor, spare = np.zeros(n), np.empty(n)
    variances[0] = variance = gamma[0]
    found[0] = columns[0]
    before = np.searchsorted(gaps, np.arange(n)).tolist()  # how many gaps are before each row
    for t in range(1, n):
        known = predictor[: t - 1]
        reflection = (gamma[t] - known @ backwards[n - t : n - 1]) / variance
        known -= np.multiply(known[::-1], reflection, out=spare[: t - 1])
        predictor[t - 1] = reflection
        variances[t] = variance = variance * (1 - reflection) * (1 + reflection)
        found[t] = columns[t] - predictor[:t] @ past[n - t :]
        if before[t]:
            unit[t, : before[t]] = -predictor[t - 1 - gaps[: before[t]]]
    unit[gaps, np.arange(len(gaps))] = 1
    if not (variances > 0).all():
        raise ValueError(
            "whitened(gamma): needs a positive definite covariance; alpha or a root is too near its bound."
        )
    return found, unit, variances


def circulant(gamma: np.ndarray) -> np.ndarray:
    """Return the eigenvalues of the circulant matrix nearest to the Toeplitz matrix of gamma [n].

    The eigenvalues, at the frequencies of `rfft`, are the expectation of the periodogram of n samples.

    Source: T. Chan, SIAM J. Sci. Stat. Comput. 9 (1988) 766.
    """
    share = np.arange(len(gamma)) / len(gamma)
    return fft.rfft((1 - share) * gamma + share * np.append(0.0, gamma[:0:-1])).real


class UnsettledError(ValueError):
    """Raised by `solved` where conjugate gradients have not converged."""


def solved(gamma: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the product of `T**-1` and columns [n, c] by conjugate gradients; T is the Toeplitz matrix of gamma [n].

    A step costs O(n log n). The preconditioner is the circulant matrix nearest to T, by which all eigenvalues but a few
    come near 1.

    Raises:
        UnsettledError: The conjugate gradients do not converge, because T is nearly singular.

    Source: T. Chan, SIAM J. Sci. Stat. Comput. 9 (1988) 766.
    """
    n = len(gamma)
    padded = fft.next_fast_len(2 * n - 1, real=True)
    embedding = np.zeros(padded)
    embedding[:n], embedding[padded - n + 1 :] = gamma, gamma[:0:-1]
    eigenvalues = fft.rfft(embedding)[:, None]
    nearest = circulant(gamma)[:, None]
    left, found = columns.copy(), np.zeros_like(columns)
    wanted = _TOLERANCE * np.sqrt((columns**2).sum(0))
    direction, energy = np.zeros_like(columns), np.ones(columns.shape[1])
    for step in range(_STEPS):
        conditioned = fft.irfft(fft.rfft(left, axis=0) / nearest, n, axis=0)
        previous, energy = energy, (left * conditioned).sum(0)
        direction = conditioned + (direction * _ratio(energy, previous) if step else 0.0)
        image = fft.irfft(eigenvalues * fft.rfft(direction, padded, axis=0), padded, axis=0)[:n]
        length = _ratio(energy, (direction * image).sum(0))
        found += length * direction
        left -= length * image
        if (np.sqrt((left**2).sum(0)) <= wanted).all():
            return found
    raise UnsettledError(
        "solved(gamma): needs a covariance that is not nearly singular; alpha or a root is at its bound."
    )


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a / b, and 0 where b is 0, as for a column whose residual has vanished."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


class Filter:
    """A filter that computes the one-step errors of fixed columns for any alpha, ar and ma, with zeros before row 0.

    Args:
        columns: The columns, [n, c].
    """

    def __init__(self, columns: np.ndarray):
        self._n = len(columns)
        self._padded = fft.next_fast_len(2 * self._n - 1, real=True)
        self._transformed = fft.rfft(columns, self._padded, axis=0)

    def __call__(self, alpha: float, ar: Lags, ma: Lags) -> np.ndarray:
        """Return the columns filtered by `ar(z) (1 - z)**alpha / ma(z)`, [n, c]."""
        weights = fft.rfft(difference_weights(self._n, alpha), self._padded)[:, None]
        differenced = fft.irfft(weights * self._transformed, self._padded, axis=0)[: self._n]
        over, under = polynomials(ar, ma)
        return signal.lfilter(under, over, differenced, axis=0)
