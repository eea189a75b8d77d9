"""ARFIMA as a model: its fit, its standard errors, its forecasts."""

import copy
import math
import re

import numpy as np
import pytest
from scipy import signal

from hpfracc_nn import data

pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")  # of the demo, whose test has the recurrence

import torch

from hpfracc_nn import ARFIMA, Alpha, ProbabilisticAlpha
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.layers.lags import divided
from hpfracc_nn.series import fit_arfima
from tests.test_demo import difference_by_recurrence

N = 300
SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1))


def simulated(n, alpha, ar=(), seed=0):
    """ARFIMA by its autoregression of exact fractional noise."""
    noise = data.arfima(n + 500, alpha, np.random.default_rng(seed))
    series = np.zeros(n + 500)
    for t in range(n + 500):
        series[t] = noise[t] + sum(weight * series[t - lag] for lag, weight in enumerate(ar, 1) if lag <= t)
    return series[500:]


def simulated_lags(noise, weight):
    found = np.zeros(len(noise))
    for t in range(len(noise)):
        found[t] = noise[t] + weight * found[t - 1]
    return found


def errors_by_recurrence(series, alpha, ar, mean):
    u = difference_by_recurrence(series - mean, alpha)
    return u - sum(weight * np.append(np.zeros(lag), u[:-lag]) for lag, weight in enumerate(ar, 1))


@pytest.fixture(scope="module")
def series():
    return 3 + 10 * simulated(N, 0.4, (-0.3,), seed=0)


@pytest.fixture(scope="module")
def fitted(series):
    return ARFIMA(1).fit(series)


@pytest.mark.parametrize(
    ("lags", "fixed_mean"),
    [
        (1, False),
        *[
            pytest.param(lags, mean, marks=pytest.mark.slow)
            for lags, mean in ((0, True), (0, False), (1, True), (2, False))
        ],
    ],
)
def test_it_finds_the_minimum_of_what_it_is_told_to_minimise(series, lags, fixed_mean):
    """Q = S (c'c)**(1 / (n - 1)), c the errors of ones; S where the mean is frozen. Errors by recurrence."""
    model = ARFIMA(lags)
    with torch.no_grad():
        model.mean.fill_(3.0)
    model.mean.requires_grad_(not fixed_mean)
    model.fit(series)
    names, values = model.estimates.names, model.estimates.values
    assert names == ("alpha", *["mean"] * (not fixed_mean), *[f"ar{k + 1}" for k in range(lags)])

    def errors(x, point):
        given = dict(zip(names, point, strict=True))
        ar = [given[f"ar{k + 1}"] for k in range(lags)]
        if not ar:
            return difference_by_recurrence(x - given.get("mean", 3.0), given["alpha"])
        return errors_by_recurrence(x, given["alpha"], ar, given.get("mean", 3.0))

    def least(point):
        total = (errors(series, point) ** 2).sum()
        of_ones = errors(np.ones(N), [0.0 if name == "mean" else v for name, v in zip(names, point, strict=True)])
        return total if fixed_mean else total * (of_ones**2).sum() ** (1 / (N - 1))

    found = least(values)
    shifts = np.diag(1e-3 * np.array([10.0 if name == "mean" else 1.0 for name in names]))
    rises = [[[least(values + a * i + b * j) for a, b in SIGNS] for j in shifts] for i in shifts]
    hessian = np.array(rises) @ [1, -1, -1, 1] / (4 * np.outer(shifts.sum(0), shifts.sum(0)))
    variance = found / (N - len(names))
    expected = np.sqrt(np.diag(2 * variance * np.linalg.inv(hessian)))
    assert [*model.estimates.standard_errors.values()] == pytest.approx(expected, rel=1e-3)  # shifts of 1e-3
    slopes = [(least(values + e) - least(values - e)) / (2 * e.sum()) for e in 1e-2 * shifts]
    away = np.linalg.solve(hessian, slopes) / expected
    assert away == pytest.approx(0, abs=1e-5)  # standard errors; rounding of the differences
    total = (errors(series, values) ** 2).sum()
    assert model.estimates.deviation == pytest.approx(math.sqrt(total / (N - len(names))), rel=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_sample_of_a_walk_does_not_count_as_an_error(seed):
    """At alpha = 1 it is the regression of the differences on their past, wherever the walk starts."""
    noise = np.random.default_rng(seed).standard_normal(300)
    steps = simulated_lags(noise, 0.6)
    model = ARFIMA(1, alpha=1.0, learn_alpha=False).fit(100 + np.cumsum(steps))
    regression = (steps[2:] @ steps[1:-1]) / (steps[1:-1] @ steps[1:-1])
    assert model.ar is not None
    assert model.ar.item() == pytest.approx(regression, abs=2 / 300)  # what the first steps and c'c weigh
    assert model.estimates.deviation == pytest.approx(np.std(noise), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "ar"), [(0.3, ()), (0.4, (-0.3,)), (0.3, (-0.5, -0.3))])
