"""The closed forms against the reference values, and against mpmath where those do not reach."""

import mpmath
import numpy as np
import pytest

from hpfracc_nn.fractional import (
    Caputo,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    exact,
)
from tests.reference_cases import CASES, definition_of

# The file's function -> the closed form and its parameter; the others have none here.
FUNCTIONS = {
    "t**2": (exact.power, 2),
    "t**3": (exact.power, 3),
    "t**0.7": (exact.power, 0.7),
    "t**(-0.4)": (exact.power, -0.4),
    "np.ones_like(t)": (exact.power, 0),
    "np.exp(1*t)": (exact.exponential, 1),
    "np.exp(t)": (exact.exponential, 1),
    "np.exp(-2*t)": (exact.exponential, -2),
    "np.sin(1*t)": (exact.sine, 1),
    "np.sin(t)": (exact.sine, 1),
    "np.cos(t)": (exact.cosine, 1),
}
COVERED = [case for case in CASES.values() if case["function"] in FUNCTIONS]


@pytest.mark.parametrize("case", COVERED, ids=lambda case: case["id"])
def test_closed_forms_meet_the_reference(case):
    closed_form, parameter = FUNCTIONS[case["function"]]
    got = closed_form(np.array(case["points"]), parameter, definition_of(case))
    np.testing.assert_allclose(got, np.array(case["values"], float), rtol=1e-10, atol=1e-10)


def test_all_but_four_reference_cases_have_a_closed_form():
    assert len(COVERED) == len(CASES) - 4  # a logarithm, a Mittag-Leffler function, t and a tempered power


def series(order, terms, rate, t):
    """The operator on exp(rate t), term by term."""
    with mpmath.workdps(40):
        z, order = mpmath.mpc(rate), mpmath.mpf(order)
        terms = (z**j * mpmath.mpf(t) ** (j - order) * mpmath.rgamma(j + 1 - order) for j in range(terms, 120))
        return complex(mpmath.fsum(terms))


@pytest.mark.parametrize("rate", [1.5, -1.5])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("kind", [Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral])
def test_exponentials_and_sinusoids_meet_their_series(kind, alpha, rate):
    definition, t = kind(alpha), np.array([0.01, 0.5, 2.0, 10.0])
    order = -alpha if kind is RiemannLiouvilleIntegral else alpha
    terms = definition.taylor if kind is Caputo else 0
    wanted = np.array([series(order, terms, rate, time) for time in t]).real
    turning = np.array([series(order, terms, 1j * rate, time) for time in t])
    np.testing.assert_allclose(exact.exponential(t, rate, definition), wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(exact.cosine(t, rate, definition), turning.real, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(exact.sine(t, rate, definition), turning.imag, rtol=1e-10, atol=1e-10)


def test_at_the_first_moment_a_riemann_liouville_derivative_may_be_infinite():
    zero = np.zeros(1)
    assert exact.power(zero, 0, RiemannLiouville(0.5)) == np.inf
    assert exact.power(zero, 0, RiemannLiouville(1.0)) == 0
    assert exact.power(zero, 0, Caputo(0.5)) == 0
    assert exact.cosine(zero, 1, RiemannLiouvilleIntegral(0.5)) == 0


def test_powers_without_a_derivative_are_refused():
    with pytest.raises(ValueError, match=r"needs exponent > 1, or the integral diverges; pass a larger exponent\.$"):
        exact.power(np.ones(1), 0.7, Caputo(1.5))
    with pytest.raises(ValueError, match=r"needs exponent > -1, or the integral diverges; pass a larger exponent\.$"):
        exact.power(np.ones(1), -1, RiemannLiouvilleIntegral(0.5))
    with pytest.raises(ValueError, match=r"needs one alpha for a closed form; pass one definition per channel\.$"):
        exact.sine(np.ones(1), 1, Caputo([0.3, 0.4]))
