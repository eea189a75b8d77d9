"""Definitions at their limits: orders towards 0 and memory far shorter than a step, where a formula loses its digits.

Orders above the range: the way out that the message names.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.interpolate
import torch
from scipy.special import rgamma

from hpfracc_nn.fractional import (
    DEFINITIONS,
    AtanganaBaleanu,
    CaputoFabrizio,
    Riesz,
    TemperedCaputo,
    TemperedRiemannLiouville,
    mittag_leffler,
)

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


# Orders above the range

RATE = 0.7


def caputo_of_exp(alpha: float, t: np.ndarray) -> np.ndarray:
    first = max(0, math.ceil(alpha))
    return np.sum([t ** (k - alpha) / math.gamma(k + 1 - alpha) for k in range(first, first + 40)], axis=0)


def exponential_memory(alpha: float, t: np.ndarray) -> np.ndarray:
    r = (alpha - 1) / (2 - alpha)
    return (np.exp(t) - np.exp(-r * t)) / (1 + r) / (2 - alpha)


def mittag_leffler_memory(alpha: float, t: np.ndarray) -> np.ndarray:
    order = alpha - 1
    places, rule = np.polynomial.legendre.leggauss(60)
    places, rule = (places + 1) / 2, rule / 2
    ages = t[:, None] * places**4  # near 0 the memory is a function of ages**order, here of places**(4 order)
    memory = mittag_leffler(-order / (1 - order) * ages**order, order, 1.0)
    return t * ((np.exp(t[:, None] - ages) * memory) @ (4 * places**3 * rule)) / (1 - order)


def riemann_liouville_of_exp(alpha: float, t: np.ndarray) -> np.ndarray:
    return caputo_of_exp(alpha, t) + np.sum(
        [t ** (k - alpha) * rgamma(k + 1 - alpha) for k in range(math.ceil(alpha))], 0
    )


def tempered(closed_form: Callable) -> Callable:
    grown = 1 + RATE  # exp(RATE t) times exp(t)
    return lambda alpha, t: np.exp(-RATE * t) * grown**alpha * closed_form(alpha, grown * t)


EXPONENTIALS: dict[str, tuple[Callable, float]] = {  # D^alpha of exp, and the error that 400 steps leave
    "caputo": (caputo_of_exp, 5e-4),
    "caputo_hadamard": (caputo_of_exp, 5e-4),
    "marchaud": (lambda alpha, t: np.exp(t), 1e-5),
    "caputo_fabrizio": (exponential_memory, 3e-6),
    "atangana_baleanu": (mittag_leffler_memory, 3e-6),
    "riemann_liouville": (riemann_liouville_of_exp, 1e-3),
    "hadamard": (riemann_liouville_of_exp, 1e-3),
    "grunwald_letnikov": (riemann_liouville_of_exp, 3e-2),  # of first order
    "riemann_liouville_integral": (lambda alpha, t: caputo_of_exp(-alpha, t), 1e-5),
    "hadamard_integral": (lambda alpha, t: caputo_of_exp(-alpha, t), 1e-5),
    "tempered_caputo": (tempered(caputo_of_exp), 1e-3),
    "tempered_riemann_liouville": (tempered(riemann_liouville_of_exp), 1e-3),
}


@pytest.mark.parametrize("name", [name for name, kind in DEFINITIONS.items() if kind is not Riesz])
@pytest.mark.parametrize("above", [0.3, 0.7])
def test_the_way_out_of_an_order_above_the_range_gives_the_derivative_of_that_order(name: str, above: float) -> None:
    """What the message says is done, on exp."""
    kind, (closed_form, most) = DEFINITIONS[name], EXPONENTIALS[name]
    alpha = kind.highest + above
    options: dict[str, Any] = {"rate": RATE} if name.startswith("tempered") else {}
    begin = -20.0 if name == "marchaud" else 0.0
    t = np.linspace(begin, 1, round(400 * (1 - begin)) + 1)
    dt = t[1] - t[0]
    with pytest.raises(ValueError, match=r"needs -?\d <= alpha <= [12]; ") as raised:
        kind(alpha, **options)
    recipe = str(raised.value).partition("; ")[2]
    y, spline = np.exp(t), re.search(r"scipy\.interpolate\.CubicSpline\(.*?\)\(.*?\)", recipe)
    if spline:
        y = eval(spline[0], {"scipy": scipy, "t": t, "u": t, "x": y})  # of Hadamard's, t is the logarithm of time
    if "x' + rate x" in recipe:
        y = scipy.interpolate.CubicSpline(t, y)(t, 1) + RATE * y
    for order in re.findall(r"alpha=([\d.]+\d|\d)", recipe):
        y = kind(float(order), **options)(y, dt=dt)
    if "y' + rate y" in recipe:
        y = np.gradient(y, dt, edge_order=2) + RATE * y
    at = np.array([-201, -1])
    np.testing.assert_allclose(y[at], closed_form(alpha, t[at]), rtol=most)
