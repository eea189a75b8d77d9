"""Random orders: their laws, their gradients, and the divergence from a prior."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from hpfracc_nn.fractional.distributions import DISTRIBUTIONS
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.parameters import _Noise
from hpfracc_nn.layers.torch import (
    Alpha,
    FractionalDifference,
    FractionalLayer,
    ProbabilisticAlpha,
)

every_law = pytest.mark.parametrize("law", DISTRIBUTIONS)
BOUNDS = (-1.0, 3.0)
WIDTH = BOUNDS[1] - BOUNDS[0]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def order(law: str, init: Any = 0.8, std: Any = 0.4, shape: tuple[int, ...] = (), **options: Any) -> ProbabilisticAlpha:
    return ProbabilisticAlpha(init, BOUNDS, shape, distribution=law, std=std, dtype=torch.float64, **options)


def density(of: ProbabilisticAlpha) -> Callable[[float], float]:
    """Return the density of alpha, from SciPy and the law's own parameters."""
    one, two = (
        float(value) for value in DISTRIBUTIONS[of.distribution].constrained(of.raw.detach(), of.spread.detach(), TORCH)
    )

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
    kind, mean = DISTRIBUTIONS[law], np.array([0.01, 0.2, 0.5, 0.95])
    std = share * kind.largest_std(mean)
    own = kind.constrained(*kind.unconstrained(*kind.from_mean_std(mean, std)), NUMPY)
    for found, expected in zip(kind.moments(*own, NUMPY), (mean, std), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


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
    apart = order("uniform", 0.0, 0.1, prior=(2.0, 0.1)).kl()
    apart.backward()
    assert apart.item() == math.inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("prior", [(0.5, 0.1), (0.3, 0.05)])
def test_a_uniform_law_at_its_prior_does_not_diverge_by_rounding(
    dtype: torch.dtype, prior: tuple[float, float]
) -> None:
    found = ProbabilisticAlpha(prior[0], distribution="uniform", std=prior[1], prior=prior, dtype=dtype)
    assert found.kl().item() == pytest.approx(0, abs=torch.finfo(dtype).eps / prior[1])
    found.kl().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in found.parameters())


def test_no_uniform_law_between_the_bounds_diverges_from_the_one_that_fills_them() -> None:
    found = ProbabilisticAlpha(0.5, shape=(2000,), distribution="uniform", dtype=torch.float64)
    with torch.no_grad():  # with ends that rounding puts at 1 + eps
        found.raw.copy_(torch.linspace(-5, 40, 2000))
        found.spread.copy_(torch.linspace(5, -5, 2000))
    assert math.isfinite(found.kl().item())


@pytest.mark.parametrize("law", ["normal", "uniform"])
def test_gradients_of_samples_are_those_of_differences_with_the_same_random_numbers(law: str) -> None:
    found = order(law, [0.8, -0.6], [0.4, 0.1], (2,))

    def draw(raw: Tensor, spread: Tensor) -> Tensor:
        own = DISTRIBUTIONS[law].constrained(raw, spread, TORCH)
        return DISTRIBUTIONS[law].sample(own, _Noise((5,), generator(3)), TORCH)

    values = (found.raw.detach().requires_grad_(), found.spread.detach().requires_grad_())
    assert gradcheck(draw, values)
    assert gradgradcheck(draw, values)


def test_gradients_of_a_beta_law_keep_the_probabilities_of_its_gamma_numbers() -> None:
    """A gamma number moves with its parameter so that the probability below it stays, by finite differences."""
    parameters = torch.tensor([[0.7, 2.5], [4.0, 0.3]], dtype=torch.float64, requires_grad=True)
    u = DISTRIBUTIONS["beta"].sample((parameters[0], parameters[1]), _Noise((50,), generator(3)), TORCH)
    shape, random = parameters.detach().T.numpy(), generator(3)
    drawn = []
    for each in torch.tensor(shape).unbind(-1):
        gammas = torch._standard_gamma((each + 1).expand(50, 2), generator=random)
        drawn.append((gammas, 1 - torch.rand(50, 2, dtype=torch.float64, generator=random)))
    numbers, v = (torch.stack(each, dim=-1).numpy() for each in zip(*drawn, strict=True))
    below = special.gammainc(shape + 1, numbers)

    def first_share(shape: Any) -> Any:
        g = special.gammaincinv(shape + 1, below) * v ** (1 / shape)  # a gamma number of parameter `shape`
        return g[..., 0] / g.sum(-1)

    np.testing.assert_allclose(u.detach().numpy(), first_share(shape), rtol=1e-12)
    (found,) = torch.autograd.grad(u.sum(), parameters)
    for which in (0, 1):
        step = 1e-5 * np.eye(2)[which]
        moved = first_share(shape + step) - first_share(shape - step)
        np.testing.assert_allclose(found[which].numpy(), moved.sum(0) / 2e-5, rtol=1e-4)


@pytest.mark.parametrize("total", [0.03, 1e-3])
def test_a_beta_law_whose_gamma_numbers_underflow_has_its_mean_its_ends_and_its_gradient(total: float) -> None:
    count, a, b = 200_000, 0.3 * total, 0.7 * total
    own = [torch.full((count,), value, dtype=torch.float64, requires_grad=True) for value in (a, b)]
    u = DISTRIBUTIONS["beta"].sample((own[0], own[1]), _Noise((), generator(5)), TORCH)
    inside = stats.beta.cdf(0.9, a, b) - stats.beta.cdf(0.1, a, b)
    for found, expected in ((u, a / total), (((u > 0.1) & (u < 0.9)).double(), inside)):
        error = max(found.std().item(), math.sqrt(expected)) / math.sqrt(count)
        assert found.mean().item() == pytest.approx(expected, abs=4 * error)
    by_a, by_b = torch.autograd.grad(u.sum(), own)
    for found, expected in ((by_a, b / total**2), (by_b, -a / total**2)):
        assert bool(found.isfinite().all())
        assert found.mean().item() == pytest.approx(expected, abs=4 * found.std().item() / math.sqrt(count))


def test_a_beta_law_has_draws_and_moments_wherever_an_optimizer_moves_it() -> None:
    found = order("beta", [0.0, 0.8], 0.4, (2,))
    with torch.no_grad():
        found.spread.copy_(torch.tensor([-600.0, -40.0]))
    u = found.sample((100,), generator=generator())
    assert bool(((u == BOUNDS[0]) | (u == BOUNDS[1])).all())
    u.sum().backward()
    torch.testing.assert_close(found.std, ((found.mean - BOUNDS[0]) * (BOUNDS[1] - found.mean)).sqrt())
    assert all(bool(p.grad.isfinite().all()) for p in found.parameters() if p.grad is not None)


@every_law
def test_gradients_of_samples_are_on_average_those_of_the_mean(law: str) -> None:
    count = 50_000
    many = order(law, shape=(count,))  # a draw and a gradient each
    draws = torch.autograd.grad(many.sample(generator=generator(1)).sum(), (many.raw, many.spread))
    one = order(law)
    for found, expected in zip(draws, torch.autograd.grad(one.mean, (one.raw, one.spread)), strict=True):
        assert abs(found.mean() - expected) <= 4 * found.std() / math.sqrt(count) + 1e-15  # one law's are all equal


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
