"""The schemes: weights, orders of convergence, classical limits, reference problems."""

import math

import mpmath
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.solvers import SCHEMES, Graded, PredictorCorrector, Trapezoid, fdeint
from tests.solver_cases import CASES, STIFF, diethelm, problem, tensor

ALPHAS = [0.3, 0.5, 0.8, 1.0, 1.5]
# Equal steps are the better ones where the right-hand side is smooth in time although y is not, and where what happens
# late matters more than the start; elsewhere steps are graded by 2 / alpha.
EQUAL = {
    "fde_diethelm2004_a025",
    "fde_diethelm2004_a09",
    "fde_garrappa2009_a05",
    "fde_li2015_a05",
    "fde_system_lotka_volterra_a09",
    "fde_system_lorenz_a099",
    "fde_system_riccati_a08_long",
}
MESHES = {**dict.fromkeys(EQUAL, "uniform"), "fde_system_sinus_forced_a05": Graded(1.5)}


def matrix(scheme, alpha, n_steps):
    """The weights on a uniform mesh of step 1/8 as they are used, [sets, n, j]."""
    weights = scheme.weights(np.array([alpha]), n_steps, 0.125, NUMPY)
    found = np.zeros((scheme.sets, n_steps + 1, n_steps + 1))
    for n in range(1, n_steps + 1):
        found[:, n, : n + 1] = weights.columns[0, :, : n + 1][:, ::-1]
        if weights.starts is not None:
            count = min(weights.starts.shape[-1], n + 1)
            found[:, n, :count] += weights.starts[0, :, n, :count]
    return found


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("name", SCHEMES)
def test_constants_are_integrated_exactly(name, alpha):
    times = 0.125 * np.arange(41)
    exact = times**alpha / math.gamma(1 + alpha)
    np.testing.assert_allclose(matrix(SCHEMES[name](), alpha, 40).sum(-1), [exact] * SCHEMES[name].sets, rtol=1e-13)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_trapezoid_rule_integrates_straight_lines_exactly(alpha):
    times = 0.125 * np.arange(41)
    exact = times ** (1 + alpha) / math.gamma(2 + alpha)
    np.testing.assert_allclose(matrix(Trapezoid(), alpha, 40)[0] @ times, exact, rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8, 1.0])
def test_bdf2_integrates_the_leading_power_exactly(alpha):
    times = 0.125 * np.arange(41)
    exact = math.gamma(1 + alpha) / math.gamma(1 + 2 * alpha) * times ** (2 * alpha)
    np.testing.assert_allclose(matrix(SCHEMES["bdf2"](), alpha, 40)[0] @ times**alpha, exact, rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.9])
def test_the_trapezoid_weights_agree_with_mpmath(alpha):
    column = Trapezoid().weights(np.array([alpha]), 100_000, 1.0, NUMPY).columns[0, 0]
    with mpmath.workdps(40):
        power = mpmath.mpf(alpha) + 1
        for k in (1, 2, 15, 16, 17, 1000, 99_999):
            exact = ((k + 1) ** power - 2 * mpmath.mpf(k) ** power + (k - 1) ** power) / mpmath.gamma(1 + power)
            assert column[k] == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if not scheme.needs_uniform])
def test_the_formulas_of_any_mesh_agree_with_those_of_equal_steps(name, alpha):
    scheme, times = SCHEMES[name](), 0.125 * np.arange(41)
    rows = [
        scheme.block(np.array([alpha]), times, range(n, min(n + 7, 41)), range(41), NUMPY)[0] for n in range(0, 41, 7)
    ]
    np.testing.assert_allclose(np.concatenate(rows, axis=1), matrix(scheme, alpha, 40), atol=1e-14)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9, 1.5])
def test_lines_are_integrated_exactly_on_a_graded_mesh(alpha):
    times = Graded().times(0.0, 3.0, 200, alpha)
    block = Trapezoid().block(np.array([alpha]), times, range(160, 201), range(201), NUMPY)[0, 0]
    exact = times[160:] ** (1 + alpha) / math.gamma(2 + alpha)
    # The last rows' weights beyond their own step are 0 by themselves.
    np.testing.assert_allclose(block @ times, exact, rtol=1e-13)


@pytest.mark.parametrize("parts", [(range(150, 160), range(20, 70)), (range(150, 160), range(150, 160))])
def test_a_block_is_a_part_of_the_matrix(parts):
    times = Graded().times(0.0, 1.0, 200, 0.5)
    whole = PredictorCorrector().block(np.array([0.5]), times, parts[0], range(201), NUMPY)
    part = PredictorCorrector().block(np.array([0.5]), times, parts[0], parts[1], NUMPY)
    np.testing.assert_allclose(part, whole[..., parts[1].start : parts[1].stop], rtol=1e-12, atol=1e-16)


def classical(name, lam, y0, dt, n_steps):
    """Euler, Heun, the implicit trapezoid rule, and BDF2 after a trapezoid step, for y' = lam y."""
    z, y = lam * dt, [y0]
    for n in range(n_steps):
        if name == "rectangle":
            y.append((1 + z) * y[-1])
        elif name == "predictor_corrector":
            y.append((1 + z + z**2 / 2) * y[-1])
        elif name == "trapezoid" or n == 0:
            y.append((1 + z / 2) / (1 - z / 2) * y[-1])
        else:
            y.append((2 * y[-1] - y[-2] / 2) / (1.5 - z))
    return tensor(*y)


