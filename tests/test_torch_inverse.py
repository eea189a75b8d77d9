"""The inverse operators on tensors: as NumPy's, differentiable in all that they depend on."""

import math

import numpy as np
import pytest
import torch

import hpfracc_nn as fnn
from hpfracc_nn.fractional import Caputo, GrunwaldLetnikov, RiemannLiouville, RiemannLiouvilleIntegral
from tests.test_inverse import DT, SCHEMES, orders_of, start_of

every_scheme = pytest.mark.parametrize(("kind", "scheme"), SCHEMES)


def randn(*shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


@every_scheme
def test_tensors_give_what_arrays_give(kind, scheme):
    y = randn(2, 60)
    for alpha in orders_of(kind):
        definition = kind(alpha, scheme)
        given = start_of(definition, y.numpy())
        wanted = fnn.solve(y.numpy(), definition, dt=DT, **given)
        start = {name: torch.as_tensor(value) for name, value in given.items()}
        got = fnn.solve(y, definition, x0=start.get("x0"), dx0=start.get("dx0"), dt=DT)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-11 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("bounds", [(0, 1), (1, 2)])
@every_scheme
@pytest.mark.slow
def test_gradients_of_first_and_second_order(kind, scheme, bounds):
    if kind is RiemannLiouvilleIntegral and bounds == (1, 2):
        pytest.skip("from order 1 on it has no inverse")
    y, alpha = randn(2, 12).requires_grad_(), torch.tensor(bounds[0] + 0.4, dtype=torch.float64, requires_grad=True)
    names = list(start_of(kind(bounds[0] + 0.4, scheme), y.detach().numpy()))
    start = [randn(2, seed=1 + k).requires_grad_() for k in range(len(names))]

    def solve(y, alpha, *start):
        return fnn.solve(y, kind(alpha, scheme, bounds), **dict(zip(names, start, strict=True)))

    assert torch.autograd.gradcheck(solve, (y, alpha, *start), fast_mode=True)
    assert torch.autograd.gradgradcheck(solve, (y, alpha, *start), fast_mode=True)


@pytest.mark.parametrize("kind", [Caputo, RiemannLiouville, GrunwaldLetnikov])
def test_a_learned_order_is_undone_per_channel(kind):
    x, alpha = randn(2, 3, 50), torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    given = {"x0": x[..., 0]} if kind is Caputo else {}
    got = fnn.solve(kind(alpha)(x, dt=DT), kind(alpha), dt=DT, **given)
    torch.testing.assert_close(got, x, rtol=0, atol=1e-10)
    (slope,) = torch.autograd.grad(got.square().sum(), alpha)
    torch.testing.assert_close(slope, torch.zeros(3).double(), rtol=0, atol=1e-7)  # x does not depend on the order


NUMBERS = pytest.mark.parametrize(
    "number", [float, np.float64, np.array, lambda x: [x, x]], ids=["float", "numpy", "array", "list"]
)


@NUMBERS
def test_numbers_at_the_start_keep_the_digits_of_the_data(number):
    # A line has Caputo's derivative 0 above order 1; rounded to single precision 0.1 would be off by 1.5e-9.
    t = DT * np.arange(9.0)
    got = fnn.solve(torch.zeros(2, 9).double(), Caputo(1.5), dt=DT, x0=number(0.1), dx0=number(0.3))
    np.testing.assert_allclose(got, np.stack([0.1 + 0.3 * t] * 2), rtol=0, atol=1e-12)


@NUMBERS
def test_they_do_for_an_integral(number):
    # The integral of 0.1 is 0.1 t**alpha / Gamma(1 + alpha).
    integral = RiemannLiouvilleIntegral(0.5)
    y = 0.1 * (DT * torch.arange(9, dtype=torch.float64)) ** 0.5 / math.gamma(1.5)
    got = fnn.solve(torch.stack([y, y]), integral, dt=DT, x0=number(0.1))
    np.testing.assert_allclose(got, np.full((2, 9), 0.1), rtol=0, atol=1e-12)


def test_single_precision_other_axes_and_transforms():
    x = randn(3, 40, 2)
    y = Caputo(0.5)(x, dt=DT, dim=1)
    got = fnn.solve(y.float(), Caputo(0.5), x0=x[:, 0].float(), dt=DT, dim=1)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), x, rtol=0, atol=2e-5)
    each = torch.stack([fnn.solve(one, Caputo(0.5), dt=DT, dim=0) for one in y])
    mapped = torch.func.vmap(lambda y: fnn.solve(y, Caputo(0.5), dt=DT, dim=0))(y)
    torch.testing.assert_close(mapped, each, rtol=0, atol=1e-12)
    assert fnn.solve(torch.zeros(2, 0), Caputo(0.5)).shape == (2, 0)
