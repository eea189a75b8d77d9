"""Solves to a tolerance: weights, errors, the adjoint, dense output, events, continuation, samples that fail."""

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import mpmath
import numpy as np
import torch

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.special.functions import mittag_leffler
from hpfracc_nn.solvers import Collocation, Event, Newton, Points, StepLimit
from hpfracc_nn.solvers.collocation import Tree, after, from_points, rule_of, within
from hpfracc_nn.solvers.torch import fdeint
from hpfracc_nn.solvers.torch.collocation import Mesh, dense_weights
from tests.solver_cases import CASES, problem, tensor

ORDERS = (0.02, 0.3, 0.7, 1.0, 1.5, 1.98)
ONE = tensor(1.0)


def decay(t, y):
    return -y


def moment(alpha, gap, k, derivative):
    """Return the integral over [0, 1] of u**k times the kernel, or its derivative, seen from `gap` after 1."""
    with mpmath.workdps(40):
        a, distance = mpmath.mpf(alpha), 1 + mpmath.mpf(gap)
        factor = 1 if derivative == 0 else a - 1
        power = a - 1 - derivative
        series = mpmath.hyp2f1(-power, k + 1, k + 2, 1 / distance)
        return float(factor * distance**power * series / (k + 1) / mpmath.gamma(a))


@pytest.mark.parametrize("derivative", [0, 1])
@pytest.mark.parametrize("alpha", ORDERS)
def test_weights_of_a_step_that_is_over_integrate_powers(alpha, derivative):
    gaps, nodes = np.array([0.001, 0.0299, 0.0301, 1.0, 8.99, 9.01, 1e6]), rule_of(8).nodes
    found = after(8, np.array([alpha]), gaps, np.ones_like(gaps), NUMPY, derivative)[0]
    for row, gap in zip(found, gaps.tolist(), strict=True):
        for k in range(8):
            exact = moment(alpha, gap, k, derivative)
            # 1e3 eps: values of Lagrange polynomials outside of the step, up to 1e2, cancel; slopes are 10 times those
            assert abs(row @ nodes**k - exact) <= 1e3 * 10**derivative * 2.3e-16 * max(abs(exact), 1.0)


@pytest.mark.parametrize("alpha", ORDERS)
def test_weights_within_a_step_integrate_powers(alpha):
    at = np.array([0.01, 0.3, 1.0])
    weights = within(8, np.array([alpha]), at, NUMPY)[0]
    slopes = within(8, np.array([alpha]), at, NUMPY, 1)[0]
    nodes = rule_of(8).nodes
    for k in range(8):
        exact = math.gamma(k + 1) / math.gamma(k + 1 + alpha) * at ** (k + alpha)
        np.testing.assert_allclose(weights @ nodes**k, exact, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(slopes @ nodes**k, exact * (k + alpha) / at, rtol=1e-11, atol=1e-12)


def random_tree(n, seed=0):
    tree, rng = Tree(), np.random.default_rng(seed)
    for _ in range(n):
        tree.append(float(np.exp(rng.normal())))
    return tree


@pytest.mark.parametrize("alpha", [0.3, 1.5])
@pytest.mark.parametrize("n", [1, 2, 31, 64, 100])
def test_groups_of_steps_stand_for_their_steps(alpha, n):
    tree = random_tree(n)
    values = np.random.default_rng(1).normal(size=(n, 8))
    moments: dict[tuple[int, int], np.ndarray] = {}
    for groups in tree.groups:
        for group in groups[1:]:
            parts = [
                group.upward(part, 8) @ (values[part.first] if part.is_step else moments[part.first, part.last])
                for part in group.parts
            ]
            moments[group.first, group.last] = parts[0] + parts[1]
    rows = np.array([0.02, 0.5, 1.0])
    groups, steps = tree.cover(n, 0.02)
    assert sorted(k for each in (*groups, *steps) for k in range(each.first, each.last)) == list(range(n))
    gap, h = tree.gaps(n, rows, steps)
    near = after(8, np.array([alpha]), gap.reshape(-1), h.reshape(-1), NUMPY).reshape(3, -1)
    found = near @ values[[each.first for each in steps]].reshape(-1)
    if groups:
        distance, unit = tree.distances(n, rows, groups)
        far = from_points(np.array([alpha]), distance, unit, NUMPY)[0]
        found = found + far @ np.concatenate([moments[each.first, each.last] for each in groups])
    single = [each[0] for each in tree.groups]
    gap, h = tree.gaps(n, rows, single)
    weights = after(8, np.array([alpha]), gap.reshape(-1), h.reshape(-1), NUMPY).reshape(3, -1)
    scale = np.abs(weights) @ np.abs(values.reshape(-1))
    assert (np.abs(found - weights @ values.reshape(-1)) <= 1e-13 * scale).all()  # 5.8**-18 of the kernel is left out


def test_the_past_of_many_steps_is_few_weights():
    counts = {}
    for n in (256, 4096):
        tree = Tree()
        for _ in range(n):
            tree.append(1.0)
        groups, steps = tree.cover(n, 0.02)
        counts[n] = len(groups) + len(steps)
    assert counts[256] <= 2 * 8 + 2
    assert counts[4096] <= counts[256] + 2 * 4  # O(log n)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("rate", [1.0, 1000.0])
@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 1.9])
def test_a_relaxation_is_solved_to_the_tolerance_at_all_times(alpha, rate, tolerance):
    ts = np.concatenate([[0], np.logspace(-6, 0, 61)])
    slope: dict[str, Any] = {"dy0": tensor(0.0)} if alpha > 1 else {}
    y = fdeint(lambda t, y: -rate * y, ONE, ts, alpha, rtol=tolerance, atol=tolerance, **slope)[:, 0].numpy()
    exact = mittag_leffler(-rate * ts**alpha, alpha)
    assert (np.abs(y - exact) <= 10 * tolerance * (1 + np.abs(exact))).all()


