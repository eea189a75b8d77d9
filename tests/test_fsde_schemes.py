"""Strong orders and moments of the schemes, against closed forms."""

import math
from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.solvers import SDE, STOCHASTIC_SCHEMES, VOLTERRA_WEIGHTS, fsdeint
from hpfracc_nn.solvers.rules import RULES
from hpfracc_nn.solvers.volterra import residual
from tests.sde_cases import (
    REFERENCE,
    Given,
    brownian,
    coarser,
    coupled,
    known,
    order,
    responses,
    rms,
    solved,
    streams,
)

PATHS = 500


def declared(driver, scheme, noise_type, interpretation, has_memory=False):
    """Return the order in the table."""
    (rule,) = [
        each
        for each in RULES
        if each.driver == driver
        and each.scheme == scheme
        and noise_type in each.noise_types
        and interpretation in each.interpretations
        and each.has_memory == has_memory
    ]
    assert rule.order is not None
    return rule.order(1.0, 0.5)


def closed_cases():
    """Yield every row of the table for Brownian motion whose noise an equation with a known solution has."""
    for rule in RULES:
        for interpretation in rule.interpretations[-1:] if "additive" in rule.noise_types else rule.interpretations:
            for noise_type in [each for each in ("additive", "diagonal") if each in rule.noise_types]:
                if rule.driver == "brownian" and not rule.has_memory:
                    yield pytest.param(rule.scheme, noise_type, interpretation)


@pytest.mark.parametrize(("scheme", "noise_type", "interpretation"), list(closed_cases()))
@pytest.mark.slow
def test_the_strong_order_is_the_declared_one(scheme, noise_type, interpretation):
    fine = brownian(1024, (2, PATHS))
    reference = solved(coupled(noise_type), 0.3, streams(fine, 2), (2,), scheme="srk")
    errors = []
    for times in (32, 16, 8):  # the reference has 8 times the steps of the finest
        noise = streams(coarser(fine, times), STOCHASTIC_SCHEMES[scheme].streams)
        sde = coupled(noise_type, interpretation)
        found = solved(sde, 0.3, noise, (2,), scheme=scheme, interpretation=interpretation)
        errors.append(rms(found - reference))
    assert order(errors) == pytest.approx(declared("brownian", scheme, noise_type, interpretation), abs=0.15)


@pytest.mark.parametrize("scheme", ["euler", "milstein", "srk"])
def test_the_solution_is_the_known_one(scheme):
    sde, x0, solution = known("ito")
    path = brownian(256, (PATHS,))
    found = solved(sde, x0, streams(path, STOCHASTIC_SCHEMES[scheme].streams), scheme=scheme)
    bound = {"euler": 1e-2, "milstein": 1e-3, "srk": 5e-5}[scheme]
    assert rms(found - solution(path[0].sum(0))) < bound


def proportional(slope, t, y):
    return slope * y


def test_milsteins_slope_is_that_in_the_state_where_the_diffusion_holds_the_start():
    found = []
    for requires_grad in (False, True):
        y0 = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=requires_grad)
        slope = 0.3 * y0.sum()
        sde = SDE(lambda t, y: -y, partial(proportional, slope))
        generator = torch.Generator().manual_seed(0)
        path = fsdeint(sde, y0, [0.0, 1.0], dt=0.25, alpha=1.0, scheme="milstein", generator=generator, adjoint=False)
        found.append(path.detach())
    assert torch.equal(*found)