@pytest.mark.filterwarnings("ignore:ARFIMA.fit. alpha has gone to")  # then there is no interval, and it counts
def test_intervals_cover_the_truth(alpha, ar):
    """At a true level of 95 % fewer than 43 of 50 have a probability of 0.3 %."""
    inside = 0
    for seed in range(50):
        found = ARFIMA(len(ar)).fit(simulated(1000, alpha, ar, seed)).estimates
        low, high = found.intervals_at(0.95)["alpha"]
        inside += low <= alpha <= high
    assert inside >= 43


@pytest.mark.slow
@pytest.mark.parametrize("ar", [0.0, 0.5])
@pytest.mark.filterwarnings("ignore:ARFIMA.fit. alpha has gone to")
def test_intervals_cover_orders_of_series_that_have_no_level(ar):
    """Order 0.8 by sums of order -0.2, far from zero; at a level of 95 % fewer than 43 of 50 have 0.3 %."""
    inside, found = 0, []
    for seed in range(50):
        noise = data.arfima(500, -0.2, np.random.default_rng(seed))
        estimates = ARFIMA(1).fit(1e3 + np.cumsum(simulated_lags(noise, ar))).estimates
        low, high = estimates.intervals_at(0.95)["alpha"]
        inside += low <= 0.8 <= high
        found.append(estimates.estimates["alpha"])
    assert inside >= 43
    assert np.median(found) == pytest.approx(0.8, abs=0.08)  # a bias of 0.02, and three standard errors


@pytest.mark.parametrize("true", [-0.3, 0.25])
def test_an_order_below_zero_is_found_in_bounds_that_hold_it(true):
    model = ARFIMA(0, bounds=(-0.5, 1.0)).fit(data.arfima(1000, true, np.random.default_rng(1)))
    assert abs(torch.as_tensor(model.alpha).item() - true) < 4 * model.estimates.standard_errors["alpha"]


def test_units_and_level_of_the_series_do_not_matter(series, fitted):
    other = ARFIMA(1).fit(1e-6 * (series - 1e3))
    expected = {**fitted.estimates.estimates, "mean": 1e-6 * (fitted.mean.item() - 1e3)}
    assert other.estimates.estimates == pytest.approx(expected, rel=1e-6)
    assert other.estimates.deviation == pytest.approx(1e-6 * fitted.estimates.deviation, rel=1e-6)


def test_a_forecast_is_what_makes_the_next_errors_vanish(series, fitted):
    steps = 7
    expected = fitted.forecast(steps).numpy()
    going_on = np.concatenate([series, expected])
    found = errors_by_recurrence(going_on, fitted.alpha.item(), fitted.ar.tolist(), fitted.mean.item())
    assert found[-steps:] == pytest.approx(0, abs=1e-9 * np.abs(series).max())
    assert fitted.forecast(steps, torch.as_tensor(series)).numpy() == pytest.approx(expected, rel=1e-12)