KNOWN = [name for name, case in CASES.items() if case.get("closed_form")]


@pytest.mark.parametrize("tolerance", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("name", KNOWN)
def test_reference_problems_are_solved_to_the_tolerance(name, tolerance):
    p = problem(name)
    ts = torch.cat([tensor(0.0), p.points])
    ys = fdeint(p.f, p.y0, ts, p.alpha, dy0=p.dy0, rtol=tolerance, atol=tolerance)[1:, p.known]
    assert bool(((ys - p.values).abs() <= 10 * tolerance * (1 + p.values.abs())).all())


def test_a_tolerance_costs_few_evaluations_stiff_or_not():
    counts = {}
    for rate in (1.0, 1e6):
        found = fdeint(lambda t, y, rate=rate: -rate * y, ONE, [0, 1], 0.7, rtol=1e-7, atol=1e-9, full=True)
        counts[rate] = found.statistics.evaluations + found.statistics.products
    assert counts[1.0] < 400
    assert counts[1e6] < 1000  # over 9 decades of time


def dense_solution(f, y0, base, alpha, mesh, ts):
    """Return the states at ts by all stage equations at once, solved by Newton's method under autograd."""
    steps, nodes, count = Mesh(np.diff(mesh)), rule_of(8).nodes, y0.numel()
    times = (mesh[:-1, None] + np.diff(mesh)[:, None] * nodes).reshape(-1)
    weights = dense_weights(steps, times, 8, alpha).expand(count, -1, -1).permute(1, 2, 0)  # [row, column, entry]
    outputs = dense_weights(steps, np.asarray(ts), 8, alpha).expand(count, -1, -1)
    t, start = torch.tensor(times), base(torch.tensor(times))
    values = torch.stack([f(each, y) for each, y in zip(t, start, strict=True)]).detach()
    for _ in range(12):
        states = start + torch.einsum("ije,je->ie", weights, values)
        found = torch.stack([f(each, y) for each, y in zip(t, states, strict=True)])
        slopes = torch.stack(
            [torch.autograd.functional.jacobian(lambda y, s=s: f(s, y), y) for s, y in zip(t, states, strict=True)]
        )
        mixed = torch.einsum("ipq,ijq->ipjq", slopes, weights.detach()).reshape(values.numel(), -1)
        delta = torch.linalg.solve(torch.eye(values.numel()).double() - mixed, (found - values).reshape(-1))
        values = values + delta.view_as(values)
    return base(tensor(*ts)) + torch.einsum("eij,je->ie", outputs, values)


@pytest.mark.parametrize("orders", [[0.6], [1.0], [0.5, 0.8, 1.0], [1.4, 0.7, 1.2]])
def test_gradients_are_those_of_the_same_steps(orders):
    torch.manual_seed(0)
    matrix = (torch.randn(3, 3).double() - 2 * torch.eye(3).double()).requires_grad_()
    alpha, y0 = tensor(*orders).requires_grad_(), torch.randn(3).double().requires_grad_()
    dy0 = torch.randn(3).double().requires_grad_() if max(orders) > 1 else None
    kept = None if dy0 is None else dy0 * (alpha > 1)

    def f(t, y):
        return torch.tanh(matrix @ y) + torch.sin(3 * t)

    def base(t):
        return y0 + (0 if kept is None else t[:, None] * kept) + 0 * t[:, None]

    mesh = np.concatenate([[0.0], np.geomspace(1e-6, 2, 14)])
    ts = [0.0, 0.37, 1.1, 2.0]
    y = fdeint(f, y0, ts, alpha, dy0=dy0, scheme="collocation", mesh=Points(tuple(mesh)))
    expected = dense_solution(f, y0, base, alpha, mesh, ts)
    assert float((y - expected).detach().abs().max()) <= 1e-12
    inputs, g = [each for each in (y0, dy0, alpha, matrix) if each is not None], torch.randn_like(y)
    for found, exact in zip(
        torch.autograd.grad((y * g).sum(), inputs), torch.autograd.grad((expected * g).sum(), inputs), strict=True
    ):
        assert float((found - exact).abs().max()) <= 1e-12 * max(1.0, float(exact.abs().max()))


@pytest.mark.parametrize("alpha", [0.4, 0.9, 1.6])
def test_gradients_are_those_of_the_solution_to_the_tolerance(alpha):
    order, rate, y0 = (
        tensor(alpha).squeeze().requires_grad_(),
        tensor(2.0).requires_grad_(),
        ONE.clone().requires_grad_(),
    )
    slope: dict[str, Any] = {"dy0": tensor(0.0)} if alpha > 1 else {}
    y = fdeint(lambda t, y: -rate * y, y0, [0, 1], order, rtol=1e-8, atol=1e-8, **slope)[-1]
    found = torch.autograd.grad(y.sum(), [order, rate, y0])
    z, a = tensor(2.0).requires_grad_(), tensor(alpha).requires_grad_()
    exact = torch.autograd.grad(mittag_leffler(-z, a).sum(), [a, z])
    expected = (*exact, mittag_leffler(-tensor(2.0), alpha))
    for each, value in zip(found, expected, strict=True):
        assert float((each - value).abs().max()) <= 1e-7


def test_a_large_state_has_the_gradient_of_a_small_one():
    """200 numbers: neither the forward nor the backward pass makes a Jacobian."""
    rate = tensor(3.0).requires_grad_()
    alpha = tensor(0.6).requires_grad_()
    found = []
    for count in (1, 200):
        y0 = torch.ones(count).double()
        y = fdeint(lambda t, y: -rate * y + torch.sin(y), y0, [0, 1], alpha, rtol=1e-9, atol=1e-9)[-1]
        found.append([y[0], *torch.autograd.grad(y.mean(), [rate, alpha])])
    for one, many in zip(*found, strict=True):
        assert float((one - many).detach().abs().max()) <= 1e-8


@pytest.mark.parametrize("n", [40, 140])  # with and without a Jacobian of all stages together
def test_a_large_stiff_state_is_solved_in_both_passes(n):
    second = 2 * torch.eye(n).double() - torch.diag(torch.ones(n - 1), 1) - torch.diag(torch.ones(n - 1), -1)
    rates = 4 * (n + 1) ** 2 * math.sin(math.pi / (2 * (n + 1))) ** 2
    shape = torch.sin(math.pi * torch.arange(1, n + 1).double() / (n + 1))
    y0 = shape.clone().requires_grad_()
    found = fdeint(lambda t, y: -((n + 1) ** 2) * (second @ y), y0, [0, 0.1], 0.8, rtol=1e-6, atol=1e-8, full=True)
    factor = float(mittag_leffler(-rates * 0.1**0.8, 0.8))
    assert float((found.ys[-1].detach() - factor * shape).abs().max()) <= 1e-5
    assert found.statistics.evaluations < 3000
    (gradient,) = torch.autograd.grad(found.ys[-1] @ shape, y0)  # the map is symmetric, and `shape` an eigenvector
    assert float((gradient - factor * shape).abs().max()) <= 1e-5


@pytest.mark.parametrize("alpha", [0.4, 1.5])
def test_dense_output_and_its_derivative_are_as_accurate_as_the_steps(alpha):
    slope: dict[str, Any] = {"dy0": tensor(0.0)} if alpha > 1 else {}
    found = fdeint(decay, ONE, [0, 2], alpha, rtol=1e-9, atol=1e-9, full=True, **slope)
    t = np.linspace(0.05, 2, 57)
    assert np.abs(found(t)[:, 0].numpy() - mittag_leffler(-(t**alpha), alpha)).max() <= 1e-8
    exact = -(t ** (alpha - 1)) * mittag_leffler(-(t**alpha), alpha, alpha)
    assert np.abs(found(t, derivative=1)[:, 0].numpy() - exact).max() <= 1e-6
    assert found(0.5).shape == (1,)
    with pytest.raises(ValueError, match="continue the solve"):
        found(2.1)
    with pytest.raises(ValueError, match="needs 0 or 1"):
        found(1.0, derivative=2)


def test_a_solve_goes_on_with_its_history():
    rate, alpha = tensor(1.3).requires_grad_(), tensor(0.6).requires_grad_()
    mesh, k = np.concatenate([[0], np.geomspace(1e-9, 2, 60)]), 40

    def solve(ts, points):
        return fdeint(
            lambda t, y: -rate * y, ONE, ts, alpha, scheme="collocation", mesh=Points(tuple(points)), full=True
        )

    uncut, part = solve([0, mesh[-1]], mesh), solve([0, mesh[k]], mesh[: k + 1])
    whole = part.continued([mesh[k], mesh[-1]], mesh=Points(tuple(mesh[k:] - mesh[k])))
    # The steps are those of the uncut solve; the end of the first is off by a rounding.
    assert float((whole.ys[-1] - uncut.ys[-1]).detach().abs().max()) <= 1e-14
    for one, other in zip(
        torch.autograd.grad(uncut.ys[-1].sum(), [rate, alpha]),
        torch.autograd.grad(whole.ys[-1].sum(), [rate, alpha]),
        strict=True,
    ):
        assert float((one - other).abs().max()) <= 1e-13
    assert float((whole(0.5) - uncut(0.5)).detach().abs().max()) <= 1e-14


def test_a_solve_to_a_tolerance_goes_on():
    found = fdeint(decay, ONE, [0, 1], 0.5, rtol=1e-9, atol=1e-9, full=True).continued([1, 3], rtol=1e-9, atol=1e-9)
    assert abs(float(found.ys[-1]) - float(mittag_leffler(-(3**0.5), 0.5))) <= 1e-8
    with pytest.raises(ValueError, match="needs the end of the solution, 3"):
        found.continued([2, 4], rtol=1e-9)
    with pytest.raises(ValueError, match="needs what may change"):
        found.continued([3, 4], alpha=0.3)


def test_an_event_ends_a_solve_and_its_time_has_a_gradient():
    def time_of(rate, alpha, y0):
        half = Event(lambda t, y: y[0] - 0.5, is_terminal=True, direction=-1)
        found = fdeint(lambda t, y: -rate * y, y0, [0, 9], alpha, rtol=1e-11, atol=1e-12, events=half, full=True)
        assert found.status == "event"
        assert bool(found.ys[-1].isnan().all())
        assert abs(float(found(found.end)[0].detach()) - 0.5) <= 1e-10
        return found.events[0]

    inputs = [tensor(1.3).squeeze(), tensor(0.6).squeeze(), tensor(1.1)]
    leaves = [each.clone().requires_grad_() for each in inputs]
    event = time_of(*leaves)
    gradient = torch.autograd.grad(event.times[0], leaves)
    step = 1e-4
    for k, found in enumerate(gradient):
        ends = []
        for sign in (1, -1):
            moved = [each + sign * step * (i == k) for i, each in enumerate(inputs)]
            ends.append(float(time_of(*moved).times[0]))
        assert abs(float(found) - (ends[0] - ends[1]) / (2 * step)) <= 1e-6 * max(1.0, abs(float(found)))


@pytest.mark.parametrize(("direction", "count"), [(0, 3), (1, 1), (-1, 2)])
def test_events_are_recorded_by_direction(direction, count):
    """The cosine, y'' = -y, has zeros at pi/2, 3 pi/2 and 5 pi/2."""
    event = Event(lambda t, y: y, direction=direction)
    found = fdeint(decay, ONE, [0, 9], 2 - 1e-12, dy0=tensor(0.0), rtol=1e-9, atol=1e-9, events=[event], full=True)
    times = found.events[0].times.numpy()
    every = np.array([0.5, 1.5, 2.5]) * math.pi
    expected = every if direction == 0 else every[1:2] if direction > 0 else every[::2]
    assert found.status == "finished"
    assert len(times) == count
    assert np.abs(times - expected).max() <= 1e-7


def test_one_bad_sample_does_not_end_the_others():
    y0 = tensor(1.0, 0.1, 0.5, 0.1, 0.2, 0.1, -1.0, 0.1).view(4, 2).requires_grad_()

    def f(t, y):
        return y**2 - 0.1

    found = fdeint(f, y0, np.linspace(0, 4, 9), 0.7, rtol=1e-6, throw=False, full=True)
    assert found.status == "finished"
    assert found.failed.isnan().tolist() == [False, False, True, True]
    assert bool(found.ys[-1, :2].isnan().all())
    assert bool(found.ys[0].isfinite().all())
    found.ys[-1, 2:].sum().backward()
    assert y0.grad is not None
    good = y0.detach()[2:].clone().requires_grad_()
    alone = fdeint(f, good, [0, 4], 0.7, rtol=1e-9, atol=1e-9)[-1]
    alone.sum().backward()
    assert good.grad is not None
    assert float((alone - found.ys[-1, 2:]).detach().abs().max()) <= 1e-5
    assert float((good.grad - y0.grad[2:]).abs().max()) <= 1e-5
    assert bool((y0.grad[:2] == 0).all())
    with pytest.raises(FloatingPointError, match="the solution may end there"):
        fdeint(f, y0.detach(), [0, 4], 0.7, rtol=1e-6)


def test_a_solve_says_how_far_it_came():
    with pytest.raises(StepLimit, match=r"max_steps=3\): reached t=.* of 1, where a step is"):
        fdeint(decay, ONE, [0, 1], 0.7, rtol=1e-10, atol=1e-10, max_steps=3)
    found = fdeint(decay, ONE, [0, 1e-9, 1], 0.7, rtol=1e-10, atol=1e-10, max_steps=5, throw=False, full=True)
    assert found.status == "max_steps"
    assert "max_steps=5" in found.message
    assert 0 < found.end < 1
    assert bool(found.ys[-1].isnan().all())
    assert found.statistics.steps == 5


def test_a_tolerance_alone_chooses_collocation():
    with_scheme = fdeint(decay, ONE, [0, 1], 0.5, scheme="collocation", rtol=1e-6)
    assert torch.equal(fdeint(decay, ONE, [0, 1], 0.5, rtol=1e-6), with_scheme)
    assert torch.equal(fdeint(decay, ONE, [0, 1], 0.5, scheme=Collocation(), rtol=1e-6), with_scheme)


@pytest.mark.parametrize("stages", [4, 6, 16])
def test_any_number_of_stages_serves(stages):
    y = fdeint(decay, ONE, [0, 1], 0.6, scheme=Collocation(stages), rtol=1e-6, atol=1e-6)[-1]
    assert abs(float(y) - float(mittag_leffler(-1.0, 0.6))) <= 1e-5


def test_a_mesh_of_fixed_steps_is_taken():
    exact = float(mittag_leffler(-1.0, 0.5))
    for options in ({"mesh": "graded", "n_steps": 12}, {"n_steps": 40}):
        y = fdeint(decay, ONE, [0, 1], 0.5, scheme="collocation", **options)[-1]
        assert abs(float(y) - exact) <= 1e-4


def test_states_of_several_tensors_args_and_single_precision():
    def f(t, y, args):
        position, speed = y
        return speed, -args["rate"] * position

    rate = torch.tensor(1.0, requires_grad=True)
    y0 = torch.ones(4, 3), torch.zeros(4, 2, 3)[:, 0]
    x, v = fdeint(f, y0, [0, 1], 1.0, args={"rate": rate}, rtol=2e-5, atol=1e-5)
    assert x.dtype == torch.float32
    assert float((x[-1].detach() - math.cos(1)).abs().max()) <= 1e-4
    assert float((v[-1].detach() + math.sin(1)).abs().max()) <= 1e-4
    (g,) = torch.autograd.grad(x[-1].mean(), rate)
    assert abs(float(g) + math.sin(1) / 2) <= 1e-4


def test_parameters_of_a_module_have_gradients():
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 2).double()
    y0 = tensor(1.0, 0.5)
    fdeint(lambda t, y: torch.tanh(net(y)), y0, [0, 1], 0.7, rtol=1e-9, atol=1e-9)[-1].sum().backward()
    assert net.weight.grad is not None
    step, weight = 1e-5, net.weight.detach().clone()
    ends = []
    for sign in (1, -1):
        moved = weight.clone()
        moved[0, 1] += sign * step
        ends.append(
            fdeint(
                lambda t, y, w=moved: torch.tanh(y @ w.T + net.bias.detach()), y0, [0, 1], 0.7, rtol=1e-11, atol=1e-12
            )[-1].sum()
        )
    assert abs(float(net.weight.grad[0, 1]) - float((ends[0] - ends[1]).detach()) / (2 * step)) <= 1e-6


