"""The forecasts that a model is compared with."""

import functools
from collections.abc import Callable

import numpy as np
import pytest

from hpfracc_nn.training import baselines

N, START = 160, 110
BASELINES: dict[str, Callable[..., np.ndarray]] = {
    "random walk": baselines.random_walk,
    "AR(3)": functools.partial(baselines.autoregression, lags=3),
    "HAR": baselines.har,
}


def noise(n=N):
    return np.random.default_rng(1).standard_normal(n)


def follow(step, given):
    """Return a series whose samples after the first `given`, which are noise, are step(samples before)."""
    series = list(noise(given))
    while len(series) < N:
        series.append(step(np.array(series)))
    return np.array(series)


def test_an_autoregression_is_found_exactly():
    series = follow(lambda past: 0.3 + 1.2 * past[-1] - 0.9 * past[-2], 2)
    assert baselines.autoregression(series, START, 2) == pytest.approx(series[START:], rel=1e-9, abs=1e-9)


def test_a_heterogeneous_autoregression_is_found_exactly():
    def step(past):
        return 0.1 - 0.9 * past[-1] + 0.2 * past[-5:].mean() + 0.6 * past[-22:].mean()

    series = follow(step, 22)
    assert baselines.har(series, START) == pytest.approx(series[START:], rel=1e-9, abs=1e-9)


def test_the_random_walk_repeats_the_day_before():
    series = noise()
    assert (baselines.random_walk(series, START) == series[START - 1 : -1]).all()


@pytest.mark.parametrize("name", BASELINES)
def test_a_forecast_uses_the_days_before_it_only(name):
    series = noise()
    before = BASELINES[name](series, START)
    for day in (START, START + 7, N - 1):
        changed = series.copy()
        changed[day:] += 10
        after = BASELINES[name](changed, START)
        assert len(after) == N - START
        assert (after[: day - START + 1] == before[: day - START + 1]).all()


def test_the_coefficients_are_those_of_the_days_before_the_start():
    series = noise()
    short = baselines.autoregression(series[: START + 1], START, 3)
    assert baselines.autoregression(series, START, 3)[0] == pytest.approx(short[0], rel=1e-12)
    past = np.column_stack([np.ones(START - 3), series[2 : START - 1], series[1 : START - 2], series[: START - 3]])
    coefficients = np.linalg.solve(past.T @ past, past.T @ series[3:START])
    expected = coefficients @ [1, series[START - 1], series[START - 2], series[START - 3]]
    assert short[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("start", [6, N])
def test_too_few_days_are_an_error(start):
    message = (
        rf"autoregression\(start={start}\): needs 7 <= start < 160, the length of the series; "
        "pass a longer series or hold out fewer days."
    )
    with pytest.raises(ValueError, match=f"^{message}$"):
        baselines.autoregression(noise(), start, 3)
