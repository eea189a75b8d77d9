"""Equivalent circuits: written out formulas, identities between elements, Kramers-Kronig."""

import math
from collections.abc import Callable
from typing import Any, cast

import mpmath
import numpy as np
import pytest
from scipy import integrate

from hpfracc_nn.models import Experiment, kramers_kronig, parse
from hpfracc_nn.models.impedance import (
    CIRCUITS,
    ZARC,
    BlockedWarburg,
    Capacitor,
    ColeCole,
    ColeDavidson,
    ConstantPhase,
    FiniteWarburg,
    Gerischer,
    HavriliakNegami,
    Inductor,
    Resistor,
    Warburg,
)
from hpfracc_nn.models.rheology import FractionalMaxwell, Spring
from tests.models_cases import PARAMETERS

EVERY = pytest.mark.parametrize("name", CIRCUITS)
OMEGA = np.geomspace(1e-9, 1e9, 37)

Z: dict[str, Callable[..., Any]] = {  # the formulas of the elements, once more
    "resistor": lambda s, R: R + 0 * s,
    "capacitor": lambda s, C: 1 / (C * s),
    "inductor": lambda s, L: L * s,
    "constant_phase": lambda s, Q, alpha: 1 / (Q * s**alpha),
    "warburg": lambda s, sigma: sigma * mpmath.sqrt(2 / s),
    "finite_warburg": lambda s, R, tau, alpha: R * mpmath.tanh((tau * s) ** alpha) / (tau * s) ** alpha,
    "blocked_warburg": lambda s, R, tau, alpha: R * mpmath.coth((tau * s) ** alpha) / (tau * s) ** alpha,
    "gerischer": lambda s, R, tau: R / mpmath.sqrt(1 + tau * s),
    "cole_cole": lambda s, R, tau, alpha: R / (1 + (tau * s) ** alpha),
    "zarc": lambda s, R, tau, alpha: R / (1 + (tau * s) ** alpha),
    "cole_davidson": lambda s, R, tau, gamma: R / (1 + tau * s) ** gamma,
    "havriliak_negami": lambda s, R, tau, alpha, gamma: R / (1 + (tau * s) ** alpha) ** gamma,
}


@EVERY
def test_impedances_are_those_of_the_formulas_over_eighteen_decades(name):
    kind = CIRCUITS[name]
    cases = [PARAMETERS[kind]]
    if "alpha" in cases[0]:
        cases.append(cases[0] | {"alpha": 0.5})  # that of diffusion
    for values in cases:
        with mpmath.workdps(30):
            expected = np.array([complex(Z[name](mpmath.mpc(0, omega), **values)) for omega in OMEGA])
        np.testing.assert_allclose(kind(**values).impedance(OMEGA), expected, rtol=2e-13)


def test_warburgs_convention_is_sigma_times_1_minus_i():
    np.testing.assert_allclose(Warburg(sigma=3).impedance(4.0), 1.5 - 1.5j, rtol=1e-14)


def test_elements_are_limits_of_others():
    s = OMEGA
    same = [
        (ConstantPhase(Q=2, alpha=1), Capacitor(C=2)),
        (ConstantPhase(Q=2, alpha=0), Resistor(R=0.5)),
        (ZARC(R=8, tau=4, alpha=0.5), Resistor(R=8) | ConstantPhase(Q=0.25, alpha=0.5)),
        (ColeCole(R=8, tau=4, alpha=1), Resistor(R=8) | Capacitor(C=0.5)),
        (HavriliakNegami(R=8, tau=4, alpha=0.6, gamma=1), ColeCole(R=8, tau=4, alpha=0.6)),
        (HavriliakNegami(R=8, tau=4, alpha=1, gamma=0.6), ColeDavidson(R=8, tau=4, gamma=0.6)),
        (Gerischer(R=8, tau=4), ColeDavidson(R=8, tau=4, gamma=0.5)),
        (Resistor(R=1) - Inductor(L=2) - Inductor(L=1), Inductor(L=3) - Resistor(R=1)),
    ]
    for one, other in same:
        np.testing.assert_allclose(one.impedance(s), other.impedance(s), rtol=1e-13)
    slow, fast = np.array([1e-8]), np.array([1e8])
    np.testing.assert_allclose(FiniteWarburg(R=3, tau=2).impedance(slow), 3, rtol=1e-7)
    np.testing.assert_allclose(BlockedWarburg(R=3, tau=2).impedance(slow).real, 1, rtol=1e-7)
    for layer in (FiniteWarburg(R=3, tau=2), BlockedWarburg(R=3, tau=2)):  # a half-space, where diffusion is short
        np.testing.assert_allclose(layer.impedance(fast), Warburg(sigma=1.5).impedance(fast), rtol=1e-12)


