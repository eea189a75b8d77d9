"""When a solve begins: only the time since then counts, and times are no tensors to differentiate by."""

import math

import pytest

pytest.importorskip("torch")

import torch
from torch.autograd import forward_ad

from hpfracc_nn.solvers import SCHEMES, Graded, fdeint
from tests.solver_cases import tensor

# PyTorch's own forward mode scripts its decompositions on first use.

TS = torch.linspace(0, 1, 21, dtype=torch.float64)


def solve(t0, *, dtype=torch.float64, alpha=0.4, dy0=None, **options):
    """D^alpha y = cos(t - t0) - y, which depends on the time since t0 only."""
    y0 = torch.tensor([0.5], dtype=dtype)
    slope = None if dy0 is None else torch.tensor([dy0], dtype=dtype)
    return fdeint(lambda t, y: torch.cos(t - t0) - y, y0, TS + t0, alpha, dy0=slope, **options)


@pytest.mark.parametrize("t0", [-3.0, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("scheme", ["rectangle", "predictor_corrector", "trapezoid"])
def test_a_graded_mesh_may_begin_at_any_time(t0, scheme):
    options = {"scheme": scheme, "mesh": Graded(8.0), "n_steps": 100}
    # The shortest step is 1e-16: t itself is right to eps t0, and so is cos(t - t0).
    torch.testing.assert_close(solve(t0, **options), solve(0.0, **options), rtol=0, atol=1e-14 + 1e-15 * abs(t0))


def power(t, alpha):
    return t**alpha / math.gamma(1 + alpha)


@pytest.mark.parametrize("n_steps", [1, 33, 64, 65, pytest.param(1600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("alpha", [0.5, tensor(0.3, 0.8)], ids=["one", "two"])
@pytest.mark.parametrize("scheme", [name for name, each in SCHEMES.items() if not each.needs_uniform])
def test_every_number_of_steps_has_a_graded_mesh(scheme, alpha, n_steps):
    # D^alpha y = 1 is solved without an error by every rule; a last block may hold the last step alone.
    y0, ts = tensor(0.0, 0.0), tensor(0.0, 0.5, 2.0)
    ys = fdeint(lambda t, y: torch.ones_like(y), y0, ts, alpha, scheme=scheme, mesh="graded", n_steps=n_steps)
    expected = tensor(*(power(2.0, float(a)) for a in torch.as_tensor(alpha).expand(2)))
    torch.testing.assert_close(ys[-1], expected, rtol=1e-12, atol=0)


def test_gradients_on_such_a_mesh_are_those_of_backpropagation():
    def slope(adjoint):
        rate = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
        ys = fdeint(lambda t, y: 1 - rate * y, tensor(0.2), [0.0, 1.0], 0.6, mesh="graded", n_steps=64, adjoint=adjoint)
        return torch.autograd.grad(ys[-1], rate)[0]

    torch.testing.assert_close(slope(True), slope(False), rtol=1e-12, atol=0)


@pytest.mark.parametrize("exponent", [10.0, 152.0])
def test_a_graded_mesh_may_begin_as_near_to_zero_as_float64_can(exponent):
    # The first step is 1e-20 or 1e-304; in float32, where f is given it as 0, the weights are the same.
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        ys = fdeint(
            lambda t, y: torch.ones_like(y),
            torch.zeros(1, dtype=dtype),
            [0.0, 1.0],
            0.05,
            mesh=Graded(exponent),
            n_steps=100,
        )
        assert ys[-1].item() == pytest.approx(power(1.0, 0.05), rel=tolerance)


@pytest.mark.parametrize(
    ("mesh", "end", "text"),
    [
        (
            Graded(200.0),
            1.0,
            r"n_steps=100, mesh=Graded\(exponent=200.*first step is 0.*smaller exponent, fewer steps",
        ),
        (Graded(156.0), 1.0, r"first step is 1e-312"),
        ("uniform", 1e-310, r"first step is 1e-312.*times in another unit"),
    ],
)
def test_a_mesh_that_float64_cannot_hold_is_refused(mesh, end, text):
    with pytest.raises(ValueError, match=text):
        fdeint(lambda t, y: -y, tensor(1.0), [0.0, end], 0.5, mesh=mesh, n_steps=100)


def test_outputs_between_the_points_of_a_graded_mesh_lie_where_they_do_from_zero_on():
    ts = tensor(0.0, 1e-9, 1e-4, 0.3, 1.0)
    y0, shift = tensor(1.0), 1000.0
    found, expected = (
        fdeint(lambda t, y: -y, y0, shift * k + ts, 0.4, mesh="graded", n_steps=60) for k in (1, 0)
    )  # 1000 + 1e-9 is rounded by 1e-13, of which y has the rounding by t**0.4
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("adjoint", [True, False])
def test_a_slope_at_a_late_start_costs_float32_no_digits(adjoint):
    def found(t0):
        slope = torch.tensor([2.0], requires_grad=True)
        ys = fdeint(lambda t, y: -y, torch.tensor([0.5]), TS + t0, 1.5, dy0=slope, adjoint=adjoint)
        return ys.detach(), torch.autograd.grad(ys[-1], slope)[0]

    for late, early in zip(found(1e5), found(0.0), strict=True):
        torch.testing.assert_close(late, early, rtol=1e-6, atol=1e-6)


def test_weights_do_not_depend_on_when_a_solve_begins():
    late, early = solve(2.0, n_steps=40), solve(0.0, n_steps=40)
    torch.testing.assert_close(late, early, rtol=1e-13, atol=1e-14)


def test_times_that_want_a_gradient_are_refused():
    with pytest.raises(ValueError, match=r"fdeint\(ts that require a gradient\).*ts\.detach\(\)"):
        fdeint(lambda t, y: -y, tensor(1.0), TS.clone().requires_grad_(), 0.5)
    with pytest.raises(ValueError, match=r"ts\.detach\(\)"):
        torch.func.grad(lambda ts: fdeint(lambda t, y: -y, tensor(1.0), ts, 0.5)[-1, 0])(TS)
    with pytest.raises(ValueError, match=r"ts\.detach\(\)"), forward_ad.dual_level():
        fdeint(lambda t, y: -y, tensor(1.0), forward_ad.make_dual(TS, torch.ones_like(TS)), 0.5)


def test_outputs_at_late_times_are_not_moved():
    """At 20000 the numbers of float32 are 1/512 apart, and so are times that lie a few of them apart."""
    ts = 20000 + torch.tensor([0, 4, 8, 20]) / 512
    with pytest.raises(ValueError, match=r"equal steps or a number of steps"):
        fdeint(lambda t, y: -y, torch.ones(1), ts, 0.5)
    found = fdeint(lambda t, y: -y, torch.ones(1), ts, 0.5, n_steps=5)
    expected = fdeint(lambda t, y: -y, torch.ones(1), ts - 20000, 0.5, n_steps=5)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("t0", [1.0, 1e3, 1e5])
@pytest.mark.parametrize(
    "make", [torch.linspace, lambda first, last, n: first + torch.arange(n) * ((last - first) / (n - 1))]
)
def test_equal_steps_of_float32_are_equal_steps(t0, make):
    found = fdeint(lambda t, y: -y, torch.ones(1), make(t0, t0 + 10, 41), 0.5)
    torch.testing.assert_close(found, fdeint(lambda t, y: -y, torch.ones(1), torch.linspace(0, 10, 41), 0.5))


def test_two_outputs_are_not_made_one_by_the_rounding_of_times():
    ts = torch.tensor([0, 32, 33, 64]) / 512 + 20000
    with pytest.raises(ValueError, match=r"ts\[1\] and ts\[2\] lie .* one point of the uniform mesh.*float64"):
        fdeint(lambda t, y: -y, torch.ones(1), ts, 0.5, n_steps=2)


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("alpha", [1.05, 1.5, 1.9])
def test_a_line_is_interpolated_exactly_on_a_graded_mesh(alpha, adjoint):
    slope = tensor(0.7, -2.0).requires_grad_()
    options = {"dy0": slope, "mesh": "graded", "n_steps": 40, "adjoint": adjoint}
    found = fdeint(lambda t, y: 0 * y, tensor(0.1, 0.2), 5 + TS, alpha, **options)
    torch.testing.assert_close(found, tensor(0.1, 0.2) + TS[:, None] * slope, rtol=1e-13, atol=1e-13)
    (gradient,) = torch.autograd.grad(found.sum(), slope)
    torch.testing.assert_close(gradient, TS.sum().expand(2), rtol=1e-12, atol=0)
