"""The kernels of `multiplier`, by their registration alone, and who chooses between them."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from hpfracc_nn import Alpha, BackendManager, FractionalLaplacian, PeriodicWeyl, SpectralFractional, derivative
from hpfracc_nn import workload as asked
from hpfracc_nn.fractional.torch.multipliers import OP, Symbol, apply_at, formula, multiplied, parts
from hpfracc_nn.selection import Settings, Workload, kernels

KERNELS = kernels(OP, "torch")
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])
SIZES = [(1,), (2,), (7,), (8,), (64,), (3, 4), (4, 3), (2, 3, 4), (3, 1, 5)]


def drawn(sizes, channels=(), is_complex=False, seed=0):
    """Return a symbol of a real operator, samples and a gradient."""
    rng = np.random.default_rng(seed)
    response = torch.as_tensor(rng.standard_normal((*channels, *sizes)))
    values = torch.fft.rfftn(response, dim=tuple(range(-len(sizes), 0)))
    x, g = torch.as_tensor(rng.standard_normal((2, 2, *(channels or (3,)), *sizes)))
    return response, Symbol(values if is_complex else values.real.contiguous(), sizes), x, g


def by_loops(response, x, sizes):
    """Return the circular convolution, sample by sample, as it stands."""
    y = np.zeros(x.shape)
    for at in np.ndindex(*sizes):
        for source in np.ndindex(*sizes):
            lag = tuple((i - j) % n for i, j, n in zip(at, source, sizes, strict=True))
            y[(..., *at)] += response[(..., *lag)] * x[(..., *source)]
    return y


def workload(**facts):
    return Workload(OP, "torch", dtype="float64", **facts)


@every_kernel
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("channels", [(), (3,)], ids=["shared", "per channel"])
def test_a_kernel_is_the_circular_convolution_and_its_adjoint(kernel, sizes, channels):
    response, symbol, x, g = drawn(sizes, channels, is_complex=True)
    form = kernel.prepare(symbol, workload())
    y = kernel.run(form, x, sizes)
    np.testing.assert_allclose(y, by_loops(response.numpy(), x.numpy(), sizes), rtol=0, atol=1e-12 * math.prod(sizes))
    back = kernel.adjoint(form, g, sizes)
    torch.testing.assert_close((y * g).sum((-1,)).sum(), (x * back).sum((-1,)).sum(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("channels", [(), (3,)], ids=["shared", "per channel"])
@pytest.mark.parametrize("sizes", [(1,), (2,), (7,), (8,), (3, 4), (4, 3), (2, 3, 4)], ids=str)
def test_the_gradient_in_the_factors_is_that_of_the_transforms(sizes, channels, is_complex):
    if is_complex and len(sizes) > 1:
        pytest.skip("the operators on several axes have real factors")
    _, symbol, x, g = drawn(sizes, channels, is_complex)
    site = BackendManager(Settings(mode="prior")).site(OP, "torch")
    found = []
    for by in (lambda x, v: multiplied(x, Symbol(v, sizes), site), lambda x, v: formula(x, v, sizes)):
        leaves = x.clone().requires_grad_(), symbol.values.clone().requires_grad_()
        found.append(torch.autograd.grad(by(*leaves), leaves, g))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@every_kernel
def test_a_layer_runs_on_each_kernel_and_says_so(kernel):
    manager = BackendManager(Settings(mode="prior", force_algorithm=kernel.algorithm))
    layer = SpectralFractional(0.7, learn_alpha=True, manager=manager, dt=0.1, dim=-1, dtype=torch.float64)
    x = torch.randn(4, 3, 16, dtype=torch.float64, requires_grad=True)
    before = kernel.calls["run"], kernel.calls["adjoint"]
    y = layer(x)
    y.square().sum().backward()
    assert (kernel.calls["run"], kernel.calls["adjoint"]) == (before[0] + 1, before[1] + 1)
    torch.testing.assert_close(
        y, FractionalLaplacian(torch.as_tensor(layer.alpha).detach())(x, dt=0.1, dim=-1), rtol=0, atol=1e-10
    )
    (plan,) = layer.site.plans()
    assert (plan.kernel.name, plan.forwards, plan.backwards) == (kernel.name, 1, 1)


def test_the_choice_follows_the_size():
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))
    assert manager.plan(workload(rows=64, n=32)).algorithm == "dense"
    assert manager.plan(workload(rows=64, n=4096)).algorithm == "fft"
    refused = manager.explain(workload(rows=1, n=4096))
    assert "n=4096 is more than 1024" in refused


@every_kernel
@pytest.mark.parametrize("orders", [[], [4], [3, 1], [2, 1, 1], [2, 1, 4]], ids=str)
def test_within_a_limit_of_memory_it_is_computed_in_parts_with_the_same_result(kernel, orders):
    x = torch.randn(2, 3, 4, 16, dtype=torch.float64)
    start = torch.linspace(0.3, 1.7, math.prod(orders), dtype=torch.float64).reshape(orders)
    found, limit = [], None
    for _ in range(2):
        settings = Settings(mode="prior", force_algorithm=kernel.algorithm, memory_limit=limit)
        site = BackendManager(settings).site(OP, "torch")
        leaves = x.clone().requires_grad_(), start.clone().requires_grad_()
        y = apply_at("test", leaves[0], FractionalLaplacian(leaves[1]), 0.1, -1, site)
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
        (plan,) = site.plans()
        assert (plan.chunk is None) == (limit is None)
        limit = int(plan.workspace) - 1
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-10)


@every_kernel
def test_the_plan_of_a_long_call_says_how_many_rows_at_a_time(kernel):
    manager = BackendManager(Settings(mode="prior", force_algorithm=kernel.algorithm, memory_limit="64KiB"))
    x = torch.randn(100, 64)
    y = derivative(x, FractionalLaplacian(0.7), dim=-1, manager=manager)
    (plan,) = manager.shared_site(OP, "torch", "functions").plans()
    assert plan.chunk is not None
    assert plan.chunk < 100
    torch.testing.assert_close(y, derivative(x, FractionalLaplacian(0.7), dim=-1))


def test_parts_cover_every_row_once_and_keep_the_channels_together():
    for leading, channels in [
        ((5, 3, 4), (3, 1)),
        ((7,), ()),
        ((2, 3), (3,)),
        ((4, 3, 5), (4, 1, 1)),
        ((3, 2), (3, 2)),
    ]:
        symbol = Symbol(torch.zeros(*channels, 5), (8,))
        for rows in (1, 2, 3, 6, 7, 13, 1000):
            seen = torch.zeros(*leading)
            for place in parts((*leading, 8), symbol, rows):
                assert seen[place].numel() <= max(rows, math.prod(channels))
                seen[place] += 1
            assert bool((seen == 1).all())


def test_the_manager_that_is_asked_for_a_multiplier_is_the_one_that_was_passed():
    manager = BackendManager(Settings(mode="prior", force_algorithm="dense"))
    derivative(torch.randn(4, 64), FractionalLaplacian(0.5), dim=-1, manager=manager)
    (plan,) = manager.shared_site(OP, "torch", "functions").plans()
    assert (plan.kernel.algorithm, plan.forwards) == ("dense", 1)
    with pytest.raises(TypeError, match="needs a BackendManager"):
        derivative(torch.randn(4, 64), FractionalLaplacian(0.5), dim=-1, manager="dense")  # type: ignore[arg-type]


def test_the_workload_of_a_multiplier_is_what_a_call_asks_for():
    cases: list[Any] = [((4, 64), 0.5, -1), ((2, 3, 8, 9), 0.5, (-2, -1)), ((5, 16, 3), [0.5, 1.0, 1.5], 1)]
    for shape, alpha, dim in cases:
        manager = BackendManager(Settings(mode="prior"))
        definition = FractionalLaplacian(alpha)
        derivative(torch.randn(shape), definition, dim=dim, manager=manager)
        (plan,) = manager.shared_site(OP, "torch", "functions").plans()
        assert asked(shape, definition, framework="torch", dim=dim) == plan.workload
    with pytest.raises(ValueError, match="one routine"):
        asked((4, 64), FractionalLaplacian(0.5), framework="numpy")


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