def test_a_one_step_forecast_is_the_sample_less_its_error(series, fitted):
    found = fitted.errors_of(torch.as_tensor(series)).detach().numpy()
    for t in (1, 2, 50, N - 1):
        assert float(fitted.forecast(1, series[:t])[0]) == pytest.approx(series[t] - found[t], rel=1e-9)
    assert fitted.forecast_mse(series, 200) == pytest.approx(np.mean(found[200:] ** 2), rel=1e-12)


def test_forecast_intervals_are_those_of_the_moving_average(fitted):
    steps, alpha, phi = 5, fitted.alpha.item(), fitted.ar[0].item()
    # psi: (1 - z)**-alpha of the powers of phi
    psi = difference_by_recurrence(phi ** np.arange(steps), -alpha)
    low, high = fitted.forecast_interval(steps, 0.9)
    half = 1.6448536269514722 * fitted.estimates.deviation * np.sqrt(np.cumsum(psi**2))
    assert ((high - low) / 2).numpy() == pytest.approx(half, rel=1e-9)
    assert ((high + low) / 2).numpy() == pytest.approx(fitted.forecast(steps).numpy(), rel=1e-12)


def test_forecast_intervals_are_those_of_the_results(fitted):
    low, high = fitted.forecast_interval(5, 0.9)
    bounds = fitted.results.get_forecast(5).conf_int(0.1)
    assert np.column_stack([low, high]) == pytest.approx(bounds, rel=1e-12)


def test_what_is_fixed_stays(series):
    model = ARFIMA(1, alpha=0.3, learn_alpha=False).fit(series)
    assert model.alpha == 0.3
    assert model.estimates.names == ("mean", "ar1")
    assert model.forecast(3).shape == (3,)


@pytest.mark.parametrize("frozen", ["mean", "ar", "difference.order.raw"])
def test_a_frozen_parameter_stays_and_the_others_are_fitted(series, frozen):
    model = ARFIMA(1)
    parameters = dict(model.named_parameters())
    kept = parameters[frozen].requires_grad_(False).clone()
    model.fit(series)
    assert torch.equal(parameters[frozen], kept)
    assert not parameters[frozen].requires_grad
    names = {"mean": "mean", "ar": "ar1", "difference.order.raw": "alpha"}
    assert set(model.estimates.names) == {"alpha", "mean", "ar1"} - {names[frozen]}


def trained(model):
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model(torch.randn(20, dtype=torch.float64)).square().sum().backward()
    optimizer.step()


CHANGES = {
    "loaded": lambda model: model.load_state_dict(ARFIMA(1).state_dict()),
    "trained": trained,
}


@pytest.mark.parametrize("changed", CHANGES)
def test_estimates_are_not_told_of_parameters_that_are_others_by_now(fitted, changed):
    model = copy.deepcopy(fitted)
    CHANGES[changed](model)
    for call in (lambda: model.estimates, lambda: model.forecast_interval(3)):
        with pytest.raises(ValueError, match=r"ARFIMA: needs the parameters that fit found, and they have changed"):
            call()
    assert model.forecast(3).shape == (3,)


def test_a_cast_leaves_the_estimates(fitted):
    model = copy.deepcopy(fitted).to(torch.float32)
    assert model.estimates is not None
    assert model.to(torch.float64).load_state_dict(fitted.state_dict())
    assert model.estimates is not None


def test_it_starts_inside_bounds_that_leave_the_usual_order_out():
    for bounds, first in (((0.5, 1.5), 1.0), ((-0.5, 1.0), 0.3)):
        assert torch.as_tensor(ARFIMA(bounds=bounds).alpha).item() == pytest.approx(first)
    assert ARFIMA(learn_alpha=False).alpha == 0.3