def rotating(interpretation):
    """Return an equation of two entries along the last axis whose two motions do not commute, [paths, 2, 2]."""
    first = torch.tensor([[0.0, 0.6], [-0.6, 0.0]]).double()
    second = torch.tensor([[0.5, 0.0], [0.0, -0.5]]).double()
    correction = (first @ first + second @ second) / 2

    def drift(t, y):
        return -y - (y @ correction.T if interpretation == "stratonovich" else 0)

    return SDE(drift, lambda t, y: torch.stack([y @ first.T, y @ second.T], -1), "general")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "interpretation", "noise_type"),
    [
        ("euler", "ito", "general"),
        ("heun", "stratonovich", "general"),
        ("reversible_heun", "stratonovich", "general"),
        ("euler", "ito", "scalar"),
        ("heun", "stratonovich", "scalar"),
        ("reversible_heun", "stratonovich", "scalar"),
    ],
)
def test_the_strong_order_of_motions_that_entries_share(scheme, interpretation, noise_type):
    fine, start = brownian(4096, (PATHS, 2))[0], torch.ones(PATHS, 2, dtype=torch.float64)
    sde, channels = rotating(interpretation), 2
    if noise_type == "scalar":  # one motion, whose matrix does not commute with the drift's
        matrix = torch.tensor([[0.3, 0.6], [-0.2, 0.5]]).double()
        turn = torch.tensor([[-1.0, 1.0], [-0.5, 0.0]]).double()
        extra = matrix @ matrix / 2 if interpretation == "stratonovich" else torch.zeros(2, 2).double()
        sde = SDE(lambda t, y: y @ (turn - extra).T, lambda t, y: (y @ matrix.T)[..., None], "scalar")
        channels = 1

    def end(times, scheme, interpretation):
        noise = fine[..., :channels].view(-1, times, PATHS, channels).sum(1)
        given = Given(noise)
        return fsdeint(
            sde, start, [0.0, 1.0], dt=times / 4096, noise=given, scheme=scheme, interpretation=interpretation
        )[-1]

    reference = end(1, scheme, interpretation)
    errors = [rms(end(times, scheme, interpretation) - reference) for times in (256, 128, 64, 32)]
    assert order(errors) == pytest.approx(declared("brownian", scheme, noise_type, interpretation), abs=0.15)


CASES = REFERENCE["discrete_scheme_moments_N100"]["cases"]


