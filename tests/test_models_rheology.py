"""Rheological models: identities between their responses, an independent inverse Laplace transform, limits."""

import math
from typing import Any, cast

import mpmath
import numpy as np
import pytest
from scipy import integrate

from hpfracc_nn.fractional import mittag_leffler
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.models import Experiment, fit, rheology
from hpfracc_nn.models.rheology import (
    MATERIALS,
    Dashpot,
    FractionalJeffreys,
    FractionalKelvinVoigt,
    FractionalMaxwell,
    FractionalPoyntingThomson,
    FractionalZener,
    Jeffreys,
    KelvinVoigt,
    Maxwell,
    MaxwellMode,
    PoyntingThomson,
    Spring,
    SpringPot,
    Zener,
    prony,
)

PAIR = {"V": 2.0, "alpha": 0.7, "G": 3.0, "beta": 0.2}
CASES = {
    "spring": Spring(G=2),
    "dashpot": Dashpot(eta=3),
    "spring_pot": SpringPot(V=2, alpha=0.4),
    "maxwell": Maxwell(eta=2, G=3),
    "kelvin_voigt": KelvinVoigt(eta=2, G=3),
    "zener": Zener(K=1, eta=2, G=3),
    "poynting_thomson": PoyntingThomson(K=4, eta=2, G=3),
    "jeffreys": Jeffreys(eta=0.5, eta_m=2, G=3),
    "maxwell_mode": MaxwellMode(G=2, tau=3),
    "fractional_maxwell": FractionalMaxwell(**PAIR),
    "fractional_kelvin_voigt": FractionalKelvinVoigt(**PAIR),
    "fractional_zener": FractionalZener(K=0.5, **PAIR),
    "fractional_poynting_thomson": FractionalPoyntingThomson(K=4, **PAIR),
    "fractional_jeffreys": FractionalJeffreys(eta=0.3, **PAIR),
}
EVERY = pytest.mark.parametrize("name", MATERIALS)
T = np.geomspace(1e-4, 1e4, 17)


def pot(V, alpha):
    return lambda s: V * s**alpha


def parallel(*parts):
    return lambda s: sum(part(s) for part in parts)


def series(*parts):
    return lambda s: 1 / sum(1 / part(s) for part in parts)


_MAXWELL = series(pot(2, 0.7), pot(3, 0.2))
MODULI = {  # the same models, written once more as functions of s
    "spring": pot(2, 0),
    "dashpot": pot(3, 1),
    "spring_pot": pot(2, 0.4),
    "maxwell": series(pot(2, 1), pot(3, 0)),
    "kelvin_voigt": parallel(pot(2, 1), pot(3, 0)),
    "zener": parallel(pot(1, 0), series(pot(2, 1), pot(3, 0))),
    "poynting_thomson": series(pot(4, 0), parallel(pot(2, 1), pot(3, 0))),
    "jeffreys": parallel(pot(0.5, 1), series(pot(2, 1), pot(3, 0))),
    "maxwell_mode": series(pot(6, 1), pot(2, 0)),
    "fractional_maxwell": _MAXWELL,
    "fractional_kelvin_voigt": parallel(pot(2, 0.7), pot(3, 0.2)),
    "fractional_zener": parallel(pot(0.5, 0), _MAXWELL),
    "fractional_poynting_thomson": series(pot(4, 0), parallel(pot(2, 0.7), pot(3, 0.2))),
    "fractional_jeffreys": parallel(pot(0.3, 1), _MAXWELL),
}


def inverse_laplace(F, t):
    with mpmath.workdps(40):
        return float(mpmath.invertlaplace(F, t, method="talbot", degree=40))


def test_every_model_is_a_case():
    assert set(CASES) == set(MATERIALS) == set(MODULI)
    assert all(type(CASES[name]) is kind for name, kind in MATERIALS.items())


@EVERY
def test_steps_are_those_of_another_inverse_laplace_transform(name):
    model, F = CASES[name], MODULI[name]
    for t in (1e-3, 0.5, 20.0):
        if name not in ("dashpot",):  # its relaxation is a delta function, 0 at all t > 0
            expected = inverse_laplace(lambda s: F(s) / s, t)
            # Of a dashpot in parallel the transform contains a constant, which the rule integrates to rounding.
            assert model.relaxation(t) == pytest.approx(expected, rel=1e-11, abs=1e-13)
        assert model.creep(t) == pytest.approx(inverse_laplace(lambda s: 1 / (s * F(s)), t), rel=1e-11)


