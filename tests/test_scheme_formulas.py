"""What schemes say of themselves: what they put on each cell of any times, the order of the integral, their rates."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from hpfracc_nn.fractional import DEFINITIONS, SCHEMES, Caputo, GrunwaldLetnikov, RiemannLiouvilleIntegral, Riesz, exact
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.schemes.cells import constant_block, linear_block
from hpfracc_nn.fractional.schemes.powers import differences, multiply, power_weights

TIMES = np.array([0.0, 0.5, 0.75, 1.75, 1.875, 4.0])  # exact in binary, and so are the sums below
STEPS = np.diff(TIMES)
LEFT, RIGHT = TIMES[:-1], TIMES[1:]


def pieces(name, samples):
    found = SCHEMES[name].pieces
    assert found is not None
    return found(samples[None], STEPS[None], NUMPY)


def power(name, alpha, taylor):
    found = SCHEMES[name].power
    assert found is not None
    return found(alpha, taylor)


def test_l1_has_the_mean_slope_of_each_cell():
    (slope,) = pieces("l1", TIMES**2)
    np.testing.assert_array_equal(slope, [LEFT + RIGHT])


def test_l1_2_has_the_slope_of_the_parabola_through_the_cell_and_the_sample_before():
    slope, bend = pieces("l1_2", TIMES**3)
    np.testing.assert_allclose(slope, [LEFT**2 + LEFT * RIGHT + RIGHT**2], rtol=1e-15)
    # The divided difference of t**3 at three times is their sum; the parabola's slope grows by twice that and the step.
    np.testing.assert_allclose(bend, [[0, *(LEFT[:-1] + LEFT[1:] + RIGHT[1:]) * STEPS[1:]]], rtol=1e-14)


def test_the_trapezoid_rule_has_the_line_on_each_cell():
    mean, half = pieces("trapezoid", TIMES**2)
    np.testing.assert_array_equal([mean[0], half[0]], [(LEFT**2 + RIGHT**2) / 2, (RIGHT**2 - LEFT**2) / 2])


def test_a_derivative_is_an_integral_of_slopes_and_an_integral_one_of_samples():
    assert SCHEMES["l1"].power is SCHEMES["l1_2"].power
    assert [power(name, 0.25, 1) for name in ("l1", "l1_2", "trapezoid")] == [0.75, 0.75, 0.25]
    assert power("l1", 1.25, 2) == 0.75


def test_schemes_that_interpolate_take_any_times_and_those_with_a_column_say_where_it_acts():
    assert {name for name, each in SCHEMES.items() if each.pieces} == {"l1", "l1_2", "trapezoid"}
    assert all((each.pieces is None) == (each.power is None) for each in SCHEMES.values())
    assert {name for name, each in SCHEMES.items() if each.start} == {"l1", "l1_2", "bdf2"}
    assert all((each.start is None) == (each.start_index is None) for each in SCHEMES.values())
    acted_on = {name: each.start_index for name, each in SCHEMES.items() if each.start_index}
    assert [acted_on["l1"](taylor) for taylor in (1, 2)] == [None, 1]
    assert [acted_on[name](taylor) for name in ("l1_2", "bdf2") for taylor in (1, 2)] == [
        1,
        1,
        1,
        1,
    ]


@pytest.mark.parametrize(("scheme", "alpha"), [("l1", 1.4), ("l1_2", 0.3), ("l1_2", 1.4), ("bdf2", 0.3), ("bdf2", 1.4)])
def test_a_starting_column_is_zero_before_the_difference_that_it_acts_on(scheme, alpha):
    stencil = DEFINITIONS["caputo"](alpha, scheme).stencil(6, 1.0, NUMPY)
    assert stencil.start is not None
    assert not np.any(stencil.start[: stencil.start_index])
    assert np.all(stencil.start[stencil.start_index :] != 0)


# The declared rates, from both sides: neither missed nor understated.


def measured_rate(definition, x, wanted, steps):
    """Return by what power of the step the error at t = 1 falls."""
    errors = []
    for n_steps in steps:
        t = np.linspace(0, 1, n_steps + 1)
        errors.append(abs(definition(x(t), dt=1 / n_steps)[-1] - wanted))
    return [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)][-1]


KINDS = {"trapezoid": RiemannLiouvilleIntegral, "grunwald": GrunwaldLetnikov}
DECLARED = [
    *((scheme, alpha) for scheme in ("l1", "l1_2", "bdf2", "grunwald") for alpha in (0.75, 1.0, 1.5)),
    *(("trapezoid", alpha) for alpha in (0.75, 1.5)),
]


@pytest.mark.parametrize(("scheme", "alpha"), DECLARED)
def test_the_declared_rate_is_the_one_that_is_reached(scheme, alpha):
    definition = KINDS.get(scheme, DEFINITIONS["caputo"])(alpha, scheme)
    wanted = exact.power(np.array([1.0]), 4.5, definition)[0]  # t**4.5 is smooth enough for every rate here
    found = measured_rate(definition, lambda t: t**4.5, wanted, (512, 1024))
    assert found == pytest.approx(SCHEMES[scheme].rate(alpha), abs=0.06)


def test_the_declared_rate_of_centred_differences_is_reached():
    errors = []
    for n_steps in (400, 800):
        t = np.linspace(-6, 6, n_steps + 1)
        y = Riesz(1.2)(np.exp(-(t**2)), dt=12 / n_steps)
        errors.append(np.abs(y + exact.gaussian(t, 1.2)).max())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(SCHEMES["centred"].rate(1.2), abs=0.06)
    assert SCHEMES["centred"].uniform_rate(1.2, False) == SCHEMES["centred"].rate(1.2)  # it is the largest error


def test_every_declared_rate_is_tested():
    assert {scheme for scheme, _ in DECLARED} | {"centred"} == set(SCHEMES)


# Polynomials in the delay


def test_polynomials_multiply_exactly():
    assert multiply() == (1,)
    assert multiply((1, -1), (1, 2, 3)) == (1, 1, 1, -3)
    assert [differences(order) for order in range(4)] == [(1,), (1, -1), (1, -2, 1), (1, -3, 3, -1)]
    assert power("trapezoid", 0.3, 1) == 0.3


@pytest.mark.parametrize("lags", [[0], [15], [16], [17], [1023], [1024], [0, 15, 16, 1024], []])
def test_weights_of_lags_in_any_range_are_those_of_all_lags(lags):
    every, alphas = np.arange(1100), np.array([0.25, 1.5])
    polynomials = differences(2), differences(3)
    whole = power_weights(alphas, every, NUMPY, *polynomials)
    found = power_weights(alphas, np.array([0, *lags]), NUMPY, *polynomials)[:, 1:]
    assert found.shape == (2, len(lags))
    np.testing.assert_allclose(found, whole[:, np.array(lags, int)], rtol=1e-13)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("exponent", [1e-9, 1e-4, 0.3])
def test_weights_keep_their_digits_where_they_vanish_with_the_exponent(order, exponent):
    """Differences of (k + 1)**P, which are nearly those of 1 for a small P, in fifty digits."""
    lags = range(order, 16)  # before, differences meet the zero at k = -1 and do not vanish
    with mpmath.workdps(50):
        grown = [mpmath.mpf(k + 1) ** mpmath.mpf(exponent) for k in range(16)]
        wanted = [mpmath.fsum(float(c) * grown[k - i] for i, c in enumerate(differences(order))) for k in lags]
        wanted = [float(each / mpmath.gamma(1 + mpmath.mpf(exponent))) for each in wanted]
    found = power_weights(np.array([exponent]), np.array(lags), NUMPY, differences(order))[0]
    # Ten roundings of (k + 1)**P - 1, than which a difference of that order is up to 16**order times smaller.
    np.testing.assert_allclose(found, wanted, rtol=16**order * 10 * np.finfo(float).eps)


@pytest.mark.parametrize("cuts", [(0, 6), (0, 2, 5, 6)], ids=["whole", "parts"])
def test_blocks_of_cells_integrate_what_they_say_is_on_a_cell(cuts):
    """A right-hand side that is constant or linear, I^p t**k = Gamma(k + 1) / Gamma(k + 1 + p) t**(k + p)."""
    p, rows, parts = np.array([0.4, 1.0]), range(TIMES.size), list(itertools.pairwise(cuts))
    for block, exponents in ((constant_block, (0,)), (linear_block, (0, 1))):
        weights = np.concatenate([block(p, TIMES, rows, range(*part), NUMPY) for part in parts], axis=-1)
        for k in exponents:
            wanted = [math.gamma(k + 1) / math.gamma(k + 1 + each) * TIMES ** (k + each) for each in p]
            np.testing.assert_allclose(weights @ TIMES**k, wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("definition", [Caputo(1.0, "bdf2"), GrunwaldLetnikov(-0.5)], ids=repr)
def test_the_largest_error_falls_as_declared_where_two_rates_meet(definition):
    """At alpha = 1 BDF2's first difference is Euler's; below 0 the order is still that of the differences."""
    errors = []
    for n_steps in (128, 256, 512):
        t = np.linspace(0, 2, n_steps + 1)
        wanted = sum(exact.power(t, k, definition) / math.factorial(k) for k in (1, 2, 3))
        found = definition(t + t**2 / 2 + t**3 / 6, dt=2 / n_steps)
        errors.append(np.abs(found - wanted)[1:].max())
    for before, after in itertools.pairwise(errors):
        assert math.log2(before / after) == pytest.approx(definition.uniform_accuracy(definition.alpha), abs=0.05)
