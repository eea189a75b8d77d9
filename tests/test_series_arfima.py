"""ARFIMA with regressors and gaps as a statistical model: against statsmodels, dense densities and simulations."""

import math
import re
from typing import Any

import numpy as np
import pytest
from scipy import linalg, signal, stats

from hpfracc_nn import data
from hpfracc_nn.series import covariance, fit_arfima
from hpfracc_nn.series.likelihood import LIKELIHOODS, Problem, Sample

mpmath = pytest.importorskip("mpmath")

NONE = np.empty(0, int)
PROCESSES = [
    (0.3, [0.5], [0.3]),
    (0.45, [1.8, -0.81], [0.4]),  # a double root
    (-0.7, [0.95], [-0.95001]),  # roots that nearly cancel
    (-0.4, [1.2, -0.48, 0.064], [0.9, 0.2]),  # a triple one
    (0.49, [0.99], [-0.5]),
    (0.2, [0.3, -0.9], []),
    (0.0, [0.5], []),
]


def integrated(lag, alpha, ar, ma):
    """The integral of the spectral density, its singularity taken away: w = s**(1 / (1 - 2 alpha))."""
    power = mpmath.mpf(1) / (1 - 2 * mpmath.mpf(alpha)) if alpha > 0 else mpmath.mpf(1)

    def density(s):
        w = s**power
        z = mpmath.expj(-w)
        over = abs(1 + sum(m * z ** (j + 1) for j, m in enumerate(ma))) ** 2
        under = abs(1 - sum(a * z ** (j + 1) for j, a in enumerate(ar))) ** 2
        inner = (2 * mpmath.sin(w / 2) / w) ** (-2 * mpmath.mpf(alpha)) if w else mpmath.mpf(1)
        rest = power if alpha > 0 else w ** (-2 * mpmath.mpf(alpha))
        return over / under * inner * rest * mpmath.cos(lag * w) / mpmath.pi

    end = mpmath.pi ** (1 / power)
    with mpmath.workdps(25):
        places = [0, *(end * mpmath.mpf(p) ** (1 / power) for p in (1e-3, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1))]
        return mpmath.quad(density, places)


@pytest.mark.parametrize(("alpha", "ar", "ma"), PROCESSES)
def test_the_autocovariance_is_the_integral_of_the_spectral_density(alpha, ar, ma):
    found = covariance.autocovariance(40, alpha, ar, ma)
    for lag in (0, 1, 39):
        # 1e-13: rounding, times what the roots near the circle amplify
        assert float(integrated(lag, alpha, ar, ma) - mpmath.mpf(found[lag])) == pytest.approx(0, abs=1e-13 * found[0])


@pytest.mark.parametrize("root", [0.999, 0.99999])
def test_near_a_unit_root_the_autocovariance_is_that_of_the_closed_form(root):
    """Of ARMA(1, 1); 1e-16 / (1 - root) are the last digits of the root."""
    theta, lag = -0.4, np.arange(1, 500)
    variance = (1 + 2 * root * theta + theta**2) / (1 - root**2)
    expected = np.append(variance, (variance * root + theta) * root ** (lag - 1))
    assert covariance.autocovariance(500, 0.0, [root], [theta]) == pytest.approx(expected, rel=1e-15 / (1 - root))


@pytest.mark.parametrize("alpha", [-0.7, 0.2, 0.4999])
@pytest.mark.parametrize(("ar", "ma"), [([0.999], []), ([0.5, 0.4995], [0.3]), ([0.002, 0.997], [0.5, -0.2])])
def test_sums_over_all_lags_before_are_those_of_many(monkeypatch, alpha, ar, ma):
    found = covariance.autocovariance(300, alpha, ar, ma)
    monkeypatch.setattr("hpfracc_nn.series.covariance._MANY", math.inf)
    assert found == pytest.approx(covariance.autocovariance(300, alpha, ar, ma), abs=1e-12 * found[0])


def test_the_autocovariance_of_fractional_noise_and_of_its_differences():
    assert covariance.autocovariance(50, 0.3) == pytest.approx(data.arfima_covariance(50, 0.3), rel=1e-13)
    assert covariance.autocovariance(4, -1.0) == pytest.approx([2, -1, 0, 0], abs=1e-15)