@EVERY
def test_the_complex_modulus_is_the_network_at_i_omega(name):
    omega = np.geomspace(1e-4, 1e4, 9)
    expected = MODULI[name](1j * omega) * np.ones(omega.size)
    np.testing.assert_allclose(CASES[name].complex_modulus(omega), expected, rtol=1e-13)
    assert (np.abs(CASES[name].storage(omega) - expected.real) < 1e-13 * np.abs(expected)).all()
    assert (np.abs(CASES[name].loss(omega) - expected.imag) < 1e-13 * np.abs(expected)).all()
    if name != "dashpot":
        np.testing.assert_allclose(CASES[name].loss_tangent(omega), expected.imag / expected.real, rtol=1e-11)


VISCOUS = {"dashpot": 3.0, "kelvin_voigt": 2.0, "jeffreys": 0.5, "fractional_jeffreys": 0.3}  # a dashpot in parallel


def fourier(model, omega):
    """Return i omega times the integral of G(t) exp(-i omega t), without the constant that G tends to.

    The contour is turned by a right angle in pieces that decay: on the first half period by substitution t = u**5,
    which removes the singularity, beyond it by the alternating series of half periods, summed by Euler's transform.
    """
    rest = float(model.relaxation(1e30)) if model.relaxation(1e30) > 1e-3 else 0.0
    total = 0.0
    for part, shift in ((np.cos, 0.5), (np.sin, 1.0)):
        ends = (np.arange(64) + shift) * np.pi / omega
        first = integrate.quad(
            lambda u, part=part: (float(model.relaxation(u**5)) - rest) * part(omega * u**5) * 5 * u**4,
            0,
            ends[0] ** 0.2,
            epsabs=1e-13,
            epsrel=1e-12,
            limit=200,
        )[0]
        nodes, weights = np.polynomial.legendre.leggauss(16)
        middle, half = (ends[1:] + ends[:-1]) / 2, np.pi / omega / 2
        t = middle[:, None] + half * nodes
        terms = half * ((model.relaxation(t) - rest) * part(omega * t)) @ weights
        partial = first + np.cumsum(terms)
        while partial.size > 20:
            partial = (partial[1:] + partial[:-1]) / 2
        total = total + partial[-1] * (1.0 if part is np.cos else -1j)
    return 1j * omega * total + rest


@pytest.mark.parametrize("name", [name for name in MATERIALS if name not in ("spring", "dashpot")])
@pytest.mark.parametrize("omega", [0.3, 5.0])
def test_the_complex_modulus_is_the_fourier_integral_of_the_relaxation_modulus(name, omega):
    model = CASES[name]
    expected = fourier(model, omega) + 1j * omega * VISCOUS.get(name, 0.0)  # of the delta function at 0
    assert abs(model.complex_modulus(omega) - expected) < 1e-8 * abs(expected)


@pytest.mark.parametrize("name", [name for name in MATERIALS if name not in ("spring", "dashpot")])
def test_creep_and_relaxation_convolve_to_t(name):
    model, t = CASES[name], 2.0
    relaxing, creeping = (  # each half with its singularity substituted away
        integrate.quad(
            lambda u, near=near, far=far: float(near(u**6) * far(t - u**6)) * 6 * u**5, 0, 1, epsabs=1e-12, epsrel=1e-12
        )[0]
        for near, far in ((model.relaxation, model.creep), (model.creep, model.relaxation))
    )
    viscous = VISCOUS.get(name, 0.0) * float(model.creep(t))
    assert relaxing + creeping + viscous == pytest.approx(t, rel=1e-9)


