"""The Mittag-Leffler function on NumPy arrays: closed forms, identities, the reference values and mpmath."""

import json
import pathlib
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from scipy import special

from hpfracc_nn import mittag_leffler
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.special.mittag_leffler import reciprocal_gamma
from tests import mittag_leffler_oracle
from tests.mittag_leffler_oracle import oracle, random_points

EPS = 2.0**-52
RELATIVE = 1e-13
FILE = pathlib.Path(__file__).parent / "reference" / "mittag_leffler.json"
CASES = {case["id"]: case for case in json.loads(FILE.read_text("utf-8"))["cases"]}


def case(name):
    found = CASES[name]
    return np.array(found["points"]), np.array(found["values"], dtype=float)


def allowed(z, alpha, beta, value=None):
    """RELATIVE of E, and what the last bit of every argument changes."""
    value = mittag_leffler(z, alpha, beta) if value is None else value
    first = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    by = [mittag_leffler(z, alpha, beta, derivative=derivative) for derivative in first]
    condition = sum(abs(argument * change) for argument, change in zip((z, alpha, beta), by, strict=True))
    return RELATIVE * abs(value) + 2 * EPS * condition


def assert_within(found, expected, z, alpha, beta):
    error = abs(found - expected)
    bound = allowed(z, alpha, beta, expected)
    assert np.all(error <= bound), (error / bound).max()


# Reference values and closed forms


def test_the_reference_cases_are_met():
    z, values = case("ml_half_erfcx")
    np.testing.assert_allclose(mittag_leffler(-z, 0.5), values, rtol=RELATIVE)
    z, values = case("ml_2_cosh")
    np.testing.assert_allclose(mittag_leffler(z**2, 2.0), values, rtol=RELATIVE)
    z, values = case("ml_22_sin")
    np.testing.assert_allclose(mittag_leffler(-(z**2), 2.0, 2.0), values, rtol=RELATIVE)


def test_the_reference_derivative_in_alpha_is_met():
    t, values = case("ml_dalpha_a07")
    alpha = 0.7
    # z = -t**alpha depends on alpha too.
    through_z = -(t**alpha) * np.log(t) * mittag_leffler(-(t**alpha), alpha, derivative=(1, 0, 0))
    found = mittag_leffler(-(t**alpha), alpha, derivative=(0, 1, 0)) + through_z
    np.testing.assert_allclose(found, values, rtol=1e-9)


LINE = np.concatenate([-np.logspace(3, -8, 200), [0.0], np.logspace(-8, 2.5, 200)])
PLANE = np.exp(np.random.default_rng(1).uniform(-8, 6.5, 300) + 1j * np.random.default_rng(2).uniform(-4, 4, 300))
CLOSED: dict[str, tuple[float, float, Callable]] = {
    "exp": (1.0, 1.0, np.exp),
    "expm1": (1.0, 2.0, lambda z: np.expm1(z) / z),
    "cosh": (2.0, 1.0, lambda z: np.cosh(np.sqrt(z + 0j))),
    "sinh": (2.0, 2.0, lambda z: np.sinh(np.sqrt(z + 0j)) / np.sqrt(z + 0j)),
    "erfcx": (0.5, 1.0, lambda z: special.wofz(-1j * z)),
}


@pytest.mark.parametrize("z", [LINE[LINE != 0], PLANE], ids=["real", "complex"])
@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms_are_met(name, z):
    alpha, beta, closed_form = CLOSED[name]
    with np.errstate(over="ignore", invalid="ignore"):
        expected = closed_form(z)
        z, expected = z[abs(expected) < 1e250], expected[abs(expected) < 1e250]
    found = mittag_leffler(z, alpha, beta)
    # The closed forms in NumPy and SciPy lose some 1e-13 themselves: wofz, and exp of a rounded square root.
    tolerance = 2 * allowed(z, alpha, beta, expected)
    assert np.all(abs(found - expected) <= tolerance), (abs(found - expected) / tolerance).max()


