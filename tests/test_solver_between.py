"""Solutions of schemes with fixed steps: states at any times, their derivatives, and the estimated error."""

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from hpfracc_nn.fractional.special.functions import mittag_leffler
from hpfracc_nn.solvers import BDF2, SCHEMES, Graded, Newton, Trapezoid
from hpfracc_nn.solvers.torch import fdeint
from tests.solver_cases import tensor

ONE = tensor(1.0)
LATE = np.array([0.437, 0.5, 0.7311, 0.9999, 1.0])


def decay(t, y):
    return -y


def slope(alpha) -> dict[str, Any]:
    return {"dy0": tensor(0.0)} if alpha > 1 else {}


def exact(t, alpha):
    return np.asarray(mittag_leffler(-(np.asarray(t) ** alpha), alpha))


def exact_slope(t, alpha):
    return -(t ** (alpha - 1)) * np.asarray(mittag_leffler(-(t**alpha), alpha, alpha))


ON_MESHES = [
    (name, mesh)
    for name, scheme in SCHEMES.items()
    for mesh in ("uniform", "graded")
    if mesh == "uniform" or not scheme.needs_uniform
]


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8, 1.0, 1.5])
@pytest.mark.parametrize(("scheme", "mesh"), ON_MESHES)
def test_between_steps_the_order_is_that_of_the_scheme(scheme, alpha, mesh):
    """The largest error at times between steps, beside that at steps nearby."""
    errors = []
    for n in (64, 128, 256):
        found = fdeint(decay, ONE, [0, 1], alpha, scheme=scheme, mesh=mesh, n_steps=n, full=True, **slope(alpha))
        steps = found.mesh.numpy()[n // 2 :]
        middle = (0.3 * steps[1:] + 0.7 * steps[:-1])[:: n // 32]
        at = [np.abs(found(t)[:, 0].numpy() - exact(t, alpha)).max() for t in (middle, steps[:: n // 32])]
        assert at[0] <= 1.5 * at[1] + 1e-4 * n**-2.0  # the error of a line alone is about 0.1 n**-2
        errors.append(at[0])
    order = min(SCHEMES[scheme]().order(alpha), 2)
    assert math.log2(errors[1] / errors[2]) >= order - 0.25


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_derivative_is_of_one_order_less(scheme, alpha):
    errors = []
    for n in (128, 256):
        found = fdeint(decay, ONE, [0, 1], alpha, scheme=scheme, n_steps=n, full=True, **slope(alpha))
        t = 0.5 + (np.arange(n // 2) + 0.37) / n
        errors.append(np.abs(found(t, derivative=1)[:, 0].numpy() - exact_slope(t, alpha)).max())
    assert errors[1] <= 0.02
    assert math.log2(errors[0] / errors[1]) >= min(SCHEMES[scheme]().order(alpha), 2) - 1.3


def test_the_first_derivative_is_infinite_or_that_which_is_given():
    y0, dy0 = tensor(1.0, -2.0, 1.0, 1.0), tensor(0.0, 0.0, 0.0, 7.0)
    found = fdeint(decay, y0, [0, 1], tensor(0.5, 0.7, 1.0, 1.5), dy0=dy0, n_steps=400, full=True)
    at_start = found(0.0, derivative=1)
    assert at_start[:2].tolist() == [-math.inf, math.inf]
    assert float((at_start[2:] - tensor(-1.0, 7.0)).abs().max()) <= 0.2  # first order, and f bends at once


@pytest.mark.parametrize("scheme", SCHEMES)
def test_steps_stay_what_they_are(scheme):
    ts = np.linspace(0, 1, 33)
    plain = fdeint(decay, ONE, ts, 0.6, scheme=scheme)
    found = fdeint(decay, ONE, ts, 0.6, scheme=scheme, full=True)
    assert torch.equal(found.ys, plain)
    assert torch.equal(found(ts), plain)
    assert float((found(ts[5] + 1e-12) - plain[5]).abs().max()) <= 1e-11
    assert (found.status, found.end, found.error, found.statistics.steps) == ("finished", 1.0, None, 32)
    assert torch.equal(found.mesh, torch.from_numpy(ts))
    assert found.statistics.evaluations >= 32


def test_evaluations_are_counted():
    calls = []

    def f(t, y):
        calls.append(0)
        return -y

    for scheme in SCHEMES:
        calls.clear()
        found = fdeint(f, ONE, [0, 1], 0.6, scheme=scheme, n_steps=20, full=True)
        assert found.statistics.evaluations == len(calls)


@pytest.mark.parametrize("begin", [0.0, -7.5])
def test_outputs_lie_anywhere_between_equal_steps(begin):
    ts = np.array([0.0, 0.001, 0.123, 0.4, 0.77, 1.0])
    for alpha in (0.6, 1.4):
        y = fdeint(decay, ONE, begin + ts, alpha, n_steps=1000, **slope(alpha))[:, 0].numpy()
        assert np.abs(y - exact(ts, alpha)).max() <= 2e-3  # h**(2 alpha) in the first steps
        assert np.abs(y - exact(ts, alpha))[2:].max() <= 1e-5
    with pytest.raises(ValueError, match="needs equal steps or a number of steps"):
        fdeint(decay, ONE, ts, 0.6)


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.4])
def test_gradients_go_between_steps(alpha, adjoint):
    rate, order, y0 = tensor(1.3).requires_grad_(), tensor(alpha).requires_grad_(), ONE.clone().requires_grad_()
    ts = [0.0, 0.123, 0.4567, 1.0]

    def solve(rate, order, y0):
        return fdeint(
            lambda t, y: -rate * torch.sin(y) + t,
            y0,
            ts,
            order,
            n_steps=30,
            scheme=Trapezoid(Newton(tolerance=1e-15)) if adjoint else "predictor_corrector",
            adjoint=adjoint,
            dy0=tensor(0.0) if alpha > 1 else None,
        )

    inputs = [rate, order, y0]
    if alpha == 1.0:
        inputs = [rate, y0]  # from the left alone: above, dy0 would be wanted
    g = tensor(1.0, 2.0, -3.0, 0.5)[:, None]
    found = torch.autograd.grad((solve(rate, order, y0) * g).sum(), inputs)
    step = 1e-5
    for k, each in zip([id(x) for x in inputs], found, strict=True):
        ends = []
        for sign in (1, -1):
            moved = [x.detach() + sign * step * (id(x) == k) for x in (rate, order, y0)]
            ends.append(float((solve(*moved) * g).sum()))
        assert abs(float(each) - (ends[0] - ends[1]) / (2 * step)) <= 1e-7


def test_second_derivatives_go_between_steps():
    rate = tensor(1.3).requires_grad_()

    def solve(rate):
        return fdeint(lambda t, y: -rate * y, ONE, [0.0, 0.1234, 1.0], 0.6, n_steps=20, adjoint=False).sum()

    (first,) = torch.autograd.grad(solve(rate), rate, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), rate)
    step = 1e-4
    ends = [solve(rate.detach() + sign * step) for sign in (1, 0, -1)]
    assert abs(float(second) - float(ends[0] - 2 * ends[1] + ends[2]) / step**2) <= 1e-5


def test_states_of_several_tensors_and_trees_lie_between_steps():
    def f(t, y):
        x, v = y
        return v, -x

    y0 = torch.ones(4, 3), torch.zeros(4, 2)[:, :1].expand(4, 3).clone()
    x, v = fdeint(f, y0, [0, 0.1234, 1], 1.0, n_steps=200)
    assert x.shape == (3, 4, 3)
    assert float((x[1] - math.cos(0.1234)).abs().max()) <= 1e-4
    assert float((v[1] + math.sin(0.1234)).abs().max()) <= 1e-4
    options: dict[str, Any] = {"scheme": "trapezoid", "n_steps": 400, "full": True, "rtol": 1e-3}
    tree = {"z": torch.ones(2, dtype=torch.complex128)}
    found = fdeint(lambda t, y: {"z": 1j * y["z"]}, tree, [0, 1], 1.0, **options)
    assert abs(complex(found(0.123)["z"][0]) - complex(math.cos(0.123), math.sin(0.123))) <= 1e-5
    assert found.error["z"].is_complex()
    assert bool((found.error["z"].abs() <= 1e-3).all())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_twice_the_steps_say_what_the_error_is(scheme):
    options: dict[str, Any] = {"scheme": scheme, "n_steps": 400, "full": True}
    ts = [0.0, 0.4321, 1.0]
    found = fdeint(decay, ONE, ts, 0.8, rtol=0.1, **options)
    error = exact(ts, 0.8)[1:] - found.ys[1:, 0].numpy()
    np.testing.assert_allclose(found.error[1:, 0].numpy(), error, rtol=0.5)
    assert found.status == "finished"
    tight = fdeint(decay, ONE, ts, 0.8, rtol=1e-9, atol=1e-12, throw=False, **options)
    assert tight.status == "inaccurate"
    assert "take more steps" in tight.message
    assert torch.equal(tight.ys, found.ys)
    with pytest.raises(FloatingPointError, match="needs steps whose error"):
        fdeint(decay, ONE, ts, 0.8, rtol=1e-9, atol=1e-12, **options)
    with pytest.raises(ValueError, match="leave throw out"):
        fdeint(decay, ONE, ts, 0.8, rtol=1e-9, scheme=scheme, n_steps=400, throw=False)


def test_a_solution_of_fixed_steps_does_not_go_on():
    found = fdeint(decay, ONE, [0, 1], 0.8, n_steps=10, full=True)
    with pytest.raises(ValueError, match="needs scheme='collocation'"):
        found.continued([1, 2])
    with pytest.raises(ValueError, match="needs times from 0 to 1"):
        found(1.5)


def test_a_graded_mesh_has_the_same_states_to_its_order():
    """Without `full` outputs between graded steps come from a cubic in the number of the step."""
    options: dict[str, Any] = {"scheme": "trapezoid", "mesh": Graded(), "n_steps": 200}
    ts = [0.0, 1e-4, 0.0123, 0.3, 1.0]
    plain, found = fdeint(decay, ONE, ts, 0.5, **options), fdeint(decay, ONE, ts, 0.5, full=True, **options)
    for ys in (plain, found.ys):
        assert np.abs(ys[:, 0].numpy() - exact(ts, 0.5)).max() <= 1e-4
    assert torch.equal(found(ts), found.ys)


def test_single_precision_and_a_module_as_f():
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 3)
    y0 = torch.ones(2, 3, requires_grad=True)
    found = fdeint(lambda t, y: torch.tanh(net(y)), y0, [0, 1], 0.7, scheme=BDF2(), n_steps=50, full=True)
    middle = found([0.111, 0.777])
    assert middle.dtype == torch.float32
    middle.sum().backward()
    assert net.weight.grad is not None
    assert bool(net.weight.grad.isfinite().all())


def test_an_f_that_has_changed_is_refused():
    net = torch.nn.Linear(1, 1).double()
    found = fdeint(lambda t, y: torch.tanh(net(y)), ONE, [0, 1], 0.7, n_steps=20, full=True)
    found(0.123)
    with torch.no_grad():
        net.bias.add_(0.1)
    assert torch.equal(found(1.0), found.ys[-1])  # of a step nothing is evaluated
    with pytest.raises(ValueError, match="needs f as it was"):
        found(0.123)


def test_transforms_go_between_steps():
    def solve(rate, alpha=0.6):
        return fdeint(lambda t, y: -rate * y, ONE, [0.0, 0.1234, 1.0], alpha, n_steps=20, adjoint=False)[:, 0]

    rates = tensor(0.5, 1.0, 2.0)
    each = torch.stack([solve(rate) for rate in rates])
    torch.testing.assert_close(torch.func.vmap(solve)(rates), each, rtol=1e-13, atol=1e-14)
    step = 1e-5
    for of, at in ((solve, rates[1]), (lambda alpha: solve(1.0, alpha), rates[0])):
        expected = (of(at + step) - of(at - step)) / (2 * step)
        pushed = torch.func.jvp(of, (at,), (torch.ones_like(at),))[1]
        torch.testing.assert_close(pushed, expected, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(torch.func.jacrev(of)(at), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("options", [{"n_steps": 50}, {"rtol": 1e-4}])
def test_an_autocast_does_not_round_what_lies_between(options):
    found = fdeint(decay, torch.ones(4), [0, 1], 0.6, full=True, **options)
    plain = found([0.123, 0.7])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found([0.123, 0.7]), plain)