# No imaginary part; one that is not the transform of a real part; a pole at 0 of order 2 alpha = 1.4
UNBOUNDED = ("resistor", "inductor", "blocked_warburg")


@pytest.mark.parametrize("name", [name for name in CIRCUITS if name not in UNBOUNDED])
def test_real_and_imaginary_parts_obey_kramers_and_kronig(name):
    circuit, omega = CIRCUITS[name](**PARAMETERS[CIRCUITS[name]]), 1.3

    def integrand(u):  # the principal value in u = log(x / omega), both sides of the pole together
        above, below = (float(circuit.impedance(omega * math.exp(sign * u)).real) for sign in (1, -1))
        return (above - below) / (2 * math.sinh(u))

    pieces = [(0, 1), (1, 5), (5, 20), (20, 60), (60, 200)]
    total = sum(integrate.quad(integrand, *ends, epsabs=1e-12, epsrel=1e-12, limit=200)[0] for ends in pieces)
    expected = complex(circuit.impedance(omega))
    pole = 1 / (PARAMETERS[CIRCUITS[name]].get("C", math.inf) * omega)  # of a capacitor, at 0
    assert 2 / np.pi * total - pole == pytest.approx(expected.imag, abs=1e-8 * abs(expected))


def spectrum(noise, seed=0):
    omega = np.geomspace(0.1, 1e5, 50)
    cell = Resistor(R=10) - (Resistor(R=100) | ConstantPhase(Q=1e-4, alpha=0.85)) - Warburg(sigma=5)
    z = cell.impedance(omega)
    rng = np.random.default_rng(seed)
    return omega, z + noise * np.abs(z) * (rng.standard_normal(50) + 1j * rng.standard_normal(50))


def test_the_check_finds_the_noise_of_data_that_obey_the_relations():
    found = [kramers_kronig(Experiment.impedance(*spectrum(0.005, seed))).deviation for seed in range(20)]
    assert np.mean(found) == pytest.approx(0.005, rel=0.06)  # 3 standard errors, of 20 times about 70 residuals
    assert kramers_kronig(Experiment.impedance(*spectrum(0)), terms=40).deviation < 1e-4


def test_the_check_finds_a_part_that_drifted():
    omega, z = spectrum(0.002)
    drifted = z * np.where(omega < 10, 1.0 + 0.1 * np.log(10 / omega), 1.0)  # the real part alone would not tell
    drifted = drifted.real + 1j * z.imag
    check = kramers_kronig(Experiment.impedance(omega, drifted))
    assert check.deviation > 3 * kramers_kronig(Experiment.impedance(omega, z)).deviation
    assert check.worst[0] < 40


def test_the_check_takes_oscillations_too():
    omega = np.geomspace(0.01, 100, 30)
    modulus = FractionalMaxwell(V=10, alpha=0.8, G=5, beta=0.2).complex_modulus(omega)
    assert kramers_kronig(Experiment.oscillation(omega, modulus.real, modulus.imag)).deviation < 3e-3
    with pytest.raises(ValueError, match="needs an experiment in omega"):
        kramers_kronig(Experiment.relaxation([1.0, 2.0], [2.0, 1.0]))
    with pytest.raises(ValueError, match="needs at least four"):
        kramers_kronig(Experiment.impedance(omega[:3], modulus[:3]))


def test_texts_are_models():
    assert parse("Resistor - (Resistor | ConstantPhase(alpha=0.9)) - warburg").label == (
        "Resistor - (Resistor | ConstantPhase(alpha=0.9)) - Warburg"
    )
    assert parse("spring_pot(V='stiffness')").unknowns == ("stiffness", "alpha")
    assert parse("Resistor - ZARC").label == parse("resistor - zarc").label
    for text, rule in [
        ("__import__('os')", "needs names of models"),
        ("resistor(1)", "needs names of models"),
        ("resistor +", "needs names of models"),
        ("resistor(R=[1])", "needs names of models"),
        ("resistor * resistor", "needs names of models"),
        ("resistance", "needs the name of a model"),
        ("resistor - spring", "of rheology or of impedance"),
    ]:
        with pytest.raises(ValueError, match=rule):
            parse(text)
    with pytest.raises(TypeError, match="unexpected keyword"):
        parse("resistor(V=1)")
    with pytest.raises(TypeError, match="unsupported operand"):
        Resistor() | cast(Any, Spring())