@pytest.mark.parametrize("alpha", [-0.8, -0.3, 0.3, 0.45])
def test_conjugate_gradients_and_the_recursion_are_the_dense_matrix(alpha):
    gamma = covariance.autocovariance(200, alpha, [0.5], [0.3])
    matrix = linalg.toeplitz(gamma)
    columns = np.random.default_rng(0).standard_normal((200, 2))
    assert matrix @ covariance.solved(gamma, columns) == pytest.approx(columns, abs=1e-9)
    gaps = np.array([0, 7, 199])
    white, unit, variances = covariance.whitened(gamma, columns, gaps)
    lower = linalg.cholesky(matrix, lower=True)
    scaled = np.column_stack([white, unit]) / np.sqrt(variances)[:, None]
    expected = linalg.solve_triangular(lower, np.column_stack([columns, np.eye(200)[:, gaps]]), lower=True)
    assert scaled == pytest.approx(expected, abs=1e-10)
    assert np.log(variances).sum() == pytest.approx(2 * np.log(np.diag(lower)).sum(), abs=1e-10)


def simulated(n, alpha=0.3, ar=(0.5,), ma=(0.3,), seed=0):
    """ARFIMA by the filter of exact fractional noise, its start left out."""
    noise = data.arfima(n + 500, alpha, np.random.default_rng(seed))
    return signal.lfilter([1, *ma], [1, *(-a for a in ar)], noise)[500:]


def with_regressor(n, seed=0, **process):
    x = np.random.default_rng(100 + seed).standard_normal(n)
    return 2 + 0.7 * x + simulated(n, seed=seed, **process), x


def dense(y, x, point, likelihood):
    """The logarithm of the density of the rows that are there, at the best coefficients and variance."""
    there = np.flatnonzero(~np.isnan(y))
    matrix = linalg.toeplitz(covariance.autocovariance(len(y), point[0], [point[1]], [point[2]]))[np.ix_(there, there)]
    y, x = y[there], x[there]
    inverse = np.linalg.inv(matrix)
    b = np.linalg.solve(x.T @ inverse @ x, x.T @ inverse @ y)
    r, n = y - x @ b, len(y)
    if likelihood == "exact":
        return stats.multivariate_normal.logpdf(r, cov=r @ inverse @ r / n * matrix)
    kept = linalg.null_space(x.T)  # contrasts: Harville's likelihood is their density, but for det(X'X)
    degrees = kept.shape[1]
    variance = r @ inverse @ r / degrees
    found = stats.multivariate_normal.logpdf(kept.T @ y, cov=variance * kept.T @ matrix @ kept)
    return found - np.linalg.slogdet(x.T @ x)[1] / 2


@pytest.mark.parametrize("likelihood", ["exact", "restricted"])
@pytest.mark.parametrize("n", [300, 601])  # a factorisation, and the recursion
@pytest.mark.parametrize("gaps", [[], [0, 5, 6, 7, 100, 299], [*range(20, 60)]])
def test_the_likelihood_is_the_density_of_the_samples_that_are_there(n, gaps, likelihood):
    y, x = with_regressor(n)
    y[gaps] = np.nan
    x = np.column_stack([np.ones(n), x])
    sample = Sample(np.nan_to_num(y), x, np.array(gaps, int), likelihood)
    point = np.array([0.25, 0.4, 0.35])
    assert -Problem(sample, None, 1, 1).value(point) == pytest.approx(dense(y, x, point, likelihood), abs=1e-8)


