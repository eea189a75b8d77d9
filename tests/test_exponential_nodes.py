"""Node sets of sums of exponentials: where they lie, where weights are fitted and certified, how far they are off."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest

from hpfracc_nn.fractional import exponentials as fits
from hpfracc_nn.fractional.definitions import (
    Caputo,
    CaputoFabrizio,
    GrunwaldLetnikov,
    RiemannLiouvilleIntegral,
    TemperedCaputo,
)
from hpfracc_nn.fractional.exponentials import (
    FITS,
    POWER_TOLERANCES,
    _quotient,
    exponentials,
    node_length,
    nodes,
    power_nodes,
    tolerance,
)
from hpfracc_nn.fractional.namespace import NUMPY

every_fit = pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
LENGTHS = (128, 4096)


@pytest.mark.parametrize(
    ("n", "length"), [(1, 128), (127, 128), (128, 128), (129, 256), (256, 256), (257, 512), (65537, 2**17)]
)
def test_a_node_set_serves_lengths_up_to_a_power_of_two(n, length):
    assert node_length(n) == length


def test_the_tolerance_grows_beyond_65536_samples():
    assert [tolerance(n, "float32") for n in (1, 65536, 2**17)] == [1e-7, 1e-7, 2e-7]
    assert tolerance(2**18, "float64") == 4e-11
    assert tolerance(1, "stream") == 1e-13
    assert POWER_TOLERANCES == {"float32": 1e-7, "float64": 1e-11}  # of powers, on any interval


@pytest.mark.parametrize(
    ("precision", "n", "states"),
    [("float32", 128, 16), ("float32", 2**13, 24), ("float64", 128, 32), ("stream", 2, 32)],
)
def test_the_fewest_states_are_whole_vectors(precision, n, states):
    assert FITS[precision].fewest(n) == states  # 14, 23, 27 and 29.2 of them


@pytest.mark.parametrize("n", LENGTHS)
@every_fit
def test_nodes_are_zero_and_ever_closer_ones_up_to_the_fastest(fit, n):
    states = fit.fewest(n)
    found = nodes(n, fit, states)
    assert (found.first, found.states, found.rates.size) == (fit.first, states, states - fit.first + 1)
    assert found.rates[0] == 0
    assert found.rates[1] == pytest.approx(0.2 / n)
    assert found.rates[-1] == pytest.approx(min(fit.fastest, states / 7.5))
    apart = np.diff(np.log(found.rates[1:]))
    assert np.all(apart > 0)
    assert np.all(np.diff(apart) < 0)


@pytest.mark.parametrize(("fading", "shift"), [(0.01, 0.01), (9.0, None)])
@every_fit
def test_nodes_of_a_memory_that_fades_are_as_much_faster_but_the_fastest(fit, fading, shift):
    states = fit.fewest(1024)
    fastest = min(fit.fastest, states / 7.5)
    found = nodes(1024, fit, states, fading).rates
    assert found[0] == 0
    assert found[1] == pytest.approx(0.2 / 1024 + (fastest / 16 if shift is None else shift))
    assert found[-1] == pytest.approx(fastest)


@pytest.mark.parametrize("n", LENGTHS)
@every_fit
def test_weights_are_fitted_and_certified_from_the_first_lag_to_the_last_and_at_each_of_the_near_ones(fit, n):
    found = nodes(n, fit, fit.fewest(n))
    for lags, near in ((found.lags, 128), (found.certified_lags, 400)):
        assert (lags[0], lags[-1]) == (fit.first, n - 1)
        assert np.all(np.diff(lags) > 0)
        assert set(range(fit.first, min(near, n))) <= set(lags.tolist())
        far = lags[lags >= near]
        assert np.all(far[1:] <= np.ceil(1.05 * far[:-1]))  # no gap is wider than a twentieth
    assert found.certified_lags.size > found.lags.size or n == 128


@pytest.mark.parametrize("precision", ["float32", "float64", "stream"])
@pytest.mark.parametrize(
    "definition", [Caputo(0.5), Caputo(1.4, "l1"), GrunwaldLetnikov(0.3), RiemannLiouvilleIntegral(0.7)], ids=repr
)
def test_the_error_that_is_told_is_the_largest_of_all_lags(definition, precision):
    n = 1024
    found = exponentials(definition, n, precision)
    assert found is not None
    column, lags = definition.stencil(1, 1.0, NUMPY).column, np.arange(found.first, n)
    exact = column(lags)
    sums = found.fit(column(found.lags), NUMPY) @ np.exp(-np.outer(found.rates, lags - found.first))
    worst = np.abs(sums / exact - 1).max()
    # Rounding of a weight relative to the first, 3e-16, is not counted.
    rounding = 4e-16 * abs(column(np.arange(1))[0]) / np.abs(exact).min()
    assert found.error(definition) <= worst * (1 + 1e-9) + rounding
    assert worst <= 1.5 * found.error(definition) + rounding
    assert found.error(definition) <= tolerance(n, precision)


def test_of_a_memory_that_fades_the_error_is_relative_to_a_power_law_that_is_steeper_than_all():
    definition, n = TemperedCaputo(0.2, "l1", rate=0.05), 512
    found = nodes(n, FITS["float32"], 24, definition.fading)
    column, lags = definition.stencil(1, 1.0, NUMPY).column, found.certified_lags
    exact, first = column(lags), abs(column(np.arange(1))[0])
    sums = found.fit(column(found.lags), NUMPY) @ np.exp(-np.outer(found.rates, lags - found.first))
    size = np.maximum(np.abs(exact), first / (1.0 + lags) ** 1.5)
    assert np.any(size > np.abs(exact))
    assert found.error(definition) == pytest.approx((np.abs(sums - exact) / size).max(), rel=1e-6)


def test_weights_that_vanish_are_met_exactly():
    found = exponentials(Caputo(1.0), 128, "float64")
    assert found is not None
    assert found.error(Caputo(1.0)) == 0.0


def test_a_fit_that_is_fitted_once_more_leaves_rounding_only():
    definition, n = Caputo(0.5), 8192
    refined = exponentials(definition, n, "stream")
    assert refined is not None
    once = replace(refined, _rows=None)
    assert refined.error(definition) < 0.3 * once.error(definition)


def test_three_numbers_of_vectors_are_tried_and_no_more(monkeypatch):
    tried = []

    def counted(n, fit, states, fading):
        tried.append(states)
        return nodes(n, fit, states, fading)

    monkeypatch.setattr(fits, "nodes", counted)
    monkeypatch.setattr(fits, "tolerance", lambda n, precision: 0.0)
    assert exponentials(Caputo(0.4321), 128, "float32") is None
    assert tried == [16, 24, 32]


def test_a_memory_that_is_one_exponential_has_its_own_node_whatever_its_length():
    for n in (100, 10**5):
        definition = CaputoFabrizio(0.6)
        found = exponentials(definition, n, "float64")
        assert found is not None
        assert (found.states, found.first, found.rates.tolist()) == (1, 1, [pytest.approx(0.6 / 0.4)])
        column = definition.stencil(1, 1.0, NUMPY).column
        np.testing.assert_allclose(found.fit(column(found.lags), NUMPY), column(np.arange(1, 2)), rtol=1e-14)


@pytest.mark.parametrize("orders", [2, 8, 9])
def test_a_few_such_memories_share_a_node_set_of_all_their_rates(orders):
    definition = CaputoFabrizio(np.linspace(0.2, 0.9, orders))
    found = exponentials(definition, 1000, "float64")
    if orders > 8:  # more than a vector of states: those of any memory, where they reach the tolerance
        assert found is None or found.states != orders
        return
    assert found is not None
    assert sorted(found.rates) == pytest.approx(np.linspace(0.2, 0.9, orders) / np.linspace(0.8, 0.1, orders))
    column, lags = definition.stencil(1, 1.0, NUMPY).column, np.arange(1, 30)
    sums = found.fit(column(found.lags), NUMPY) @ np.exp(-np.outer(found.rates, lags - 1))
    np.testing.assert_allclose(sums, column(lags), rtol=0, atol=1e-11)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_nodes_for_powers_begin_with_zero_and_reach_beyond_the_shortest_time(precision):
    shortest, longest = 1e-3, 8.0
    found = power_nodes(shortest, longest, precision)
    rule = found.rule
    assert np.all(np.diff(found.rates) > 0)
    assert found.rates[0] == 0
    assert found.rates[rule.slow - 1] == pytest.approx(1 / longest)
    # Chebyshev's points of the slow ones: their distances to the middle are cosines of equal angles.
    angles = np.arccos(1 - 2 * longest * found.rates[: rule.slow])
    np.testing.assert_allclose(np.diff(angles), np.pi / (rule.slow - 1), rtol=1e-6)
    steps = np.diff(np.log(found.rates[rule.slow - 1 :]))
    np.testing.assert_allclose(steps, rule.step, rtol=1e-12)
    assert rule.reach <= found.rates[-1] * shortest < rule.reach * np.exp(rule.step)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
def test_coefficients_of_powers_are_not_negative_beyond_the_slow_ones(precision, power):
    found = power_nodes(1e-6, 1.0, precision)
    coefficients = found.coefficients(np.array([power]), NUMPY)
    assert np.all(coefficients[found.rule.slow :] >= 0)
    assert np.abs(coefficients).sum() == pytest.approx(coefficients.sum(), rel=0.2) or power == 0.0


def test_the_rest_of_a_geometric_series_is_summed_to_its_last_digit():
    x = np.linspace(0.02, 0.46, 23)  # up to the largest step of a rule
    wanted = [float(mpmath.mpf(each) / mpmath.expm1(each)) for each in x]
    np.testing.assert_allclose(_quotient(x), wanted, rtol=5e-16)
    assert _quotient(np.zeros(1)) == 1
