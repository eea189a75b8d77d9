"""Definitions with a time scale where a formula loses its digits: orders towards 0, memory far shorter than a step."""

import numpy as np
import pytest
import torch

from hpfracc_nn.fractional import AtanganaBaleanu, CaputoFabrizio, TemperedCaputo, TemperedRiemannLiouville

DT = 0.1
X = np.random.default_rng(0).standard_normal(60)


@pytest.mark.parametrize("unit", [0.3, 1.0, 30.0])
def test_a_caputo_fabrizio_order_leaves_zero_with_the_slope_of_the_closed_form(unit: float) -> None:
    # Of t it is unit / alpha (1 - exp(-r t)) = t + alpha (t - t**2 / (2 unit)) + ..., on every grid.
    alpha = torch.zeros((), dtype=torch.float64, requires_grad=True)
    t = torch.arange(11, dtype=torch.float64) * DT
    y = CaputoFabrizio(alpha, unit=unit)(t, dt=DT)
    slopes = [torch.autograd.grad(value, alpha, retain_graph=True)[0].item() for value in y]
    np.testing.assert_allclose(slopes, t - t**2 / (2 * unit), rtol=0, atol=1e-14 * (1 + 1 / unit))


@pytest.mark.parametrize("alpha", [0.0, 1e-5, 2e-4, 1e-3, 0.3])
def test_the_first_atangana_baleanu_sample_needs_no_memory(alpha: float) -> None:
    order = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    for given in (alpha, order):
        first = AtanganaBaleanu(given, sense="riemann_liouville")(torch.ones(3, dtype=torch.float64))[0]
        assert first.item() == pytest.approx(1 / (1 - alpha), rel=1e-14)
    (slope,) = torch.autograd.grad(first, order)
    assert slope.item() == pytest.approx(1 / (1 - alpha) ** 2, rel=1e-12)


@pytest.mark.parametrize("kind", [TemperedCaputo, TemperedRiemannLiouville])
@pytest.mark.parametrize("scheme", TemperedCaputo.schemes)
def test_memory_that_is_shorter_than_a_step_may_be_as_short_as_it_likes(
    kind: type[TemperedCaputo], scheme: str
) -> None:
    gone, shorter = (kind(0.4, scheme, rate=rate / DT)(X, dt=DT) for rate in (700.0, 1e4))
    np.testing.assert_allclose(shorter, gone, rtol=1e-13)


@pytest.mark.parametrize("kind", [AtanganaBaleanu, CaputoFabrizio])
def test_the_second_derivative_in_the_order_is_whole_at_zero(kind: type[AtanganaBaleanu | CaputoFabrizio]) -> None:
    """Against the quotient of slopes above zero, which is off by step**2."""
    t = torch.linspace(0, 1, 11, dtype=torch.float64)

    def slope(alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(kind(order)(t**2, dt=DT)[-1], order, create_graph=True)
        return found, order

    at_zero, order = slope(0.0)
    (curve,) = torch.autograd.grad(at_zero, order)
    step = 1e-4
    quotient = (-3 * at_zero + 4 * slope(step)[0] - slope(2 * step)[0]).item() / (2 * step)
    assert curve.item() == pytest.approx(quotient, rel=1e-6)