REFUSED = [
    ({"rtol": 1e-9, "y0": torch.ones(1)}, ValueError, "100 times the rounding"),
    ({"rtol": 1e-6, "atol": torch.ones(3)}, ValueError, r"atol of shape \(3,\).*broadcasts to y0's \(1,\)"),
    ({"rtol": -1.0}, ValueError, "rtol >= 0"),
    ({"atol": -1.0}, ValueError, "atol >= 0"),
    ({"rtol": 1e-6, "n_steps": 10}, ValueError, "choose the steps"),
    ({"rtol": 1e-6, "mesh": "graded"}, ValueError, "choose the steps"),
    ({"throw": False}, ValueError, "needs scheme='collocation'"),
    ({"events": Event(decay)}, ValueError, "needs scheme='collocation'"),
    ({"rtol": 1e-6, "history": "fft"}, ValueError, "leave history out"),
    ({"rtol": 1e-6, "max_steps": 0}, ValueError, "max_steps >= 1"),
    ({"rtol": 1e-6, "adjoint": False, "y0": ONE.clone().requires_grad_()}, NotImplementedError, "adjoint=True"),
    ({"scheme": "collocation", "mesh": Points((0.0, 0.5))}, ValueError, "up to the last output"),
    ({"mesh": Points((0.0, 1.0))}, ValueError, "scheme='collocation'"),
    ({"rtol": 0.0, "atol": 0.0}, ValueError, "atol > 0"),
    ({"rtol": 0.0, "atol": tensor(0.0)}, ValueError, "atol > 0"),
    ({"rtol": 1e-6, "events": Event(decay)}, ValueError, "needs full=True"),
    ({"rtol": 1e-6, "events": lambda t, y: float(y), "full": True}, TypeError, "needs a floating tensor.*float"),
    ({"rtol": 1e-6, "events": lambda t, y: y > 0.5, "full": True}, TypeError, "needs a floating tensor.*bool"),
]


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED)
def test_what_cannot_be_done_is_refused(options, kind, text):
    given: dict[str, Any] = {"y0": ONE, **options}
    with pytest.raises(kind, match=text):
        fdeint(decay, given.pop("y0"), [0, 1], 0.5, **given)


