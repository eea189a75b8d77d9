"""The first job: ARFIMA(1, d, 0) on a series, beside its baselines."""

import math
import re

import numpy as np
import pytest

from hpfracc_nn import data
from hpfracc_nn.selection import BackendManager, Settings

pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

import torch

from hpfracc_nn.training.torch.demo import MODEL, QUICK, ROWS, Pasts, Training, arfima, forecast, standard_error

N, START = 400, 300


@pytest.fixture(scope="module")
def volatility():
    pytest.importorskip("arch")
    return data.sp500_volatility()[1]


@pytest.fixture(scope="module")
def learned(volatility):
    return forecast(volatility, progress=False)


def difference_by_recurrence(series, alpha):
    """(1 - z)**alpha by its binomial coefficients, sample by sample."""
    weights = np.cumprod([1.0, *((k - 1 - alpha) / k for k in range(1, len(series)))])
    return np.array([weights[: t + 1] @ series[t::-1] for t in range(len(series))])


def test_the_volatility_of_the_index_is_forecast_better_than_by_har(learned):
    assert learned.error < learned.errors["HAR"]
    assert learned.error <= 0.685
    assert list(learned.errors) == [MODEL, "random walk", "AR(5)", "AR(22)", "HAR"]
    assert len(learned.forecasts) == 600
    assert 0.4 < learned.alpha < 0.55
    assert 0.01 < learned.standard_error < 0.1
    rows = {(row.label, row.backwards > 0) for row in learned.rows}
    assert rows == {("model.difference", True), ("model.difference", False)}


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_come_to_the_same_error(volatility, learned, seed):
    other = forecast(volatility, seed=seed, progress=False)
    assert other.error == pytest.approx(learned.error, abs=1e-5)
    assert other.alpha == pytest.approx(learned.alpha, abs=1e-4)


def test_a_short_memory_forecasts_worse_than_the_learned_one(volatility, learned):
    fixed = forecast(volatility, alpha=0.05, learn=False, progress=False)
    assert fixed.alpha == pytest.approx(0.05, abs=1e-7)
    assert fixed.standard_error is None
    assert fixed.error > learned.error + 0.1


def test_the_errors_and_the_weights_are_those_of_the_forecasts(learned):
    before, held_out = learned.series[: learned.start], learned.series[learned.start :]
    error = np.mean((learned.forecasts - held_out) ** 2) / before.var()
    assert learned.error == pytest.approx(error, rel=1e-12)
    weights = difference_by_recurrence(np.eye(1, 50)[0], learned.alpha)
    assert learned.weights[:50] == pytest.approx(weights, rel=1e-10)


def test_the_quick_form_uses_the_last_samples(volatility):
    quick = forecast(volatility, quick=True, progress=False)
    assert (quick.series == volatility[-QUICK:]).all()


@pytest.mark.parametrize("algorithm", ["dense", "chunked_scan"])
def test_a_forecast_does_not_change_in_any_bit_when_later_samples_do(algorithm):
    # One kernel: XLA has a chunked scan too, with other last digits, and the manager may come to prefer it.
    manager = BackendManager(Settings(force_backend="torch", force_algorithm=algorithm))
    model = Training(arfima(0.4, -0.2, 0.1, learn_alpha=True, manager=manager))
    series = torch.from_numpy(data.arfima(N, 0.4, np.random.default_rng(0)))

    def forecasts(samples):
        loader = torch.utils.data.DataLoader(Pasts(samples, START), batch_size=32)
        with torch.no_grad():
            return torch.cat([model(*batch) for batch in loader])

    before = forecasts(series)
    assert {row.algorithm for row in manager.report()} == {algorithm}
    for day in (START, START + 1, START + 31, START + 32, N - 1):
        for change in (1.0, 1e300, math.nan):
            changed = series.clone()
            changed[day:] = change
            after = forecasts(changed)
            # The forecast of a day is made the day before: that of `day` itself may not change, either.
            assert torch.equal(after[: day - START + 1], before[: day - START + 1])