@pytest.mark.parametrize("name", SCHEMES)
def test_alpha_one_is_the_classical_method(name):
    ts = torch.linspace(0, 2, 51, dtype=torch.float64)
    found = fdeint(lambda t, y: -1.3 * y, tensor(1.0), ts, 1.0, scheme=name)[:, 0]
    torch.testing.assert_close(found, classical(name, -1.3, 1.0, 0.04, 50), rtol=1e-12, atol=1e-12)


# |error| at t = 1 for 10, 20, ... 320 steps: Diethelm, Ford & Freed, Numer. Algorithms 36 (2004) 31, section 5.
TABLE = {
    0.25: (2.50e-1, 1.81e-2, 3.61e-3, 1.45e-3, 6.58e-4, 2.97e-4),
    1.25: (5.53e-3, 1.59e-3, 4.33e-4, 1.14e-4, 2.97e-5, 7.66e-6),
}


@pytest.mark.parametrize("alpha", TABLE)
def test_the_published_table_of_errors_is_reproduced(alpha):
    for k, published in enumerate(TABLE[alpha]):
        ts = torch.linspace(0, 1, 10 * 2**k + 1, dtype=torch.float64)
        found = fdeint(diethelm(alpha), tensor(0.0), ts, alpha, dy0=tensor(0.0) if alpha > 1 else None)
        assert abs(found[-1].item() - 0.25) == pytest.approx(published, rel=5e-3)  # three digits


def relaxation_error(name, alpha, n_steps, mesh="uniform"):
    """At t = 1, for D^a y = -y."""
    y0, dy0 = tensor(1.0), tensor(0.0) if alpha > 1 else None
    ts = tensor(0.0, 1.0)
    with mpmath.workdps(30):
        exact = float(mpmath.nsum(lambda k: (-1) ** int(k) * mpmath.rgamma(alpha * k + 1), [0, 150]))
    found = fdeint(lambda t, y: -y, y0, ts, alpha, dy0=dy0, scheme=name, mesh=mesh, n_steps=n_steps)
    return abs(found[-1].item() - exact)


@pytest.mark.parametrize("alpha", [0.5, 0.8, 1.5])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_declared_order_is_reached(name, alpha):
    errors = [relaxation_error(name, alpha, n) for n in (80, 160, 320)]
    assert math.log2(errors[1] / errors[2]) == pytest.approx(SCHEMES[name]().order(alpha), abs=0.1)
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9])
def test_a_graded_mesh_gives_second_order_whatever_alpha(alpha):
    errors = [relaxation_error("trapezoid", alpha, n, "graded") for n in (80, 160, 320)]
    assert math.log2(errors[1] / errors[2]) == pytest.approx(2, abs=0.1)


def test_predicting_costs_half_the_digits_of_correcting():
    assert relaxation_error("predictor_corrector", 0.5, 1000) <= 8.6e-7


@pytest.mark.parametrize("corrections", [1, 2, 3])
def test_more_corrections_come_closer_to_the_implicit_rule(corrections):
    ts = torch.linspace(0, 1, 41, dtype=torch.float64)
    implicit = fdeint(lambda t, y: -y, tensor(1.0), ts, 0.5, scheme="trapezoid")
    found = [
        fdeint(lambda t, y: -y, tensor(1.0), ts, 0.5, scheme=PredictorCorrector(m))
        for m in (corrections, corrections + 1)
    ]
    assert (found[1] - implicit).abs().max() < 0.3 * (found[0] - implicit).abs().max()


def solved(case, scheme, mesh, n_steps):
    """Return the largest error at the case's points, relative to the largest value where that is above 1."""
    last = [] if case.points[-1] == case.end else [case.end]
    ts = torch.cat([tensor(0.0), case.points, tensor(*last)])
    with torch.no_grad():
        ys = fdeint(case.f, case.y0, ts, case.alpha, dy0=case.dy0, scheme=scheme, mesh=mesh, n_steps=n_steps)
    error = case.error(ys[1 : 1 + len(case.points)])
    return (error / case.values.abs().amax().clamp(min=1)).max().item()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_the_reference_problems_are_solved(name):
    # 500 steps of a second-order rule: 64 times the error that is allowed at 4000.
    mesh = MESHES.get(name, "graded")
    assert solved(problem(name), "trapezoid", mesh, 500) <= 100 * problem(name).tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_4000_steps_of_the_implicit_rule_reach_the_tolerance(name):
    mesh = MESHES.get(name, "graded")
    # The tolerances of numerical references are the error of this very method there, to two digits.
    assert solved(problem(name), "trapezoid", mesh, 4000) <= 1.05 * problem(name).tolerance


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", CASES)
def test_every_reference_problem_converges_at_the_declared_order(name, scheme):
    case = problem(name)
    if name in STIFF and not SCHEMES[scheme].is_implicit:
        pytest.skip("an explicit scheme needs smaller steps here")
    alphas = torch.as_tensor(case.alpha).reshape(-1)
    declared = SCHEMES[scheme]().order(float(alphas.min()))
    errors = [solved(case, scheme, "uniform", n) for n in (1000, 2000, 4000)]
    if errors[-1] < 1e-10:  # exact up to rounding, or up to the tolerance of the step's equation
        return
    assert math.log2(errors[0] / errors[2]) / 2 >= declared - 0.15 or errors[-1] <= case.tolerance
