"""Equations driven by other noises than Brownian motion: orders, moments and gradients."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import (
    SDE,
    AlphaStable,
    Coloured,
    CompoundPoisson,
    FixedJumps,
    FractionalBrownian,
    MarkovFractionalBrownian,
    RiemannLiouvilleBrownian,
    fsdeint,
)
from hpfracc_nn.solvers.rules import RULES, Case
from hpfracc_nn.solvers.torch import increments
from tests.sde_cases import REFERENCE, Given, coupled, order, responses, rms, solved, turned

PATHS, FINE = 400, 2048
OPTIONS = {"interpretation": "stratonovich", "brownian": False}


def declared(driver, scheme, noise_type, hurst=0.5):
    case = Case(driver, "stratonovich", 1.0, noise_type, scheme, hurst)
    (rule,) = [each for each in RULES if each.takes(case)]
    assert rule.order is not None
    return rule.order(1.0, hurst)


def drawn(noise, n_steps, shape, seed=0, end=1.0):
    generator = torch.Generator().manual_seed(seed)
    return increments(noise, n_steps, shape, dt=end / n_steps, dtype=torch.float64, generator=generator)


def measured(sde, path, hurst, scheme, reference=None):
    """Return the order of a scheme on coarser grids of a path [FINE, 2, PATHS]."""
    options: dict[str, Any] = {**OPTIONS, "holder": hurst, "scheme": scheme}
    exact = solved(sde, 0.3, path, (2,), **{**options, "scheme": "heun"}) if reference is None else reference
    grids = (path.view(-1, times, 2, PATHS).sum(1) for times in (64, 32, 16))
    return order([rms(solved(sde, 0.3, noise, (2,), **options) - exact) for noise in grids])


def geometric(hurst):
    """Return dX = 0.3 X dt + 0.5 X dB and, for a path, its solution from 0.3 on."""
    sde = SDE(lambda t, y: 0.3 * y, lambda t, y: 0.5 * y)
    return sde, lambda path: 0.3 * torch.exp(0.3 + 0.5 * path.sum(0))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["euler", "heun"])
@pytest.mark.parametrize("hurst", [0.15, 0.4, 0.7])
def test_additive_fractional_noise_has_the_declared_order(hurst, scheme):
    path = drawn(FractionalBrownian(hurst), FINE, (2, PATHS))
    found = measured(coupled("additive"), path, hurst, scheme)
    assert found == pytest.approx(declared("fractional", scheme, "additive", hurst), abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hurst", "scheme"), [(0.4, "heun"), (0.45, "heun"), (0.6, "heun"), (0.7, "heun"), (0.7, "euler")]
)
def test_diagonal_fractional_noise_has_the_declared_order(hurst, scheme):
    path = drawn(FractionalBrownian(hurst), FINE, (2, PATHS))
    sde = SDE(turned, lambda t, y: torch.cos(y))
    found = measured(sde, path, hurst, scheme)
    assert declared("fractional", scheme, "diagonal", hurst) - 0.05 < found
    assert found < declared("fractional", scheme, "diagonal", hurst) + 0.2


@pytest.mark.slow
@pytest.mark.parametrize("hurst", [0.6, 0.8])
def test_general_fractional_noise_has_the_declared_order(hurst):
    path = drawn(FractionalBrownian(hurst), FINE, (PATHS, 2))
    first = torch.tensor([[0.0, 0.6], [-0.6, 0.0]]).double()
    second = torch.tensor([[0.5, 0.0], [0.0, -0.5]]).double()
    sde = SDE(lambda t, y: -y, lambda t, y: torch.stack([y @ first.T, y @ second.T], -1), "general")

    def end(times):
        noise = Given(path.view(-1, times, PATHS, 2).sum(1), hurst, False)
        start = torch.ones(PATHS, 2).double()
        options: dict[str, Any] = {"scheme": "heun", "interpretation": "stratonovich", "noise": noise}
        return fsdeint(sde, start, [0.0, 1.0], dt=times / FINE, **options)[-1]

    reference = end(1)
    found = order([rms(end(times) - reference) for times in (64, 32, 16)])
    assert found == pytest.approx(declared("fractional", "heun", "general", hurst), abs=0.1)


@pytest.mark.parametrize("hurst", [0.4, 0.7])
def test_heun_follows_the_paths_of_geometric_fractional_brownian_motion(hurst):
    sde, solution = geometric(hurst)
    path = drawn(FractionalBrownian(hurst), 512, (2, 50))
    found = solved(sde, 0.3, path, (2,), scheme="heun", holder=hurst, **OPTIONS)
    assert rms(found - solution(path)) < 0.01 * rms(solution(path))


@pytest.mark.parametrize("scheme", ["euler", "heun"])
def test_coloured_noise_has_the_declared_order(scheme):
    path = drawn(Coloured(0.2), FINE, (2, PATHS))
    found = measured(SDE(turned, lambda t, y: torch.cos(y)), path, 1.0, scheme)
    assert found == pytest.approx(declared("smooth", scheme, "diagonal"), abs=0.1)


def covariance(hurst, n_steps, end):
    """Return that of the increments of fractional Brownian motion."""
    lags = np.abs(np.subtract.outer(np.arange(n_steps), np.arange(n_steps))).astype(float)
    power = 2 * hurst
    gamma = (np.abs(lags + 1) ** power - 2 * lags**power + np.abs(lags - 1) ** power) / 2
    return torch.from_numpy(gamma * (end / n_steps) ** power)


@pytest.mark.parametrize("case", REFERENCE["fou_variance"]["cases"], ids=lambda case: f"H {case['H']}")
def test_the_fractional_ornstein_uhlenbeck_process_has_the_variance_of_its_closed_form(case):
    # The state is linear in the increments, whose covariance is known: no Monte Carlo.
    hurst, rate = float(case["H"]), float(case["lam"])
    sde = SDE(lambda t, y: -rate * y, lambda t, y: torch.ones_like(y), "additive")
    errors = []
    for n in (100, 200):
        _, units = responses(sde, 0.0, n, False, scheme="heun", holder=hurst, brownian=False)
        errors.append((units @ covariance(hurst, n, float(case["t"])) @ units).item() / float(case["var"]) - 1)
    assert abs(errors[1]) < 0.01
    assert abs(errors[1]) < abs(errors[0])


@pytest.mark.parametrize("make", [FractionalBrownian, lambda hurst: MarkovFractionalBrownian(hurst, n_states=16)])
def test_sampled_paths_have_that_variance(make):
    case = REFERENCE["fou_variance"]["cases"][1]
    hurst, rate = float(case["H"]), float(case["lam"])
    sde = SDE(lambda t, y: -rate * y, lambda t, y: torch.ones_like(y), "additive")
    start = torch.zeros(20_000, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    ends = fsdeint(sde, start, [0.0, 1.0], dt=0.01, scheme="heun", noise=make(hurst), generator=generator)[-1]
    # 4 standard errors of a variance, and the scheme's error.
    assert ends.var().item() == pytest.approx(float(case["var"]), rel=4 * math.sqrt(2 / 20_000) + 0.01)


def test_the_variance_has_the_slope_in_the_hurst_index():
    # d Var / d H by the sampler and the solver at once, against the closed form: common random numbers.
    case = REFERENCE["fou_variance"]["cases"][1]
    hurst = torch.tensor(float(case["H"]), dtype=torch.float64, requires_grad=True)
    rate = float(case["lam"])
    sde = SDE(lambda t, y: -rate * y, lambda t, y: torch.ones_like(y), "additive")
    start = torch.zeros(20_000, dtype=torch.float64)
    noise = FractionalBrownian(hurst, bounds=(0.1, 0.6))
    generator = torch.Generator().manual_seed(0)
    ends = fsdeint(sde, start, [0.0, 1.0], dt=0.01, scheme="heun", noise=noise, generator=generator)[-1]
    (found,) = torch.autograd.grad(ends.square().mean(), hurst)
    assert found.item() == pytest.approx(float(case["dvar_dH"]), rel=0.08)  # of 20 000 paths about 2 %, and the steps


@pytest.mark.parametrize("case", REFERENCE["geometric_fbm"]["cases"][1:], ids=lambda case: f"H {case['H']}")
def test_geometric_fractional_brownian_motion_has_the_moments_of_the_reference(case):
    hurst, mu, sigma, t = (float(case[name]) for name in ("H", "mu", "sigma", "t"))
    if hurst <= 1 / 3:
        pytest.skip("Heun's method does not converge")
    sde = SDE(lambda s, y: mu * y, lambda s, y: sigma * y)
    start = torch.ones(20_000, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"scheme": "heun", "interpretation": "stratonovich", "generator": generator}
    ends = fsdeint(sde, start, [0.0, t], dt=t / 64, noise=FractionalBrownian(hurst), **options)[-1]
    for power, name in ((1, "EX"), (2, "EX2")):
        sample = ends**power
        deviation = sample.std().item() / math.sqrt(20_000)
        assert abs(sample.mean().item() - float(case[name])) < 4 * deviation + 2e-3 * float(case[name])


def test_riemann_and_liouvilles_motion_drives_an_equation():
    # Additive and without a drift the state is the driver: its variance is t**(2 H).
    sde = SDE(lambda t, y: torch.zeros_like(y), lambda t, y: torch.ones_like(y), "additive")
    start = torch.zeros(20_000, dtype=torch.float64)
    noise = RiemannLiouvilleBrownian(0.3)
    ends = fsdeint(sde, start, [0.0, 1.0], dt=0.05, noise=noise, generator=torch.Generator().manual_seed(0))[-1]
    assert ends.var().item() == pytest.approx(increments(noise, 20, (20_000,), dt=0.05).sum(0).var().item(), rel=0.06)


def test_a_jump_of_a_known_size_moves_the_state_by_it():
    # Without a drift the end is the number of jumps, a Poisson number.
    sde = SDE(lambda t, y: torch.zeros_like(y), lambda t, y: torch.ones_like(y), "additive")
    start = torch.zeros(20_000, dtype=torch.float64)
    noise = CompoundPoisson(3.0, FixedJumps(1.0))
    ends = fsdeint(sde, start, [0.0, 1.0], dt=0.1, noise=noise, generator=torch.Generator().manual_seed(0))[-1]
    assert torch.equal(ends, ends.round())
    assert ends.mean().item() == pytest.approx(3, abs=4 * math.sqrt(3 / 20_000))
    assert ends.var().item() == pytest.approx(3, rel=0.06)


def test_an_ornstein_uhlenbeck_process_of_stable_noise_has_its_characteristic_function():
    # dX = -X dt + dL: X(T) is stable of scale**a = int exp(-a s) ds; the characteristic function at 1.
    index, n = 1.5, 200
    sde = SDE(lambda t, y: -y, lambda t, y: torch.ones_like(y), "additive")
    start = torch.zeros(20_000, dtype=torch.float64)
    options: dict[str, Any] = {"noise": AlphaStable(index), "generator": torch.Generator().manual_seed(0)}
    ends = fsdeint(sde, start, [0.0, 1.0], dt=1 / n, **options)[-1]
    scale = (1 - math.exp(-index)) / index
    assert torch.cos(ends).mean().item() == pytest.approx(math.exp(-scale), abs=4 * 0.7 / math.sqrt(20_000) + 0.003)
