"""Results of an ARFIMA fit: estimates and their errors, residuals, forecasts with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import linalg, signal, stats

from hpfracc_nn import errors
from hpfracc_nn.series.covariance import autocovariance, difference_weights, polynomials, whitened
from hpfracc_nn.series.labels import Labels, table
from hpfracc_nn.series.likelihood import CONDITIONAL, Filter

_DENSE = 4000  # samples, up to which the dense covariance of a series with gaps is factorised


@dataclass(frozen=True, eq=False)
class Forecast:
    """Forecasts of what follows a series, or of its gaps.

    Attributes:
        covariance: Covariance [steps, steps] of the forecasts' errors, which are normal; the estimates are taken for
            exact.

    Examples:
        >>> ahead = fit_arfima(np.random.default_rng(0).standard_normal(200)).get_forecast(3)
        >>> ahead.conf_int(alpha=0.2).shape
        (3, 2)
    """

    values: np.ndarray = field(repr=False)
    covariance: np.ndarray = field(repr=False)
    labels: Labels = field(repr=False)
    index: Any = field(default=None, repr=False)

    @property
    def predicted_mean(self) -> Any:
        """The forecasts, [steps]; a pandas Series where the series was one."""
        return self.labels.labelled(self.values, "predicted_mean", self.index)

    @property
    def se_mean(self) -> Any:
        """The standard deviations of the forecasts' errors, [steps]."""
        return self.labels.labelled(self._deviations, "mean_se", self.index)

    def conf_int(self, alpha: float = 0.05) -> Any:
        """Return the bounds that hold each sample with probability 1 - alpha: [steps, 2], or a pandas DataFrame."""
        bounds = _intervals(self.values, self._deviations, alpha)
        if self.labels.index is None:
            return bounds
        from pandas import DataFrame

        names = [f"lower {self.labels.name}", f"upper {self.labels.name}"]
        return DataFrame(bounds, self.index, names)

    @property
    def _deviations(self) -> np.ndarray:
        return np.sqrt(np.maximum(np.diag(self.covariance), 0))


