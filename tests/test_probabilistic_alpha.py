"""Random orders: their laws, their gradients, the divergence from a prior, and how layers take them."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.torch.laws import LAWS
from hpfracc_nn.layers.torch import (
    Alpha,
    FractionalConv2d,
    FractionalDifference,
    FractionalLayer,
    FractionalLinear,
    ProbabilisticAlpha,
)
from tests.layer_cases import LayerCase, all_cases, replace, tensors

every_law = pytest.mark.parametrize("law", LAWS)
BOUNDS = (-1.0, 3.0)
WIDTH = BOUNDS[1] - BOUNDS[0]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def order(law: str, init: Any = 0.8, std: Any = 0.4, shape: tuple[int, ...] = (), **options: Any) -> ProbabilisticAlpha:
    return ProbabilisticAlpha(init, BOUNDS, shape, distribution=law, std=std, dtype=torch.float64, **options)


def density(of: ProbabilisticAlpha) -> Callable[[float], float]:
    """Return the density of alpha, from SciPy and the law's own parameters."""
    one, two = (float(value) for value in LAWS[of.distribution].own(of.raw.detach(), of.spread.detach()))

    def normal(u: float) -> float:
        return float(stats.norm.pdf(special.logit(u), one, two)) / (u * (1 - u))

    laws: dict[str, Callable[[float], float]] = {
        "normal": normal,
        "beta": lambda u: float(stats.beta.pdf(u, one, two)),
        "uniform": lambda u: float(stats.uniform.pdf(u, one, two - one)),
    }
    return lambda alpha: laws[of.distribution]((alpha - BOUNDS[0]) / WIDTH) / WIDTH


def integral(of: Callable[[float], float], low: float = BOUNDS[0], high: float = BOUNDS[1]) -> float:
    parts = np.linspace(low, high, 9)
    return sum(integrate.quad(of, a, b, epsabs=1e-12)[0] for a, b in pairwise(parts))


def support(of: ProbabilisticAlpha) -> tuple[float, float]:
    if of.distribution != "uniform":
        return BOUNDS
    mean, half = of.mean.item(), math.sqrt(3) * of.std.item()
    return mean - half, mean + half


@every_law
@pytest.mark.parametrize(("init", "std"), [(0.8, 0.4), (-0.7, 0.1), (2.9, 0.02), (1.0, 1.0)])
def test_it_begins_with_the_mean_and_the_deviation_that_it_is_given(law: str, init: float, std: float) -> None:
    found = order(law, init, std)
    assert found.mean.item() == pytest.approx(init, abs=1e-11)
    assert found.std.item() == pytest.approx(std, rel=1e-11)
    low, high = support(found)
    p = density(found)
    assert integral(p, low, high) == pytest.approx(1, abs=1e-8)
    mean = integral(lambda a: a * p(a), low, high)
    assert mean == pytest.approx(init, abs=1e-8)
    assert integral(lambda a: (a - mean) ** 2 * p(a), low, high) == pytest.approx(std**2, rel=1e-6)