def test_what_is_elementary_keeps_its_relative_accuracy_however_small():
    z = np.array([-700.0, -300.0, -40.0, -5.0, -1.0])
    np.testing.assert_allclose(mittag_leffler(z, 1.0), np.exp(z), rtol=RELATIVE)
    np.testing.assert_allclose(mittag_leffler(z, 1.0, derivative=(2, 0, 0)), np.exp(z), rtol=RELATIVE)
    t = np.array([1.0, 30.0, 1e5, 1e9])
    np.testing.assert_allclose(mittag_leffler(-(t**2), 2.0), np.cos(t), rtol=1e-9)  # t**2 is rounded: t eps


@pytest.mark.parametrize("beta", [0.5, 1.0, 3.3])
def test_alpha_zero_is_approached(beta):
    z = np.array([-900.0, -0.7, 0.1, 0.9])
    found = mittag_leffler(z, 1e-9, beta)
    np.testing.assert_allclose(found, special.rgamma(beta) / (1 - z), rtol=1e-6)  # dE/dalpha is up to 100 E there


# Identities, which hold where no closed form does


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.8, 1.0, 1.3, 1.97])
@pytest.mark.parametrize("z", [LINE, PLANE], ids=["real", "complex"])
def test_the_recurrence_in_beta_holds(alpha, z):
    z = z[np.log(np.maximum(abs(z), 1e-300)) / alpha < 6]
    beta = np.linspace(0.1, 4, z.size)
    beyond = beta + alpha < 5
    z, beta = z[beyond], beta[beyond]
    left, right = mittag_leffler(z, alpha, beta), z * mittag_leffler(z, alpha, beta + alpha)
    bound = allowed(z, alpha, beta) + abs(z) * allowed(z, alpha, beta + alpha) + RELATIVE * special.rgamma(beta)
    assert np.all(abs(left - right - special.rgamma(beta)) <= 2 * bound)


def test_zones_meet_without_a_jump():
    # The series ends at 1/8 and the first term at infinity is taken out from 1 on.
    for edge in (1 / 8, 1.0):
        for angle in np.linspace(-np.pi, np.pi, 9):
            z = edge * np.exp(1j * angle) * np.array([1 - 1e-15, 1 + 1e-15])
            for alpha, beta in ((0.02, 0.9), (0.5, 4.0), (1.0, 0.3), (1.4, 1.0), (2.0, 3.1)):
                first, second = mittag_leffler(z, alpha, beta)
                assert abs(first - second) < 4 * allowed(z[0], alpha, beta, first)


def test_conjugates_and_real_points_agree():
    z = PLANE[abs(PLANE) < 80]  # beyond, E overflows
    beta = np.linspace(0.2, 4, z.size)
    beside = mittag_leffler(z.conj(), 0.7, beta).conj()
    assert_within(beside, mittag_leffler(z, 0.7, beta), z, 0.7, beta)
    line = LINE[abs(LINE) < 50]
    on_axis = mittag_leffler(line + 0j, 1.6, 1.1)
    assert_within(mittag_leffler(line, 1.6, 1.1), on_axis.real, line, 1.6, 1.1)
    assert np.all(abs(on_axis.imag) <= allowed(line, 1.6, 1.1, on_axis))


def test_the_kernel_of_relaxation_is_accurate_at_large_times():
    # E_(a, a)(-x) = x**-2 / Gamma(-a) + ...: the first term at infinity vanishes.
    x = np.array([1e4, 1e6, 1e9])
    for alpha in (0.2, 0.6, 0.9):
        terms = [(-1) ** (k + 1) * special.rgamma(alpha - alpha * k) * x**-k for k in range(2, 9)]
        np.testing.assert_allclose(mittag_leffler(-x, alpha, alpha), sum(terms), rtol=RELATIVE)


