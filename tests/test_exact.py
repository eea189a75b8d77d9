"""The closed forms against the reference values, and against mpmath where those do not reach."""

import mpmath
import numpy as np
import pytest

from hpfracc_nn.fractional import (
    AtanganaBaleanu,
    Caputo,
    CaputoFabrizio,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    Riesz,
    TemperedCaputo,
    TemperedRiemannLiouville,
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


# Quadrature of the definitions, 30 digits


def mittag_leffler_series(alpha, z):
    """E_alpha(z) for |z| below 3: the 100th term is below 1e-40."""
    return mpmath.fsum(z**k * mpmath.rgamma(alpha * k + 1) for k in range(100))


def memory_of(definition):
    """Return what x' (tempered: x' + rate x) is integrated with."""
    alpha = mpmath.mpf(definition.alpha)
    if isinstance(definition, TemperedCaputo):
        return lambda s: s**-alpha * mpmath.rgamma(1 - alpha) * mpmath.exp(-definition.rate * s)
    c, unit = alpha / (1 - alpha), mpmath.mpf(definition.unit)
    if isinstance(definition, CaputoFabrizio):
        return lambda s: mpmath.exp(-c * s / unit) / (1 - alpha)
    return lambda s: mittag_leffler_series(alpha, -c * (s / unit) ** alpha) / (1 - alpha)


SMOOTH = {
    "t**2.5": (lambda t: t ** mpmath.mpf(2.5), lambda t, d: exact.power(t, 2.5, d)),
    "1": (lambda t: mpmath.mpf(1), lambda t, d: exact.power(t, 0, d)),
    "exp(0.7 t)": (lambda t: mpmath.exp(mpmath.mpf(0.7) * t), lambda t, d: exact.exponential(t, 0.7, d)),
    "cos(2 t)": (lambda t: mpmath.cos(2 * t), lambda t, d: exact.cosine(t, 2.0, d)),
}
WITH_MEMORY = [
    TemperedCaputo(0.4, rate=1.5),
    TemperedRiemannLiouville(0.7, rate=0.5),
    CaputoFabrizio(0.3),
    CaputoFabrizio(0.6, unit=0.5),
    AtanganaBaleanu(0.5),
    AtanganaBaleanu(0.6, unit=2.0),
    AtanganaBaleanu(0.5, sense="riemann_liouville"),
]


@pytest.mark.parametrize("function", SMOOTH)
@pytest.mark.parametrize("definition", WITH_MEMORY, ids=repr)
@pytest.mark.slow
def test_memories_of_other_kinds_meet_quadrature(definition, function):
    x, closed_form = SMOOTH[function]
    if isinstance(definition, AtanganaBaleanu) and function in ("exp(0.7 t)", "cos(2 t)"):
        with pytest.raises(ValueError, match=r"has no closed form for exponentials and sinusoids here; take powers"):
            closed_form(np.ones(1), definition)
        return
    keeps_constants = isinstance(definition, TemperedRiemannLiouville) or (
        getattr(definition, "sense", "") == "riemann_liouville"
    )
    with mpmath.workdps(30):
        t, memory, rate = mpmath.mpf(1.25), memory_of(definition), getattr(definition, "rate", 0.0)
        wanted = mpmath.quad(lambda s: memory(t - s) * (mpmath.diff(x, s) + rate * x(s)), [0, t / 2, t])
        wanted += x(mpmath.mpf(0)) * memory(t) if keeps_constants else 0
    assert closed_form(np.array([1.25]), definition)[0] == pytest.approx(float(wanted), rel=1e-10)


@pytest.mark.parametrize("alpha", [0.5, 1.2])
def test_getoors_constant_and_gaussians_meet_quadrature(alpha):
    with mpmath.workdps(30):
        a = mpmath.mpf(alpha)
        # the singular integral at t = 0
        front = 2**a * mpmath.gamma((1 + a) / 2) / mpmath.sqrt(mpmath.pi) / -mpmath.gamma(-a / 2)
        near = mpmath.quad(lambda y: (1 - (1 - y**2) ** (a / 2)) * y ** (-1 - a), [0, 0.5, 1])
        assert exact.getoor(alpha) == pytest.approx(float(2 * front * (near + 1 / a)), rel=1e-12)
        for at in (0.0, 0.7):
            waves = mpmath.quad(lambda w, at=at: w**a * mpmath.exp(-(w**2) / 4) * mpmath.cos(w * at), [0, 2, 8, 20])
            assert exact.gaussian(np.array(at), alpha) == pytest.approx(
                float(waves / mpmath.sqrt(mpmath.pi)), rel=1e-12
            )
        for dimensions in (2, 3):
            d = mpmath.mpf(dimensions)
            radial = mpmath.quad(lambda w, d=d: w ** (a + d - 1) * mpmath.exp(-(w**2) / 4), [0, 2, 8, 20])
            sphere = 2 * mpmath.pi ** (d / 2) / mpmath.gamma(d / 2)
            wanted = sphere * mpmath.pi ** (d / 2) / (2 * mpmath.pi) ** d * radial
            assert exact.gaussian(np.array(0.0), alpha, dimensions) == pytest.approx(float(wanted), rel=1e-12)


def test_a_riesz_derivative_has_closed_forms_of_its_own():
    with pytest.raises(ValueError, match=r"needs a signal that is zero outside an interval; take `getoor` or"):
        exact.power(np.ones(1), 2, Riesz(0.5))
    with pytest.raises(ValueError, match=r"the memory is shorter than anything; take the ordinary derivative\.$"):
        exact.power(np.ones(1), 2, CaputoFabrizio(1.0))


def test_closed_forms_are_those_of_the_left_side():
    with pytest.raises(ValueError, match=r"needs side='left' for a closed form; take that of the reversed signal"):
        exact.power(np.ones(1), 2, Caputo(0.5, side="right"))
    with pytest.raises(ValueError, match=r"needs exponent >= 0; pass a larger exponent\.$"):
        exact.power(np.ones(1), -0.5, TemperedCaputo(0.5))
