"""The order from the lowest frequencies: closed forms, coverage, messages."""

import math
import re

import numpy as np
import pytest
from scipy import signal, stats

from hpfracc_nn import data
from hpfracc_nn.series import gph, local_whittle

BOTH = [gph, local_whittle]


@pytest.mark.parametrize("estimate", BOTH)
def test_a_periodogram_that_is_a_power_gives_its_order(estimate):
    """Cosines whose squares are w**(-2 alpha): the likelihood is exact, the regression but for sin(w / 2) = w / 2."""
    n, m, alpha = 4096, 40, 0.3
    t, w = np.arange(n), 2 * math.pi * np.arange(1, 200) / n
    phases = np.random.default_rng(0).uniform(0, 2 * math.pi, len(w))
    series = (w**-alpha * np.cos(np.outer(t, w) + phases)).sum(1)
    assert estimate(series, m).alpha == pytest.approx(alpha, abs=1e-4)


@pytest.mark.parametrize("estimate", BOTH)
@pytest.mark.parametrize("alpha", [-0.3, 0.0, 0.4])
def test_intervals_hold_the_order_under_a_short_memory(estimate, alpha):
    inside = 0
    for seed in range(200):
        noise = data.arfima(2500, alpha, np.random.default_rng(seed))
        low, high = estimate(signal.lfilter([1], [1, -0.3], noise)[500:], 100).interval
        inside += low <= alpha <= high
    low, high = stats.binom.ppf([0.0005, 0.9995], 200, 0.95)
    assert low <= inside <= high


@pytest.mark.parametrize("estimate", BOTH)
def test_units_levels_and_containers_do_not_matter(estimate):
    series = data.arfima(300, 0.3, np.random.default_rng(1))
    one = estimate(series)
    assert one.frequencies == int(300**0.65)
    assert estimate((5 + 1e-9 * series).tolist()).alpha == pytest.approx(one.alpha, abs=1e-5)  # eps of 5 over 1e-9
    wide = estimate(series, level=0.99)
    assert wide.interval[0] < one.interval[0] < one.alpha < one.interval[1] < wide.interval[1]


@pytest.mark.parametrize("estimate", BOTH)
def test_a_table_of_one_column_is_one_series(estimate):
    series = data.arfima(300, 0.3, np.random.default_rng(1))
    assert estimate(series[:, None]) == estimate(series)
    pandas = pytest.importorskip("pandas")
    assert estimate(pandas.DataFrame({"flow": series})) == estimate(series)


@pytest.mark.parametrize("estimate", BOTH)
def test_an_order_outside_of_where_intervals_hold_is_told_with_the_way_back(estimate):
    """Above 1 estimates go to 1 whatever the order is; below -1/2 they are too great."""
    sums = np.cumsum(np.cumsum(data.arfima(2000, -0.4, np.random.default_rng(0))))  # of order 1.6
    with pytest.warns(
        UserWarning, match=rf"^{estimate.__name__}: alpha=.* is outside of \(-1/2, 3/4\).*np\.diff.*add 1"
    ):
        low, high = estimate(sums).interval
    assert not low < 1.6 < high
    low, high = estimate(np.diff(sums)).interval
    assert low < 0.6 < high
    series = data.arfima(2000, 0.1, np.random.default_rng(1))
    with pytest.warns(UserWarning, match=rf"^{estimate.__name__}: alpha=.* is outside .*np\.cumsum.*subtract 1"):
        estimate(np.diff(series))
    low, high = estimate(np.cumsum(np.diff(series))).interval
    assert low < 0.1 < high


S = np.arange(30.0)
FAULTS = [
    ((S[:9],), {}, ValueError, "(series): needs at least 16 samples; there are 9; pass a longer one."),
    ((np.ones((2, 300)),), {}, ValueError, "(series of shape (2, 300)): needs one axis; pass one series, such as a"),
    ((np.ones(30),), {}, ValueError, "(series): needs samples that vary; all are 1; pass others."),
    ((np.append(S, np.nan),), {}, ValueError, "(series): needs finite samples; series[30]=nan; fill the gaps, or take"),
    ((S + 1j,), {}, TypeError, "(series of dtype complex128): needs real samples; pass floats."),
    ((S, 15), {}, ValueError, "(frequencies=15): needs at most 14 of 30 samples; pass fewer."),
    ((S, 2), {}, ValueError, "(frequencies=2): needs frequencies >= 3"),
    ((S,), {"level": 95}, ValueError, "(level=95): needs 0 < level < 1; pass a part of 1, such as level=0.95."),
]


@pytest.mark.parametrize("estimate", BOTH)
@pytest.mark.parametrize(("given", "options", "kind", "message"), FAULTS, ids=[fault[3][:30] for fault in FAULTS])
def test_what_cannot_be_estimated_is_an_error(estimate, given, options, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(estimate.__name__ + message)}"):
        estimate(*given, **options)
