"""NeuralFSDE and fsdeint as PyTorch is used: modules, autocast, compiler, transforms, processes, divergences."""

import copy
import math
import pickle
import subprocess
import sys
import textwrap
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.selection import BackendManager, Settings
from hpfracc_nn.solvers import (
    NOISES,
    SDE,
    FractionalBrownian,
    LatentFSDE,
    MarkovFractionalBrownian,
    NeuralFSDE,
    PathDivergence,
    fsdeint,
)
from tests.sde_cases import Given, brownian, streams

# PyTorch's own forward mode scripts its decompositions on first use.

TS = torch.linspace(0, 1, 33)


class Network(torch.nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        self.factor = factor

    def forward(self, t, y):
        return self.factor * self.net(y)


def model(**options):
    torch.manual_seed(0)
    return NeuralFSDE(Network(), Network(0.3), **options)


def ends(module, **options):
    generator = torch.Generator().manual_seed(1)
    return module(torch.linspace(-1, 1, 8).view(4, 2), TS, generator=generator, **options)


def test_a_model_learns_its_networks_its_order_and_its_hurst_index():
    noises = {"noise": FractionalBrownian(0.4), "learn_hurst": True, "hurst_bounds": (0.35, 0.49), "scheme": "heun"}
    for options in (
        {"alpha": 0.8, "learn_alpha": True},
        {**noises, "interpretation": "stratonovich"},
        {**noises, "noise": MarkovFractionalBrownian(0.4), "interpretation": "stratonovich"},
    ):
        module = model(**options)
        loss = ends(module)[-1].square().mean()
        loss.backward()
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_parameters_and_what_it_prints():
    module = model(alpha=0.8, learn_alpha=True)
    assert [name for name, _ in module.named_parameters() if "net" not in name] == ["order.raw"]
    assert module.alpha.item() == pytest.approx(0.8, abs=1e-6)
    assert "learn_alpha=True, noise='brownian', scheme='euler'" in repr(module)
    assert model(alpha=0.8).alpha.item() == 0.8
    assert model().hurst is None


def test_it_copies_and_pickles():
    for options in ({"alpha": 0.8, "learn_alpha": True}, {}):
        module = model(**options)
        for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert torch.equal(ends(other), ends(module))


def test_an_ensemble_is_several_paths_from_each_state():
    module = model(alpha=0.8)
    y0 = torch.zeros(4, 2)
    paths = module.ensemble(y0, TS, 5, generator=torch.Generator().manual_seed(0))
    assert paths.shape == (33, 5, 4, 2)
    assert (paths[-1].std(0) > 0).all()
    with pytest.raises(ValueError, match=r"NeuralFSDE\.ensemble\(paths=0\): needs paths >= 1"):
        module.ensemble(y0, TS, 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"noise_type": "coloured"}, r"NeuralFSDE\(noise_type='coloured'\)"),
        ({"alpha": 0.5}, r"NeuralFSDE\(alpha=0\.5\): needs 1/2 < alpha <= 1"),
        ({"learn_alpha": True}, r"NeuralFSDE\(alpha=1\.0\): needs low < alpha < high"),
        ({"alpha": 0.8, "learn_alpha": True, "bounds": (0.2, 1.0)}, r"needs 1/2 <= low < high <= 1"),
        ({"learn_hurst": True}, r"needs a noise that has a Hurst index, and Brownian has none"),
        ({"noise": FractionalBrownian(torch.tensor(0.3)), "learn_hurst": True}, r"whose Hurst index is a number"),
        ({"noise": FractionalBrownian(0.3), "learn_hurst": True, "hurst_bounds": (0.4, 0.6)}, r"bounds around"),
        ({"noise": FractionalBrownian(0.7)}, r"no semimartingale"),
        ({"alpha": 0.8, "scheme": "heun"}, r"one scheme, Euler's"),
        ({"dt": -1.0}, r"NeuralFSDE\(dt=-1\.0\)"),
    ],
)
def test_wrong_options_are_refused_when_it_is_made(options, text):
    with pytest.raises(ValueError, match=text):
        model(**options)