@EVERY
@pytest.mark.parametrize("omega", [0.2, 3.0])
def test_storage_and_loss_obey_kramers_and_kronig(name, omega):
    model = CASES[name]
    equilibrium = float(model.storage(1e-60)) if model.storage(1e-60) > 1e-3 else 0.0

    def integrand(u):  # the principal value in u = log(x / omega), both sides of the pole together
        loss, below = (float(model.loss(omega * math.exp(sign * u))) for sign in (1, -1))
        return (loss - below) / math.expm1(2 * u) - below

    pieces = [(0, 1), (1, 5), (5, 20), (20, 60), (60, 200)]
    total = sum(integrate.quad(integrand, *ends, epsabs=1e-12, epsrel=1e-12, limit=200)[0] for ends in pieces)
    expected = float(model.storage(omega))
    size = abs(complex(model.complex_modulus(omega)))
    # A dashpot's loss, eta x, is multiplied by 1 / (x**2 - omega**2) and integrates to 0.
    assert equilibrium - 2 / np.pi * total == pytest.approx(expected, abs=1e-8 * size)


def test_closed_forms_by_the_mittag_leffler_function():
    for V, alpha, G, beta in [(2, 0.7, 3, 0.2), (1, 0.5, 1, 0), (5, 1, 2, 0.3), (0.1, 0.9, 100, 0.8)]:
        z = -(G / V) * T ** (alpha - beta)
        relaxation = G * T**-beta * mittag_leffler(z, alpha - beta, 1 - beta)
        creep = T**alpha / V * mittag_leffler(z, alpha - beta, 1 + alpha)
        # relative to F(1 / t): with alpha = 1 the response is smaller by the powers of t that cancel
        scale = 1 / (T**alpha / V + T**beta / G)
        found = FractionalMaxwell(V, alpha, G, beta).relaxation(T)
        if alpha < 1:
            np.testing.assert_allclose(found, relaxation, rtol=1e-12)
        assert np.abs(found - relaxation).max() < 1e-13 * scale.max()
        np.testing.assert_allclose(FractionalKelvinVoigt(V, alpha, G, beta).creep(T), creep, rtol=1e-12)


def test_limits_at_orders_0_and_1_are_exact():
    rate = 3 / 2
    np.testing.assert_allclose(SpringPot(V=2, alpha=0).relaxation(T), 2.0, rtol=1e-15)
    np.testing.assert_array_equal(SpringPot(V=2, alpha=1).relaxation(T), 0.0)
    np.testing.assert_allclose(SpringPot(V=2, alpha=1).creep(T), T / 2, rtol=1e-14)
    short = T[T < 100]  # beyond it the exponential is 0
    exponential = 3 * np.exp(-rate * short)
    model: Any
    for model in (FractionalMaxwell(2, 1, 3, 0), FractionalMaxwell(3, 0, 2, 1.0), Maxwell(2, 3), MaxwellMode(3, 2 / 3)):
        np.testing.assert_allclose(model.relaxation(short), exponential, rtol=1e-13)
        np.testing.assert_allclose(model.creep(T), T / 2 + 1 / 3, rtol=1e-13)
    for model in (FractionalKelvinVoigt(2, 1, 3, 0), KelvinVoigt(2, 3)):
        np.testing.assert_allclose(model.creep(T), -np.expm1(-rate * T) / 3, rtol=1e-12)
    for model in (FractionalZener(1, 2, 1, 3, 0), Zener(1, 2, 3)):
        np.testing.assert_allclose(model.relaxation(T), 1 + 3 * np.exp(-rate * T), rtol=1e-13)
    for model in (FractionalPoyntingThomson(1, 2, 1, 3, 0), PoyntingThomson(1, 2, 3)):
        np.testing.assert_allclose(model.creep(T), 1 - np.expm1(-rate * T) / 3, rtol=1e-13)
    for model in (FractionalJeffreys(1, 2, 1, 3, 0), Jeffreys(1, 2, 3)):
        np.testing.assert_allclose(model.relaxation(short), exponential, rtol=1e-13)
    equal = FractionalMaxwell(V=2, alpha=0.3, G=2, beta=0.3)
    np.testing.assert_allclose(equal.relaxation(T), SpringPot(V=1, alpha=0.3).relaxation(T), rtol=1e-13)


def test_a_prony_series_is_a_sum_of_exponentials():
    model = prony([(2, 1), (1, 10)], equilibrium=0.5)
    np.testing.assert_allclose(model.relaxation(T), 0.5 + 2 * np.exp(-T) + np.exp(-T / 10), rtol=1e-13)
    assert prony(2, equilibrium=0).unknowns == ("G_1", "tau_1", "G_2", "tau_2")


