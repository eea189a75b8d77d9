"""Marchaud's past, Hadamard's times: what a definition needs besides samples."""

import math

import numpy as np
import pytest

from hpfracc_nn.fractional import (
    Caputo,
    CaputoHadamard,
    Hadamard,
    HadamardIntegral,
    Marchaud,
    RiemannLiouville,
    exact,
    integral,
    logarithmic_times,
)
from tests.reference_cases import EXTENDED


@pytest.mark.parametrize("cut", [4, 6, 8])
def test_a_history_that_is_cut_is_off_by_no_more_than_the_bound(cut: float) -> None:
    case = EXTENDED["weyl_exp2_a07"]
    points, wanted = np.array(case["points"]), np.array(case["values"], float)
    n_steps = round((cut + 2) * 1000)
    t = np.linspace(-cut, 2, n_steps + 1)
    for history in ("constant", "zero"):
        definition = Marchaud(case["alpha"], history=history)
        y = definition(np.exp(2 * t), dt=1e-3)[np.rint((points + cut) * 1000).astype(int)]
        bound = definition.history_bound(points + cut, math.exp(-2 * cut))
        scheme = 2e-6 * wanted  # dt**(3 - alpha) of l1_2, times 2**3
        assert np.all(np.abs(y - wanted) <= bound + scheme)
        if cut == 4:  # it is no wild overestimate
            assert np.abs(y - wanted)[0] > 0.05 * bound[0]


def test_marchauds_derivative_is_caputos_or_riemann_and_liouvilles() -> None:
    x = np.cos(np.arange(50.0))
    np.testing.assert_array_equal(Marchaud(0.6)(x, dt=0.1), Caputo(0.6)(x, dt=0.1))
    after_zeros = Marchaud(0.6, "bdf2", history="zero")(x, dt=0.1)
    np.testing.assert_array_equal(after_zeros, RiemannLiouville(0.6, "bdf2")(x, dt=0.1))


def test_what_a_marchaud_derivative_needs_is_said() -> None:
    with pytest.raises(ValueError, match=r"^Marchaud\(history='old'\): needs one of 'constant', 'zero'; pass one"):
        Marchaud(0.5, history="old")
    with pytest.raises(
        ValueError, match=r"needs 0 <= alpha <= 1; take the samples' own .*, then alpha=0\.2 of it, with history='zero'"
    ):
        Marchaud(1.2)
    with pytest.raises(ValueError, match=r"history_bound: needs one alpha; pass one definition per channel\.$"):
        Marchaud([0.2, 0.4]).history_bound(1.0, 1.0)


@pytest.mark.parametrize("alpha", [0.4, 1.5])
def test_hadamards_operators_meet_powers_of_the_logarithm_and_of_time(alpha: float) -> None:
    t, dt = logarithmic_times(2.0, 6.0, 801)
    u = np.log(t / 2.0)
    # t**2 = 4 exp(2 u): the closed forms hold in u
    for kind in (Hadamard, CaputoHadamard, HadamardIntegral):
        definition = kind(alpha)
        rest = u[10:]  # where nothing is infinite
        powers, exponentials = exact.power(rest, 2, definition), 4 * exact.exponential(rest, 2, definition)
        for x, wanted in ((u**2, powers), (t**2, exponentials)):
            np.testing.assert_allclose(definition(x, dt=dt)[10:], wanted, rtol=5e-3 if alpha > 1 else 5e-4, atol=1e-5)
    np.testing.assert_array_equal(integral(t, HadamardIntegral(alpha), dt=dt), HadamardIntegral(alpha)(t, dt=dt))


def test_hadamards_derivative_does_not_know_the_unit_of_time() -> None:
    (minutes, dt), (seconds, same) = logarithmic_times(1.0, 9.0, 33), logarithmic_times(60.0, 540.0, 33)
    assert dt == pytest.approx(same, rel=1e-14)
    np.testing.assert_allclose(seconds, 60 * minutes, rtol=1e-14)
    np.testing.assert_allclose(Hadamard(0.5)(np.sin(minutes), dt=dt), Hadamard(0.5)(np.sin(seconds / 60), dt=same))


def test_logarithmic_times_have_a_constant_ratio_and_exact_ends() -> None:
    t, dt = logarithmic_times(0.1, 1000.0, 50)
    assert (t[0], t[-1]) == (0.1, 1000.0)
    np.testing.assert_allclose(np.diff(np.log(t)), dt, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 2.0, 9), r"^logarithmic_times\(first=0\.0\): needs a finite first > 0; pass for example first=1\.$"),
        ((-1.0, 2.0, 9), r"^logarithmic_times\(first=-1\.0\): needs a finite first > 0; "),
        ((2.0, 1.0, 9), r"^logarithmic_times\(last=1\.0\): needs a finite last > 2; "),
        ((1.0, 2.0, 1), r"^logarithmic_times\(n=1\): needs n >= 2; "),
    ],
)
def test_times_without_a_logarithm_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        logarithmic_times(*arguments)
    with pytest.raises(TypeError, match=r"^logarithmic_times\(first='1'\): needs a real number > 0; "):
        logarithmic_times("1", 2.0, 3)  # type: ignore[arg-type]
