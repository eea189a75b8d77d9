"""Energies of fractional differences of fractional Gaussian noise: the spectral integral, and what it tells of H."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from hpfracc_nn import Alpha, RoughnessFeatures
from hpfracc_nn.data import fgn
from tests.noise_spectrum import energy


def signals(hurst, count, n, seed=0):
    rng = np.random.default_rng(seed)
    return torch.as_tensor(np.stack([fgn(n, hurst, rng) for _ in range(count)]))[:, None]


def test_the_density_has_variance_one():
    assert [energy(0.0, hurst) for hurst in (0.2, 0.5, 0.8)] == pytest.approx([1, 1, 1], rel=1e-6)


@pytest.mark.parametrize("hurst", [0.2, 0.5, 0.8])
def test_features_of_noise_are_the_spectral_integral(hurst):
    alphas = [-0.15 if hurst < 0.6 else 0.25, 0.0, 0.4, 0.9]
    layer = RoughnessFeatures(1, 4, alpha=alphas, skip=512)
    count = 24
    found = layer(3.0 * signals(hurst, count, 2048))
    expected = [math.log(9 * energy(alpha, hurst)) for alpha in alphas]
    error = found.std(0) / count**0.5
    # What lies before the first sample is worth about skip**(2 H - 2 - 2 alpha) at sample skip: 0.4 % at most here.
    assert bool(((found.mean(0) - torch.tensor(expected)).abs() < 4 * error + 4e-3).all())


def test_the_slope_between_two_orders_falls_with_the_hurst_index():
    indices = np.linspace(0.1, 0.9, 9)
    slopes = [math.log(energy(0.5, hurst) / energy(0.0, hurst)) / 0.5 for hurst in indices]
    assert (np.diff(slopes) < -0.05).all()
    for alpha in (0.0, 0.3, 0.6, 0.9):
        short = [energy(alpha + 0.1, hurst) / energy(alpha, hurst) for hurst in indices]
        assert (np.diff(short) < 0).all()
    layer = RoughnessFeatures(1, 2, alpha=[0.0, 0.5], skip=256)
    for hurst in (0.3, 0.7):
        low, high = layer(signals(hurst, 20, 4096, seed=1)).mean(0).tolist()
        found = np.interp(-(high - low) / 0.5, -np.array(slopes), indices)
        assert found == pytest.approx(hurst, abs=0.02)  # 20 signals know it to 0.003; the rest is interpolation


def test_features_do_not_depend_on_the_place_of_the_time_axis_and_scale_adds_its_logarithm():
    x = torch.randn(3, 2, 50, dtype=torch.float64)
    last = RoughnessFeatures(2, 2, alpha=[0.3, -0.3])
    middle = RoughnessFeatures(2, 2, alpha=[0.3, -0.3], dim=1)
    torch.testing.assert_close(middle(x.mT), last(x))
    torch.testing.assert_close(last(10 * x), last(x) + math.log(100), rtol=0, atol=1e-10)
    silent = RoughnessFeatures(2, 2, floor=1e-6)(torch.zeros(1, 2, 8))
    torch.testing.assert_close(silent, torch.full((1, 4), math.log(1e-6)))


def test_a_step_returns_the_features_so_far():
    layer = RoughnessFeatures(2, 3, skip=2)
    x = torch.randn(4, 2, 30)
    state = layer.initial_state((4, 2))
    kept = state
    for t in range(30):
        features, state = layer.step(x[..., t], state)
        if t < 2:
            torch.testing.assert_close(features, torch.full((4, 6), math.log(1e-12)))
        else:
            torch.testing.assert_close(features, layer(x[..., : t + 1]), rtol=0, atol=1e-4)  # float32 against float64
    assert (kept.step, state.step) == (0, 30)
    assert not kept.sums.any()
    again = pickle.loads(pickle.dumps(state.to("cpu").detach().renew(layer.initial_state((4, 2)))))
    torch.testing.assert_close(layer.step(x[..., 0], again)[0], layer.step(x[..., 0], state)[0], rtol=0, atol=0)
    assert state.nbytes == kept.nbytes == again.nbytes
    leaves, structure = torch.utils._pytree.tree_flatten(state)
    assert all(leaf is None or isinstance(leaf, torch.Tensor) for leaf in leaves)
    assert torch.utils._pytree.tree_unflatten(leaves, structure).step == 30
    with pytest.raises(TypeError, match="initial_state"):
        layer.step(x[..., 0], None)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once_and_does_not_overflow(dtype):
    layer = RoughnessFeatures(1, 2, alpha=[0.3, 0.9], dt=1e-3)  # differences of some 500 times the samples
    x = (200 * torch.randn(2, 1, 64)).to(dtype)
    found = layer(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, layer(x.float()).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize(("bounds", "orders"), [((-1, 1), 3), ((-0.8, 0.8), 5)], ids=str)
def test_orders_are_spread_evenly_and_a_learned_one_starts_where_it_can_move(bounds, orders):
    low, high = bounds
    even = torch.linspace(low, high, orders + 2, dtype=torch.float64)[1:-1]
    torch.testing.assert_close(RoughnessFeatures(1, orders, bounds=bounds).alpha, even, rtol=0, atol=1e-12)
    learned = RoughnessFeatures(1, orders, bounds=bounds, learn_alpha=True)
    middle = orders // 2
    even[middle] = 0.05
    torch.testing.assert_close(learned.alpha.detach(), even, rtol=0, atol=1e-6)
    torch.manual_seed(0)  # any draw does but the rare one at which a slope is nearly 0
    learned(torch.randn(2, 1, 32)).sum().backward()
    parts: Any = learned.differences.parts
    slopes = torch.cat([part.raw.grad for part in parts])
    assert bool((slopes.abs() > 1e-4).all())


def test_an_order_that_is_a_module_brings_its_own_bounds():
    order = Alpha([0.3, 0.6], (0, 1), (2,))
    layer = RoughnessFeatures(1, 2, alpha=order)
    torch.testing.assert_close(layer.alpha, order())
    across = RoughnessFeatures(1, 1, alpha=Alpha([0.0], (-1, 1), (1,), dtype=torch.float64))
    x = torch.randn(1, 1, 16, dtype=torch.float64)
    torch.testing.assert_close(across(x), x.square().mean(-1).log(), rtol=0, atol=1e-10)


def test_learned_orders_move_towards_what_tells_two_classes_apart():
    """By gradient of the t statistic between two Hurst indices, in which the orders alone are free."""
    layer = RoughnessFeatures(1, 2, alpha=[0.05, 0.15], bounds=(0, 1), learn_alpha=True, skip=32, dtype=torch.float64)
    one, other = signals(0.4, 60, 256), signals(0.6, 60, 256, seed=1)

    def separation():
        a, b = (layer(x) @ torch.tensor([1.0, -1.0], dtype=torch.float64) for x in (one, other))
        return (a.mean() - b.mean()).square() / (a.var() + b.var())

    before = separation()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(15):
        optimizer.zero_grad()
        (-separation()).backward()
        optimizer.step()
    assert separation() > before