def test_models_are_networks_of_their_elements():
    built = Spring(G=0.5) | (SpringPot(V=2, alpha=0.7) - SpringPot(V=3, alpha=0.2))
    np.testing.assert_allclose(built.relaxation(T), CASES["fractional_zener"].relaxation(T), rtol=1e-14)
    built = Spring(G=4) - CASES["fractional_kelvin_voigt"]
    np.testing.assert_allclose(built.creep(T), CASES["fractional_poynting_thomson"].creep(T), rtol=1e-14)


HISTORY = pytest.mark.parametrize("name", [name for name in MATERIALS if name != "dashpot"])


@HISTORY
def test_the_stress_of_a_ramp_is_the_integral_of_the_relaxation_modulus(name):
    """On straight lines the scheme is exact, and so it is on a jump."""
    model, dt = CASES[name], 0.1
    t = dt * np.arange(41)
    at_end = inverse_laplace(lambda s: MODULI[name](s) * (2 / s**2 + 0.5 / s), t[-1])
    assert model.stress(2 * t + 0.5, dt=dt)[-1] == pytest.approx(at_end, rel=1e-10)
    at_end = inverse_laplace(lambda s: (2 / s**2 + 0.5 / s) / MODULI[name](s), t[-1])
    assert model.strain(2 * t + 0.5, dt=dt)[-1] == pytest.approx(at_end, rel=1e-10)


@EVERY
def test_histories_converge_of_second_order_or_better(name):
    def error(n):
        t = np.linspace(0, 2, n + 1)
        expected = inverse_laplace(lambda s: MODULI[name](s) * 6 / s**4, 2.0)
        return abs(CASES[name].stress(t**3, dt=2 / n)[-1] / expected - 1)

    assert error(320) < 1e-4
    assert error(320) < error(160) / 3.5 or error(320) < 1e-10


def test_a_history_under_a_harmonic_strain_tends_to_the_complex_modulus():
    model, omega, n = CASES["fractional_zener"], 2 * np.pi, 8000
    t = np.linspace(0, 40, n + 1)
    stress = model.stress(np.sin(omega * t), dt=40 / n)[-200:]
    modulus = complex(model.complex_modulus(omega))
    expected = np.abs(modulus) * np.sin(omega * t[-200:] + np.angle(modulus))
    np.testing.assert_allclose(stress, expected, atol=1e-3 * abs(modulus))  # the transient has decayed to t**-1.2


def test_strain_undoes_stress_where_strains_are_smooth():
    t = np.linspace(0, 2, 801)
    strain = t**2 * np.exp(-t)
    for model in CASES.values():
        np.testing.assert_allclose(model.strain(model.stress(strain, dt=t[1]), dt=t[1]), strain, atol=2e-5)


@pytest.mark.parametrize("n", [1000, 100_000])
def test_long_rough_histories_keep_their_digits(n):
    x = np.random.default_rng(0).standard_normal(n)
    x[0] = 0
    # What is left is the rounding of a convolution by FFT, eps times the norms of its factors.
    np.testing.assert_allclose(Spring(G=3).stress(x, dt=0.01), 3 * x, atol=1e-16 * n)


def test_the_end_of_a_long_pulse_is_the_curvature_of_the_relaxation():
    n, dt, place, model = 100_000, 0.01, 10, CASES["fractional_maxwell"]
    x = np.zeros(n)
    x[place] = 1
    # The interpolation has an area of dt and no first moment (of L1-2: its centre is at the sample to O(dt)), so the
    # stress is dt dG/dt to 1 / n.
    end = dt * (n - 1 - place)
    slope = inverse_laplace(MODULI["fractional_maxwell"], end)
    assert model.stress(x, dt=dt)[-1] == pytest.approx(dt * slope, rel=1e-3)


