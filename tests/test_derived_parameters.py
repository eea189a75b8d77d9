"""Tensors that f reads and that are made of each other: the adjoint counts each path of the gradient once."""

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import SDE, LatentFSDE, fdeint, fsdeint

TS = torch.linspace(0, 1, 33, dtype=torch.float64)


def double(x):
    return torch.tensor(x, dtype=torch.float64)


def deterministic(drift, diffusion, **options):
    """Solve for the drift, plus the diffusion that the stochastic solver is given."""
    return fdeint(lambda t, y: drift(t, y) + diffusion(t, y), double([1.0, 0.5]), TS, 0.7, **options)


def stochastic(drift, diffusion, alpha=1.0, **options):
    sde = SDE(drift, diffusion, "additive")
    return fsdeint(sde, double([1.0, 0.5]), TS, alpha=alpha, generator=torch.Generator().manual_seed(0), **options)


def volterra(drift, diffusion, **options):
    return stochastic(drift, diffusion, alpha=0.8, **options)


SOLVERS = pytest.mark.parametrize("solver", [deterministic, stochastic, volterra])


def ones(t, y):
    return torch.ones_like(y)


def once(of):
    """Compare the gradients of the adjoint with those of plain backpropagation."""
    for found, expected in zip(of(adjoint=True), of(adjoint=False), strict=True):
        assert expected.abs().max() > 0
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


@SOLVERS
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 2), (2, 0)])
def test_nested_tensors_that_are_passed_count_once(solver, order):
    def of(adjoint):
        raw = double([0.3, 0.1]).requires_grad_()
        rate = raw.exp()
        size = 2 * rate * raw
        params = [(rate, size, raw)[i] for i in order]
        ys = solver(
            lambda t, y: -rate * y + raw.sin(), lambda t, y: size * torch.ones_like(y), adjoint=adjoint, params=params
        )
        return torch.autograd.grad(ys.square().sum(), [raw])

    once(of)


@SOLVERS
def test_a_tensor_made_of_a_parameter_of_its_module_counts_once(solver):
    class Decay(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.raw = torch.nn.Parameter(double(0.3))
            self.rate = torch.nn.functional.softplus(self.raw)

        def forward(self, t, y):
            return -self.rate * y

    def of(adjoint):
        decay = Decay()
        ys = solver(decay, ones, adjoint=adjoint, params=[decay.rate, decay.raw])
        return torch.autograd.grad(ys.sum(), [decay.raw])

    once(of)


@SOLVERS
def test_parts_of_one_tensor_that_are_passed_count_once(solver):
    def of(adjoint):
        raw = double([0.3, 0.6]).requires_grad_()
        rate, size = raw.exp().unbind()
        product = rate * size
        ys = solver(
            lambda t, y: -product * y, lambda t, y: size * ones(t, y), adjoint=adjoint, params=[rate, product, size]
        )
        return torch.autograd.grad(ys.sum(), [raw])

    once(of)


@SOLVERS
def test_a_gradient_may_be_asked_of_a_tensor_in_between(solver):
    def of(adjoint):
        raw = double(0.3).requires_grad_()
        rate = raw.exp()
        size = 2 * rate
        ys = solver(
            lambda t, y: -rate * y, lambda t, y: size * ones(t, y), adjoint=adjoint, params=[raw, rate, size]
        ).sum()
        return [torch.autograd.grad(ys, each, retain_graph=True)[0] for each in ([rate], [size], [raw], [raw])]

    once(of)


def test_a_context_that_a_part_of_the_latent_model_makes_counts_once():
    class Posterior(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.net = torch.nn.Linear(1, 1), torch.nn.Linear(2, 1)

        def forward(self, t, y, context):
            return self.net(torch.cat([y, context], -1))

    class Prior(torch.nn.Module):
        def forward(self, t, y):
            return -y

    class Diffusion(torch.nn.Module):
        def forward(self, t, y):
            return torch.full_like(y, 0.5)

    def of(adjoint):
        torch.manual_seed(0)
        posterior = Posterior()
        model = LatentFSDE(Prior(), posterior, Diffusion(), adjoint=adjoint).double()
        context = posterior.encoder(torch.ones(5, 1, dtype=torch.float64))
        start = torch.zeros(5, 1, dtype=torch.float64)
        states, divergence = model(start, TS, context, generator=torch.Generator().manual_seed(0))
        return torch.autograd.grad(states[-1].square().sum() + divergence.sum(), list(model.parameters()))

    once(of)