@pytest.mark.parametrize("gamma", [2, 3])
def test_the_prabhakar_function_of_a_whole_gamma_is_a_derivative(gamma):
    alpha, beta, z, k = 0.6, 1.9, np.array([-1.4, 0.05, 0.8]), np.arange(80)
    terms = special.poch(gamma, k) / special.factorial(k) * special.rgamma(alpha * k + beta) * z[:, None] ** k
    found = mittag_leffler(z, alpha, beta - alpha * (gamma - 1), derivative=(gamma - 1, 0, 0))
    np.testing.assert_allclose(found / special.factorial(gamma - 1), terms.sum(axis=1), rtol=1e-12)


# mpmath


def assert_meets_mpmath(count, seed):
    first = {(1, 0, 0): (1, 0), (0, 1, 0): (1, 1), (0, 0, 1): (0, 1)}
    for z, alpha, beta in random_points(count, np.random.default_rng(seed)):
        value = oracle(z, alpha, beta)
        by = {key: oracle(z, alpha, beta, *orders) for key, orders in first.items()}
        by[0, 1, 0] *= z  # d/dalpha = z d/dz d/dbeta
        condition = sum(abs(x * change) for x, change in zip((z, alpha, beta), by.values(), strict=True))
        found = mpmath.mpmathify(mittag_leffler(z, alpha, beta).item())
        assert abs(found - value) <= RELATIVE * abs(value) + 2 * EPS * condition, (z, alpha, beta)
        for derivative, expected in by.items():
            found = mpmath.mpmathify(mittag_leffler(z, alpha, beta, derivative=derivative).item())
            assert abs(found - expected) <= 1e-9 * abs(expected), (z, alpha, beta, derivative)


@pytest.mark.slow
def test_values_and_derivatives_meet_mpmath_at_random_points():
    assert_meets_mpmath(16, seed=0)


@pytest.mark.slow
def test_values_and_derivatives_meet_mpmath_at_500_random_points():
    assert_meets_mpmath(500, seed=1)


SECOND = {(2, 0, 0): (2, 0), (0, 0, 2): (0, 2), (1, 0, 1): (1, 1)}


@pytest.mark.parametrize("z", [-37.0, -0.9, 0.06, pytest.param(3.0, marks=pytest.mark.slow), 2.0 - 5.0j])
@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.7), (1.0, 2.0), (1.7, 4.0)])
@pytest.mark.slow
def test_second_derivatives_meet_mpmath(z, alpha, beta):
    for derivative, orders in SECOND.items():
        expected = complex(oracle(z, alpha, beta, *orders))
        assert mittag_leffler(z, alpha, beta, derivative=derivative) == pytest.approx(expected, rel=1e-9)
    expected = z**2 * oracle(z, alpha, beta, 2, 2) + z * oracle(z, alpha, beta, 1, 2)
    assert mittag_leffler(z, alpha, beta, derivative=(0, 2, 0)) == pytest.approx(complex(expected), rel=1e-9)
    expected = z * oracle(z, alpha, beta, 2, 1) + oracle(z, alpha, beta, 1, 1)
    assert mittag_leffler(z, alpha, beta, derivative=(1, 1, 0)) == pytest.approx(complex(expected), rel=1e-9)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_derivatives_of_the_reciprocal_gamma_function_meet_mpmath(n):
    x = np.array([-3.0, -2.5, -1.0, -1e-9, 0.0, 1e-12, 0.4, 1.0, 4.6, 30.0])
    expected = [float(mittag_leffler_oracle.reciprocal_gamma(mpmath.mpf(value), n)) for value in x]
    np.testing.assert_allclose(reciprocal_gamma(x, n, NUMPY), expected, rtol=2e-13, atol=0)  # exp of a lgamma of 70


# Arrays