@EVERY
def test_the_weights_of_a_history_are_integrals_over_its_cells(name):
    dt, n = 0.3, 40
    t = dt * np.arange(1, n + 1)
    with mpmath.workdps(50):
        found = rheology._columns(CASES[name].network, t, {}, NUMPY)
        for k in (1, 2, 3, 16, 17, 40):
            ends = [mpmath.mpf(3) * each / 10 for each in (k, k - 1)]
            (R1, r1), (R2, r2) = (
                [
                    mpmath.invertlaplace(lambda s, i=i: MODULI[name](s) / s**i, each, method="talbot", degree=60)
                    if each
                    else mpmath.mpf(0)
                    for each in ends
                ]
                for i in (2, 3)
            )
            whole, moment = R1 - r1, R2 - r2 - (R1 + r1) * mpmath.mpf(3) / 20
            if name == "dashpot" and k > 1:
                whole = moment = 0
            scale = float(abs(MODULI[name](1 / ends[0]))) * dt  # of F(1 / t), of which what is left is rounding
            if k > 1 or "dashpot" not in name:
                assert found[2, k - 1] == pytest.approx(float(whole), abs=5e-14 * scale)
                assert found[3, k - 1] == pytest.approx(float(moment), abs=5e-14 * scale * dt)


def test_axes_and_few_samples():
    model = CASES["fractional_zener"]
    x = np.random.default_rng(0).standard_normal((3, 50, 2))
    found = model.stress(x, dt=0.1, dim=1)
    np.testing.assert_allclose(found[1, :, 1], model.stress(x[1, :, 1], dt=0.1), rtol=1e-12, atol=1e-12)
    for n in (0, 1, 2, 3):
        assert model.stress(x[:, :n, :], dt=0.1, dim=1).shape == (3, n, 2)
    np.testing.assert_allclose(model.stress(x[0, :2, 0], dt=0.1), found[0, :2, 0], rtol=1e-12)
    assert model.stress(x.astype(np.float32), dt=0.1, dim=1).dtype == np.float32
    assert model.relaxation(np.array([1, 2], np.float32)).dtype == np.float32


def test_parameters_that_are_arrays_broadcast():
    alpha = np.array([[0.2], [0.8]])
    found = FractionalMaxwell(V=2, alpha=alpha, G=np.array([[3.0], [4.0]]), beta=0.1).relaxation(T)
    assert found.shape == (2, T.size)
    np.testing.assert_allclose(found[1], FractionalMaxwell(2, 0.8, 4, 0.1).relaxation(T), rtol=1e-13)


