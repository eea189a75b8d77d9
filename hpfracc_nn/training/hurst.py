"""Estimates of the Hurst index of a series that is a multiple of fractional Brownian motion, with or without noise.

`whittle` maximises a likelihood and gives an interval. `structure_function` makes the plot that shows whether there is
a Hurst index at all: noise upon the samples bends its lines, and makes the series look rougher than it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.solvers.noise.fractional import fgn_autocovariance

_FEWEST = 32  # samples: below, the intervals have little to do with the estimates
_LOW, _HIGH = 0.002, 0.998  # bounds of the Hurst index
_SHARES = (-14.0, 14.0)  # bounds of the logarithm of the noise's variance over that of an increment
_ROUNDING = 4.0  # times eps: a line's samples are off by one eps each, their differences by two, the range by four
_STEP = 1e-4  # of central differences of the logarithm of the spectrum, which is smooth


@dataclass(frozen=True)
class HurstEstimate:
    """The estimate of `whittle`: a model x_k = scale * B(k dt) + constant + noise_k of a series.

    Attributes:
        hurst: The Hurst index of the fractional Brownian motion B.
        standard_error: The standard error of `hurst`.
        interval: The confidence interval of `hurst`.
        level: The level of the interval, such as 0.95.
        scale: Standard deviation of an increment over one unit of time, without the noise; in the series' units.
        noise: Standard deviation of the noise upon each sample, in the series' units; 0 where none was fitted.

    Examples:
        >>> # Brownian motion
        >>> found = whittle(np.cumsum(np.random.default_rng(0).standard_normal(4000)), dt=0.25)
        >>> found.interval[0] < 0.5 < found.interval[1], round(found.scale, 1)  # 0.25**-0.5
        (True, 2.0)
    """

    hurst: float
    standard_error: float
    interval: tuple[float, float]
    level: float
    scale: float
    noise: float


@dataclass(frozen=True)
class StructureFunction:
    """The result of `structure_function`: moments of a series' increments, which grow like lag**slope.

    Attributes:
        lags: The lags in steps, [lags].
        powers: The powers of the increments, [powers].
        moments: Means of |x_(k + lag) - x_k|**power, [powers, lags].
        slopes: The slopes of log(moment) against log(lag), [powers].
        hurst: The estimate of the Hurst index: the slope of the line through the origin that is nearest to `slopes`.

    Examples:
        >>> # a straight line has the Hurst index 1
        >>> structure_function(np.arange(100.0), powers=[1, 2]).slopes
        array([1., 2.])
    """

    lags: np.ndarray
    powers: np.ndarray
    moments: np.ndarray
    slopes: np.ndarray
    hurst: float


def whittle(x: np.ndarray, *, dt: float = 1.0, has_noise: bool = False, level: float = 0.95) -> HurstEstimate:
    """Return the Hurst index of a path by Whittle's likelihood of its increments.

    The periodogram is compared with its own expectation at this number of samples, from the exact covariance. This
    expectation contains what other frequencies fold or leak into each ordinate, so that no series of the spectrum is
    cut short and short paths have no bias from either. O(n log n).

    Args:
        x: Samples of the path (not its increments) at equal times, [n].
        dt: The spacing of the samples, in the caller's time unit; only `scale` depends on it.
        has_noise: Whether each sample has independent noise of a variance that is estimated too, as a logarithm of a
            volatility that was itself estimated from prices. If such noise is ignored, the path looks rougher.
        level: The level of the confidence interval.

    Returns:
        The estimate; its standard error is that of this estimator, exact to first order.

    Raises:
        ValueError: There are fewer than 32 samples, a sample is not finite, all lie on a straight line, or `dt` or
            `level` is out of range.

    Source: Whittle (1953); Sykulski et al., Biometrika 106 (2019) 251, equation (9); Fukasawa, Takabatake & Westphal,
    Math. Finance 32 (2022) 1086, for the noise.

    Examples:
        >>> from hpfracc_nn import data
        >>> path = np.cumsum(data.fgn(4000, 0.3, np.random.default_rng(0)))
        >>> round(whittle(path).hurst, 2)
        0.3
    """
    step = errors.positive_step("whittle", dt)
    if not 0 < level < 1:
        raise ValueError(f"whittle(level={level}): needs 0 < level < 1; pass for example 0.95.")
    path = _path("whittle", x)
    size = _size(path)
    path = path / size
    changes = np.diff(path)
    if np.ptp(changes) <= _ROUNDING * np.finfo(np.float64).eps * np.abs(path).max():
        raise ValueError("whittle(x): needs increments that vary; those of a straight line have no Hurst index.")
    unit = _size(changes)  # the squares of what is near 1 neither overflow nor vanish
    spectrum = _Spectrum(changes / unit)
    hurst, ratio = spectrum.best(has_noise)
    variance = spectrum.variance(hurst, ratio)
    deviation = spectrum.deviation(hurst, ratio, has_noise)
    half = float(stats.norm.ppf((1 + level) / 2)) * deviation
    return HurstEstimate(
        hurst=hurst,
        standard_error=deviation,
        interval=(max(0.0, hurst - half), min(1.0, hurst + half)),
        level=level,
        scale=math.sqrt(variance) * unit * size * step**-hurst,
        noise=math.sqrt(ratio * variance) * unit * size,
    )


def structure_function(
    x: np.ndarray, *, lags: Sequence[int] | None = None, powers: Sequence[float] = (0.5, 1.0, 1.5, 2.0, 3.0)
) -> StructureFunction:
    """Return the moments of a path's increments over some lags, their slopes, and the Hurst index that fits the slopes.

    A path with one Hurst index has slopes hurst * power, a straight line. No interval is given: increments of different
    lags depend on each other; `whittle` has one.

    Args:
        x: Samples of the path at equal times, [n].
        lags: The lags in steps, two or more; None is some twelve of about equal ratios from 1 to n / 10.
        powers: The powers of the increments, positive.

    Raises:
        ValueError: There are fewer than 32 samples, a sample is not finite, all samples are the same, or a lag or power
            is out of range.
        TypeError: A lag is no whole number.

    Source: Gatheral, Jaisson & Rosenbaum, Quant. Finance 18 (2018) 933, section 2.1.

    Examples:
        >>> from hpfracc_nn import data
        >>> path = np.cumsum(data.fgn(4000, 0.3, np.random.default_rng(0)))
        >>> round(structure_function(path, lags=[1, 2, 4, 8, 16]).hurst, 1)
        0.3
    """
    path = _path("structure_function", x)
    n = path.size
    given = np.geomspace(1, n // 10, 12).round().astype(int) if lags is None else lags
    steps = np.unique([errors.count("structure_function", "lags", lag, 0) for lag in given])
    if steps.size < 2 or steps[0] < 1 or steps[-1] >= n:
        raise ValueError(
            f"structure_function(lags={lags}): needs two lags or more, from 1 to {n - 1}; pass for example "
            "[1, 2, 4, 8]."
        )
    exponents = np.asarray(powers, dtype=np.float64)
    if exponents.ndim != 1 or not exponents.size or not (exponents > 0).all():
        raise ValueError(f"structure_function(powers={powers}): needs positive numbers; pass for example [1, 2].")
    moments = np.array([[np.mean(np.abs(path[lag:] - path[:-lag]) ** power) for lag in steps] for power in exponents])
    slopes = np.polynomial.polynomial.polyfit(np.log(steps), np.log(moments).T, 1)[1]
    return StructureFunction(steps, exponents, moments, slopes, float(exponents @ slopes / (exponents @ exponents)))


class _Spectrum:
    """The periodogram of the increments of a series, and its expectation for noisy fractional Brownian motion.

    In its methods, `ratio` is the variance of the noise over that of an increment without noise.
    """

    def __init__(self, increments: np.ndarray):
        self.n = increments.size
        transformed = np.fft.rfft(increments - increments.mean())
        self._frequencies = slice(1, (self.n + 1) // 2)  # not 0, which the level takes, nor the last of even n
        self.periodogram = (np.abs(transformed) ** 2 / self.n)[self._frequencies]
        self._taper = 1 - np.arange(self.n) / self.n

    def expected(self, hurst: float, ratio: float) -> np.ndarray:
        """Return the expectation of the periodogram, [frequencies], for increments of variance 1 + 2 ratio."""
        covariance = self._covariance(hurst, ratio)
        return 2 * np.fft.rfft(covariance * self._taper).real[self._frequencies] - covariance[0]

    def _covariance(self, hurst: float, ratio: float) -> np.ndarray:
        covariance = fgn_autocovariance(hurst, self.n, NUMPY)
        covariance[0] += 2 * ratio
        covariance[1] -= ratio
        return covariance

    def variance(self, hurst: float, ratio: float) -> float:
        """Return the variance of an increment, without noise, for which the likelihood is greatest."""
        return float(np.mean(self.periodogram / self.expected(hurst, ratio)))

    def loss(self, hurst: float, ratio: float) -> float:
        """Return the negative logarithm of the likelihood per frequency, at the `variance` for which it is least."""
        expected = self.expected(hurst, ratio)
        return float(np.log(np.mean(self.periodogram / expected)) + np.mean(np.log(expected)))

    def best(self, has_noise: bool) -> tuple[float, float]:
        """Return the Hurst index and the ratio for which the likelihood is greatest; without noise the ratio is 0."""
        if not has_noise:
            return self._best_hurst(0.0)[0], 0.0
        # For each ratio there is one best index; the likelihood along them may have two maxima.
        shares = np.linspace(*_SHARES, 15)
        losses = [self._best_hurst(math.exp(share))[1] for share in shares]
        least = int(np.argmin(losses))
        found = optimize.minimize_scalar(
            lambda share: self._best_hurst(math.exp(share))[1],
            bounds=(shares[max(0, least - 1)], shares[min(len(shares) - 1, least + 1)]),
            method="bounded",
            options={"xatol": 1e-4},
        )
        ratio = math.exp(found.x)
        hurst, loss = self._best_hurst(ratio)
        without, bare = self._best_hurst(0.0)
        return (hurst, ratio) if loss < bare else (without, 0.0)

    def _best_hurst(self, ratio: float) -> tuple[float, float]:
        found = optimize.minimize_scalar(
            lambda hurst: self.loss(hurst, ratio), bounds=(_LOW, _HIGH), method="bounded", options={"xatol": 1e-6}
        )
        return float(found.x), float(found.fun)

    def deviation(self, hurst: float, ratio: float, has_noise: bool) -> float:
        """Return the standard error of the Hurst index.

        The error follows from the expected curvature of the likelihood in all parameters and the covariance of its
        slope. Neighbouring ordinates of a periodogram are not independent: at hurst 0.05 this makes a fifth.
        """
        step = min(_STEP, hurst / 2, (1 - hurst) / 2)
        here = self.expected(hurst, ratio)
        slopes = [
            (np.log(self.expected(hurst + step, ratio)) - np.log(self.expected(hurst - step, ratio))) / (2 * step),
            np.ones_like(here),
        ]
        if has_noise:  # linear in the ratio
            slopes.append((self.expected(hurst, ratio + 1) - here) / here)
        jacobian = np.array(slopes)
        inverse = np.linalg.inv(jacobian @ jacobian.T)
        return math.sqrt((inverse @ self._score_covariance(jacobian, hurst, ratio) @ inverse)[0, 0])

    def _score_covariance(self, slopes: np.ndarray, hurst: float, ratio: float) -> np.ndarray:
        """Return the covariance [p, p] of the likelihood's p slopes: sums of slopes * periodogram / expectation.

        The sums are over frequencies, and `slopes` are [p, frequencies]. With D the transform of n increments,
        S_j = sum_(t > 0) covariance_t sin(2 pi j t / n) and j, k of either sign,

            |E D_j D_k*|**2 / n**2 = (S_j - S_k)**2 / [n sin(pi (j - k) / n)]**2        for j != k,

        by geometric sums, are the covariances of the ordinates; the sum over all pairs is a few convolutions.
        """
        n = self.n
        weights = np.zeros((len(slopes), n))
        weights[:, self._frequencies] = slopes / self.expected(hurst, ratio)
        weights[:, 1:] += weights[:, :0:-1]  # the frequencies of the other sign
        covariance = self._covariance(hurst, ratio)
        sines = -np.fft.fft(covariance).imag
        kernel = np.append(0.0, 1 / (n * np.sin(np.pi * np.arange(1, n) / n)) ** 2)

        def pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            convolved = np.fft.irfft(np.fft.rfft(b) * np.fft.rfft(kernel), n)
            return a @ convolved.T

        mixed = pairs(weights * sines**2, weights)
        return slopes @ slopes.T + (mixed + mixed.T) / 2 - pairs(weights * sines, weights * sines)


def _size(x: np.ndarray) -> float:
    """Return the largest power of two that is at most `max(abs(x))`: division by it does not round."""
    return 2.0 ** (math.frexp(float(np.abs(x).max()))[1] - 1)


def _path(owner: str, x: np.ndarray) -> np.ndarray:
    path = np.asarray(x, dtype=np.float64)
    if path.ndim != 1 or path.size < _FEWEST:
        raise ValueError(
            f"{owner}(x of shape {path.shape}): needs one path of {_FEWEST} samples or more; pass an array of one axis."
        )
    if not np.isfinite(path).all():
        i = int(np.argmin(np.isfinite(path)))
        raise ValueError(f"{owner}(x): needs finite samples; x[{i}]={path[i]}; fill the gap or take a part without it.")
    if np.ptp(path) == 0:
        raise ValueError(f"{owner}(x): needs samples that change; all are {path[0]:g}.")
    return path
