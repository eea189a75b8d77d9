"""The search of the greatest likelihood: against grids of starts and closed forms; what a fit says of its end."""

import math
import warnings

import numpy as np
import pytest
from scipy import optimize, signal, stats

from hpfracc_nn import data
from hpfracc_nn.series import fit_arfima
from hpfracc_nn.series.likelihood import Problem, Sample

NONE = np.empty(0, int)
ORDERS = [*np.linspace(0.001, 0.498, 14), 0.4998]


def with_lags(n, alpha, ar, ma, seed):
    noise = data.arfima(n + 200, alpha, np.random.default_rng(seed))
    return signal.lfilter([1, *ma], [1, *(-a for a in ar)], noise)[200:]


def best_of_a_grid(series, p, q, orders=ORDERS):
    """The greatest exact likelihood of fixed orders, the lags of each sought from several starts without slopes."""
    sample, found = Sample(series, np.ones((len(series), 1)), NONE, "exact"), []
    for alpha in orders:
        problem = Problem(sample, float(alpha), p, q)

        def value(point, problem=problem):
            return problem.value(point) if np.abs(point).max() < 0.999 else 1e6

        for first in (-0.5, 0.2, 0.8) if p + q == 1 else ((-0.7, -0.3), (0.3, 0.7), (0.7, 0.3), (0.5, -0.9)):
            tolerances = {"xatol": 1e-4, "fatol": 1e-6, "maxiter": 120}
            found.append(optimize.minimize(value, first, method="Nelder-Mead", options=tolerances).fun)
    return -min(found)


def quietly(*given, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return fit_arfima(*given, **options)


# Where the conditional likelihood leads to alpha = 1/2 and the exact one has its maximum inside, and others.
@pytest.mark.parametrize("seed", [1, 7, 16, 20])
def test_no_order_of_a_grid_with_its_best_lag_has_a_greater_likelihood(seed):
    series = with_lags(300, 0.3, [0.5], [], seed)
    found = quietly(series, ar=1)
    assert found.llf >= best_of_a_grid(series, 1, 0) - 1e-5
    assert found.converged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "alpha", "ar", "ma", "seeds"),
    [
        (300, 0.3, [0.5], [], range(12)),
        (800, 0.4, [0.5], [], range(4)),
        (250, 0.35, [], [0.4], range(4)),
        (200, 0.3, [0.5], [0.3], range(2)),
        (200, 0.3, [-0.6], [-0.3], range(2)),
    ],
)
def test_no_start_of_a_grid_leads_to_a_greater_likelihood(n, alpha, ar, ma, seeds):
    for seed in seeds:
        series = with_lags(n, alpha, ar, ma, seed)
        found = quietly(series, ar=len(ar), ma=len(ma))
        assert found.llf >= best_of_a_grid(series, len(ar), len(ma)) - 1e-5, seed
        assert found.converged


def test_walks_have_the_lag_of_the_closed_form():
    """S = (1 - a**2) y[0]**2 + the squared errors, det T = 1 / (1 - a**2)."""
    lags = 1 - np.geomspace(1e-4, 0.3, 4000)
    for seed in range(25):
        y = np.cumsum(np.random.default_rng(seed).standard_normal(200))
        squares = (1 - lags**2) * y[0] ** 2 + ((y[1:] - lags[:, None] * y[:-1]) ** 2).sum(1)
        values = (np.log(1 - lags**2) - 200 * (np.log(2 * np.pi * squares / 200) + 1)) / 2
        found = fit_arfima(y, ar=1, alpha=0, mean=0)
        assert found.converged
        assert found.llf >= values.max() - 1e-9
        assert found.ar[0] == pytest.approx(lags[values.argmax()], abs=2e-4)  # of the grid


def moving_average(z, ma):
    """The logarithm of the density, by the dense matrix, at the best variance."""
    n = len(z)
    covariance = np.diag(np.full(n, 1 + ma**2)) + np.diag(np.full(n - 1, ma), 1) + np.diag(np.full(n - 1, ma), -1)
    variance = z @ np.linalg.solve(covariance, z) / n
    return stats.multivariate_normal.logpdf(z, cov=variance * covariance)