@pytest.mark.parametrize("likelihood", ["exact", "restricted"])
def test_slopes_by_conjugate_gradients_are_those_of_the_value(monkeypatch, likelihood):
    y, x = with_regressor(400)
    problem = Problem(Sample(y, np.column_stack([np.ones(400), x]), NONE, likelihood), None, 1, 1)
    point, b = np.array([0.25, 0.4, 0.35]), np.array([2.0, 0.7])
    slopes, curvature = problem.gradient(point), problem.curvature(point, b, 1.1)
    monkeypatch.setattr("hpfracc_nn.series.likelihood._DENSE", 1)
    assert problem.gradient(point) == pytest.approx(slopes, rel=1e-6, abs=1e-6)
    assert problem.curvature(point, b, 1.1) == pytest.approx(curvature, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize(("ar", "ma"), [(1, 0), (0, 2), (2, 1)])
def test_its_arma_limits_are_those_of_statsmodels(ar, ma):
    sarimax = pytest.importorskip("statsmodels.tsa.statespace.sarimax")
    y, x = with_regressor(300, alpha=0.0, ar=(0.6, -0.2)[:ar], ma=(0.4, 0.1)[:ma])
    y[[3, 50, 51]] = np.nan
    found = fit_arfima(y, x, ar=ar, ma=ma, alpha=0.0)
    columns = np.column_stack([np.ones(300), x])
    start = found.params * 1.001
    model = sarimax.SARIMAX(y, columns, order=(ar, 0, ma))
    theirs = model.fit(start, disp=0, cov_type="approx", method="bfgs", gtol=1e-8)
    assert found.params == pytest.approx(theirs.params, rel=1e-4, abs=1e-4)
    assert found.bse == pytest.approx(theirs.bse, rel=1e-4)
    assert found.pvalues == pytest.approx(theirs.pvalues, rel=1e-2, abs=1e-4)
    assert found.conf_int() == pytest.approx(theirs.conf_int(), abs=1e-3)
    assert found.llf == pytest.approx(theirs.llf, abs=1e-6)
    assert found.aic == pytest.approx(theirs.aic, abs=1e-5)
    ahead = found.get_forecast(8, np.full(8, 0.5))
    wanted = theirs.get_forecast(8, exog=np.column_stack([np.ones(8), np.full(8, 0.5)]))
    assert ahead.predicted_mean == pytest.approx(wanted.predicted_mean, rel=1e-3)
    assert ahead.se_mean == pytest.approx(wanted.se_mean, rel=1e-3)
    there = ~np.isnan(y)
    there[:10] = False  # their start is diffuse for a while only where there are gaps
    assert found.resid[there] == pytest.approx(theirs.resid[there], abs=1e-3)
    assert (found.resid + found.fittedvalues)[there] == pytest.approx(y[there], rel=1e-12)


def test_without_gaps_the_criteria_are_those_of_statsmodels():
    sarimax = pytest.importorskip("statsmodels.tsa.statespace.sarimax")
    y, x = with_regressor(200, alpha=0.0, ar=(0.6,), ma=())
    found = fit_arfima(y, x, ar=1, alpha=0.0)
    theirs = sarimax.SARIMAX(y, np.column_stack([np.ones(200), x]), order=(1, 0, 0)).fit(found.params, disp=0)
    assert [found.aic, found.bic, found.hqic] == pytest.approx([theirs.aic, theirs.bic, theirs.hqic], abs=1e-5)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_nothing_near_the_estimates_is_better(likelihood):
    y, x = with_regressor(250, seed=1)
    found = fit_arfima(y, x, ar=1, ma=1, likelihood=likelihood, bounds=(-0.9, 1.0))
    problem = Problem(Sample(y, np.column_stack([np.ones(250), x]), NONE, likelihood), None, 1, 1)
    best = found.params[2:5]
    assert problem.value(best) == pytest.approx(-found.llf, abs=1e-6)
    for i in range(3):
        for side in (-1, 1):
            assert problem.value(best + side * 0.02 * np.eye(3)[i]) > -found.llf


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_units_and_levels_do_not_matter(likelihood):
    y, x = with_regressor(200, ar=(), ma=())
    one = fit_arfima(y, x, ar=1, likelihood=likelihood)
    other = fit_arfima(1e-3 * y + 50, 1e3 * x - 7, ar=1, likelihood=likelihood)
    b = 1e-6 * one.params[1]
    expected = [1e-3 * one.params[0] + 50 + 7 * b, b, *one.params[2:-1], 1e-6 * one.params[-1]]
    assert other.params == pytest.approx(expected, rel=1e-5)
    errors = one.bse * [1, 1e-6, 1, 1, 1e-6]
    assert other.bse[1:] == pytest.approx(errors[1:], rel=1e-4)


def simulation(n, repeats, likelihood):
    """Errors of the estimates, and whether their intervals hold the truth; series by circulant embedding."""
    process = pytest.importorskip("statsmodels.tsa.arima_process")
    alpha, ar, ma = 0.3, -0.6, -0.3
    short = process.arma_acovf([1, -ar], [1, ma], nobs=200)
    long = data.arfima_covariance(n + 400, alpha)
    both = np.convolve(np.r_[long[:0:-1], long], np.r_[short[:0:-1], short], "same")
    middle = len(long) - 1
    gamma = both[middle : middle + n + 1]
    spectrum = np.fft.rfft(np.r_[gamma, gamma[-2:0:-1]]).real
    assert spectrum.min() > 0
    truth = np.array([2.0, 0.7, alpha, ar, ma, 1.0])
    errors, inside = [], []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        noise = np.fft.irfft(np.sqrt(spectrum) * np.fft.rfft(rng.standard_normal(2 * n)), 2 * n)[:n]
        x = rng.standard_normal(n)
        found = fit_arfima(2 + 0.7 * x + noise, x, ar=1, ma=1, likelihood=likelihood)
        errors.append(found.params - truth)
        low, high = found.conf_int().T
        inside.append((low <= truth) & (truth <= high))
    return np.array(errors), np.array(inside)


@pytest.mark.slow
def test_two_hundred_simulated_series_have_no_bias_and_honest_intervals():
    errors, inside = simulation(1000, 200, "restricted")
    assert np.all(np.abs(errors.mean(0)) <= 3 * errors.std(0, ddof=1) / math.sqrt(len(errors)))
    low, high = stats.binom.ppf([0.0005, 0.9995], len(inside), 0.95)
    assert np.all((low <= inside.sum(0)) & (inside.sum(0) <= high))


@pytest.mark.slow
def test_a_few_simulated_series_are_covered():
    _, inside = simulation(400, 6, "restricted")
    assert inside.sum() >= 29  # of 36; fewer have a probability of 1e-3


def test_forecasts_and_gaps_are_conditional_expectations():
    y, _ = with_regressor(120)
    y[[0, 40, 41]] = np.nan
    found = fit_arfima(y, ar=1, alpha=0.3)
    matrix = linalg.toeplitz(covariance.autocovariance(125, 0.3, found.ar))
    known = np.flatnonzero(~np.isnan(y))
    for wanted, forecast in (
        (np.arange(120, 125), found.get_forecast(5)),
        (np.array([0, 40, 41]), found.interpolate()),
    ):
        across = np.linalg.solve(matrix[np.ix_(known, known)], matrix[np.ix_(known, wanted)])
        expected = found.mean + across.T @ (y[known] - found.mean)
        spread = matrix[np.ix_(wanted, wanted)] - matrix[np.ix_(wanted, known)] @ across
        assert forecast.predicted_mean == pytest.approx(expected, rel=1e-9)
        assert forecast.covariance == pytest.approx(found.sigma2 * spread, abs=1e-9)
        half = stats.norm.ppf(0.9) * np.sqrt(found.sigma2 * np.diag(spread))
        assert np.diff(forecast.conf_int(alpha=0.2))[:, 0] == pytest.approx(2 * half, rel=1e-9)


def test_above_one_half_the_differences_are_fitted_and_summed_up():
    y = np.cumsum(simulated(300, alpha=-0.2, ar=(), ma=()))
    found = fit_arfima(y, bounds=(0.5, 1.5))
    of_steps = fit_arfima(np.diff(y), bounds=(-0.5, 0.5), mean=0.0)
    assert found.param_names == ("alpha", "sigma2")
    assert found.params == pytest.approx([of_steps.params[0] + 1, of_steps.params[1]], abs=1e-6)
    assert found.bse == pytest.approx(of_steps.bse, rel=1e-6)
    ahead, steps = found.get_forecast(6), of_steps.get_forecast(6)
    assert ahead.predicted_mean == pytest.approx(y[-1] + np.cumsum(steps.predicted_mean), rel=1e-6)
    sums = np.tril(np.ones((6, 6)))
    assert ahead.covariance == pytest.approx(sums @ steps.covariance @ sums.T, rel=1e-5)
    assert found.resid[1:] == pytest.approx(of_steps.resid, abs=1e-5)


def test_conditional_forecasts_make_the_next_errors_vanish():
    y, x = with_regressor(150)
    found = fit_arfima(y, x, ar=1, ma=1, likelihood="conditional")
    ahead = found.forecast(6, np.linspace(0, 1, 6))
    going_on = np.r_[y, ahead] - found.mean - np.r_[x, np.linspace(0, 1, 6)] * found.params[1]
    errors = covariance.Filter(going_on[:, None])(found.alpha, found.ar, found.ma)[:, 0]
    assert errors[150:] == pytest.approx(0, abs=1e-9)
    assert errors[:150] == pytest.approx(found.resid, abs=1e-9)


@pytest.mark.slow
def test_a_shared_order_is_that_of_the_sum_of_the_likelihoods():
    series = [simulated(n, ar=(), ma=(), seed=n) for n in (150, 200)]
    shared = fit_arfima(series, share="alpha")
    alphas = np.linspace(0.02, 0.48, 93)
    sums = [sum(fit_arfima(each, alpha=a).llf for each in series) for a in alphas]
    assert shared[0].alpha == shared[1].alpha == pytest.approx(alphas[np.argmax(sums)], abs=0.006)
    apart = fit_arfima(series)
    assert sum(each.llf for each in shared) <= sum(each.llf for each in apart)
    assert 1 / shared[0].bse[1] ** 2 == pytest.approx(sum(1 / each.bse[1] ** 2 for each in apart), rel=0.2)
    assert shared[0].params[0] != shared[1].params[0]
    two = np.column_stack([simulated(150, seed=1), simulated(150, seed=2)])
    both = fit_arfima(two, ar=1, ma=1, share="all", bounds=(-0.9, 0.5))
    assert both[0].params[1:4] == pytest.approx(both[1].params[1:4], rel=1e-12)


def test_pandas_keeps_its_names_and_its_dates():
    pandas = pytest.importorskip("pandas")
    y, x = with_regressor(120)
    index = pandas.date_range("2015-01-31", periods=120, freq="ME")
    found = fit_arfima(pandas.Series(y, index, name="flow"), pandas.DataFrame({"rain": x}, index), ar=1)
    assert list(found.params.index) == ["const", "rain", "alpha", "ar.L1", "sigma2"]
    assert list(found.conf_int().index) == list(found.cov_params().columns) == list(found.bse.index)
    assert found.resid.index.equals(index)
    assert found.fittedvalues.index.equals(index)
    ahead = found.get_forecast(3, pandas.DataFrame({"rain": [0.0, 1.0, 2.0]}))
    following = pandas.date_range("2015-01-31", periods=123, freq="ME")[120:]
    assert ahead.predicted_mean.index.equals(following)
    assert list(ahead.conf_int().columns) == ["lower flow", "upper flow"]
    assert ahead.conf_int().index.equals(ahead.se_mean.index)
    assert found.params.to_numpy() == pytest.approx(fit_arfima(y, x, ar=1).params, rel=1e-12)
    counted = fit_arfima(pandas.Series(y), alpha=0.3).forecast(2)
    assert list(counted.index) == [120, 121]
    periods = pandas.Series(y, pandas.period_range("2015-01", periods=120, freq="M"))
    assert str(fit_arfima(periods, alpha=0.3).forecast(1).index[0]) == "2025-01"
    two = fit_arfima(pandas.DataFrame({"a": y, "b": y[::-1]}), alpha=0.3)
    assert [each.name for each in two] == ["a", "b"]


def test_the_summary_has_all_that_was_estimated():
    y, x = with_regressor(120)
    found = fit_arfima(y, x, ar=1)
    text = found.summary(alpha=0.1)
    assert "90 % interval" in text
    for name, value in zip(found.param_names, found.params, strict=True):
        assert re.search(rf"^{re.escape(name)} +{re.escape(f'{value:.5g}')} ", text, re.M)


def test_an_order_at_its_bound_is_told_and_the_others_have_errors_for_it():
    noise = np.random.default_rng(0).standard_normal(300)
    with pytest.warns(UserWarning, match="fit_arfima: alpha has gone to 0"):
        found = fit_arfima(np.diff(noise))
    fixed = fit_arfima(np.diff(noise), alpha=found.alpha)
    assert math.isnan(found.bse[1])
    assert found.bse[[0, 2]] == pytest.approx(fixed.bse, rel=1e-5)


def test_an_order_just_below_one_half_is_at_its_bound():
    """There the variance has no limit, and the curvature at the very end says nothing of alpha."""
    walk = np.cumsum(np.random.default_rng(0).standard_normal(200))
    with pytest.warns(UserWarning, match="fit_arfima: alpha has gone to 0.49"):
        found = fit_arfima(walk)
    assert math.isnan(found.bse[1])


Y, X = with_regressor(60)
GAPS = np.where(np.arange(60) == 5, np.nan, Y)
FITTED: dict[str, Any] = {}


def fitted_with_regressor():
    return FITTED.setdefault("found", fit_arfima(Y, X))


FAULTS = [
    (lambda: fit_arfima(Y[:5]), ValueError, "fit_arfima(series): needs at least 6 samples; there are 5; pass a longer"),
    (
        lambda: fit_arfima(np.array([Y, Y])),
        ValueError,
        "fit_arfima(series 'y1'): needs at least 6 samples; there are 2; pass a longer one, of an array [n, series]",
    ),
    (
        lambda: fit_arfima(np.ones((2, 3, 9))),
        ValueError,
        "fit_arfima(series of shape (2, 3, 9)): needs one axis; pass one series, such as a column of a",
    ),
    (lambda: fit_arfima(3.0), ValueError, "fit_arfima(series of shape ()): needs one axis; pass one series"),
    (
        lambda: fit_arfima(np.ones(60)),
        ValueError,
        "fit_arfima(series): needs samples that vary; all are 1; pass others",
    ),
    (
        lambda: fit_arfima(np.full(60, np.nan)),
        ValueError,
        "fit_arfima(series): needs at least 6 samples that are there; 0 of 60 are, the others are NaN; pass more of",
    ),
    (
        lambda: fit_arfima(Y, (1, 0, 2)),
        ValueError,
        "fit_arfima(exog=(1, 0, 2)): needs regressors, and this is an order; pass ar=1, ma=2, and alpha=0 where no",
    ),
    (
        lambda: fit_arfima([Y, Y], X.tolist()),
        ValueError,
        "fit_arfima(exog): needs one table for each of 2 series, or an array for all; a flat list of 60 numbers is",
    ),
    (
        lambda: fit_arfima([Y, Y], [X]),
        ValueError,
        "fit_arfima(exog): needs one table for each of 2 series; 1 are given",
    ),
    (lambda: fit_arfima(Y + 1j), TypeError, "fit_arfima(series of dtype complex128): needs real samples; pass floats."),
    (
        lambda: fit_arfima(np.where(Y[3] == Y, np.inf, Y)),
        ValueError,
        "fit_arfima(series): needs finite samples; series[3]",
    ),
    (
        lambda: fit_arfima(GAPS, likelihood="conditional"),
        ValueError,
        "fit_arfima(series): needs finite samples; series[5]=nan; fill the gaps, or pass likelihood='exact'",
    ),
    (
        lambda: fit_arfima(GAPS, bounds=(0.5, 1.5)),
        ValueError,
        "fit_arfima(series): needs finite samples where the series is differenced; series[5]=nan; fill the gaps, or "
        "take bounds below 1/2.",
    ),
    (
        lambda: fit_arfima(GAPS, alpha=1),
        ValueError,
        "fit_arfima(series): needs finite samples where the series is differenced; series[5]=nan; fill the gaps, or "
        "take alpha below 1/2.",
    ),
    (
        lambda: fit_arfima(GAPS, alpha=0.2, likelihood="conditional"),
        ValueError,
        "fit_arfima(series): needs finite samples; series[5]=nan; fill the gaps, or pass likelihood='exact'.",
    ),
    (
        lambda: fit_arfima(GAPS, alpha=1, likelihood="conditional"),
        ValueError,
        "fit_arfima(series): needs finite samples; series[5]=nan; fill the gaps.",
    ),
    (lambda: fit_arfima(Y, X[:50]), ValueError, "fit_arfima(exog of shape (50,)): needs [60] or [60, regressors]"),
    (lambda: fit_arfima(Y, GAPS), ValueError, "fit_arfima(exog): needs finite numbers; exog[5, 0]=nan; a gap may be"),
    (
        lambda: fit_arfima(Y, np.column_stack([X, 1 - 2 * X])),
        ValueError,
        "fit_arfima(exog): needs regressors that are linearly independent of each other and of the level; 'x2' is",
    ),
    (
        lambda: fit_arfima(Y, np.ones(60)),
        ValueError,
        "fit_arfima(exog): needs regressors that are linearly independent",
    ),
    (lambda: fit_arfima(Y, bounds=(0.6, 1.8)), ValueError, "fit_arfima(bounds=(0.6, 1.8)): needs at most 3/2; differ"),
    (lambda: fit_arfima(Y, likelihood="best"), ValueError, "fit_arfima(likelihood='best'): needs one of 'conditional'"),
    (lambda: fit_arfima(Y, ar=-1), ValueError, "fit_arfima(ar=-1): needs ar >= 0"),
    (lambda: fit_arfima(Y, ar=[1.1]), ValueError, "fit_arfima(ar=[1.1]): needs stationary coefficients; take smaller"),
    (lambda: fit_arfima(Y, alpha=1.6), ValueError, "fit_arfima(alpha=1.6): needs -1 < alpha < 3/2; difference the"),
    (lambda: fit_arfima(Y, alpha=-1), ValueError, "fit_arfima(alpha=-1.0): needs -1 < alpha < 3/2; sum the series"),
    (lambda: fit_arfima(Y, alpha="x"), TypeError, "fit_arfima(alpha='x'): needs a real number; pass for example"),  # type: ignore[arg-type]
    (lambda: fit_arfima(Y, alpha=[0.2]), TypeError, "fit_arfima(alpha=[0.2]): needs a real number; pass for example"),  # type: ignore[arg-type]
    (lambda: fit_arfima(Y, alpha=True), TypeError, "fit_arfima(alpha=True): needs a real number; pass for example"),
    (lambda: fit_arfima(Y, alpha=np.nan), ValueError, "fit_arfima(alpha=nan): needs a finite alpha; pass for example"),
    (
        lambda: fit_arfima(Y, mean=True),
        TypeError,
        "fit_arfima(mean=True): needs a real number; pass for example",
    ),
    (lambda: fit_arfima([Y, Y], share="ar"), ValueError, "fit_arfima(share='ar'): needs 'alpha', 'all' or None; pass"),
    (
        lambda: fitted_with_regressor().forecast(3),
        ValueError,
        "ArfimaResults.forecast(exog=None): needs the 1 regressors of the fit at the times of the forecasts; pass exog",
    ),
    (
        lambda: fitted_with_regressor().forecast(3, np.ones(4)),
        ValueError,
        "ArfimaResults.forecast(exog of shape (4,)): needs [3] or [3, regressors], a row for each step; pass as many",
    ),
    (lambda: fitted_with_regressor().forecast(0, 1), ValueError, "ArfimaResults.forecast(steps=0): needs steps >= 1"),
    (
        lambda: fitted_with_regressor().conf_int(95),
        ValueError,
        "conf_int(alpha=95): needs 0 < alpha < 1; pass a part of 1, such as alpha=0.05.",
    ),
    (
        lambda: fitted_with_regressor().interpolate(),
        ValueError,
        "ArfimaResults.interpolate: needs gaps, and the series",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), FAULTS, ids=[fault[2][:60] for fault in FAULTS])
def test_what_cannot_be_fitted_or_forecast_is_an_error(call, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        call()


def test_an_array_of_one_column_is_one_series():
    expected = fit_arfima(Y, X).params
    np.testing.assert_array_equal(fit_arfima(Y[:, None], X).params, expected)
    (one,) = fit_arfima([Y], X)  # a list is several
    np.testing.assert_array_equal(one.params, expected)
    (one,) = fit_arfima(Y[:, None], [X], share="alpha")
    pandas = pytest.importorskip("pandas")
    found = fit_arfima(pandas.DataFrame({"flow": Y}), X)
    assert found.name == "flow"
    np.testing.assert_array_equal(found.params, expected)


@pytest.mark.parametrize("name", ["alpha", "sigma2", "ar.L1"])
def test_regressors_have_other_names_than_the_parameters(name: str) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({name: X})
    with pytest.raises(ValueError, match=rf"^fit_arfima\(exog\): needs other names .*; '{re.escape(name)}' is one of"):
        fit_arfima(Y, table, ar=1)
    if name != "sigma2":
        fixed = fit_arfima(Y, table, alpha=0.2)  # then neither is estimated
        assert fixed.param_names == ("const", name, "sigma2")


def test_a_regressor_of_ones_is_a_level_where_there_is_none() -> None:
    pandas = pytest.importorskip("pandas")
    found = fit_arfima(Y, pandas.DataFrame({"const": np.ones(60)}), mean=0)
    assert found.params.tolist() == pytest.approx(fit_arfima(Y).params.tolist(), rel=1e-5)


def dated(n: int = 200) -> tuple[Any, Any]:
    """A series and two regressors with the same dates."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    dates = pandas.date_range("2020-01-01", periods=n, freq="D")
    exog = pandas.DataFrame(rng.standard_normal((n, 2)), dates, ["rain", "temp"])
    return exog @ [0.7, -0.3] + data.arfima(n, 0.3, rng), exog


def test_regressors_belong_to_the_samples_of_the_same_dates() -> None:
    series, exog = dated()
    with pytest.raises(ValueError, match=r"fit_arfima\(exog\): needs the index of each sample; row 0 is 2020-07-18"):
        fit_arfima(series, exog.iloc[::-1])
    with pytest.raises(ValueError, match=r"needs the index of each sample; row 0 is 2020-01-02"):
        fit_arfima(series, exog.set_index(exog.index + exog.index.freq))
    expected = fit_arfima(series, exog.to_numpy()).params
    np.testing.assert_array_equal(fit_arfima(series, exog).params, expected)


def test_regressors_of_a_forecast_are_those_of_the_fit_by_their_names_and_dates() -> None:
    series, exog = dated()
    found = fit_arfima(series[:-5], exog[:-5])
    expected = found.forecast(5, exog[-5:])
    np.testing.assert_array_equal(found.forecast(5, exog[-5:][["temp", "rain"]]), expected)
    np.testing.assert_array_equal(found.forecast(5, exog[-5:].to_numpy()), expected)
    with pytest.raises(ValueError, match=r"needs those of the fit, \['rain', 'temp'\]"):
        found.forecast(5, exog[-5:].set_axis(["rain", "wind"], axis=1))
    with pytest.raises(ValueError, match=r"needs the index of each step; row 0 is 2020-07-13"):
        found.forecast(5, exog[-6:-1])


def test_times_of_a_series_increase() -> None:
    series, _ = dated()
    with pytest.raises(ValueError, match="sort"):
        fit_arfima(series[::-1])


@pytest.mark.parametrize("kind", [str, complex, "datetime64[ns]", object])
def test_samples_of_pandas_are_real_numbers_too(kind: Any) -> None:
    series, _ = dated()
    with pytest.raises(TypeError, match="needs real samples"):
        fit_arfima(series.astype("int64").astype(kind) if kind == "datetime64[ns]" else series.astype(kind))


def test_samples_far_from_zero_are_fitted_about_their_level() -> None:
    series = data.arfima(300, 0.3, np.random.default_rng(0))
    near, far = fit_arfima(series, likelihood="restricted"), fit_arfima(1e10 + series, likelihood="restricted")
    np.testing.assert_allclose(far.params[1:], near.params[1:], rtol=1e-4)  # the last digit of 1e10 is 2e-6


@pytest.mark.parametrize("likelihood", ["exact", "conditional"])
def test_a_layer_goes_on_with_its_own_series_as_its_fit_does_above_one_half(likelihood: str) -> None:
    layers = pytest.importorskip("hpfracc_nn.layers.torch")
    series = 1000 + np.cumsum(data.arfima(600, -0.4, np.random.default_rng(1)))
    model = layers.ARFIMA(ar=0, bounds=(0.5, 1.5)).fit(series, likelihood=likelihood)
    again = model.forecast(3, series).numpy()
    assert np.abs(again - model.forecast(3).numpy()).max() < 0.2  # one step has a deviation of 1
    assert model.forecast_mse(series, 500) < 1.5