def test_arguments_broadcast_and_scalars_come_back_as_scalars():
    z, alpha, beta = np.linspace(-9, 2, 12).reshape(4, 1, 3), np.array([[0.4], [1.5]]), np.array([1.0, 2.0, 0.4])
    found = mittag_leffler(z, alpha, beta)
    assert found.shape == (4, 2, 3)
    one_by_one = [mittag_leffler(float(a), float(b), float(c)) for a, b, c in np.broadcast(z, alpha, beta)]
    np.testing.assert_allclose(found.ravel(), one_by_one, rtol=RELATIVE)
    assert np.ndim(mittag_leffler(1, 1)) == 0
    assert mittag_leffler(np.zeros((0, 3)), 0.5).shape == (0, 3)


def test_chunks_do_not_show():
    z = -np.random.default_rng(4).uniform(0, 30, 10_001)
    alpha = np.full(z.shape, 0.7)
    whole = mittag_leffler(z, 0.7, 1.2)
    np.testing.assert_array_equal(whole[5000:], mittag_leffler(z[5000:], 0.7, 1.2))
    np.testing.assert_allclose(whole, mittag_leffler(z, alpha, 1.2), rtol=RELATIVE)


def test_dtypes_follow_numpy():
    z = np.array([-2.0, 0.3])
    assert mittag_leffler(z.astype(np.float32), 0.5).dtype == np.float32
    assert mittag_leffler(z.astype(np.complex64), 0.5).dtype == np.complex64
    assert mittag_leffler(z.astype(np.float32), np.array([0.5, 0.6])).dtype == np.float64
    assert mittag_leffler(np.array([-2, 1]), 1).dtype == np.float64
    single = mittag_leffler(z.astype(np.float32), 0.5)
    np.testing.assert_array_equal(single, mittag_leffler(z.astype(np.float32).astype(float), 0.5).astype(np.float32))


def test_the_ends_of_the_line_are_reached():
    with np.errstate(all="raise"):  # and no warning is given
        found = mittag_leffler(np.array([np.inf, -np.inf, np.nan, 1e300, -1e300]), 0.7)
    np.testing.assert_array_equal(found[:3], [np.inf, 0.0, np.nan])
    assert found[3] == np.inf
    assert found[4] == pytest.approx(special.rgamma(0.3) * 1e-300)
    assert np.isnan(mittag_leffler(-1.0, np.nan))


def test_what_is_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"^mittag_leffler\(alpha=2.5\): needs 0 < alpha <= 2; for a larger alpha"):
        mittag_leffler(1.0, 2.5)
    with pytest.raises(ValueError, match=r"^mittag_leffler\(alpha=0\): needs 0 < alpha <= 2; for"):
        mittag_leffler(1.0, np.array([0.5, 0.0]))
    with pytest.raises(ValueError, match=r"^mittag_leffler\(beta=6\): needs -1 <= beta <= 5; come there by"):
        mittag_leffler(1.0, 0.5, 6)
    with pytest.raises(ValueError, match=r"^mittag_leffler\(derivative=-1\): needs derivative >= 0"):
        mittag_leffler(1.0, 0.5, derivative=(0, -1, 0))


def test_what_is_no_number_is_refused():
    with pytest.raises(
        TypeError, match=r"^mittag_leffler\(alpha of dtype complex128\): needs real numbers; pass alpha.r"
    ):
        mittag_leffler(1.0, 0.5 + 0j)
    with pytest.raises(
        TypeError, match=r"^mittag_leffler\(z of dtype <U1\): needs numbers; pass z as a float or complex"
    ):
        mittag_leffler(["a"], 0.5)
    with pytest.raises(
        TypeError, match=r"^mittag_leffler\(z: masked array\): needs all values; pass z.filled\(value\) f"
    ):
        mittag_leffler(np.ma.array([1.0, 2.0], mask=[True, False]), 0.5)
    with pytest.raises(TypeError, match=r"^mittag_leffler\(derivative=1\): needs three orders, in z, alpha and beta"):
        mittag_leffler(1.0, 0.5, derivative=1)  # type: ignore[arg-type]