def test_options_out_of_range_are_refused():
    for make, text in (
        (lambda: Collocation(3), "stages >= 4"),
        (lambda: Collocation(17), "stages <= 16"),
        (lambda: Points((0.0, 1.0, 0.5)), "increase from 0"),
        (lambda: Event(decay, direction=2), "needs -1, 0 or 1"),
    ):
        with pytest.raises(ValueError, match=text):
            make()
    with pytest.raises(TypeError, match="needs Newton"):
        Collocation(roots="newton")  # type: ignore[arg-type]
    assert Collocation(roots=Newton(tolerance=1e-9)).order(0.5) == 8.5


def test_a_right_hand_side_that_is_not_repeatable_is_refused():
    noise = torch.nn.Dropout(0.5)
    y0 = torch.ones(4).double().requires_grad_()
    with pytest.raises(ValueError, match="draws random numbers"):
        fdeint(lambda t, y: -noise(y), y0, [0, 1], 0.5, rtol=1e-6)


def test_the_adjoint_is_taken_once():
    y0 = ONE.clone().requires_grad_()
    y = fdeint(lambda t, y: -(y**3), y0, [0, 1], 0.5, rtol=1e-6)[-1]
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(y.sum(), y0, create_graph=True)


@pytest.mark.parametrize("scheme", ["rectangle", "predictor_corrector", "trapezoid", "bdf2"])
def test_twice_the_steps_estimate_the_error_of_fixed_steps(scheme):
    """At the end, where the error of all schemes is that of their order to within a factor of 2."""
    options: dict[str, Any] = {"scheme": scheme, "n_steps": 400, "atol": 0.0}
    y = fdeint(decay, ONE, [0, 1], 0.8, scheme=scheme, n_steps=400)[-1]
    exact = mittag_leffler(-1.0, 0.8)
    error = abs(float(y[0]) - float(exact)) / float(exact)
    assert torch.equal(fdeint(decay, ONE, [0, 1], 0.8, rtol=2 * error, **options)[-1], y)
    with pytest.raises(FloatingPointError, match="the change by 800 steps says"):
        fdeint(decay, ONE, [0, 1], 0.8, rtol=error / 2, **options)