def test_a_model_of_single_precision_is_estimated_in_double(series, fitted):
    model = ARFIMA(1, dtype=torch.float32).fit(series)
    assert model.estimates.values == pytest.approx(fitted.estimates.values, rel=1e-12)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.forecast(3).numpy() == pytest.approx(fitted.forecast(3).numpy(), rel=1e-5)


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_the_time_axis_of_the_layer_does_not_matter_to_the_model(series, fitted, dim):
    model = ARFIMA(1, dim=dim).fit(series)
    assert model.estimates.values == pytest.approx(fitted.estimates.values, rel=1e-9)
    assert model.forecast(3).numpy() == pytest.approx(fitted.forecast(3).numpy(), rel=1e-9)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_mode_of_the_caller_does_not_matter(series, fitted, mode):
    model = ARFIMA(1)
    with mode():
        model.fit(torch.as_tensor(series))
        assert model.forecast(2).numpy() == pytest.approx(fitted.forecast(2).numpy(), rel=1e-9)
    assert model.estimates.values == pytest.approx(fitted.estimates.values, rel=1e-12)


def test_a_fitted_model_is_copied_with_its_series(fitted):
    assert torch.equal(copy.deepcopy(fitted).forecast(3), fitted.forecast(3))


def test_the_summary_names_estimates_and_intervals(fitted):
    text = fitted.estimates.summary(0.9)
    assert re.search(r"std\. error +90 % interval", text)
    assert re.search(r"alpha +0\.\d+ +0\.0\d+ +\[", text)
    assert f"over {N} samples" in text


def test_an_order_at_its_bound_is_told():
    noise = np.random.default_rng(0).standard_normal(300)
    with pytest.warns(UserWarning, match=r"ARFIMA\.fit: alpha has gone to 0, an end of its bounds"):
        model = ARFIMA(0).fit(noise - np.append(0, noise[:-1]))  # the order of a difference of noise is -1
    assert math.isnan(model.estimates.standard_errors["alpha"])


@pytest.mark.parametrize("q", [1, 2, 3])
def test_errors_before_are_divided_out_also_in_a_graph(q):
    weights = np.array([0.5, 0.3, -0.1])[:q]
    model = ARFIMA(0, q, alpha=0.0, learn_alpha=False)
    assert model.ma is not None
    with torch.no_grad():
        model.ma.copy_(torch.from_numpy(weights))
    x = torch.randn(2, 37, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = signal.lfilter([1.0], [1.0, *weights], x.numpy())
    assert model(x).detach().numpy() == pytest.approx(wanted, abs=1e-13)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert compiled(x).detach().numpy() == pytest.approx(wanted, abs=1e-13)
    x[:, 20] = math.nan  # what comes before a sample knows nothing of it
    assert model(x)[:, :20].detach().numpy() == pytest.approx(wanted[:, :20], abs=1e-13)


@pytest.mark.parametrize("likelihood", ["exact", "restricted", "conditional"])
def test_the_model_is_fitted_as_the_series_are(series, likelihood):
    x = np.random.default_rng(3).standard_normal(N)
    model = ARFIMA(1, 1, bounds=(-0.9, 1.0)).fit(series + x, x, likelihood=likelihood)
    found = fit_arfima(series + x, x, ar=1, ma=1, likelihood=likelihood, bounds=(-0.9, 1.0))
    assert model.results.params == pytest.approx(found.params, rel=1e-12)
    assert isinstance(model.alpha, torch.Tensor)
    assert model.ar is not None
    assert model.ma is not None
    assert model.alpha.item() == pytest.approx(found.alpha, rel=1e-9)
    assert [model.mean.item(), model.ar.item(), model.ma.item()] == pytest.approx([found.mean, *found.ar, *found.ma])
    assert model.estimates.names == ("alpha", "mean", "x1", "ar1", "ma1")
    ahead = model.results.get_forecast(4, np.ones(4))
    assert model.forecast(4, exog=torch.ones(4)).numpy() == pytest.approx(ahead.predicted_mean, rel=1e-12)
    low, high = model.forecast_interval(4, 0.9, exog=np.ones(4))
    assert torch.stack([low, high], 1).numpy() == pytest.approx(ahead.conf_int(0.1), rel=1e-9)
    left = torch.as_tensor(series + x - x * found.params[1])
    if likelihood == "conditional":
        assert model.errors_of(left).detach().numpy() == pytest.approx(found.resid, abs=1e-8)
    with pytest.raises(ValueError, match=r"ARFIMA\.forecast\(series\): needs a model without regressors"):
        model.forecast(3, series)
    with pytest.raises(ValueError, match=r"ArfimaResults\.forecast\(exog=None\): needs the 1 regressors"):
        model.forecast(3)


@pytest.mark.parametrize(("q", "b", "n"), [(5, 1.1, 9000), (13, 1.2, 9000), (1, 1.01, 4000), (2, -0.7, 1)])
def test_coefficients_that_meet_no_sample_do_not_overflow(q, b, n):
    """Squared log2(n) times, b is above the largest number: samples would get infinity times 0."""
    u = np.random.default_rng(0).standard_normal(n)
    weights = [0.0] * (q - 1) + [b]
    wanted = signal.lfilter([1.0], [1.0, *weights], u)
    found = divided(u, weights, -1, NUMPY)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())  # 2.5e-14 at most was seen