@dataclass(frozen=True, eq=False)
class ArfimaResults:
    """Results of `fit_arfima`, under the names of statsmodels' results.

    Where the series was a pandas object, results with a value for each time or parameter are pandas objects too.

    Attributes:
        param_names: "const", the regressors' names, "alpha", "ar.L1", ..., "ma.L1", ..., "sigma2": what was estimated.
        alpha: The order, estimated or given.
        ar: Coefficients of the lags, `x[t] = ar[0] x[t - 1] + ...`, estimated or given.
        ma: Coefficients of the errors before, `e[t] + ma[0] e[t - 1] + ...`, estimated or given.
        mean: The level, estimated or given; 0 where there is none.
        sigma2: Variance of the errors: their weighted sum of squares divided by the number of samples; for the
            restricted likelihood less the number of coefficients of level and regressors, for the conditional one, as
            in least squares, less the number of all other estimates.
        likelihood: "conditional", "exact" or "restricted".
        llf: Logarithm of the likelihood.
        nobs: The number of samples, without gaps.
        name: Name of the series.
        converged: Whether the slopes of the likelihood vanish at the estimates, or lead to an end of their range;
            statsmodels has it as `mle_retvals["converged"]`.

    Examples:
        >>> from hpfracc_nn import data
        >>> found = fit_arfima(data.arfima(1000, 0.3, np.random.default_rng(0)), ar=1)
        >>> found.param_names
        ('const', 'alpha', 'ar.L1', 'sigma2')
        >>> low, high = found.conf_int()[1]
        >>> bool(low < 0.3 < high), found.forecast(5).shape
        (True, (5,))
    """

    param_names: tuple[str, ...]
    alpha: float
    ar: np.ndarray
    ma: np.ndarray
    mean: float
    sigma2: float
    likelihood: str
    llf: float
    nobs: int
    name: str
    converged: bool
    values: np.ndarray = field(repr=False)
    covariance: np.ndarray = field(repr=False)
    exog_coefficients: np.ndarray = field(repr=False)
    exog_names: tuple[str, ...] = field(repr=False)
    series: np.ndarray = field(repr=False)
    exog: np.ndarray = field(repr=False)
    labels: Labels = field(repr=False)
    whole: int = 0

    @property
    def params(self) -> Any:
        """The estimates, [parameters]."""
        return self._by_name(self.values)

    @property
    def bse(self) -> Any:
        """Standard errors of the estimates, from the observed information; NaN for those at an end of their range."""
        return self._by_name(self._errors)

    @property
    def zvalues(self) -> Any:
        """The estimates in units of their standard errors."""
        return self._by_name(self.values / self._errors)

    tvalues = zvalues

    @property
    def pvalues(self) -> Any:
        """The probability of an estimate as far from 0, were the parameter 0; by the normal distribution."""
        return self._by_name(2 * stats.norm.sf(np.abs(self.values / self._errors)))

    def conf_int(self, alpha: float = 0.05) -> Any:
        """Return intervals that hold the parameters with probability 1 - alpha, [parameters, 2]."""
        bounds = _intervals(self.values, self._errors, alpha)
        if self.labels.index is None:
            return bounds
        from pandas import DataFrame

        return DataFrame(bounds, list(self.param_names))

    def cov_params(self) -> Any:
        """Return the covariance of the estimates, [parameters, parameters]."""
        if self.labels.index is None:
            return self.covariance
        from pandas import DataFrame

        return DataFrame(self.covariance, list(self.param_names), list(self.param_names))

    @property
    def aic(self) -> float:
        """Akaike's criterion, `2 k - 2 llf` with k parameters, the variance among them.

        Compare criteria of the same samples only. A restricted or conditional likelihood is that of what a level and
        regressors leave of the samples, so that level and regressors must be the same too.
        """
        return 2 * len(self.values) - 2 * self.llf

    @property
    def bic(self) -> float:
        """Schwarz's (Bayesian) criterion, `log(nobs) k - 2 llf` with k parameters."""
        return math.log(self.nobs) * len(self.values) - 2 * self.llf

    @property
    def hqic(self) -> float:
        """The criterion of Hannan and Quinn, `2 log(log(nobs)) k - 2 llf` with k parameters."""
        return 2 * math.log(math.log(self.nobs)) * len(self.values) - 2 * self.llf

    @property
    def resid(self) -> Any:
        """The series less its one-step predictions, [n]; NaN at gaps, and at the first sample of a differenced series.

        Raises:
            ValueError: There are gaps in more than 4000 samples.
        """
        return self.labels.labelled(self._residuals, "resid")

    @property
    def fittedvalues(self) -> Any:
        """The one-step predictions, each from the samples before, [n]; NaN where `resid` is."""
        return self.labels.labelled(self.series - self._residuals, "fittedvalues")

    @property
    def level(self) -> float:
        """The value of the process before its first sample: the mean, or that sample if the series is differenced."""
        return float(self.series[0]) if self.whole else self.mean

    def forecast(self, steps: int, exog: Any = None) -> Any:
        """Return what is expected of the next `steps` samples, [steps]; see `get_forecast`."""
        return self.get_forecast(steps, exog).predicted_mean

    def get_forecast(self, steps: int, exog: Any = None) -> Forecast:
        """Return the forecasts of the next `steps` samples, with the covariance of their errors.

        These are the best linear forecasts: after a fit by the exact or the restricted likelihood those of the
        stationary process, after one by the conditional likelihood those of the process that is at its mean before the
        first sample. The index continues the series' index if that has a frequency, else it is that of `exog`, else a
        count.

        Args:
            steps: How many samples to forecast.
            exog: The regressors at the times of these samples, [steps, regressors], if the model has any.

        Raises:
            ValueError: `exog` is missing, superfluous or of another shape.
            TypeError: An argument has the wrong type.
        """
        owner = "ArfimaResults.forecast"
        steps = errors.count(owner, "steps", steps)
        k = len(self.exog_names)
        if (exog is None) != (k == 0):
            fault = f"exog={'None' if exog is None else '...'}"
            raise ValueError(
                f"{owner}({fault}): needs the {k} regressors of the fit at the times of the forecasts; "
                + (f"pass exog of shape ({steps}, {k})." if k else "the model has none, leave exog out.")
            )
        following = self.labels.following(steps, exog)
        given, names = table(owner, exog, steps, "each step")
        if sorted(names) == sorted(set(self.exog_names)):  # duplicate names do not say which column is which
            given = given[:, [names.index(name) for name in self.exog_names]]
        if given.shape[1] != k:
            raise ValueError(
                f"{owner}(exog of shape {given.shape}): needs shape ({steps}, {k}); pass those of the fit."
            )
        if set(names) != set(self.exog_names) and _are_named(names) and _are_named(self.exog_names):
            raise ValueError(
                f"{owner}(exog with columns {list(names)}): needs those of the fit, {list(self.exog_names)}; name "
                "them so."
            )
        level = self.mean + given @ self.exog_coefficients
        values, covariance = self._conditionally(steps) if self.likelihood == CONDITIONAL else self._exactly(steps)
        return Forecast(level + values, covariance, self.labels, following)

    def interpolate(self) -> Forecast:
        """Return what is expected of the gaps, given all samples, with the covariance of the errors.

        Raises:
            ValueError: There are no gaps.
        """
        gaps = np.flatnonzero(np.isnan(self.series))
        if not len(gaps):
            raise ValueError("ArfimaResults.interpolate: needs gaps, and the series has none.")
        values, covariance = self._missing(self._deviation)
        level = self.mean + self.exog[gaps] @ self.exog_coefficients
        index = None if self.labels.index is None else self.labels.index[gaps]
        return Forecast(level + values, covariance, self.labels, index)

    def summary(self, alpha: float = 0.05) -> str:
        """Return a table of the estimates with intervals of probability 1 - alpha."""
        low, high = np.asarray(self.conf_int(alpha)).T
        width = max(len(name) for name in self.param_names)
        title = f"ARFIMA({len(self.ar)}, alpha={self.alpha:.4g}, {len(self.ma)}) of {self.name}"
        lines = [
            f"{title}, {self.likelihood} likelihood, {self.nobs} samples"
            + ("" if self.converged else ", not converged"),
            f"log likelihood {self.llf:.3f}   AIC {self.aic:.3f}   BIC {self.bic:.3f}   HQIC {self.hqic:.3f}",
            f"{'':{width}}  {'coef':>11}  {'std err':>10}  {'z':>8}  {'P>|z|':>6}  {100 * (1 - alpha):g} % interval",
        ]
        columns = zip(
            self.param_names, self.values, self._errors, np.asarray(self.zvalues), np.asarray(self.pvalues), low, high,
            strict=True,
        )  # fmt: skip
        for name, value, error, z, p, below, above in columns:
            lines.append(
                f"{name:{width}}  {value:11.5g}  {error:10.3g}  {z:8.3f}  {p:6.3f}  [{below:.5g}, {above:.5g}]"
            )
        return "\n".join(lines)

    def _by_name(self, values: np.ndarray) -> Any:
        return self.labels.labelled(values, index=list(self.param_names))

    @property
    def _errors(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance))

    @property
    def _deviation(self) -> np.ndarray:
        """Return the series less its level and its regressors' part, [n]; NaN at gaps."""
        return self.series - self.mean - self.exog @ self.exog_coefficients

    @cached_property
    def _residuals(self) -> np.ndarray:
        deviation, parts = self._deviation, (self.alpha - self.whole, self.ar, self.ma)
        if self.likelihood == CONDITIONAL:
            return Filter(deviation[:, None])(*parts)[:, 0]
        for _ in range(self.whole):
            deviation = np.diff(deviation)
        there = np.flatnonzero(~np.isnan(deviation))
        gamma, found = autocovariance(len(deviation), *parts), np.full(len(self.series), np.nan)
        if len(there) == len(deviation):
            found[self.whole :] = whitened(gamma, deviation[:, None], there[:0])[0][:, 0]
            return found
        if len(there) > _DENSE:
            raise ValueError(
                f"ArfimaResults.resid: needs at most {_DENSE} samples where there are gaps; there are {len(there)}; "
                "fill them with interpolate()."
            )
        factor = linalg.cholesky(gamma[np.abs(there[:, None] - there)], lower=True)
        white = linalg.solve_triangular(factor, deviation[there], lower=True)
        found[there + self.whole] = np.diag(factor) * white
        return found

    def _conditionally(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        expected, response = continued(self._deviation, steps, self.alpha, self.ar, self.ma)
        spread = linalg.toeplitz(response, np.zeros(steps))
        return expected, self.sigma2 * spread @ spread.T

    def _exactly(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        deviation = self._deviation
        last = deviation[-1]
        for _ in range(self.whole):
            deviation = np.diff(deviation)
        values, covariance = self._missing(np.concatenate([deviation, np.full(steps, np.nan)]))
        values, covariance = values[-steps:], covariance[-steps:, -steps:]
        if not self.whole:
            return values, covariance
        return last + np.cumsum(values), np.cumsum(np.cumsum(covariance, 0), 1)

    def _missing(self, deviation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected values of a series' missing samples, and the covariance of their errors.

        Args:
            deviation: The series less its level and its regressors' part, [n], with m samples NaN.

        Returns:
            [m] and [m, m].
        """
        gaps = np.flatnonzero(np.isnan(deviation))
        gamma = autocovariance(len(deviation), self.alpha - self.whole, self.ar, self.ma)
        found, unit, variances = whitened(gamma, np.nan_to_num(deviation)[:, None], gaps)
        scale = np.sqrt(variances)[:, None]
        orthogonal, factor = linalg.qr(unit / scale, mode="economic")
        values = -linalg.solve_triangular(factor, orthogonal.T @ (found / scale)[:, 0])
        spread = linalg.solve_triangular(factor, np.eye(len(gaps)))
        return values, self.sigma2 * spread @ spread.T


def continued(
    deviation: np.ndarray, steps: int, alpha: float, ar: Sequence[float] | np.ndarray, ma: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the next `steps` samples if their errors are 0, and the response to one error of 1, [steps] each.

    `deviation`, [n], is the series less its level and its regressors' part. The process is 0 before its first sample:
    its errors go through `ma(z) / ar(z)` and are summed up to order alpha.
    """
    n = len(deviation)
    over, under = polynomials(ar, ma)
    errors_before = Filter(deviation[:, None])(alpha, ar, ma)[:, 0]
    driven = signal.lfilter(over, under, np.concatenate([errors_before, np.zeros(steps)]))
    impulse = np.zeros(steps)
    impulse[0] = 1
    sums = difference_weights(n + steps, -alpha)
    response = np.convolve(signal.lfilter(over, under, impulse), sums[:steps])[:steps]
    return signal.fftconvolve(driven, sums)[n : n + steps], response


def _intervals(values: np.ndarray, deviations: np.ndarray, alpha: float) -> np.ndarray:
    """Return the intervals of normal estimates, a row (low, high) for each, [values, 2].

    Args:
        values: The estimates, centres of the intervals.
        deviations: Standard deviations of the estimates.
        alpha: The probability that a value is outside, not an order.
    """
    half = stats.norm.ppf(1 - errors.probability("conf_int", "alpha", alpha) / 2) * deviations
    return np.column_stack([values - half, values + half])


def _are_named(names: tuple[str, ...]) -> bool:
    """Whether the user named the regressors; else `names` are "x1", "x2", ..."""
    return names != tuple(f"x{i + 1}" for i in range(len(names)))