def test_complex_states_are_solved():
    """D^a y = i y has the solution E_a(i t^a), which is not real."""
    rate = torch.tensor(1j, dtype=torch.complex128, requires_grad=True)
    y0 = torch.ones(2, dtype=torch.complex128)
    found = fdeint(lambda t, y: rate * y, y0, [0, 1], 0.7, rtol=1e-9, atol=1e-9, full=True)
    exact = complex(mittag_leffler(1j, 0.7))
    assert found.ys.is_complex()
    assert abs(complex(found.ys[-1, 1].detach()) - exact) <= 1e-8
    assert abs(complex(found(1.0)[0].detach()) - exact) <= 1e-8
    (gradient,) = torch.autograd.grad(found.ys[-1, 0].real, rate)
    slope = complex(mittag_leffler(1j, 0.7, derivative=(1, 0, 0)))
    assert abs(complex(gradient) - slope.conjugate()) <= 1e-7  # torch's gradient is that of the conjugate
    fixed = fdeint(lambda t, y: rate * y, y0, [0, 1], tensor(0.7, 0.8), n_steps=400, scheme="trapezoid")
    assert abs(complex(fixed[-1, 0].detach()) - exact) <= 1e-4


def test_a_state_may_be_a_tree_of_tensors():
    y0 = {"pair": (torch.ones(3).double(), torch.zeros(3).double()), "single": 2 * ONE}

    def f(t, y, args):
        x, v = y["pair"]
        return {"pair": (v, -x), "single": -args * y["single"]}

    half = Event(lambda t, y: y["single"] - 1.0)
    cases: tuple[dict[str, Any], ...] = ({"rtol": 1e-9, "atol": 1e-9, "events": half, "full": True}, {"n_steps": 2000})
    for options in cases:
        found = fdeint(f, y0, [0, 1], 1.0, args=1.0, **options)
        ys = found.ys if "full" in options else found
        assert float((ys["pair"][0][-1] - math.cos(1)).abs().max()) <= (1e-8 if "full" in options else 1e-5)
        assert ys["single"].shape == (2, 1)
        if "full" in options:
            assert abs(float(found.events[0].times) - math.log(2)) <= 1e-8
            assert abs(float(found(0.5)["single"]) - 2 * math.exp(-0.5)) <= 1e-8
            assert abs(float(found.continued([1, 2], rtol=1e-9).ys["single"][-1]) - 2 * math.exp(-2)) <= 1e-6
    with pytest.raises(TypeError, match="needs a tree like y0"):
        fdeint(lambda t, y: y["pair"], y0, [0, 1], 1.0)