def test_gaps_and_dates_go_through_the_model(series):
    pandas = pytest.importorskip("pandas")
    holed = pandas.Series(series, pandas.date_range("2020-01-01", periods=N, freq="D"))
    holed.iloc[[5, 80]] = np.nan
    model = ARFIMA(0).fit(holed, likelihood="exact")
    assert str(model.results.forecast(2).index[0]) == "2020-10-27 00:00:00"
    assert model.forecast(2).tolist() == model.results.forecast(2).tolist()
    with pytest.raises(ValueError, match=r"ARFIMA\.fit\(series\): needs finite samples; series\[5\]=nan; fill"):
        ARFIMA(0).fit(holed)


@pytest.mark.filterwarnings("error")
def test_forecasts_of_a_model_are_tensors_whatever_the_dates_are(series):
    """Days that leave out holidays have no frequency, which only forecasts with an index are warned of."""
    pandas = pytest.importorskip("pandas")
    days = pandas.bdate_range("2020-01-01", periods=N + 2).delete([9, 34])
    plain = ARFIMA(0).fit(series, likelihood="exact")
    dated = ARFIMA(0).fit(pandas.Series(series, days), likelihood="exact")
    assert dated.forecast(2).tolist() == plain.forecast(2).tolist()
    assert dated.forecast_interval(2)[0].tolist() == plain.forecast_interval(2)[0].tolist()
    with pytest.warns(UserWarning, match="the dates of the series have no frequency"):
        dated.results.forecast(2)


S = np.arange(30.0)
FAULTS = [
    (lambda: ARFIMA().fit(np.ones((2, 30))), ValueError, "ARFIMA.fit(series of shape (2, 30)): needs one axis; pass"),
    (lambda: ARFIMA().fit(np.ones(5)), ValueError, "ARFIMA.fit(series): needs at least 8 samples; there are 5; pass"),
    (lambda: ARFIMA().fit(np.ones(30)), ValueError, "ARFIMA.fit(series): needs samples that vary; all are 1; pass"),
    (lambda: ARFIMA().fit(np.full(30, 0.1)), ValueError, "ARFIMA.fit(series): needs samples that vary; all are 0.1;"),
    (lambda: ARFIMA().fit(np.append(S, np.nan)), ValueError, "ARFIMA.fit(series): needs finite samples; series[30]=n"),
    (lambda: ARFIMA().fit(S + 1j), TypeError, "ARFIMA.fit(series of dtype complex128): needs real samples; pass"),
    (lambda: ARFIMA().fit(torch.ones(30) + 1j), TypeError, "ARFIMA.fit(series of dtype torch.complex64): needs real"),
    (lambda: ARFIMA().fit(["a"] * 30), TypeError, "ARFIMA.fit(series of dtype <U1): needs real samples; pass floats."),
    (lambda: ARFIMA().requires_grad_(False).fit(S), ValueError, "ARFIMA.fit: needs something to estimate; every"),
    (lambda: ARFIMA()(S), TypeError, "ARFIMA(x of type ndarray): needs a torch tensor; pass torch.as_tensor(x)."),
    (lambda: ARFIMA().forecast(3), ValueError, "ARFIMA.forecast(series=None): needs a series to go on with; pass"),
    (lambda: ARFIMA().forecast(0, S), ValueError, "ARFIMA.forecast(steps=0): needs steps >= 1; pass a whole number"),
    (lambda: ARFIMA().forecast_interval(3), ValueError, "ARFIMA: needs a series that it was fitted to; call fit"),
    (lambda: ARFIMA().forecast_mse(S, 30), ValueError, "ARFIMA.forecast_mse(start=30): needs start < 30, the length"),
]