REFUSALS = [
    (lambda: SpringPot(V=-1, alpha=0.5), ValueError, r"SpringPot\(V=-1\): needs V > 0"),
    (lambda: SpringPot(V=1, alpha=1.5), ValueError, r"SpringPot\(alpha=1.5\): needs 0 <= alpha <= 1"),
    (lambda: SpringPot(V=1, alpha=np.array([0.5, math.nan])), ValueError, "needs 0 <= alpha <= 1"),
    (lambda: SpringPot(V=[1], alpha=0.5), TypeError, "needs a number, an array, a name"),
    (lambda: SpringPot(V=1).relaxation(T), ValueError, "alpha has none"),
    (lambda: (Spring() | Dashpot()).creep(T), ValueError, "G, eta have none"),
    (lambda: SpringPot(V=1, alpha=0.5).relaxation([1.0, 0.0]), ValueError, r"needs t > 0; got 0"),
    (lambda: SpringPot(V=1, alpha=0.5).complex_modulus(-1.0), ValueError, r"needs omega > 0; got -1"),
    (lambda: SpringPot(V=1, alpha=0.5).relaxation("now"), TypeError, "needs real numbers"),
    (lambda: SpringPot(V=1, alpha=0.5).stress(T, dt=0), ValueError, "needs a finite dt > 0"),
    (lambda: SpringPot(V=1, alpha=0.5).stress(T, dim=1), ValueError, "needs -1 <= dim < 1"),
    (lambda: SpringPot(V=1, alpha=0.5).stress(1j * T), TypeError, "needs real numbers"),
    (lambda: SpringPot(V=1, alpha=np.array([0.5, 0.6])).stress(T), ValueError, "needs parameters without axes"),
    (
        lambda: SpringPot(V="x", alpha="x"),
        ValueError,
        "'x' is the name of V, a positive number, and of alpha",
    ),
    (lambda: Spring(G="x") - SpringPot(alpha="x"), ValueError, "'x' is the name of G, a positive number, and of alpha"),
    (lambda: SpringPot().at(W=1), ValueError, "they are V, alpha"),
    (lambda: SpringPot(V=1, alpha=0.5).at(V=1), ValueError, "every parameter has a value"),
    (lambda: rheology.prony([]), ValueError, "needs at least one mode"),
    (lambda: Spring() | cast(Any, 3), TypeError, "unsupported operand"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSALS)
def test_what_is_wrong_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_unknown_parameters_have_names():
    model = Spring() | (SpringPot() - SpringPot(alpha="a"))
    assert model.unknowns == ("G", "V_1", "alpha", "V_2", "a")
    assert model.at(V_2=1.0, a=0.5).unknowns == ("G", "V_1", "alpha")
    tied = SpringPot(V="V", alpha="a") | SpringPot(V="W", alpha="a")
    assert tied.unknowns == ("V", "a", "W")
    assert tied.roles == {"V": "positive", "a": "order", "W": "positive"}
    assert FractionalMaxwell(beta=0).label == "FractionalMaxwell(beta=0)"
    assert (Spring() - (Spring() | Dashpot())).label == "Spring - (Spring | Dashpot)"
    assert repr(Spring(G=1) | Dashpot(eta=2)) == "Spring(G=1) | Dashpot(eta=2)"


def test_automatic_names_are_none_that_are_taken():
    model = (Spring("G_1") | Dashpot()) - Spring() - Spring()
    assert model.unknowns == ("G_1", "eta", "G_2", "G_3")
    combined = (Spring() | Spring()).named() - (Spring() | Spring())
    assert combined.unknowns == ("G_1", "G_2", "G_3", "G_4")
    assert (SpringPot(V="alpha") - Spring("G")).unknowns == ("alpha", "alpha_1", "G")


def test_masked_measurements_are_dropped():
    x = np.ma.array([1.0, 2.0, 3.0, 4.0], mask=np.array([0, 1, 0, 0], bool))
    G = np.ma.array([4.0, 3.0, -999.0, 1.0], mask=np.array([0, 0, 1, 0], bool))
    deviation = np.ma.array([0.1, 0.2, 0.3, 0.4])
    found = Experiment.relaxation(x, G, deviation=deviation)
    np.testing.assert_array_equal(found.x, [1, 4])
    np.testing.assert_array_equal(found.observed, [[4, 1]])
    np.testing.assert_array_equal(found.deviation, [[0.1, 0.4]])
    spectrum = Experiment.impedance(
        [1.0, 2.0, 3.0], np.ma.array([1 - 1j, np.nan, 2 - 2j], mask=np.array([0, 1, 0], bool))
    )
    np.testing.assert_array_equal(spectrum.observed, [[1, 2], [-1, -2]])
    swept = Experiment.oscillation(
        [3.0, 2.0, 1.0], [1.0, 2.0, 3.0], np.ma.array([1.0, 0.0, 3.0], mask=np.array([0, 1, 0], bool))
    )
    np.testing.assert_array_equal(swept.observed, [[3, 1], [3, 1]])
    with pytest.raises(ValueError, match="needs a value for each t"):
        Experiment.relaxation(x, G[:3])


def test_what_is_exactly_zero_on_the_axis_is_exactly_zero():
    assert KelvinVoigt(eta=1e4, G=1e-3).storage(1e10) == 1e-3
    assert Dashpot(eta=2).storage(3.0) == 0
    assert Dashpot(eta=2).loss_tangent(3.0) == math.inf
    assert SpringPot(V=2, alpha=1.0).storage(3.0) == 0
    assert Spring(G=2).loss_tangent(3.0) == 0
    assert (Dashpot(eta=2) - Dashpot(eta=2)).storage(3.0) == 0


@pytest.mark.parametrize(
    ("model", "experiment", "part"),
    [
        (Dashpot, Experiment.oscillation([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), "G'"),
        (Spring, Experiment.oscillation([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), "G''"),
        (Dashpot, Experiment.relaxation([1.0, 2.0, 3.0], [1.0, 0.5, 0.3]), "G"),
    ],
)
def test_logarithms_of_a_part_that_the_model_lacks_are_not_fitted(model, experiment, part):
    with pytest.raises(ValueError, match=f"of the model {part} is 0 at all (t|omega); pass deviation="):
        fit(model, experiment)