@pytest.mark.parametrize("alpha", [1.0, 0.8])
@pytest.mark.parametrize(("forward", "backward"), [(True, False), (False, True), (True, True)], ids=str)
def test_gradients_do_not_depend_on_the_autocast_of_the_backward_pass(forward, backward, alpha):
    def gradients(adjoint, backward):
        torch.manual_seed(0)
        net, y0 = torch.nn.Linear(3, 3), torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
        sde, generator = SDE(lambda t, y: net(y), lambda t, y: 0.1 * net(y).sigmoid()), torch.Generator().manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=forward):
            ys = fsdeint(sde, y0, [0.0, 1.0], dt=1 / 140, alpha=alpha, adjoint=adjoint, generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=backward):
            return torch.autograd.grad(ys.sum(), [y0, *net.parameters()])

    for one, other in zip(gradients(True, backward), gradients(False, False), strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm()  # blocks are replayed: the same products, in another order


@pytest.mark.parametrize("alpha", [pytest.param(1.0, marks=pytest.mark.slow), 0.8])
def test_mixed_precision_trains(alpha):
    module = model(alpha=alpha)
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            found = ends(module)
            assert found.dtype == torch.float32
            loss = (found[-1] - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("scheme", "alpha"), [("euler", 1.0), ("euler", 0.8), ("milstein", 1.0), ("srk", 1.0), ("heun", 1.0)]
)
def test_torch_func_differentiates_by_plain_backpropagation(scheme, alpha):
    noise = Given(streams(brownian(10, (2,)), 2 if alpha < 1 or scheme == "srk" else 1))
    sde = SDE(lambda t, y: -(y**2), lambda t, y: 0.3 * y.cos())
    options = {"scheme": scheme, "interpretation": "stratonovich" if scheme == "heun" else "ito"}

    def end(y0):
        return fsdeint(sde, y0, [0.0, 1.0], dt=0.1, alpha=alpha, noise=noise, adjoint=False, **options)[-1].sum()

    y0 = torch.tensor([0.4, -0.2], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(end(y0), y0)
    torch.testing.assert_close(torch.func.grad(end)(y0.detach()), expected, rtol=1e-12, atol=0)
    along = torch.func.jvp(end, (y0.detach(),), (torch.ones(2, dtype=torch.float64),))[1]
    torch.testing.assert_close(along, expected.sum(), rtol=1e-12, atol=0)
    (slope,) = torch.autograd.grad(end(y0), y0, create_graph=True)
    second = torch.stack([torch.autograd.grad(each, y0, retain_graph=True)[0] for each in slope])
    torch.testing.assert_close(torch.func.hessian(end)(y0.detach()), second, rtol=1e-11, atol=1e-13)


def test_an_order_of_one_has_a_derivative_in_every_mode():
    noise = Given(streams(brownian(10, (2,)), 2))
    sde = SDE(lambda t, y: -(y**2), lambda t, y: 0.3 * y.cos())
    y0 = torch.tensor([0.4, -0.2], dtype=torch.float64)

    def end(alpha):
        return fsdeint(sde, y0, [0.0, 1.0], dt=0.1, alpha=alpha, noise=noise)[-1].sum()

    one = torch.ones((), dtype=torch.float64)
    expected = (end(1.0 - 1e-7 * one) - end(1.0 - 2e-7 * one)).item() / 1e-7
    leaf = one.clone().requires_grad_()
    assert torch.autograd.grad(end(leaf), leaf)[0].item() == pytest.approx(expected, rel=1e-5)
    assert torch.func.grad(end)(one).item() == pytest.approx(expected, rel=1e-5)
    assert torch.func.jvp(end, (one,), (one,))[1].item() == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="one scheme, Euler's"):
        fsdeint(sde, y0, [0.0, 1.0], dt=0.1, alpha=leaf, scheme="milstein")


@pytest.mark.slow
def test_a_compiled_caller_runs_it_as_it_is():
    module = model(alpha=0.8)
    generator = torch.Generator()
    compiled = torch.compile(lambda y: 2 * module(y, TS, generator=generator)[-1], backend="eager")
    y0 = torch.linspace(-1, 1, 8).view(4, 2)
    with torch.no_grad():
        generator.manual_seed(1)
        found = compiled(y0)
        assert torch.equal(found, 2 * ends(module)[-1])


@pytest.mark.parametrize("alpha", [1.0, 0.8])
def test_states_of_any_layout_and_of_no_axes(alpha):
    sde = SDE(lambda t, y: -y, lambda t, y: 0.3 * y.cos())
    y0 = torch.arange(6.0).view(2, 3)
    found = [
        fsdeint(sde, each, TS, alpha=alpha, generator=torch.Generator().manual_seed(0))
        for each in (y0, y0.T.contiguous().T)
    ]
    torch.testing.assert_close(*found)
    alone = torch.tensor(0.5, requires_grad=True)
    end = fsdeint(sde, alone, TS, alpha=alpha)[-1]
    assert end.shape == ()
    end.backward()
    assert alone.grad is not None


def test_inference_mode():
    module = model(alpha=0.8)
    with torch.inference_mode():
        found = ends(module)
    assert torch.equal(found, ends(module).detach())


def test_the_manager_is_asked_below_alpha_one():
    manager = BackendManager(Settings(mode="learn", wisdom="off", calibration="shipped"))
    module = model(alpha=0.8, manager=manager)
    for _ in range(6):
        ends(module).sum().backward()
    assert {each.direction for each in manager.history("history")} == {"forward", "backward"}


def test_training_goes_on_where_it_was_saved():
    def trained(module, optimizer, generator, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            module(torch.ones(4, 2), TS, generator=generator)[-1].square().mean().backward()
            optimizer.step()

    first = model(alpha=0.8, learn_alpha=True)
    optimizer, generator = torch.optim.Adam(first.parameters(), 0.01), torch.Generator().manual_seed(0)
    trained(first, optimizer, generator, 2)
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict())), generator.get_state().clone()
    trained(first, optimizer, generator, 2)
    second = model(alpha=0.8, learn_alpha=True)
    optimizer, generator = torch.optim.Adam(second.parameters(), 0.01), torch.Generator()
    second.load_state_dict(saved[0][0])
    optimizer.load_state_dict(saved[0][1])
    generator.set_state(saved[1])
    trained(second, optimizer, generator, 2)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