@pytest.mark.parametrize("seed", [4, 5, 6, 8])
def test_of_two_maxima_about_a_unit_root_the_greater_is_found(seed):
    z = np.diff(np.random.default_rng(seed).standard_normal(300))
    found = quietly(z, ma=1, alpha=0, mean=0)
    assert found.converged
    assert found.llf >= max(moving_average(z, ma) for ma in [-0.9999, *np.linspace(-0.998, -0.9, 30), -0.5]) - 1e-4


def test_a_difference_too_many_has_a_unit_root_and_is_told():
    z = np.diff(np.random.default_rng(6).standard_normal(300))
    with pytest.warns(UserWarning, match="fit_arfima: ma has gone to -1, with a root on the unit circle"):
        found = fit_arfima(z, ma=1, alpha=0, mean=0)
    assert math.isnan(found.bse[0])
    assert found.bse[1] == pytest.approx(found.sigma2 * math.sqrt(2 / 299), rel=1e-6)


def test_a_search_that_did_not_arrive_says_so(monkeypatch):
    monkeypatch.setattr("hpfracc_nn.series.estimation._NEWTON", 0)
    series = with_lags(200, 0.3, [0.5], [], 0)
    with pytest.warns(UserWarning, match="fit_arfima: the search has not arrived at a maximum of the likelihood"):
        found = fit_arfima(series, ar=1)
    assert not found.converged
    assert "not converged" in found.summary()
    monkeypatch.undo()
    assert "converged" not in fit_arfima(series, ar=1).summary()


@pytest.mark.parametrize("likelihood", ["conditional", "exact"])
def test_errors_of_shared_fits_do_not_depend_on_the_order_of_the_list(likelihood):
    series = [with_lags(n, 0.3, [0.4], [], n) for n in (40, 200, 90)]
    one = fit_arfima(series, ar=1, share="alpha", likelihood=likelihood)
    other = fit_arfima(series[::-1], ar=1, share="alpha", likelihood=likelihood)[::-1]
    for first, second in zip(one, other, strict=True):
        assert first.params == pytest.approx(second.params, rel=1e-5)
        assert first.bse == pytest.approx(second.bse, rel=1e-4)


def test_the_conditional_variance_is_over_what_the_estimates_leave():
    x = np.random.default_rng(0).standard_normal(80)
    series = x + with_lags(80, 0.3, [0.4], [], 1)
    found = fit_arfima(series, x, ar=1, likelihood="conditional")
    assert found.param_names == ("const", "x1", "alpha", "ar.L1", "sigma2")
    assert found.sigma2 == pytest.approx((found.resid**2).sum() / (80 - 4), rel=1e-9)
    shared = fit_arfima([series[:40], series[40:]], [x[:40], x[40:]], ar=1, likelihood="conditional", share="all")
    for each in shared:
        assert each.sigma2 == pytest.approx((each.resid**2).sum() / (40 - 2 - 2 / 2), rel=1e-9)


def faults_of(*given, **options):
    """The warnings of a fit under Python's default filter, which shows a text once a line."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        fit_arfima(*given, **options)
    return said


def test_an_order_at_its_lower_bound_is_sought_below_it():
    noise = np.random.default_rng(0).standard_normal(300)
    (said,) = faults_of(np.diff(noise))  # its order is -1
    assert "take lower bounds, such as (-0.5, 0.5)" in str(said.message)
    assert "1/2" not in str(said.message)
    (said,) = faults_of(np.diff(noise), bounds=(-0.5, 0.5))
    assert "the series may be differenced once too often; take its sum (np.cumsum)" in str(said.message)
    (said,) = faults_of(np.cumsum(noise))
    assert "take bounds above 1/2, for example (0.5, 1.5)" in str(said.message)
    (said,) = faults_of(np.cumsum(np.cumsum(noise)), bounds=(0.5, 1.2))
    assert "take higher bounds" in str(said.message)


def test_warnings_of_several_series_name_them_at_the_line_of_the_call():
    pandas = pytest.importorskip("pandas")
    noise = np.diff(np.random.default_rng(0).standard_normal((300, 3)), axis=0)
    said = faults_of(pandas.DataFrame(noise, columns=["a", "b", "c"]))
    assert [str(each.message).split(": alpha")[0] for each in said] == [f"fit_arfima(series {c!r})" for c in "abc"]
    assert {each.filename for each in said} == {__file__}
    said = faults_of(noise)
    assert [str(each.message).split(": alpha")[0] for each in said] == [f"fit_arfima(series 'y{i}')" for i in (1, 2, 3)]
