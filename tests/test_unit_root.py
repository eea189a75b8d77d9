"""The test for a unit root against statsmodels' adfuller."""

import math

import numpy as np
import pytest

from hpfracc_nn import fdiff

pytest.importorskip("sklearn")
pytest.importorskip("statsmodels")

from statsmodels.tsa.adfvalues import mackinnonp
from statsmodels.tsa.stattools import adfuller

from hpfracc_nn.preprocessing.unit_root import p_value, unit_root


def made(kind, n, rng):
    noise = rng.standard_normal(n)
    walk = np.cumsum(noise)
    return {
        "walk": walk,
        "noise": noise,
        "fractional": fdiff(walk, 0.4),
        "twice": np.cumsum(walk),
        "far from zero": 100 + 1e-3 * walk,
        "mean": np.convolve(noise, [1, 0.9, -0.5], "same"),
        "season": walk + 30 * np.sin(np.arange(n) * 2 * math.pi / 12),
        "steps": np.round(walk),
    }[kind]


KINDS = ["walk", "noise", "fractional", "twice", "far from zero", "mean", "season", "steps"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "most", "seeds"),
    [
        (8, 1, 8),
        (20, 0, 8),
        (20, 2, 8),
        (35, 12, 8),
        (80, 12, 8),
        (300, 16, 8),
        pytest.param(5000, 32, 2, marks=pytest.mark.slow),
        pytest.param(300, 16, 100, marks=pytest.mark.slow),
    ],
)
def test_lags_statistic_and_p_value_are_those_of_adfuller(kind, n, most, seeds):
    for seed in range(seeds):
        y = made(kind, n, np.random.default_rng(seed))
        expected = adfuller(y, maxlag=most, regression="c", autolag="AIC", result_object=True)
        found = unit_root(y - y.mean(), most)
        assert found.lags == expected.lags
        assert found.statistic == pytest.approx(float(expected.statistic), rel=1e-8, abs=1e-8)
        assert found.pvalue == pytest.approx(float(expected.pvalue), rel=1e-7, abs=1e-12)
        assert not found.is_singular


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_make_no_difference(unit):
    y = made("fractional", 300, np.random.default_rng(0))
    found, scaled = unit_root(y, 16), unit_root(unit * y, 16)
    assert scaled.lags == found.lags
    assert scaled.statistic == pytest.approx(found.statistic, rel=1e-10)
    assert scaled.deviation == pytest.approx(unit * found.deviation, rel=1e-10)


def test_the_p_value_is_that_of_mackinnon():
    for statistic in [*np.linspace(-20, 4, 241), -18.83, -1.61, 2.74]:
        assert p_value(statistic) == pytest.approx(mackinnonp(statistic), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    "y",
    [np.arange(60.0), np.arange(60.0) % 2, np.sin(np.arange(60.0)), 0.5 ** np.arange(60.0)],
    ids=["line", "alternating", "wave", "decay"],
)
def test_samples_that_lags_tell_exactly_leave_nothing_to_measure_by(y):
    found = unit_root(y - y.mean(), 6)
    assert found.is_singular or found.deviation < 1e-12
