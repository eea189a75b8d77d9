"""ARFIMA(p, alpha, q) with regressors and gaps, fitted to one series or to several."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import linalg

from hpfracc_nn import errors
from hpfracc_nn.series import labels
from hpfracc_nn.series.estimation import Joint
from hpfracc_nn.series.likelihood import CONDITIONAL, EXACT, LIKELIHOODS, Problem, Sample, is_stable
from hpfracc_nn.series.results import ArfimaResults

_COLLINEAR = 1e-10  # least part of a regressor's length that is orthogonal to the columns before it
_ROUNDING = 1e-13  # standard deviation over the largest sample, up to which scatter is taken for rounding
_PRODUCTS = 5 * 10**7  # samples times gaps, at most: the recursion keeps an array of that size


def fit_arfima(
    series: Any,
    exog: Any = None,
    *,
    ar: int | Sequence[float] = 0,
    ma: int | Sequence[float] = 0,
    alpha: float | None = None,
    mean: float | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    likelihood: str = "exact",
    share: str | None = None,
) -> Any:
    """Return ARFIMA(p, alpha, q) with a level and regressors, fitted to a series by maximum likelihood.

        series = mean + exog b + x,   ar(z) (1 - z)**alpha x = ma(z) e,

    with `ar(z) = 1 - ar[0] z - ...` and `ma(z) = 1 + ma[0] z + ...`. At alpha = 0 it is the regression with ARMA errors
    of statsmodels' `ARIMA`, whose estimates and standard errors (`cov_type="approx"`) the exact likelihood has.

    Above alpha = 1/2 a series has no variance, and no exact likelihood: "exact" and "restricted" seek alpha in the part
    of the bounds that is below 1/2. Bounds from 1/2 up to 3/2 at most, such as (0.5, 1.5), are those of a series that
    is differenced once: alpha - 1 is estimated from the differences, whose level is 0. "conditional" takes the series
    to be at its mean before the first sample, whatever alpha is.

    Args:
        series: [n], NumPy, pandas or a list; NaN are gaps, for "exact" and "restricted" below alpha = 1/2. A list of
            series, an array [n, series] or a DataFrame are several; one column is one series, unless something is
            shared.
        exog: Regressors, [n, k]; for several series a list of such tables, or one table for all.
        ar: p, or the coefficients themselves, which are then fixed. No lags by default, as statsmodels' `ARIMA`; the
            layers named `ARFIMA` have one, and fit the conditional likelihood.
        ma: q, or the coefficients.
        alpha: The order, where it is known; None estimates it.
        mean: The level, where it is known; None estimates it.
        bounds: Where alpha is sought.
        likelihood: "exact"; "restricted", which takes away most of the bias that a level and regressors bring alpha;
            or "conditional", the restricted one with zeros before the first sample. A step of the search costs
            O(n log n), but O(n**2) for an exact or restricted likelihood with gaps.
        share: What several series have in common: "alpha", "all" (alpha and the lags), or None. Each series has its own
            level, coefficients of regressors and variance.

    Returns:
        `ArfimaResults`; a tuple of them for several series. Standard errors are from the observed information, jointly
        for what is shared.

    Raises:
        ValueError: The series is too short, constant or has gaps where there may be none; rows of its index are
            missing; regressors are collinear, of another length or not finite; an argument is out of range.
        TypeError: The samples are not real numbers, or the index holds texts that are dates.

    Source: Sowell, J. Econometrics 53 (1992) 165; Doornik & Ooms, Computational Statistics & Data Analysis 42 (2003)
    333; Harville, JASA 72 (1977) 320.

    Examples:
        >>> from hpfracc_nn import data
        >>> rng = np.random.default_rng(0)
        >>> x = rng.standard_normal(500)
        >>> found = fit_arfima(2 + 0.5 * x + data.arfima(500, 0.3, rng), x)
        >>> found.param_names
        ('const', 'x1', 'alpha', 'sigma2')
        >>> bool(abs(found.params[1] - 0.5) < 3 * found.bse[1])
        True
    """
    owner = "fit_arfima"
    each = labels.several(series)
    if each is not None and len(each) == 1 and share is None and not isinstance(series, list | tuple):
        series, each = each[0], None
    if share is not None and share not in ("alpha", "all"):
        raise ValueError(f"{owner}(share={share!r}): needs 'alpha', 'all' or None; pass one of them.")
    options: dict[str, Any] = dict(ar=ar, ma=ma, alpha=alpha, mean=mean, bounds=bounds, likelihood=likelihood)
    _check_exog(owner, exog, each)
    if each is None:
        return fitted(owner, [series], [exog], None, **options)[0]
    tables = exog if isinstance(exog, list | tuple) else [exog] * len(each)
    if share is not None:
        return fitted(owner, each, tables, share, **options)
    found: list[ArfimaResults] = []
    for one, of_it in zip(each, tables, strict=True):  # a comprehension would be one more frame of a warning
        found += fitted(owner, [one], [of_it], None, position=len(found), **options)
    return tuple(found)


def fitted(
    owner: str,
    series: Sequence[Any],
    exog: Sequence[Any],
    share: str | None,
    *,
    ar: int | Sequence[float],
    ma: int | Sequence[float],
    alpha: float | None,
    mean: float | None,
    bounds: tuple[float, float],
    likelihood: str,
    position: int | None = None,
) -> tuple[ArfimaResults, ...]:
    """Fit several series jointly, or one, with checked arguments of `fit_arfima`; return the results of each.

    Messages begin with `owner`. `position` is the place of a series among several that are fitted one by one, which
    messages then name; None for a single series and for a joint fit.
    """
    kind = errors.one_of(owner, "likelihood", likelihood, LIKELIHOODS)
    p, q = _lags(owner, "ar", ar, kind), _lags(owner, "ma", ma, kind)
    low, high = errors.pair(owner, "bounds", bounds)
    if alpha is not None:
        alpha = errors.real(owner, "alpha", alpha, -np.inf, example=0.3)
    whole, low, high = _limits(owner, kind, alpha, low, high)
    if alpha is not None:
        alpha -= whole
    level = None if mean is None else errors.real(owner, "mean", mean, -np.inf, example=0)
    positions = range(len(series)) if len(series) > 1 else [position]
    spans = [
        _Span(owner, one, table, place, kind, whole, alpha, level, p, q)
        for one, table, place in zip(series, exog, positions, strict=True)
    ]
    problems = [Problem(span.sample, alpha, p, q) for span in spans]
    names = [span.parameter_names(problem) for span, problem in zip(spans, problems, strict=True)]
    joint = Joint(problems, share, (low, high))
    point, has_arrived = joint.best()
    if not np.isfinite(joint.value(point)):
        raise ValueError(
            f"{owner}: needs a likelihood, and there is none at alpha={alpha}; pass others or wider bounds."
        )
    ends = joint.at_bound(point)
    covariance = _covariance(joint, point, ends)
    for fault in _faults(joint, point, whole, has_arrived, ends, covariance):
        whose = owner if position is None else f"{owner}({spans[0].what})"
        warnings.warn(f"{whose}: {fault}", UserWarning, stacklevel=3)
    results, start = [], joint.size
    for span, problem, known_as, place, degrees in zip(
        spans, problems, names, joint.places, joint.degrees, strict=True
    ):
        k = span.sample.x.shape[1]
        where = np.concatenate([start + np.arange(k), place, [start + k]]).astype(int)
        start += k + 1
        results.append(
            span.results(problem, known_as, point[place], covariance[np.ix_(where, where)], whole, degrees, has_arrived)
        )
    return tuple(results)


class _Span:
    """One series and its regressors, checked, differenced and scaled for the likelihood; estimates are scaled back.

    Args:
        owner: The public function, for messages.
        series: The series, [n], as the user passed it.
        exog: Regressors, [n, k], or None.
        position: The place of the series among several, for messages; None where there is only one.
        kind: The likelihood: "exact", "restricted" or "conditional".
        whole: How often the series is differenced before the fit, 0 or 1.
        alpha: The order less `whole`; None where it is estimated.
        mean: The level; None where it is estimated.
        ar: The number of ar coefficients to estimate, or the fixed coefficients.
        ma: The number of ma coefficients to estimate, or the fixed coefficients.
    """

    def __init__(
        self,
        owner: str,
        series: Any,
        exog: Any,
        position: int | None,
        kind: str,
        whole: int,
        alpha: float | None,
        mean: float | None,
        ar: int | np.ndarray,
        ma: int | np.ndarray,
    ):
        self.owner = owner
        values, self.labels = labels.read(owner, series, position)
        self.what = "series" if position is None else f"series {self.labels.name!r}"
        self.series = one_axis(owner, self.what, values)
        p, q = (each if isinstance(each, int) else 0 for each in (ar, ma))
        wanted = 2 + 2 * (p + q + 2) + whole
        self._check_length(owner, wanted, position)
        self.exog, self.names = labels.table(owner, exog, len(self.series), "each sample", self.labels.index)
        if len(self.series) < wanted + 2 * len(self.names):
            raise ValueError(
                f"{owner}({self.what} of shape {self.series.shape}): needs at least {wanted + 2 * len(self.names)} "
                f"samples with {len(self.names)} regressors; pass a longer series, or fewer."
            )
        self._check_gaps(owner, kind, whole, alpha)
        there = ~np.isnan(self.series)
        y, x = self.series - (mean or 0.0), self.exog
        if y[there].min() == y[there].max():
            raise ValueError(
                f"{owner}({self.what}): needs samples that vary; all are {float(self.series[there][0]):.6g}; pass "
                "others."
            )
        for _ in range(whole):
            y, x, there = np.diff(y), np.diff(x, axis=0), there[1:]
        self.mean = mean
        self.has_level = mean is None and not whole
        self._centre = float(y[there].mean()) if self.has_level else 0.0
        self._scale = float(np.sqrt(np.mean((y[there] - self._centre) ** 2)))
        self._centres = x.mean(0) if self.has_level else np.zeros(x.shape[1])
        self._scales = np.sqrt(np.mean((x - self._centres) ** 2, 0))
        if not self._scale > _ROUNDING * np.abs(y[there]).max():
            what = "samples whose differences" if whole else "samples that"
            raise ValueError(f"{owner}({self.what}): needs {what} vary by more than their rounding; pass others.")
        self._check_regressors(owner, x[there], np.ones((len(y), int(self.has_level)))[there])
        scaled = (x - self._centres) / np.where(self._scales > 0, self._scales, 1)
        columns = np.column_stack([np.ones((len(y), int(self.has_level))), scaled])
        self.sample = Sample(
            np.where(there, (y - self._centre) / self._scale, 0.0), columns, np.flatnonzero(~there), kind
        )

    def parameter_names(self, problem: Problem) -> tuple[str, ...]:
        """Return the names of the estimates; raise ValueError where a regressor has the name of another parameter."""
        first, p, q = problem.sizes
        level, lags = ["const"] * self.has_level, [f"ar.L{lag + 1}" for lag in range(p)]
        others = [*["alpha"] * first, *lags, *(f"ma.L{lag + 1}" for lag in range(q)), "sigma2"]
        for name in self.names:
            if name in level or name in others:
                raise ValueError(
                    f"{self.owner}(exog): needs other names of the regressors than the parameters have; {name!r} is "
                    "one of both; rename the column."
                )
        return (*level, *self.names, *others)

    def results(
        self,
        problem: Problem,
        param_names: tuple[str, ...],
        point: np.ndarray,
        covariance: np.ndarray,
        whole: int,
        degrees: float,
        has_arrived: bool,
    ) -> ArfimaResults:
        """Return the results in the units of the series, from estimates for the scaled series.

        Args:
            problem: The likelihood of the scaled series.
            param_names: Names of the estimates.
            point: The estimates of alpha and the lags, [size].
            covariance: The covariance of k regressors' coefficients, the point and the variance, in this order.
            whole: How often the series was differenced before the fit.
            degrees: What the weighted sum of squares is divided by for the variance of the errors.
            has_arrived: Whether the search has reached a maximum.
        """
        alpha, ar, ma = problem.parts(point)
        reduced, level, k = problem.reduced(point), int(self.has_level), len(self.names)
        sigma2 = reduced.squares / degrees * self._scale**2
        units = np.eye(level + k) * self._scale
        units[level:, level:] /= self._scales[:, None]
        if level:
            units[0, 1:] = -self._scale * self._centres / self._scales
        coefficients = units @ reduced.coefficients
        if level:
            coefficients[0] += self._centre
        to_units = linalg.block_diag(units, np.eye(len(point)), self._scale**2 * self.sample.degrees / degrees)
        in_units = to_units @ np.nan_to_num(covariance) @ to_units.T
        unknown = np.isnan(np.diag(covariance))
        in_units[unknown] = in_units[:, unknown] = np.nan
        shifted = point.copy()
        if problem.sizes[0]:
            shifted[0] += whole
        llf = -problem.value(point) - self.sample.degrees * np.log(self._scale)
        if self.sample.likelihood != EXACT:  # det(X' T**-1 X) has the regressors' units
            llf -= float(np.log(self._scales).sum())
        return ArfimaResults(
            param_names=param_names,
            alpha=alpha + whole,
            ar=np.array(ar),
            ma=np.array(ma),
            mean=float(coefficients[0]) if level else self.mean or 0.0,
            sigma2=sigma2,
            likelihood=self.sample.likelihood,
            llf=float(llf),
            nobs=self.sample.n,
            name=self.labels.name,
            converged=has_arrived,
            values=np.concatenate([coefficients, shifted, [sigma2]]),
            covariance=in_units,
            exog_coefficients=coefficients[level:],
            exog_names=self.names,
            series=self.series,
            exog=self.exog,
            labels=self.labels,
            whole=whole,
        )

    def _check_length(self, owner: str, wanted: int, position: int | None) -> None:
        n, missing = len(self.series), int(np.isnan(self.series).sum())
        if n - missing >= wanted:
            return
        if missing:
            raise ValueError(
                f"{owner}({self.what}): needs at least {wanted} samples that are there; {n - missing} of {n} are, the "
                "others are NaN; pass more of them."
            )
        several = "" if position is None else ", of an array [n, series] each column is one"
        raise ValueError(
            f"{owner}({self.what}): needs at least {wanted} samples; there are {n}; pass a longer one{several}."
        )

    def _check_gaps(self, owner: str, kind: str, whole: int, alpha: float | None) -> None:
        wrong = ~np.isfinite(self.series) if kind == CONDITIONAL or whole else np.isinf(self.series)
        if wrong.any():
            i = int(np.argmax(wrong))
            way, rule = "fill the gaps", "finite samples"
            if whole:
                rule += " where the series is differenced"
            if np.isnan(self.series[i]) and whole:
                way += f", or take {'bounds' if alpha is None else 'alpha'} below 1/2"
            elif np.isnan(self.series[i]) and (alpha is None or alpha < 0.5):
                way += ", or pass likelihood='exact'" + (" with bounds below 1/2" if alpha is None else "")
            raise ValueError(f"{owner}({self.what}): needs {rule}; series[{i}]={self.series[i]}; {way}.")
        gaps = int(np.isnan(self.series).sum())
        if gaps * len(self.series) > _PRODUCTS:
            raise ValueError(
                f"{owner}({self.what}): needs samples times gaps up to {_PRODUCTS:.0e}; there are {len(self.series)} "
                f"and {gaps}; pass a part of the series, or fill the gaps and take likelihood='conditional'."
            )

    def _check_regressors(self, owner: str, x: np.ndarray, level: np.ndarray) -> None:
        columns = np.column_stack([level, x])
        sizes = np.sqrt((columns**2).sum(0))
        pivots = np.abs(np.diag(linalg.qr(columns / np.where(sizes > 0, sizes, 1), mode="r")[0]))
        wrong = np.flatnonzero(pivots <= _COLLINEAR)
        if len(wrong):
            name = self.names[wrong[0] - level.shape[1]]
            raise ValueError(
                f"{owner}(exog): needs regressors that are linearly independent of each other and of the level; "
                f"{name!r} is a combination of those before it; leave it out."
            )


def one_axis(owner: str, what: str, values: np.ndarray) -> np.ndarray:
    """Return the samples of one series, [n] or a table [n, 1], as [n]; raise ValueError for any other shape."""
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim != 1:
        raise ValueError(
            f"{owner}({what} of shape {values.shape}): needs one axis; pass one series, such as a column of a table."
        )
    return values


def _check_exog(owner: str, exog: Any, series: Sequence[Any] | None) -> None:
    """Raise ValueError where regressors are an order (p, d, q), or a list that has not one table for each series.

    Args:
        owner: The public function, for messages.
        exog: The regressors, as the user passed them.
        series: Several series; None where there is only one.
    """
    if isinstance(exog, tuple) and len(exog) == 3 and all(isinstance(each, int) for each in exog):
        raise ValueError(
            f"{owner}(exog={exog}): needs regressors, and this is an order; pass ar={exog[0]}, ma={exog[2]}, and "
            f"alpha={exog[1]} where nothing between whole numbers is sought."
        )
    if series is None or not isinstance(exog, list | tuple):
        return
    if len(exog) and np.ndim(exog[0]) == 0:
        raise ValueError(
            f"{owner}(exog): needs one table for each of {len(series)} series, or an array for all; a flat list of "
            f"{len(exog)} numbers is given; pass np.array(exog)."
        )
    if len(exog) != len(series):
        raise ValueError(f"{owner}(exog): needs one table for each of {len(series)} series; {len(exog)} are given.")


def _lags(owner: str, argument: str, given: Any, kind: str) -> int | np.ndarray:
    """Return the checked argument `ar` or `ma`: the number of coefficients to estimate, or the fixed ones, [lags].

    Args:
        owner: The public function, for messages.
        argument: "ar" or "ma".
        given: What the user passed.
        kind: The likelihood; a conditional one allows ar that are not stationary.

    Raises:
        ValueError: The argument is neither a number of lags nor a list of coefficients, or these are not stationary or
            invertible.
    """
    if np.ndim(given) == 0:
        return errors.count(owner, argument, given, 0)
    found = errors.as_numbers(given)
    if found is None or found.ndim != 1 or not np.isfinite(found).all():
        raise ValueError(f"{owner}({argument}={given!r}): needs a number of lags, or a flat list of coefficients.")
    if (argument == "ma" or kind != CONDITIONAL) and not is_stable(found if argument == "ar" else -found):
        what = "stationary" if argument == "ar" else "invertible"
        raise ValueError(f"{owner}({argument}={found.tolist()}): needs {what} coefficients; take smaller ones.")
    return found


def _limits(owner: str, kind: str, alpha: float | None, low: float, high: float) -> tuple[int, float, float]:
    """Return how often the series is differenced before the fit, 0 or 1, and the bounds of alpha less that number.

    Args:
        owner: The public function, for messages.
        kind: The likelihood.
        alpha: The order; None where it is estimated.
        low: The lower bound of alpha that the user passed.
        high: The upper bound that the user passed.

    Raises:
        ValueError: The bounds or the order are out of range for the likelihood.
    """
    if not -1 < low < high:
        raise ValueError(f"{owner}(bounds={(low, high)}): needs -1 < low < high; pass for example (0, 1).")
    if kind == CONDITIONAL:
        if not high <= 2:
            raise ValueError(
                f"{owner}(bounds={(low, high)}): needs an upper bound of at most 2; pass for example (0, 1)."
            )
        return 0, low, high
    if alpha is not None:
        if not -1 < alpha < 1.5:
            way = "difference the series, and take alpha - 1" if alpha > 0 else "sum the series up, and take alpha + 1"
            raise ValueError(f"{owner}(alpha={alpha}): needs -1 < alpha < 3/2; {way}.")
        return int(alpha >= 0.5), low, high
    if low >= 0.5:
        if high > 1.5:
            raise ValueError(
                f"{owner}(bounds={(low, high)}): needs at most 3/2; difference the series, and take 1 less."
            )
        return 1, low - 1, high - 1
    return 0, low, min(high, 0.5)


def _covariance(joint: Joint, point: np.ndarray, ends: dict[str, np.ndarray]) -> np.ndarray:
    """Return the covariance of the estimates, from the observed information.

    Its rows are those of the point, then for each series those of the regressors' coefficients and of the errors'
    variance. All are NaN where the information is not positive definite.

    Args:
        joint: The likelihood.
        point: The estimates of alpha and the lags.
        ends: For each kind of estimates the rows that have gone to a bound: these rows are NaN, and the others are for
            these estimates held fixed.
    """
    size = joint.size + sum(each.sample.x.shape[1] + 1 for each in joint.problems)
    found, kept = np.full((size, size), np.nan), np.arange(size)
    kept = np.setdiff1d(kept, np.concatenate([kept[:0], *ends.values()]))
    try:
        factor = linalg.cho_factor(joint.information(point)[np.ix_(kept, kept)])
    except (ValueError, linalg.LinAlgError):
        return found
    found[np.ix_(kept, kept)] = linalg.cho_solve(factor, np.eye(len(kept)))
    return found


def _faults(
    joint: Joint,
    point: np.ndarray,
    whole: int,
    has_arrived: bool,
    ends: dict[str, np.ndarray],
    covariance: np.ndarray,
) -> list[str]:
    """Return warnings for the user about estimates that are no maximum inside of their bounds.

    Args:
        joint: The likelihood.
        point: The estimates of alpha and the lags.
        whole: How often the series was differenced before the fit.
        has_arrived: Whether the search has reached a maximum.
        ends: For each kind of estimates, "alpha", "ar" or "ma", the indices in the point that have gone to a bound.
        covariance: The covariance of the estimates, NaN where there is none.
    """
    said = {kind: ", ".join(f"{round(point[i], 4):g}" for i in at) for kind, at in ends.items() if len(at)}
    found = []
    if not has_arrived:
        found.append(
            "the search has not arrived at a maximum of the likelihood (`converged` is False), and estimates and "
            "standard errors are those of the best point it found; take fewer lags."
        )
    if "alpha" in said:
        orders = ", ".join(f"{round(point[i] + whole, 4):g}" for i in ends["alpha"])
        found.append(
            f"alpha has gone to {orders}, an end of its bounds, where the likelihood is the greatest that was found; "
            "it has no standard error, and those of the others are for this alpha; "
            f"{_way_from_bound(joint, point[ends['alpha'][0]], whole)}."
        )
    if "ma" in said:
        found.append(
            f"ma has gone to {said['ma']}, with a root on the unit circle; it has no standard errors, and those of the "
            "others are for these; the series may be differenced once too often, take the sum of it, or fewer lags."
        )
    if "ar" in said:
        found.append(
            f"ar has gone to {said['ar']}, as near to a unit root as it may; it has no standard errors, and those of "
            "the others are for these; difference the series, or take fewer lags."
        )
    if not said and np.isnan(covariance).any():
        found.append(
            "the likelihood is flat at its maximum, and there are no standard errors: lags and errors before may "
            "cancel; take fewer of them."
        )
    return found


def _way_from_bound(joint: Joint, alpha: float, whole: int) -> str:
    """Return advice, for a warning, where alpha has gone to one of its bounds.

    Args:
        joint: The likelihood.
        alpha: The estimate less `whole`.
        whole: How often the series was differenced before the fit.
    """
    low, high = joint.bounds
    fewer = "fewer lags, or " if any(p + q for _, p, q in (each.sizes for each in joint.problems)) else ""
    if alpha - low > high - alpha:
        if joint.ends_at_half and not whole:
            return f"take {fewer}bounds above 1/2, for example (0.5, 1.5)"
        return f"take {fewer}higher bounds, or difference the series and take 1 less"
    if low + whole > -0.5:
        return f"take {fewer}lower bounds, such as (-0.5, 0.5)"
    return f"the series may be differenced once too often; take its sum (np.cumsum){', or fewer lags' if fewer else ''}"
