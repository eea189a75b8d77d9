"""Sums over very many terms by few of them: closed forms of sums of powers and of exponentials."""

import mpmath
import numpy as np
import pytest

from hpfracc_nn.fractional.schemes.sums import sum_before

LAGS = np.array([0, 1, 2, 60, 127, 128, 129, 135, 136, 137, 138, 191, 192, 193, 290, 1000, 1001, 65536, 10**6])


def summed(f, lags=LAGS):
    """Return the sums of f(j), j < lag, for each lag, as a scheme takes them."""
    how = sum_before(lags)
    return np.concatenate([[0.0], np.cumsum(how.weights * f(how.points))])[how.ends]


@pytest.mark.parametrize("power", [-1.9, -1.5, -0.5, -0.1, 1.0])
def test_sums_of_powers_are_differences_of_zeta_functions(power):
    wanted = [float(mpmath.zeta(-power, 1) - mpmath.zeta(-power, 1 + int(lag))) for lag in LAGS]
    # A sum of some 300 terms of one sign, each rounded.
    np.testing.assert_allclose(summed(lambda j: (j + 1) ** power), wanted, rtol=1e-14)


@pytest.mark.parametrize("lag", [192, 287, 431, 10**6])
def test_no_panel_is_longer_than_half_of_where_it_begins(lag):
    """One lag, so that no other one divides the panels; the longest of all ends before 1.5 times its begin."""
    wanted = float(mpmath.zeta(1.5, 1) - mpmath.zeta(1.5, 1 + lag))
    assert summed(lambda j: (j + 1) ** -1.5, np.array([lag]))[0] == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize("degree", range(16))
def test_polynomials_of_less_than_twice_as_many_degrees_as_points_are_summed_exactly(degree):
    """On the longest panel, in units of half its length from its middle."""
    how = sum_before(np.array([128, 192]))
    points, weights = how.points[how.whole :], how.weights[how.whole :]
    assert points.size == 8
    wanted = sum(((j - 159.5) / 32) ** degree for j in range(128, 192))
    assert weights @ ((points - 159.5) / 32) ** degree == pytest.approx(wanted, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.02, 1.0, 40.0])
def test_sums_of_exponentials_are_geometric(rate):
    wanted = np.expm1(-rate * LAGS) / np.expm1(-rate)
    np.testing.assert_allclose(summed(lambda j: np.exp(-rate * j)), wanted, rtol=1e-14)


def test_whole_numbers_come_first_and_a_million_terms_are_few_points():
    how = sum_before(LAGS)
    assert np.all(np.diff(how.points) > 0)
    assert how.whole == 128
    np.testing.assert_array_equal(how.points[: how.whole], np.arange(128))
    np.testing.assert_array_equal(how.weights[: how.whole], 1)
    # 22 panels from 128 to a million, each half as long again, and one more for each lag between: 8 points in each.
    assert how.points.size <= 128 + 8 * (23 + LAGS.size)
    assert how.ends.dtype == np.int64


@pytest.mark.parametrize("lags", [[], [0], [1], [5], [127], [128], [129], [128, 136], [128, 137], [10**6]])
def test_the_sums_of_ones_are_the_lags(lags):
    found = summed(np.ones_like, np.array(lags, dtype=np.int64))
    np.testing.assert_allclose(found, lags, rtol=1e-13)
    assert sum_before(np.array(lags, dtype=np.int64)).whole == min([128, *lags[-1:]] if lags else [0])


@pytest.mark.parametrize("last", [0, 1, 127, 128])
def test_below_the_panels_there_is_one_point_for_each_term(last):
    assert sum_before(np.array([last])).points.tolist() == list(range(last))