def test_a_solve_that_goes_on_keeps_its_tolerances():
    def f(t, y):
        return -y + torch.sin(t)

    y0 = torch.ones(1, dtype=torch.float64)
    first = fdeint(f, y0, [0.0, 2.0], 0.5, full=True, rtol=1e-9, atol=1e-9)
    whole = fdeint(f, y0, [0.0, 50.0], 0.5, rtol=1e-9, atol=1e-9)[-1]
    for options in ({}, {"rtol": 1e-9}, {"atol": 1e-9}):
        found = first.continued([2.0, 50.0], **options).ys[-1]
        torch.testing.assert_close(found, whole, rtol=0, atol=2e-8)  # both within ten tolerances


def test_an_event_that_is_not_finite_is_refused():
    event = Event(lambda t, y: torch.sqrt(y[0]))  # y of order 1.9 oscillates
    y0 = torch.ones(1, dtype=torch.float64)
    options: dict[str, Any] = {"dy0": torch.zeros_like(y0), "rtol": 1e-6, "events": event, "full": True}
    with pytest.raises(FloatingPointError, match="event 0 is not finite"):
        fdeint(lambda t, y: -y, y0, [0.0, 9.0], 1.9, **options)


def test_a_derivative_at_the_start_is_infinite_below_order_1():
    """It begins like f(0, y0) t^(a - 1) / Gamma(a), and where f is 0 there that says nothing."""
    y0, slope = tensor(1.0, -2.0, 0.0, 1.0, 1.0), tensor(0.0, 0.0, 0.0, 0.0, 7.0)
    found = fdeint(decay, y0, [0, 1], tensor(0.5, 0.7, 0.5, 1.0, 1.5), dy0=slope, rtol=1e-6, full=True)
    at_start, later = found([0.0, 0.5], derivative=1)
    assert at_start[:2].tolist() == [-math.inf, math.inf]
    assert bool(at_start[2].isnan())
    assert float((at_start[3:] - tensor(-1.0, 7.0)).abs().max()) <= 1e-6
    assert bool(later.isfinite().all())