TWO_PROCESSES = """
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.test_fsde_modes import TS, model
rank = int(sys.argv[1])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=2)
module = DistributedDataParallel(model(alpha=0.8, learn_alpha=True))
y0 = torch.linspace(-1, 1, 16).view(8, 2)[4 * rank : 4 * rank + 4]
generator = torch.Generator().manual_seed(rank)
module(y0, TS, generator=generator)[-1].square().mean().backward()
if rank == 0:
    torch.save([each.grad for each in module.module.parameters()], sys.argv[3])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_have_the_gradient_of_the_joined_batch(tmp_path):
    port, out = str(29500 + hash(str(tmp_path)) % 500), tmp_path / "grads.pt"
    command = [sys.executable, "-c", textwrap.dedent(TWO_PROCESSES)]
    running = [subprocess.Popen([*command, str(rank), port, str(out)]) for rank in range(2)]
    assert [each.wait(timeout=170) for each in running] == [0, 0]
    module, total = model(alpha=0.8, learn_alpha=True), torch.zeros(())
    for rank in range(2):
        y0 = torch.linspace(-1, 1, 16).view(8, 2)[4 * rank : 4 * rank + 4]
        found = module(y0, TS, generator=torch.Generator().manual_seed(rank))[-1].square().mean() / 2
        total = total + found
    total.backward()
    for one, parameter in zip(torch.load(out), module.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-5, atol=1e-7)


def divergence(theta_q, theta_p, sigma, x0, end=1.0):
    """Return KL of two Ornstein-Uhlenbeck processes: int (theta_q - theta_p)**2 E X**2 / (2 sigma**2)."""
    spread = sigma**2 / (2 * theta_q)
    # E X**2 = (x0**2 - spread) exp(-2 theta_q t) + spread
    integral = (x0**2 - spread) * (1 - math.exp(-2 * theta_q * end)) / (2 * theta_q) + spread * end
    return (theta_q - theta_p) ** 2 * integral / (2 * sigma**2)


def test_the_divergence_of_two_ornstein_uhlenbeck_processes_is_its_closed_form():
    theta_q, theta_p, sigma, x0 = 2.0, 0.5, 0.7, 1.2
    sde = PathDivergence(lambda t, y: -theta_q * y, lambda t, y: -theta_p * y, lambda t, y: torch.full_like(y, sigma))
    y0 = sde.state(torch.full((10_000, 1), x0, dtype=torch.float64))
    found = fsdeint(sde, y0, [0.0, 1.0], dt=0.0025, generator=torch.Generator().manual_seed(0))[-1, :, 1]
    expected = divergence(theta_q, theta_p, sigma, x0)
    assert found.mean().item() == pytest.approx(expected, rel=1e-2)


def test_the_divergence_below_alpha_one_is_that_of_the_discrete_process():
    # u is linear in y, whose law on the mesh is normal: E u**2 from the response to each increment, no Monte Carlo.
    n, alpha, rate = 40, 0.75, 0.8
    sde = SDE(lambda t, y: -y, lambda t, y: torch.ones_like(y), "additive")
    units = torch.cat([torch.zeros(n, 2, 1), torch.eye(2 * n).view(n, 2, 2 * n)], -1).double()
    ys = fsdeint(sde, torch.ones(2 * n + 1).double(), [k / n for k in range(n + 1)], alpha=alpha, noise=Given(units))
    second = ys[:, 0] ** 2 + (ys[:, 1:] - ys[:, :1]).square().sum(-1) / n
    expected = (second[:-1].sum() / n * rate**2 / 2).item()
    paths = PathDivergence(lambda t, y: -y, lambda t, y: -(1 + rate) * y, lambda t, y: torch.ones_like(y))
    y0 = torch.ones(20_000, 1, dtype=torch.float64)
    options: dict[str, Any] = {"alpha": paths.orders(alpha, y0), "generator": torch.Generator().manual_seed(0)}
    found = fsdeint(paths, paths.state(y0), [0.0, 1.0], dt=1 / n, **options)[-1, :, 1]
    assert abs(found.mean().item() - expected) < 4 * found.std().item() / math.sqrt(20_000)


class Told(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(5, 2)

    def forward(self, t, y, context):
        return self.net(torch.cat([y, context], -1))


class Spread(torch.nn.Module):
    def forward(self, t, y):
        return torch.full_like(y, 0.5)


@pytest.mark.parametrize("alpha", [1.0, 0.8])
def test_a_latent_model_trains_its_encoder_prior_and_posterior(alpha):
    torch.manual_seed(0)
    latent = LatentFSDE(Network(), Told(), Spread(), alpha=alpha, dt=1 / 32)
    encoder = torch.nn.Linear(4, 3)
    data = torch.randn(6, 4)
    states, kl = latent(torch.zeros(6, 2), [0.0, 0.5, 1.0], encoder(data), generator=torch.Generator().manual_seed(0))
    assert states.shape == (3, 6, 2)
    assert kl.shape == (6,)
    assert (kl > 0).all()
    ((states[-1] - 1).square().mean() + kl.mean()).backward()
    for module in (latent, encoder):
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name
    assert latent.sample(torch.zeros(6, 2), [0.0, 1.0]).shape == (2, 6, 2)


def test_a_posterior_that_is_the_prior_has_no_divergence():
    latent = LatentFSDE(Network(), Told(), Spread())
    drift = latent.prior
    latent.posterior = torch.nn.Module()
    latent.posterior.forward = lambda t, y, context: drift(t, y)
    _, kl = latent(torch.zeros(3, 2), TS)
    assert kl.abs().max() == 0


@pytest.mark.parametrize(
    "noise", [each.examples()[0] for each in NOISES.values() if not each.examples()[0].is_brownian]
)
def test_a_divergence_is_refused_for_noise_that_is_not_brownian(noise):
    sde = PathDivergence(lambda t, y: -2 * y, lambda t, y: -y, lambda t, y: torch.ones_like(y))
    with pytest.raises(ValueError, match=r"fsdeint\(noise='.*'\): needs Brownian motion: .*Girsanov"):
        fsdeint(sde, sde.state(torch.zeros(3, 2)), TS, noise=noise, interpretation="stratonovich", scheme="heun")
    with pytest.raises(ValueError, match=r"LatentFSDE\(noise='.*'\): needs Brownian motion: .*Girsanov"):
        LatentFSDE(Network(), Told(), Spread(), noise=noise)


@pytest.mark.parametrize("kind", [FractionalBrownian, MarkovFractionalBrownian])
def test_a_learned_hurst_index_stays_where_the_noise_says(kind):
    for noise, bounds in ((kind(0.3), kind.widest), (kind(0.3, bounds=(0.2, 0.4)), (0.2, 0.4))):
        model = NeuralFSDE(Network(), Spread(), "additive", noise=noise, learn_hurst=True)
        assert model.index is not None
        assert model.index.bounds == bounds
        out = model(torch.zeros(3, 2), TS).square().sum()
        slopes = torch.autograd.grad(out, list(model.index.parameters()))
        assert all(torch.isfinite(each).all() and each.abs().sum() > 0 for each in slopes)