@pytest.mark.parametrize(("call", "kind", "message"), FAULTS, ids=[fault[2][:45] for fault in FAULTS])
def test_what_cannot_be_fitted_or_forecast_is_an_error(call, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        call()


def test_a_random_order_is_not_fitted(series):
    model = ARFIMA(alpha=ProbabilisticAlpha(0.3))
    with pytest.raises(ValueError, match=r"ARFIMA\.fit: needs an order that is a number, and alpha is random; train"):
        model.fit(series)


def test_after_an_exact_fit_another_series_goes_on_conditionally(series):
    model = ARFIMA(1).fit(series, likelihood="exact")
    assert model.ar is not None
    assert isinstance(model.alpha, torch.Tensor)
    fixed = fit_arfima(series, ar=model.ar.tolist(), alpha=model.alpha.item(), mean=model.mean.item())
    assert model.forecast(3).numpy() == pytest.approx(fixed.forecast(3), rel=1e-9)
    going_on = np.concatenate([series, model.forecast(3, series).numpy()])
    found = errors_by_recurrence(going_on, model.alpha.item(), model.ar.tolist(), model.mean.item())
    assert found[-3:] == pytest.approx(0, abs=1e-9 * np.abs(series).max())
    with torch.no_grad():
        model.ar.add_(0.1)
    with pytest.raises(ValueError, match="they have changed since"):
        model.forecast(3)
    assert model.forecast(3, series).shape == (3,)


def test_an_order_that_is_passed_is_fitted(series, fitted):
    order = Alpha(0.5, (0, 1), dtype=torch.float64)
    model = ARFIMA(1, alpha=order).fit(series)
    assert order().item() == pytest.approx(fitted.alpha.item(), rel=1e-6)
    assert model.estimates.names == ("alpha", "mean", "ar1")


@pytest.mark.parametrize(
    ("level", "kind", "message"),
    [
        (1.0, ValueError, "level=1.0): needs 0 < level < 1; pass a part of 1, such as level=0.95."),
        (95, ValueError, "level=95): needs 0 < level < 1; pass a part of 1, such as level=0.95."),
        ("0.95", TypeError, "level='0.95'): needs a real number; pass for example level=0.95."),
    ],
)
def test_a_level_outside_its_range_is_an_error(fitted, level, kind, message):
    with pytest.raises(kind, match="^" + re.escape(f"ARFIMA.forecast_interval({message}")):
        fitted.forecast_interval(3, level)
    for call in (fitted.estimates.summary, fitted.estimates.intervals_at):
        with pytest.raises(kind, match="^" + re.escape(f"ArfimaEstimates({message}")):
            call(level)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_errors_have_the_dtype_of_the_series_whatever_that_of_the_parameters(dtype):
    x = torch.eye(1, 4, dtype=dtype)
    errors = ARFIMA(ar=1, alpha=0.5)(x)
    assert errors.dtype == dtype
    # Grunwald's weights at alpha = 1/2, which bfloat16 holds.
    assert errors.flatten().tolist() == pytest.approx([1.0, -0.5, -0.125, -0.0625], rel=1e-14)