def test_an_absolute_tolerance_alone_is_kept():
    found = fdeint(lambda t, y: -y, tensor(1e-6), [0, 1], 0.5, rtol=0, atol=1e-12)[-1]
    assert abs(float(found) - 1e-6 * float(mittag_leffler(-1.0, 0.5))) <= 1e-11
    large = fdeint(lambda t, y: -y, tensor(1e6), [0, 1], 0.5, rtol=0, atol=1e-12)[-1]  # of which a rounding is 1e-10
    assert abs(float(large) / 1e6 - float(mittag_leffler(-1.0, 0.5))) <= 1e-13


# f, the state at the start, and the solution as a function of E_alpha(-t**alpha)
RELAXATIONS = [(decay, 1.0, lambda e: e), (lambda t, y: 1 - y, 0.0, lambda e: 1 - e)]
SMALL_ORDERS = (0.02, 0.05, 0.1, 0.3)


@pytest.mark.parametrize(("f", "start", "solution"), RELAXATIONS, ids=["decay", "rise"])
@pytest.mark.parametrize(("rtol", "atol"), [(1e-3, None), (1e-4, 1e-6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", SMALL_ORDERS)
def test_small_orders_are_solved_to_the_tolerance_in_both_precisions(alpha, dtype, rtol, atol, f, start, solution):
    """The first steps are up to 1e-284 long, which single precision does not hold."""
    ts = np.array([0.0, 1e-30, 1e-6, 0.1, 0.5, 1.0])
    y0 = torch.full((1,), start, dtype=dtype)
    found = fdeint(f, y0, ts, alpha, rtol=rtol, atol=atol, full=True)
    exact = solution(mittag_leffler(-(ts**alpha), alpha))
    errors = np.abs(found.ys[:, 0].double().numpy() - exact)
    assert (errors <= rtol * np.abs(exact) + (1e-6 if atol is None else atol)).all()
    assert found.ys.dtype == dtype
    assert torch.equal(found.ys[0], y0)
    assert torch.equal(found(0.0), y0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", SMALL_ORDERS)
def test_gradients_at_small_orders_are_those_of_the_solution(alpha, dtype):
    y0, order = torch.ones(1, dtype=dtype).requires_grad_(), tensor(alpha).squeeze().requires_grad_()
    y = fdeint(decay, y0, [0, 0.1], order, rtol=1e-4, atol=1e-6)[-1].sum()
    of_y0, of_alpha = torch.autograd.grad(y, [y0, order])

    def exact(a):
        return float(mittag_leffler(-(0.1**a), a))

    assert abs(float(of_y0) - exact(alpha)) <= 1e-4
    slope = (exact(alpha + 1e-5) - exact(alpha - 1e-5)) / 2e-5
    assert abs(float(of_alpha) - slope) <= 1e-3 * abs(slope)  # of a solution to 1e-4


STEPS = [{"rtol": 1e-3}, {"scheme": "collocation", "mesh": "graded", "n_steps": 20}]


@pytest.mark.parametrize("options", STEPS, ids=["tolerance", "mesh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [*SMALL_ORDERS, 1.02, 1.5])
def test_a_solution_is_its_start_at_the_start_and_so_are_its_gradients(alpha, dtype, options):
    options = dict(options)
    y0, rate = torch.tensor([1.0, 0.3], dtype=dtype).requires_grad_(), torch.ones(2, dtype=dtype).requires_grad_()
    order, inputs = tensor(alpha).squeeze().requires_grad_(), [y0, rate]
    if alpha > 1:
        options["dy0"] = torch.tensor([0.7, -1.0], dtype=dtype).requires_grad_()
        inputs.append(options["dy0"])
    found = fdeint(lambda t, y: 2 - rate * y, y0, [0, 1], order, full=True, **options)
    g = torch.tensor([2.0, 3.0], dtype=dtype)
    for at_start in (found.ys[0], found(0.0)):
        assert torch.equal(at_start, y0)
        first, *others = torch.autograd.grad((at_start * g).sum(), [*inputs, order], retain_graph=True)
        assert torch.equal(first, g)
        assert not any(each.any() for each in others)
    if alpha > 1:
        slope = found(0.0, derivative=1)
        assert torch.equal(slope, options["dy0"])
        gradients = torch.autograd.grad((slope * g).sum(), [*inputs, order])
        assert [bool(each.any()) for each in gradients] == [False, False, True, False]
        assert torch.equal(gradients[2], g)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_infinite_derivative_at_the_start_leaves_the_others_gradients_alone(dtype):
    y0 = torch.ones(1, dtype=dtype).requires_grad_()
    found = fdeint(decay, y0, [0, 1], 0.3, rtol=1e-4, full=True)
    (whole,) = torch.autograd.grad(found([0.0, 0.5], derivative=1)[1].sum(), y0, retain_graph=True)
    (alone,) = torch.autograd.grad(found(0.5, derivative=1).sum(), y0)
    assert torch.allclose(whole, alone)


def test_a_tolerance_below_the_rounding_of_earlier_states_is_no_fault_of_f():
    """A state that falls from 1 to 5e-3 is a sum whose parts are of size 1."""
    options: dict[str, Any] = {"rtol": 1.3e-5, "atol": 1e-8}
    with pytest.raises(FloatingPointError, match=r"rounding of states that were 1 in float32; pass states in float64"):
        fdeint(lambda t, y: -1e3 * y, ONE.float(), [0, 1], 0.1, **options)
    y = fdeint(lambda t, y: -1e3 * y, ONE, [0, 1], 0.1, **options)[-1]
    exact = float(mittag_leffler(-1e3, 0.1))
    assert abs(float(y) - exact) <= 1e-8 + 1.3e-5 * exact


def test_the_start_of_long_steps_leaves_finite_gradients():
    y0, alpha = tensor(1.0).requires_grad_(), tensor(0.02).requires_grad_()
    mesh = Points((0.0, 1e7, 3e7, 1e8))
    found = fdeint(lambda t, y: -1e-3 * y, y0, [0, 1e8], alpha, scheme="collocation", mesh=mesh, full=True)
    slopes = torch.autograd.grad(found([0.0, 1e6], derivative=1)[1].sum(), (y0, alpha))
    assert all(bool(each.isfinite().all()) for each in slopes)


def test_a_function_that_ends_is_not_taken_for_rounding():
    def f(t, y):
        return torch.where(t < 3.0, -5 * y, math.nan)

    with pytest.raises(FloatingPointError, match="f may be undefined"):
        fdeint(f, torch.full((1,), 10.0), [0, 5], 0.95, rtol=2e-5, atol=1e-6)
