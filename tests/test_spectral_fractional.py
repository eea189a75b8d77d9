"""Multipliers of periodic signals in a layer, and what went with the choice of kernels for them."""

import json
import math
import warnings

import pytest
import torch

import hpfracc_nn
from hpfracc_nn import (
    Alpha,
    BackendManager,
    FourierMultiplier,
    FractionalLaplacian,
    PeriodicWeyl,
    SpectralFractional,
    derivative,
    workload,
)
from hpfracc_nn.selection import Settings
from hpfracc_nn.selection.learning.wisdom import _sum


@pytest.mark.parametrize("package", [hpfracc_nn, hpfracc_nn.fractional])
def test_the_old_name_of_the_class_warns(package):
    with pytest.warns(DeprecationWarning, match="is now FourierMultiplier"):
        assert package.Multiplier is FourierMultiplier
    assert "Multiplier" not in package.__all__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert package.FourierMultiplier is FourierMultiplier


def test_what_was_learnt_of_the_old_kernels_still_loads():
    place = ["multiplier", "torch", "cpu", "float32", "time_last", True, False, False, 2]
    timed = {"basis": "84ca52f68078b8ae", "forward": 7e-5, "forward_estimate": 2e-5, "n": 3, "t": 1.0, "trust": "own"}
    entry = {**timed, "backward": None, "backward_estimate": None}
    manager = BackendManager(Settings(mode="prior", wisdom="off"))
    body = json.loads(manager.export_wisdom())
    body.pop("sum")
    body["plans"][json.dumps([place, [6.0, 6.0, 0.0]])] = {"torch/dense": entry, "torch/fft": entry}
    assert manager.import_wisdom(json.dumps({**body, "sum": _sum(body)})) == "own"
    assert derivative(torch.ones(64, 64), PeriodicWeyl(0.5), manager=manager).shape == (64, 64)


def test_no_workload_describes_a_multiplier_and_a_manager_is_still_checked():
    for framework in ("numpy", "torch"):
        with pytest.raises(ValueError, match="one routine"):
            workload((4, 64), FractionalLaplacian(0.5), framework=framework)
    with pytest.raises(TypeError, match="needs a BackendManager"):
        derivative(torch.randn(4, 64), FractionalLaplacian(0.5), dim=-1, manager="dense")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(7,), (3, 8), (4, 3, 6)])
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_the_adjoint_of_a_fixed_multiplier_is_that_of_autograd_also_for_second_gradients(shape, side):
    operator = PeriodicWeyl(0.7, side=side)
    x, g = torch.randn(2, *shape, dtype=torch.float64)
    (found,) = torch.autograd.grad(operator(x.requires_grad_(), dt=0.3), x, g)
    (expected,) = torch.func.vjp(lambda x: operator(x, dt=0.3), x.detach())[1](g)  # of plain operations
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.autograd.gradgradcheck(lambda x: operator(x, dt=0.3) ** 2, (x,))


def test_two_is_minus_the_laplacian_of_what_the_grid_resolves_and_nothing_is_forgotten_of_two_pi():
    x, y = (2 * math.pi * torch.arange(n, dtype=torch.float64) / n for n in (12, 10))
    field = torch.cos(3 * x)[:, None] * torch.sin(2 * y) + 0.5
    for length in (2 * math.pi, 3.0):
        dt = (length / 12, length / 10)
        unit = (2 * math.pi / length) ** 2
        found = SpectralFractional(2.0, dt=dt, dim=(-2, -1))(field)
        torch.testing.assert_close(found, unit * 13 * (field - 0.5), rtol=0, atol=1e-12 * unit * 13)
        half = SpectralFractional(1.0, dt=dt, dim=(-2, -1))(field)
        torch.testing.assert_close(half, (unit * 13) ** 0.5 * (field - 0.5), rtol=0, atol=1e-12 * unit * 13)


def test_a_named_axis_and_each_definition_are_those_of_the_functions():
    x = torch.randn(3, 16, 4, dtype=torch.float64)
    for name in ("periodic_riesz", "periodic_weyl", "fractional_laplacian"):
        layer = SpectralFractional(0.6, name, dim=1, dt=0.2)
        torch.testing.assert_close(layer(x), layer.definition(x, dt=0.2, dim=1))
        assert name in repr(layer)


def test_a_layer_tells_the_options_of_its_definition_also_of_the_users_own():
    class Heat(FractionalLaplacian):
        """The same under another name."""

    assert "definition=Heat, space='periodic'" in repr(SpectralFractional(0.5, Heat))
    assert "side='right'" in repr(SpectralFractional(0.5, PeriodicWeyl(0.5, side="right")))
    assert "space='line'" in repr(SpectralFractional(0.5, FractionalLaplacian(0.5, space="line")))


def test_an_order_that_is_a_module_is_the_layers_own():
    shared = Alpha([0.5, 1.5], (0, 2), (2,))
    layers = [SpectralFractional(shared, dt=dt, dim=-1) for dt in (0.1, 0.2)]
    x = torch.randn(3, 2, 16)
    torch.stack([layer(x).square().sum() for layer in layers]).sum().backward()
    assert layers[0].order is layers[1].order is shared
    assert shared.raw.grad is not None
    assert bool((shared.raw.grad != 0).all())
    assert layers[0].channels == 2
    with pytest.raises(ValueError, match="own bounds"):
        SpectralFractional(shared, bounds=(0, 2))