@pytest.mark.parametrize("algorithm", ["dense", "chunked_scan"])
@pytest.mark.slow
def test_a_price_after_a_day_does_not_change_the_forecast_made_on_it(algorithm):
    arch = pytest.importorskip("arch.data.sp500")
    prices = arch.load().iloc[-2000:]
    high, low = prices["High"].to_numpy().copy(), prices["Low"].to_numpy().copy()
    start = 1400
    values = data.log_parkinson(high, low)
    level, scale = values[:start].mean(), values[:start].std()
    model = Training(arfima(0.47, -0.21, -0.03, manager=BackendManager(Settings(force_algorithm=algorithm))))

    def forecasts():
        scaled = torch.from_numpy((data.log_parkinson(high, low) - level) / scale)
        with torch.no_grad():
            return torch.cat(
                [model(*batch) for batch in torch.utils.data.DataLoader(Pasts(scaled, start), batch_size=ROWS)]
            )

    before = forecasts()
    for day in (1999, 1750, 1401, 1400):
        high[day:] *= 1.01
        after = forecasts()
        made = day - start + 1  # those made before the end of `day`, that of `day` included
        assert torch.equal(after[:made], before[:made])
        assert made == len(after) or after[made] != before[made]


@pytest.mark.parametrize("alpha", [0.05, 0.4, 0.9])
def test_a_forecast_is_what_makes_the_next_error_vanish(alpha):
    phi, mu = -0.3, 0.7
    model = Training(arfima(alpha, phi, mu, learn_alpha=True))
    series = data.arfima(60, 0.3, np.random.default_rng(3))
    row, last = Pasts(torch.from_numpy(series), 40)[0]
    predicted = float(model(row[None], last[None]).detach())
    differenced = difference_by_recurrence(np.append(series[:40], predicted) - mu, alpha)
    assert differenced[-1] - phi * differenced[-2] == pytest.approx(0, abs=1e-6)
    residuals = model.model(torch.from_numpy(series)).detach().numpy()
    differenced = difference_by_recurrence(series - mu, alpha)
    assert residuals == pytest.approx(differenced - phi * np.append(0, differenced[:-1]), abs=1e-6)


def test_the_standard_error_is_that_of_gauss_and_newton():
    series = data.arfima(500, 0.3, np.random.default_rng(5))
    result = forecast(series, progress=False)
    scaled = (series - series[: result.start].mean()) / series[: result.start].std()
    scaled = scaled[: result.start]

    def residuals(alpha, phi, mu):
        differenced = difference_by_recurrence(scaled - mu, alpha)
        return differenced - phi * np.append(0, differenced[:-1])

    level, scale = series[: result.start].mean(), series[: result.start].std()
    found = np.array([result.alpha, result.phi, (result.mu - level) / scale])
    step = 1e-5
    slopes = [(residuals(*(found + e)) - residuals(*(found - e))) / (2 * step) for e in step * np.eye(3)]
    jacobian = np.stack(slopes, axis=1)
    variance = (residuals(*found) ** 2).sum() / (len(scaled) - 3)
    expected = math.sqrt((variance * np.linalg.inv(jacobian.T @ jacobian))[0, 0])
    # The Hessian holds the residuals' curvature, too: a term of size n**-1/2 relative.
    assert result.standard_error == pytest.approx(expected, rel=3 / math.sqrt(len(scaled)))
    assert jacobian.T @ residuals(*found) == pytest.approx(0, abs=1e-2)  # a minimum


def test_a_fixed_order_has_no_standard_error():
    assert standard_error(arfima(0.3, learn_alpha=False), torch.randn(50, dtype=torch.float64)) is None


FAULTS = [
    (np.zeros(99), {}, "(series): needs at least 100 samples on one axis; it has shape (99,)."),
    (np.zeros((200, 2)), {}, "(series): needs at least 100 samples on one axis; it has shape (200, 2)."),
    (np.ones(120), {}, "(series): needs samples that vary; the first 84 are all 1."),
    (
        np.append(np.arange(150.0), math.nan),
        {},
        "(series): needs finite samples; number 150 is nan; fill the gaps.",
    ),
    (
        np.arange(150.0),
        {"learn": False},
        "(alpha=None, learn=False): needs an alpha to stay at; pass one, such as 0.4.",
    ),
    (
        np.arange(150.0),
        {"alpha": 1.0},
        "(alpha=1.0): needs 0 < alpha < 1; difference or sum the series once first.",
    ),
]


@pytest.mark.parametrize(("series", "options", "message"), FAULTS)
def test_what_cannot_be_forecast_is_an_error(series, options, message):
    with pytest.raises(ValueError, match=f"^forecast{re.escape(message)}$"):
        forecast(series, progress=False, **options)


@pytest.mark.slow
def test_the_figure_is_written(learned, tmp_path):
    pytest.importorskip("matplotlib")
    from hpfracc_nn.training.torch.demo import draw_forecast

    held_out = learned.series[learned.start :]
    path = tmp_path / "figure.png"
    days = range(len(held_out))
    draw_forecast(path, days, held_out, learned.forecasts, learned.weights, alpha=learned.alpha, title="title")
    assert path.read_bytes().startswith(b"\x89PNG")