@every_law
@pytest.mark.parametrize("share", [1e-4, 0.1, 0.5, 0.999])
def test_every_standard_deviation_up_to_the_widest_has_a_member(law: str, share: float) -> None:
    kind, mean = LAWS[law], torch.tensor([0.01, 0.2, 0.5, 0.95], dtype=torch.float64)
    std = share * kind.widest(mean)
    own = kind.own(*kind.free(*kind.member(mean, std)))
    for found, expected in zip(kind.moments(*own), (mean, std), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


@every_law
def test_the_moments_of_samples_are_its_own(law: str) -> None:
    found, count = order(law, [0.8, -0.6], [0.4, 0.1], (2,)), 200_000
    with torch.no_grad():
        draws = found.sample((count,), generator=generator())
    assert draws.shape == (count, 2)
    assert bool(((draws > BOUNDS[0]) & (draws < BOUNDS[1])).all())
    error = draws.std(0) / math.sqrt(count)
    assert bool(((draws.mean(0) - found.mean).abs() <= 4 * error).all())
    squares = (draws - found.mean).square()
    assert bool(((squares.mean(0) - found.std.square()).abs() <= 4 * squares.std(0) / math.sqrt(count)).all())


@every_law
@pytest.mark.parametrize("prior", [None, (0.5, 0.3)])
def test_the_divergence_is_the_integral_of_its_definition(law: str, prior: tuple[float, float] | None) -> None:
    found = order(law, 0.6, 0.15, prior=prior)
    mean, std = prior or (1.0, WIDTH / math.sqrt(12))
    even = law == "uniform" and prior is None  # its ends are the bounds, which no learned law reaches
    p, q = density(found), (lambda alpha: 1 / WIDTH) if even else density(order(law, mean, std))
    expected = integral(lambda a: special.rel_entr(p(a), q(a)), *support(found))
    assert found.kl().item() == pytest.approx(expected, rel=1e-6)


@every_law
def test_divergences_add_up_vanish_at_the_prior_and_have_gradients(law: str) -> None:
    several = order(law, [0.5, 0.8], 0.2, (2,), prior=(0.6, 0.4))
    single = [order(law, init, 0.2, prior=(0.6, 0.4)).kl().item() for init in (0.5, 0.8)]
    assert several.kl().item() == pytest.approx(sum(single))
    assert order(law, 0.6, 0.4, prior=(0.6, 0.4)).kl().item() == pytest.approx(0, abs=1e-12)
    values = [several.raw.detach().clone().requires_grad_(), several.spread.detach().clone().requires_grad_()]

    def kl(raw: Tensor, spread: Tensor) -> Tensor:
        holder = copy.deepcopy(several)
        del holder.raw, holder.spread
        holder.raw, holder.spread = raw, spread  # type: ignore[assignment]
        return holder.kl()

    assert gradcheck(kl, values)


def test_a_uniform_law_beyond_its_prior_diverges() -> None:
    assert order("uniform", 0.5, 0.4, prior=(0.5, 0.3)).kl().item() == math.inf


@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_gradients_of_samples_are_those_of_differences_with_the_same_random_numbers(law: str) -> None:
    found = order(law, [0.8, -0.6], [0.4, 0.1], (2,))

    def draw(raw: Tensor, spread: Tensor) -> Tensor:
        own = LAWS[law].own(raw, spread)
        return LAWS[law].sample(own, (5,), generator(3))

    values = (found.raw.detach().requires_grad_(), found.spread.detach().requires_grad_())
    assert gradcheck(draw, values)
    assert gradgradcheck(draw, values)


def test_gradients_of_a_beta_law_keep_the_probabilities_of_its_gamma_numbers() -> None:
    """A gamma number moves with its parameter so that the probability below it stays, by finite differences."""
    parameters = torch.tensor([[0.7, 2.5], [4.0, 0.3]], dtype=torch.float64, requires_grad=True)
    u = LAWS["beta"].sample((parameters[0], parameters[1]), (50,), generator(3))
    gammas = torch._standard_gamma(parameters.detach().T.expand(50, 2, 2), generator=generator(3)).numpy()
    np.testing.assert_allclose(u.detach().numpy(), gammas[..., 0] / gammas.sum(-1), rtol=1e-14)
    (found,) = torch.autograd.grad(u.sum(), parameters)
    below, step = special.gammainc(parameters.detach().T.numpy(), gammas), 1e-5
    for which in (0, 1):
        moved = []
        for sign in (1, -1):
            shape = parameters.detach().T.numpy().copy()
            shape[:, which] += sign * step
            g = special.gammaincinv(shape, below)
            moved.append((g[..., 0] / g.sum(-1)).sum(0))
        np.testing.assert_allclose(found[which].numpy(), (moved[0] - moved[1]) / (2 * step), rtol=1e-4)


@every_law
def test_gradients_of_samples_are_on_average_those_of_the_mean(law: str) -> None:
    count = 50_000
    many = order(law, shape=(count,))  # a draw and a gradient each
    draws = torch.autograd.grad(many.sample(generator=generator(1)).sum(), (many.raw, many.spread))
    one = order(law)
    for found, expected in zip(draws, torch.autograd.grad(one.mean, (one.raw, one.spread)), strict=True):
        assert abs(found.mean() - expected) <= 4 * found.std() / math.sqrt(count)


@every_law
def test_training_draws_and_evaluation_takes_the_mean(law: str) -> None:
    found = order(law)
    torch.manual_seed(0)
    one, other = found(), found()
    assert one.dtype == torch.float64
    assert one.item() != other.item()
    torch.manual_seed(0)
    assert torch.equal(found(), one)
    found.eval()
    assert torch.equal(found(), found.mean)
    assert torch.equal(found.sample(generator=generator()), found.sample(generator=generator()))


@every_law
def test_copies_and_files_keep_the_law(law: str) -> None:
    found = order(law, [0.5, 0.8], [0.2, 0.3], (2,), prior=(0.6, 0.4))
    other = order(law, 1.0, None, (2,), prior=(0.6, 0.4))
    other.load_state_dict(found.state_dict())
    for copied in (copy.deepcopy(found), pickle.loads(pickle.dumps(found)), other):
        assert torch.equal(copied.mean, found.mean)
        assert torch.equal(copied.kl(), found.kl())
    assert repr(found).startswith(f"ProbabilisticAlpha(shape=(2,), bounds=(-1, 3), distribution={law!r}, prior=(0.6")
    made = ProbabilisticAlpha(0.5, distribution=law, device="meta", dtype=torch.float16)
    assert {(p.device.type, p.dtype) for p in made.parameters()} == {("meta", torch.float16)}


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
@pytest.mark.parametrize("law", [*LAWS, None])
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
    (own,) = [part for part in case.make().modules() if isinstance(part, Alpha)]
    given = ProbabilisticAlpha(own().tolist(), own.bounds, own.shape, dtype=torch.float64)
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


REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: ProbabilisticAlpha(1.5),
        ValueError,
        "ProbabilisticAlpha(alpha=1.5): needs low < alpha < high to be learned within bounds (0, 1); start inside, for "
        "example at 0.99.",
    ),
    (
        lambda: ProbabilisticAlpha(0.5, distribution="cauchy"),
        ValueError,
        "ProbabilisticAlpha(distribution='cauchy'): needs one of 'beta', 'normal', 'uniform'; pass one of these names.",
    ),
    (
        lambda: ProbabilisticAlpha(0.5, std=0.6, distribution="beta"),
        ValueError,
        "ProbabilisticAlpha(std=0.6): needs 0 < standard deviation < 0.5 for a beta law around 0.5 within (0, 1); pass "
        "for example 0.12.",
    ),
    (
        lambda: ProbabilisticAlpha(0.5, std=0.0),
        ValueError,
        "ProbabilisticAlpha(std=0.0): needs 0 < standard deviation < 0.45 for a normal law around 0.5 within (0, 1); "
        "pass for example 0.11.",
    ),
    (
        lambda: ProbabilisticAlpha(0.5, prior=(1.5, 0.1)),
        ValueError,
        "ProbabilisticAlpha(prior=(1.5, 0.1)): needs a mean inside the bounds (0, 1); pass for example (0.5, 0.125).",
    ),
    (
        lambda: ProbabilisticAlpha(0.5, prior=(0.5, 0.4), distribution="uniform"),
        ValueError,
        "ProbabilisticAlpha(prior=0.4): needs 0 < standard deviation < 0.288675 for a uniform law around 0.5 within "
        "(0, 1); pass for example 0.072.",
    ),
    (
        lambda: ProbabilisticAlpha(0.5, prior=0.5),  # type: ignore[arg-type]
        TypeError,
        "ProbabilisticAlpha(prior=0.5): needs a mean and a standard deviation; pass a pair such as (0.5, 0.1).",
    ),
    (
        lambda: FractionalLayer(ProbabilisticAlpha(0.5), bounds=(0, 1)),
        ValueError,
        "FractionalLayer(alpha of type ProbabilisticAlpha, bounds=(0, 1)): needs the order's own bounds, which are "
        "(0, 1); leave them out, or make the order with others.",
    ),
    (
        lambda: FractionalDifference(2, init=Alpha(0.5, (0, 1))),
        ValueError,
        "FractionalDifference(alpha: Alpha of shape ()): needs an order of shape (2,); make it with shape=(2,).",
    ),
    (
        lambda: FractionalLayer(Alpha(0.5, (-1, 1)), "caputo"),
        ValueError,
        "Caputo(bounds=(-1, 1)): needs bounds within [0, 2]; pass a pair such as (0, 1).",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_cannot_be_is_refused_with_the_rule(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == message
