"""Orders that are passed to layers, random ones above all: who takes them, and what is drawn when."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.distributions import DISTRIBUTIONS
from hpfracc_nn.layers.torch import (
    Alpha,
    FractionalConv2d,
    FractionalDifference,
    FractionalLayer,
    FractionalLinear,
    ProbabilisticAlpha,
)
from tests.layer_cases import LayerCase, all_cases, replace, tensors

every_law = pytest.mark.parametrize("law", DISTRIBUTIONS)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


LAYERS: dict[str, tuple[Callable[[Alpha], Any], tuple[int, ...], tuple[int, ...]]] = {  # layer, order's and x's shape
    "layer": (lambda alpha: FractionalLayer(alpha, "grunwald_letnikov"), (), (2, 3, 30)),
    "layer with channels": (lambda alpha: FractionalLayer(alpha, "grunwald_letnikov"), (3,), (2, 3, 30)),
    "bank": (lambda alpha: FractionalDifference(3, 2, init=alpha), (6,), (2, 3, 30)),
    "linear": (lambda alpha: FractionalLinear(3, 4, alpha=alpha, dtype=torch.float64), (3,), (2, 30, 3)),
    "shared by two axes": (
        lambda alpha: FractionalConv2d(3, 4, 3, dims=(-2, -1), alpha=alpha, dtype=torch.float64),
        (),
        (2, 3, 9, 9),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("law", [*DISTRIBUTIONS, None])
def test_a_layer_takes_an_order_as_its_own(name: str, law: str | None) -> None:
    make, shape, size = LAYERS[name]
    bounds = (0.0, 1.0)
    given = (
        Alpha(0.4, bounds, shape, dtype=torch.float64)
        if law is None
        else ProbabilisticAlpha(0.4, bounds, shape, distribution=law, dtype=torch.float64)
    )
    torch.manual_seed(0)
    layer, x = make(given), torch.randn(*size, dtype=torch.float64)
    assert any(part is given for part in layer.modules())
    assert torch.equal(layer.alpha.reshape(shape), given.mean)
    torch.manual_seed(1)
    first = layer(x)
    assert torch.equal(first, layer(x)) is (law is None)
    torch.manual_seed(1)
    drawn = given()
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)  # one draw a call, the same for all axes
    frozen = make(Alpha(drawn.tolist(), bounds, shape, dtype=torch.float64))
    frozen.load_state_dict(
        {n: v for n, v in layer.state_dict().items() if "raw" not in n and "spread" not in n}, strict=False
    )
    torch.testing.assert_close(frozen(x), first, rtol=1e-9, atol=1e-9)
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    first.square().sum().backward()
    assert all(p.grad is not None and bool((p.grad != 0).all()) for p in given.parameters())


def takes_orders(case: LayerCase) -> bool:
    alpha = inspect.signature(case.layer).parameters.get("alpha")
    return alpha is not None and "Alpha" in str(alpha.annotation)


TAKING = [replace(case, options={k: v for k, v in case.options.items() if k != "bounds"}) for case in all_cases()]
TAKING = [case for case in TAKING if takes_orders(case)]


def seeded(layer: Any, inputs: tuple[Any, ...]) -> Any:
    torch.manual_seed(3)  # for the layers that draw besides
    return layer(*inputs)


@pytest.mark.parametrize("case", TAKING, ids=[case.id for case in TAKING])
def test_a_layer_that_says_so_takes_an_order_as_its_own(case: LayerCase) -> None:
    """With a random order a layer computes what it does with the number that is drawn, or in evaluation the mean."""
    made = case.make()
    parts = [
        part for part in made.modules() if isinstance(part, Alpha)
    ]  # a bank has one for each stretch of its bounds
    bounds = min(part.bounds[0] for part in parts), max(part.bounds[1] for part in parts)
    first = torch.as_tensor(made.alpha).detach()
    given = ProbabilisticAlpha(first.tolist(), bounds, tuple(first.shape), dtype=torch.float64)
    layer, inputs = case.make(given), case.draw()
    assert any(part is given for part in layer.modules())
    assert torch.equal(torch.as_tensor(layer.alpha), given.mean)
    with patch.object(given, "sample", return_value=given.sample(generator=generator())) as drawn:
        found = {training: seeded(layer.train(training), inputs) for training in (True, False)}
    alphas = {True: drawn.return_value, False: given.mean}
    weights = {name: value for name, value in layer.state_dict().items() if not name.endswith(("raw", "spread"))}
    for training, alpha in alphas.items():
        numbers = case.make(alpha.tolist()).train(training)
        numbers.load_state_dict(weights, strict=False)
        expected = list(tensors(seeded(numbers, inputs)))
        for one, other in zip(tensors(found[training]), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_layers_may_share_an_order() -> None:
    shared = Alpha(0.4, (0, 1))
    net = torch.nn.Sequential(FractionalLayer(shared), FractionalLayer(shared))
    assert len(list(net.parameters())) == 1


def test_a_stream_keeps_the_order_that_was_drawn_for_it() -> None:
    layer = FractionalLayer(ProbabilisticAlpha(0.4, dtype=torch.float64), "grunwald_letnikov")
    x = torch.randn(3, 20, dtype=torch.float64, generator=generator())
    torch.manual_seed(1)
    whole = layer(x)
    torch.manual_seed(1)
    state, found = layer.initial_state((3,)), []
    for sample in x.unbind(-1):
        y, state = layer.step(sample, state)
        found.append(y)
    torch.testing.assert_close(torch.stack(found, -1), whole, rtol=1e-10, atol=1e-10)


def test_orders_beyond_a_whole_number_are_one_part_of_a_bank() -> None:
    bank = FractionalDifference(2, init=Alpha([-0.5, 1.2], (-1, 2), (2,), dtype=torch.float64))
    x = torch.randn(3, 2, 40, dtype=torch.float64, generator=generator())
    expected = GrunwaldLetnikov([-0.5, 1.2])(x)
    torch.testing.assert_close(bank(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the compiler tells about its own parts
@every_law
def test_a_compiled_layer_draws_too(law: str) -> None:
    torch._dynamo.reset()
    order = ProbabilisticAlpha(0.4, distribution=law, dtype=torch.float64)
    layer = FractionalLayer(order, "grunwald_letnikov")
    x = torch.randn(3, 40, dtype=torch.float64, generator=generator())
    compiled: Any = torch.compile(layer, backend="aot_eager", fullgraph=True)
    one, other = compiled(x), compiled(x)
    assert not torch.equal(one, other)
    one.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())
    layer.eval()
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-10, atol=1e-10)
    divergence: Any = torch.compile(order.kl, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(divergence(), order.kl(), rtol=1e-12, atol=0)