@pytest.mark.parametrize("weights", ["left", "average", "isometry", "hybrid"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"alpha {case['alpha']}")
def test_the_variance_of_the_driftless_process_is_that_of_the_scheme(case, weights):
    sde = SDE(lambda t, y: torch.zeros_like(y), lambda t, y: torch.ones_like(y), "additive")
    name = {"left": "var_left", "average": "var_avg", "isometry": "var_iso", "hybrid": "var_hybrid1"}[weights]
    alpha = float(case["alpha"])
    is_double = weights == "hybrid" and alpha < 1
    mean, units = responses(sde, 0.7, 100, is_double, alpha=alpha, weights=weights)
    assert mean.item() == pytest.approx(0.7, rel=1e-12)
    assert (units.square().sum() / 100).item() == pytest.approx(float(case[name]), rel=1e-12)


@pytest.mark.parametrize("weights", VOLTERRA_WEIGHTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"alpha {case['alpha']}")
def test_the_second_moment_of_multiplicative_noise_is_that_of_the_scheme(case, weights):
    # m_n = 1 + s**2 (sum over j < n of w_(n-j)**2 h m_j + sigma**2 m_(n-1)), s = 1/2.
    alpha, h = np.array([float(case["alpha"])]), 0.01
    noise = VOLTERRA_WEIGHTS[weights]().weights(alpha, 100, h, NUMPY).columns[0, -1]
    sigma = residual(alpha, h, NUMPY)[0] if weights == "hybrid" else 0.0
    moments = [1.0]
    for n in range(1, 101):
        past = h * noise[n:0:-1] ** 2 @ np.array(moments) + sigma**2 * moments[-1]
        moments.append(1 + 0.25 * past)
    name = {"left": "EX2_left", "average": "EX2_avg", "isometry": "EX2_iso", "hybrid": "EX2_hybrid1"}[weights]
    assert moments[-1] == pytest.approx(float(case[name]), rel=1e-12)


@pytest.mark.parametrize("weights", VOLTERRA_WEIGHTS)
def test_one_volterra_step_after_the_other_is_the_definition(weights):
    # A nonlinear equation, written out: X_n = x0 + sum of w_(n-j) Z_j + sigma g_(n-1) zeta_(n-1).
    n, alpha = 70, np.array([0.7])  # more than one block
    is_double, h = weights == "hybrid", 1 / 70
    noise = streams(brownian(n, (5,)), 2 if is_double else 1)
    columns = VOLTERRA_WEIGHTS[weights]().weights(alpha, n, h, NUMPY).columns[0]
    drift, g = (lambda y: torch.sin(3 * y)), (lambda y: 0.5 + torch.cos(y) ** 2)
    increments = noise[:, 0] if is_double else noise
    states = [torch.full((5,), 0.4, dtype=torch.float64)]
    for k in range(1, n + 1):
        total = states[0].clone()
        for j in range(k):
            total += columns[0, k - j] * h * drift(states[j]) + columns[-1, k - j] * g(states[j]) * increments[j]
        if is_double:
            total += residual(alpha, h, NUMPY)[0] * g(states[-1]) * noise[k - 1, 1] / math.sqrt(h)
        states.append(total)
    sde = SDE(lambda t, y: drift(y), lambda t, y: g(y))
    found = fsdeint(
        sde, states[0], torch.linspace(0, 1, n + 1).double(), alpha=0.7, weights=weights, noise=Given(noise)
    )
    torch.testing.assert_close(found, torch.stack(states), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", REFERENCE["volterra_ou"]["cases"], ids=lambda case: f"alpha {case['alpha']}")
def test_the_volterra_ornstein_uhlenbeck_process_has_the_moments_of_its_closed_form(case):
    sde = SDE(lambda t, y: -y, lambda t, y: torch.ones_like(y), "additive")
    alpha = float(case["alpha"])
    errors = []
    for n in (50, 100, 200):
        mean, units = responses(sde, 1.0, n, alpha < 1, alpha=alpha)
        errors.append((mean.item() - float(case["mean"]), (units.square().sum() / n).item() - float(case["var"])))
    means, variances = zip(*errors, strict=True)
    # A drift that is frozen on each cell: of first order in the mean, slower in the variance, where X is rough.
    assert abs(means[1]) < 6e-3 * float(case["mean"])
    assert abs(variances[1]) < 0.03 * float(case["var"])
    assert order([abs(each) for each in means]) > 0.9
    assert order([abs(each) for each in variances]) > min(1, alpha + 0.1) - 0.1


@pytest.mark.parametrize("alpha", [0.6, 0.75, 0.9])
@pytest.mark.parametrize("weights", VOLTERRA_WEIGHTS)
def test_the_strong_order_of_the_weights_is_the_declared_one(weights, alpha):
    # E |X(1) - X_n|**2 of the driftless process: the integral of (K - w)**2 over each cell, in closed form for means.
    if weights == "isometry":
        weights = "average"  # its cross term has no closed form; it is a little larger
    errors = []
    for n in (64, 128, 256):
        h, order_ = 1 / n, np.array([alpha])
        w = VOLTERRA_WEIGHTS[weights]().weights(order_, n, h, NUMPY).columns[0, 0, 1:]
        edges = np.arange(n + 1) * h
        gamma = math.gamma(alpha)
        squares = np.diff(edges ** (2 * alpha - 1)) / (2 * alpha - 1) / gamma**2
        means = np.diff(edges**alpha) / alpha / gamma
        parts = squares - 2 * w * means + h * w**2
        if weights == "hybrid":
            parts[0] -= residual(order_, h, NUMPY)[0] ** 2
        errors.append(math.sqrt(parts.sum()))
    assert order(errors) == pytest.approx(alpha - 0.5, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.75, 0.9])
def test_multiplicative_noise_below_alpha_one_has_the_declared_order(alpha):
    sde = SDE(lambda t, y: torch.sin(y) / 2 - y, lambda t, y: 0.5 + 0.4 * torch.sin(2 * y))
    fine = brownian(4096, (300,))[0]

    def end(times):
        noise = fine.view(-1, times, 300).sum(1)
        return solved(sde, 1.0, noise, alpha=alpha, weights="average", history="exponentials")

    reference = end(1)
    errors = [rms(end(times) - reference) for times in (256, 128, 64, 32)]
    # The reference itself converges as slowly: it is off by a quarter of the finest error at 0.9, by more below.
    assert order(errors) == pytest.approx(alpha - 0.5, abs=0.1)


def test_the_first_cell_of_the_hybrid_weights_is_exact():
    for alpha in (0.55, 0.6, 0.8, 0.99):
        h, orders = 0.01, np.array([alpha])
        w = VOLTERRA_WEIGHTS["hybrid"]().weights(orders, 4, h, NUMPY).columns[0, 0, 1]
        whole = h ** (2 * alpha - 1) / (2 * alpha - 1) / math.gamma(alpha) ** 2
        assert w**2 * h + residual(orders, h, NUMPY)[0] ** 2 == pytest.approx(whole, rel=1e-12)
    assert residual(np.array([1.0]), 0.01, NUMPY)[0] == 0


@pytest.mark.parametrize("noise_type", ["diagonal", "additive", "scalar", "general"])
def test_alpha_one_is_the_method_of_euler_and_maruyama_bit_for_bit(noise_type):
    matrix = torch.tensor([[0.2, -0.1, 0.4], [0.3, 0.5, -0.2]])
    functions = {
        "diagonal": lambda t, y: torch.sin(y) + t,
        "additive": lambda t, y: matrix.expand(4, 2, 3) * t,
        "scalar": lambda t, y: torch.cos(y)[..., None],
        "general": lambda t, y: y[..., None] * matrix,
    }
    g, drift = functions[noise_type], lambda t, y: torch.tanh(y) - t
    channels = {"diagonal": 2, "scalar": 1}.get(noise_type, 3)
    noise = brownian(50, (4, channels))[0].float()
    ts, y = torch.linspace(0, 1, 51, dtype=torch.float64).float(), torch.linspace(-1, 1, 8).view(4, 2)
    states, h = [y], 0.02
    for n in range(50):
        step = g(ts[n], y)
        moved = step * noise[n] if noise_type == "diagonal" else (step @ noise[n][..., None])[..., 0]
        y = y + drift(ts[n], y) * h + moved
        states.append(y)
    for alpha in (1.0, torch.tensor(1.0)):
        found = fsdeint(SDE(drift, g, noise_type), states[0], ts, alpha=alpha, noise=Given(noise))
        assert torch.equal(found, torch.stack(states))


def test_ornstein_uhlenbeck_has_the_moments_of_the_scheme():
    (case,) = [each for each in REFERENCE["ou_gbm_alpha1"]["cases"] if each["problem"] == "OU"]
    rate, sigma, h = float(case["lam"]), float(case["sigma"]), 0.01
    sde = SDE(lambda t, y: -rate * y, lambda t, y: torch.full_like(y, sigma), "additive")
    mean, units = responses(sde, float(case["x0"]), 100, False)
    assert mean.item() == pytest.approx((1 - rate * h) ** 100, rel=1e-12)
    factors = (1 - rate * h) ** (2 * np.arange(100))
    assert (units.square().sum() * h).item() == pytest.approx(sigma**2 * h * factors.sum(), rel=1e-12)
    srk, units = responses(sde, float(case["x0"]), 100, True, scheme="srk")
    assert srk.item() == pytest.approx(float(case["mean"]), rel=1e-4)
    assert (units.square().sum() * h).item() == pytest.approx(float(case["var"]), rel=1e-4)


def test_geometric_brownian_motion_has_the_moments_of_the_reference():
    (case,) = [each for each in REFERENCE["ou_gbm_alpha1"]["cases"] if each["problem"] == "GBM"]
    mu, sigma = float(case["mu"]), float(case["sigma"])
    sde = SDE(lambda t, y: mu * y, lambda t, y: sigma * y)
    start = torch.ones(40_000, dtype=torch.float64)
    ends = fsdeint(sde, start, [0.0, 1.0], dt=0.05, scheme="srk", generator=torch.Generator().manual_seed(0))[-1]
    for power, name in ((1, "EX"), (2, "EX2")):
        sample = ends**power
        deviation = sample.std().item() / 200
        assert abs(sample.mean().item() - float(case[name])) < 4 * deviation + 1e-3 * float(case[name])


@pytest.mark.parametrize("case", REFERENCE["rough_bergomi_moments"]["cases"], ids=lambda case: f"t {case['t']}")
def test_the_volterra_process_of_rough_bergomi_has_its_moments(case):
    # sqrt(2 H) integral (t - s)**(H - 1/2) dW is sqrt(2 H) Gamma(alpha) times the driftless process, alpha = H + 1/2.
    hurst, eta, t = 0.07, 1.9, float(case["t"])
    alpha = hurst + 0.5
    scale = math.sqrt(2 * hurst) * math.gamma(alpha)
    sde = SDE(lambda s, y: torch.zeros_like(y), lambda s, y: torch.full_like(y, scale), "additive")
    n = 200
    units = torch.eye(2 * n, dtype=torch.float64).view(n, 2, 2 * n)
    found = fsdeint(sde, torch.zeros(2 * n).double(), [0.0, t], dt=t / n, alpha=alpha, noise=Given(units))[-1]
    variance = found.square().sum().item() * t / n
    xi = 0.235**2
    for power, name in ((1, "Ev"), (2, "Ev2"), (0.5, "Esqrtv")):
        moment = xi**power * math.exp(power**2 * eta**2 * variance / 2 - power * eta**2 * t ** (2 * hurst) / 2)
        assert moment == pytest.approx(float(case[name]), rel=5e-3)


@pytest.mark.parametrize("case", REFERENCE["riemann_liouville_fbm_cov"]["cases"][1:], ids=lambda case: f"H {case['H']}")
def test_a_driftless_volterra_process_is_riemann_and_liouvilles_motion(case):
    hurst, n = float(case["H"]), 96
    alpha = hurst + 0.5
    if alpha > 1:
        pytest.skip("the memory function does not grow")
    sde = SDE(lambda s, y: torch.zeros_like(y), lambda s, y: torch.ones_like(y), "additive")
    units = torch.eye(2 * n, dtype=torch.float64).view(n, 2, 2 * n)
    found = fsdeint(sde, torch.zeros(2 * n).double(), [0.0, 0.25, 0.75], dt=0.75 / n, alpha=alpha, noise=Given(units))
    early, late = found[1], found[2]
    assert (early @ late).item() * 0.75 / n == pytest.approx(float(case["cov"]), rel=2e-3)
    assert (late @ late).item() * 0.75 / n == pytest.approx(float(case["var_t"]), rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    REFERENCE["volterra_linear_multiplicative_second_moment"]["cases"],
    ids=lambda case: f"alpha {case['alpha']}",
)
def test_linear_multiplicative_noise_has_the_second_moment_of_its_closed_form(case):
    alpha, sigma = float(case["alpha"]), float(case["sigma"])
    sde = SDE(lambda t, y: torch.zeros_like(y), lambda t, y: sigma * y)
    start = torch.ones(100_000, dtype=torch.float64)
    found = fsdeint(
        sde, start, [0.0, 1.0], dt=0.01, alpha=alpha, generator=torch.Generator().manual_seed(1), history="full"
    )[-1].square()
    deviation = found.std().item() / math.sqrt(start.numel())
    bias = 0.004 * float(case["EX2"])  # of 100 steps, see the moments of the scheme
    assert abs(found.mean().item() - float(case["EX2"])) < 4 * deviation + bias
