"""What autograd records of a call: what it keeps, for how long, and whose values it differentiates."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import hpfracc_nn as fnn
from hpfracc_nn import Caputo, GrunwaldLetnikov
from hpfracc_nn.fractional import tables
from hpfracc_nn.fractional.torch.weights import WeightDerivatives, Weights


def test_a_tensor_that_outlived_a_transform_has_its_gradient() -> None:
    """Functorch leaves a wrapper around what it traced; torch's own functions look through it."""
    left: list[Tensor] = []

    def leaking(value: Tensor) -> Tensor:
        left.append(value)
        return value.square().sum()

    x = torch.randn(3, 40, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    torch.func.grad(leaking)(x)
    torch.func.grad(leaking)(alpha)
    fnn.derivative(left[0], Caputo(left[1])).sum().backward()
    wanted = torch.autograd.grad(fnn.derivative(x, Caputo(alpha)).sum(), (x, alpha))
    assert x.grad is not None
    assert alpha.grad is not None
    torch.testing.assert_close((x.grad, alpha.grad), wanted)


@pytest.mark.slow
def test_a_step_leaves_nothing_to_the_garbage_collector() -> None:
    layer, x = fnn.FractionalLayer(0.5, "caputo", learn_alpha=True), torch.randn(1, 1000)
    layer(x).sum().backward()
    gc.collect()
    gc.disable()
    try:
        before = learned_weights()  # what other tests of this process still hold
        for _ in range(3):
            layer(x).sum().backward()
        assert len(learned_weights()) == len(before)
    finally:
        gc.enable()


def learned_weights() -> list[Any]:
    return [each for each in gc.get_objects() if type(each) in (Weights, WeightDerivatives) and not each.is_fixed]


@pytest.mark.parametrize("kind", [GrunwaldLetnikov, Caputo])
@pytest.mark.parametrize("create_graph", [False, True])
def test_the_gradient_is_that_of_the_alpha_that_was_saved(
    kind: Any, create_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.CACHE.clear()
    monkeypatch.setattr(tables, "_LARGEST", 1 << 10)
    x, alpha = torch.randn(60, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    def gradient(change: bool) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
            y = fnn.derivative(x, kind(alpha))
        if change:
            with torch.no_grad():
                alpha.fill_(0.8)
        return torch.autograd.grad(y.sum(), alpha, create_graph=create_graph)[0].detach()

    assert torch.equal(gradient(False), gradient(True))
    tables.CACHE.clear()


def test_a_dual_gradient_has_its_tangent() -> None:
    x, t = torch.randn(2, 50, requires_grad=True), torch.randn(2, 50)
    y = fnn.derivative(x, Caputo(0.4))
    wanted = torch.autograd.grad(y, x, t, retain_graph=True)[0]
    with forward_ad.dual_level():
        found = torch.autograd.grad(y, x, forward_ad.make_dual(torch.ones_like(t), t))[0]
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, wanted)


def test_any_floating_alpha_is_taken() -> None:
    x = torch.randn(2, 50)
    half = fnn.derivative(x, Caputo(torch.tensor(0.5, dtype=torch.bfloat16)))
    negated = torch.tensor([-0.5j], dtype=torch.complex128).conj().imag
    assert negated.is_neg()
    for found in (half, fnn.derivative(x, Caputo(negated))):
        torch.testing.assert_close(found, fnn.derivative(x, Caputo(torch.tensor(0.5))), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("alpha", "bounds"), [(-0.5, (-1, 2)), (0.3, (0, 2))])
def test_orders_far_below_their_bound_keep_their_digits(alpha: float, bounds: tuple[float, float]) -> None:
    """What is differenced for the upper bound is computed in float64; in float32 nothing was right here."""
    x = torch.randn(16384, generator=torch.Generator().manual_seed(0))
    order = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    y = fnn.derivative(x, GrunwaldLetnikov(order, bounds=bounds))
    right = fnn.derivative(x.double(), GrunwaldLetnikov(alpha))
    assert y.dtype == torch.float32
    assert (y - right).abs().max() <= 1e-6 * right.abs().max()
