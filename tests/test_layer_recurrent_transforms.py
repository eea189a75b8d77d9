"""What looks at a recurrent layer: second gradients, forward mode, tracers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradgradcheck

from hpfracc_nn.layers.torch import FractionalGRU, FractionalLSTM

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # forward mode
each_kind = pytest.mark.parametrize("kind", [FractionalLSTM, FractionalGRU], ids=["lstm", "gru"])


def made(kind: Any, **options: Any) -> Any:
    torch.manual_seed(1)
    return kind(3, 5, **{"alpha": 0.6, "learn_alpha": True, "dtype": torch.float64, **options})


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@each_kind
def test_gradients_that_are_recorded_are_those_that_are_not(kind: Any) -> None:
    """The order is upstream of the second layer's inputs, the weights upstream of the start: each path counts once."""
    layer, x, weights = made(kind, num_layers=2), drawn(12, 2, 3), drawn(12, 2, 5, seed=1)
    leaves, raw = list(layer.parameters()), layer.order.raw

    def loss() -> Tensor:
        _, hx = layer(x)
        return (layer(x, hx)[0] * weights).square().sum()

    plain, recorded = (torch.autograd.grad(loss(), leaves, create_graph=creates) for creates in (False, True))
    torch.testing.assert_close(recorded, plain, rtol=1e-10, atol=1e-11)
    batched = torch.autograd.grad(loss(), leaves, torch.ones(2).double(), is_grads_batched=True, create_graph=True)
    torch.testing.assert_close(tuple(each[1] for each in batched), plain, rtol=1e-10, atol=1e-11)
    (second,) = torch.autograd.grad(recorded[next(k for k, each in enumerate(leaves) if each is raw)], raw)
    slopes = []
    for step in (1e-4, -1e-4):
        with torch.no_grad():
            raw += step
        slopes.append(torch.autograd.grad(loss(), raw)[0])
        with torch.no_grad():
            raw -= step
    torch.testing.assert_close(second, (slopes[0] - slopes[1]) / 2e-4, rtol=1e-6, atol=0)  # 1e-4 squared


def test_second_gradients_of_two_layers_are_those_of_differences() -> None:
    layer, x = made(FractionalGRU, num_layers=2), drawn(5, 1, 3)
    names, values = zip(*layer.named_parameters(), strict=True)
    leaves = [each.detach().clone().requires_grad_() for each in values]

    def run(*given: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(layer, dict(zip(names, given, strict=True)), (x,))[0]
        return out

    assert gradgradcheck(run, leaves, fast_mode=True, atol=1e-6)


@each_kind
def test_forward_mode_over_a_recorded_pass_moves_its_gradients(kind: Any) -> None:
    layer, x = made(kind), drawn(8, 2, 3).requires_grad_()
    out = layer(x)[0]
    g, tangent = drawn(*out.shape, seed=1), drawn(*out.shape, seed=2)
    (expected,) = torch.autograd.grad(out, x, tangent, retain_graph=True)
    with forward_ad.dual_level():
        (found,) = torch.autograd.grad(out, x, forward_ad.make_dual(g, tangent))
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, expected, rtol=1e-12, atol=1e-13)
