"""The Riesz derivative on an interval: closed forms of signals that vanish outside, limits, its periodic namesake."""

import itertools
import math

import numpy as np
import pytest

from hpfracc_nn.fractional import PeriodicRiesz, RiemannLiouville, Riesz, exact
from hpfracc_nn.fractional.namespace import NUMPY
from tests.reference_cases import EXTENDED


def rates(errors: list[float]) -> list[float]:
    return [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]


@pytest.mark.parametrize("alpha", [0.3, 0.8, 1.0, 1.2, 1.8])
def test_a_gaussian_has_its_closed_form_to_second_order(alpha: float) -> None:
    errors = []
    for n_steps in (200, 400):
        t = np.linspace(-6, 6, n_steps + 1)
        y = Riesz(alpha)(np.exp(-(t**2)), dt=12 / n_steps)
        errors.append(np.abs(y + exact.gaussian(t, alpha)).max())
    assert rates(errors)[0] > 1.95


@pytest.mark.parametrize("alpha", [0.5, 1.2, 1.6])
def test_getoors_function_has_a_constant_value_at_the_measured_rate(alpha: float) -> None:
    case, errors = EXTENDED["fraclap_getoor_a12"], []
    wanted = float(case["values"][0]) if alpha == case["alpha"] else exact.getoor(alpha)
    assert exact.getoor(1.2) == pytest.approx(float(case["values"][0]), rel=1e-15)
    for n_steps in (200, 400, 800):
        t = np.linspace(-1, 1, n_steps + 1)
        y = Riesz(alpha)(np.maximum(1 - t**2, 0) ** (alpha / 2), dt=2 / n_steps)
        inside = np.rint((np.array(case["points"]) + 1) / 2 * n_steps).astype(int)
        errors.append(np.abs(y[inside] + wanted).max())
    np.testing.assert_allclose(rates(errors), 1 + alpha / 2, atol=0.1)


@pytest.mark.parametrize("alpha", [0.4, 1.5])
def test_it_is_the_sum_of_both_riemann_liouville_derivatives(alpha: float) -> None:
    gaps = []
    for n_steps in (200, 400):
        t = np.linspace(0, 1, n_steps + 1)
        x = (t * (1 - t)) ** 4
        both = RiemannLiouville(alpha, side="both")(x, dt=1 / n_steps) / -math.cos(math.pi * alpha / 2)
        gaps.append(np.abs(Riesz(alpha)(x, dt=1 / n_steps) - both).max())
    assert rates(gaps)[0] > 1.9


def test_the_second_order_is_the_second_difference() -> None:
    dense = Riesz(2.0).stencil(9, 0.5, NUMPY).as_matrix()
    second = (np.eye(9, k=1) - 2 * np.eye(9) + np.eye(9, k=-1)) / 0.25
    np.testing.assert_allclose(dense, second, rtol=0, atol=1e-13)


@pytest.mark.parametrize("alpha", [0.5, 1.5])
def test_weights_are_the_fourier_coefficients_of_the_symbol(alpha: float) -> None:
    """On a long circle the periodic sums of the weights are the transform of |2 sin(theta / 2)|**alpha."""
    n = 2**16
    symbol = np.abs(2 * np.sin(np.pi * np.arange(n) / n)) ** alpha
    wanted = np.fft.ifft(symbol).real[:40]
    got = Riesz(alpha).stencil(40, 1.0, NUMPY).as_matrix()[0]
    # what wraps round: weights of lag n and more, below n**-(1 + alpha) each
    np.testing.assert_allclose(-got, wanted, rtol=0, atol=4 * n ** -(1 + alpha))


def test_in_the_middle_of_a_short_pulse_it_is_its_periodic_namesake() -> None:
    t = np.linspace(-20, 20, 4001)
    x = np.exp(-(t**2) / 0.5)
    on_line, on_circle = Riesz(1.3)(x, dt=0.01), PeriodicRiesz(1.3)(x, dt=0.01)
    assert np.abs(on_line - on_circle)[1900:2101].max() < 2e-3  # images: 40**-2.3 times a mass of 1


def test_single_precision_is_computed_in_double() -> None:
    t = np.linspace(-6, 6, 4001)
    x = np.exp(-(t**2)).astype(np.float32)
    exactly = Riesz(1.5)(x.astype(np.float64), dt=12 / 4000)
    y = Riesz(1.5)(x, dt=12 / 4000)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, exactly, rtol=1e-6, atol=1e-6 * np.abs(exactly).max())


def test_orders_without_a_scheme_name_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"needs 0 <= alpha <= 2; use PeriodicRiesz, which has no largest order\.$"):
        Riesz(2.5)
    with pytest.raises(ValueError, match=r"needs 0 <= alpha <= 2; for a potential use PeriodicRiesz\(-0\.5\)\.$"):
        Riesz(-0.5)
