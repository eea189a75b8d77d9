"""What looks at a recurrent layer: second gradients, forward mode, tracers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradgradcheck

from hpfracc_nn.layers.torch import FractionalGRU, FractionalLSTM
from hpfracc_nn.layers.torch.recurrence import FORWARD, Inputs, Recurrence

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


def operation(kind: Any, **options: Any) -> tuple[Any, Any, Tensor]:
    """Return the layer as a function of the gates' input part, by the graphs' operation and by the plain call."""
    layer, projected = made(kind, **options), drawn(7, 2, 5 * kind.cell.gates)
    start = drawn(2, 5, seed=3), drawn(2, 5, seed=4) if kind is FractionalLSTM else drawn(2, 5, seed=3)
    names: Any = (kind.cell.name, layer.memory or 0, [], [0.0, 1.0])

    def given(x: Tensor) -> Inputs:
        return layer._inputs(x, layer._weights(0), layer._order_on(x.device), start)

    def called(x: Tensor) -> Tensor:
        out, values = FORWARD(*given(x), *names)
        return torch.cat([out, values], -1)

    recurrence = Recurrence(layer.cell, layer.site, layer.memory, layer.definition)
    return called, lambda x: torch.cat(recurrence(given(x)), -1), projected


@pytest.mark.parametrize("memory", [None, 3])
@each_kind
def test_in_a_loaded_graph_the_operation_is_the_plain_call_under_every_transform(kind: Any, memory: Any) -> None:
    found, expected, x = operation(kind, memory=memory)
    tangent, g = drawn(*x.shape, seed=5), drawn(*expected(x).shape, seed=6)

    def slope(f: Any) -> Any:
        return torch.func.grad(lambda x: (f(x) * g).sum())

    def dual(f: Any) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent))).tangent

    def second(f: Any) -> Tensor:
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(leaf), leaf, g, create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaf)[0]

    def batched(f: Any) -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(f(leaf), leaf, torch.stack([g, 2 * g]), is_grads_batched=True)[0]

    transforms: Any = (
        lambda f: torch.func.jvp(f, (x,), (tangent,))[1],
        lambda f: slope(f)(x),
        lambda f: torch.func.jvp(slope(f), (x,), (tangent,))[1],
        lambda f: torch.vmap(f)(torch.stack([x, 2 * x])),
        lambda f: torch.vmap(slope(f))(torch.stack([x, 2 * x])),
        dual,
        second,
        batched,
    )
    for transform in transforms:
        torch.testing.assert_close(transform(found), transform(expected), rtol=1e-10, atol=1e-12)


def test_a_compiled_graph_refuses_tangents_that_reach_it() -> None:
    layer, x = made(FractionalGRU), drawn(7, 2, 15)
    given = layer._inputs(x, layer._weights(0), layer._order_on(x.device), None)
    with forward_ad.dual_level():
        moved = given._replace(projected=forward_ad.make_dual(x, x))
        with pytest.raises(RuntimeError, match="loses the tangents of its inputs"):
            FORWARD(*moved, "gru", 0, [], [0.0, 1.0], True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the compiler tells about its own parts
@each_kind
def test_transforms_inside_of_a_graph_compute_the_same(kind: Any) -> None:
    layer, x, tangent = made(kind), drawn(8, 2, 3), drawn(8, 2, 3, seed=1)
    transforms: Any = (
        lambda x: torch.vmap(lambda one: layer(one)[0])(torch.stack([x, 2 * x])),
        torch.func.grad(lambda x: layer(x)[0].sum()),
        lambda x: torch.func.jvp(lambda x: layer(x)[0], (x,), (tangent,))[1],
    )
    for transform in transforms:
        torch._dynamo.reset()
        compiled: Any = torch.compile(transform, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), transform(x), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@each_kind
def test_an_exported_layer_is_transformed_as_a_plain_call_is(kind: Any) -> None:
    layer, x, tangent = made(kind), drawn(8, 2, 3), drawn(8, 2, 3, seed=1)
    program = torch.export.export(layer, (x,))
    transforms: Any = (
        lambda f: torch.func.jvp(lambda x: f(x)[0], (x,), (tangent,))[1],
        lambda f: torch.func.jacrev(lambda x: f(x)[0].sum(0))(x),
        lambda f: torch.autograd.functional.hvp(lambda x: f(x)[0].square().sum(), x, tangent)[1],
    )
    for loaded in (program.module(), program.run_decompositions().module()):
        for transform in transforms:
            torch.testing.assert_close(transform(loaded), transform(layer), rtol=1e-10, atol=1e-12)


@each_kind
def test_torch_jit_trace_is_refused(kind: Any) -> None:
    layer, x = made(kind), drawn(8, 2, 3)
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace cannot follow it"):
        torch.jit.trace(layer, (x,))
