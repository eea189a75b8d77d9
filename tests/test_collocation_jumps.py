"""Right-hand sides that jump, and pulses between steps: `breakpoints` and `max_step` of solves to a tolerance.

A pulse is a superposition: from rest, the solution of D^a y = -rate y + (A for b < t < c) is A (g(t - b) - g(t - c)),
where g(s) = (1 - E_a(-rate s**a)) / rate for s > 0 and 0 before, or s**a / Gamma(1 + a) where the rate is 0.
"""

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from hpfracc_nn.fractional.special.functions import mittag_leffler
from hpfracc_nn.solvers import Event, Points, StepLimit
from hpfracc_nn.solvers.torch import fdeint
from tests.solver_cases import tensor
from tests.test_collocation import dense_solution

ON, OFF = 0.31, 0.47
TS = [0.0, 0.2, 0.31, 0.32, 0.4, 0.47, 0.48, 0.7, 1.0]


def after(s, alpha, rate):
    """Return g."""
    s = np.maximum(np.asarray(s, dtype=float), 0.0)
    if rate == 0:
        return s**alpha / math.gamma(1 + alpha)
    return (1 - np.asarray(mittag_leffler(-rate * s**alpha, alpha))) / rate


def answer(ts, alpha, rate, size=3.0):
    ts = np.asarray(ts)
    return size * (after(ts - ON, alpha, rate) - after(ts - OFF, alpha, rate))


def pulsed(rate, size=3.0):
    def f(t, y):
        return -rate * y + size * ((t > ON) & (t < OFF))

    return f


def slope(alpha) -> dict[str, Any]:
    return {"dy0": tensor(0.0)} if alpha > 1 else {}


@pytest.mark.parametrize("tolerance", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("rate", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 1.9])
def test_a_pulse_between_breakpoints_is_solved_to_the_tolerance(alpha, rate, tolerance):
    options = {"breakpoints": np.array([ON, OFF]), "rtol": tolerance, "atol": tolerance, **slope(alpha)}
    y = fdeint(pulsed(rate), tensor(0.0), TS, alpha, **options)[:, 0].numpy()
    exact = answer(TS, alpha, rate)
    assert (np.abs(y - exact) <= 10 * tolerance * (1 + np.abs(exact))).all()


@pytest.mark.parametrize("begin", [0.0, -3.0, 1e4])
def test_breakpoints_are_points_of_the_mesh_and_steps_begin_small_there(begin):
    """From small and large times on; of the latter a rounding is 2e-12, and the pulse is as much off."""

    def f(t, y):
        return -y + 3 * ((t > begin + ON) & (t < begin + OFF))

    points = [begin - 1, begin, begin + ON, begin + OFF, begin + 1, begin + 7]  # those outside play no part
    ts = begin + np.array(TS)
    found = fdeint(f, tensor(0.0), ts, 0.6, breakpoints=points, rtol=1e-8, atol=1e-8, full=True)
    mesh = found.mesh.numpy()
    for point in (begin + ON, begin + OFF):
        k = int(np.argmin(np.abs(mesh - point)))
        assert abs(mesh[k] - point) <= 2 * np.spacing(max(abs(begin), 1.0))
        assert mesh[k + 1] - mesh[k] < 1e-3 * (mesh[k] - mesh[k - 1])
    assert found.statistics.steps < 120
    assert np.abs(found.ys[:, 0].numpy() - answer(TS, 0.6, 1.0)).max() <= 1e-7
    middle = np.linspace(0.33, 0.95, 31)
    dense = found(begin + middle)[:, 0].numpy()
    assert np.abs(dense - answer(middle, 0.6, 1.0)).max() <= 1e-7


def test_a_pulse_that_is_missed_is_found_by_short_steps():
    def f(t, y):
        return -y + 50 * torch.exp(-(((t - 6.3) / 0.01) ** 2))

    options: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8, "full": True}
    short: dict[str, Any] = {"max_step": 0.05}
    missed, found = (fdeint(f, tensor(0.0), [0, 10], 0.8, **options, **more) for more in ({}, short))
    exact = fdeint(f, tensor(0.0), [0, 10], 0.8, breakpoints=[6.2, 6.3, 6.4], rtol=1e-9, atol=1e-10)[-1]
    assert float(missed.ys.abs().max()) == 0
    assert float((found.ys[-1] - exact).abs()) <= 1e-5
    assert float(exact) > 0.01
    assert float(np.diff(found.mesh).max()) <= 0.05 * (1 + 1e-12)


def test_without_a_pulse_short_steps_change_nothing_but_the_mesh():
    for longest in (0.3, 0.5, 2.0):
        found = fdeint(lambda t, y: -y, tensor(1.0), [0, 1], 0.5, rtol=1e-8, atol=1e-8, max_step=longest, full=True)
        assert float(np.diff(found.mesh).max()) <= longest * (1 + 1e-12)
        assert abs(float(found.ys[-1]) - float(mittag_leffler(-1.0, 0.5))) <= 1e-7


def test_a_jump_of_all_of_f_is_solved_in_single_precision():
    def f(t, y):
        return torch.where(t < 0.5, 0 * y, 0 * y + 1)

    y = fdeint(f, torch.zeros(2), [0, 0.5, 0.6, 2], 0.5, breakpoints=[0.5], rtol=2e-5, atol=1e-5)
    exact = after(np.array([0, 0.5, 0.6, 2]) - 0.5, 0.5, 0.0)
    assert np.abs(y[:, 0].numpy() - exact).max() <= 1e-4


@pytest.mark.parametrize("alpha", [0.4, 1.3])
def test_gradients_go_through_breakpoints(alpha):
    order, rate, size = tensor(alpha).squeeze().requires_grad_(), tensor(2.0), tensor(3.0)
    rate.requires_grad_()
    size.requires_grad_()

    def f(t, y):
        return -rate * y + size * ((t > ON) & (t < OFF))

    options = {"breakpoints": (ON, OFF), "rtol": 1e-9, "atol": 1e-9, **slope(alpha)}
    y = fdeint(f, tensor(0.0), [0, 1], order, **options)[-1]
    found = torch.autograd.grad(y.sum(), [order, rate, size])
    step = 1e-5
    ends = [
        (answer(1.0, alpha + step, 2.0) - answer(1.0, alpha - step, 2.0)) / (2 * step),
        (answer(1.0, alpha, 2.0 + step) - answer(1.0, alpha, 2.0 - step)) / (2 * step),
        answer(1.0, alpha, 2.0, 1.0),
    ]
    for each, exact in zip(found, ends, strict=True):
        assert abs(float(each) - exact) <= 1e-6 * max(1.0, abs(exact))


def test_gradients_equal_those_of_the_same_mesh():
    rate, alpha = tensor(1.3).requires_grad_(), tensor(0.6).requires_grad_()

    def f(t, y):
        return -rate * y + 3.0 * ((t > ON) & (t < OFF))

    found = fdeint(f, tensor(1.0), [0, 1], alpha, breakpoints=[ON, OFF], rtol=1e-10, atol=1e-10, full=True)
    mesh = Points(tuple(found.mesh.tolist()))
    again = fdeint(f, tensor(1.0), [0, 1], alpha, scheme="collocation", mesh=mesh)
    for one, other in zip(
        torch.autograd.grad(found.ys[-1].sum(), [rate, alpha]),
        torch.autograd.grad(again[-1].sum(), [rate, alpha]),
        strict=True,
    ):
        # the stage equations of the former are solved to a hundredth of the tolerance
        assert float((one - other).abs().max()) <= 1e-9


@pytest.mark.parametrize("shortest", [1e-2, 1e-4, 1e-9])
def test_gradients_are_those_of_the_same_steps_where_steps_begin_small_again(shortest):
    """A long step sees the end of short ones close by and their beginning far away."""
    alpha, rate, y0 = tensor(0.6).requires_grad_(), tensor(1.3).requires_grad_(), tensor(1.0).requires_grad_()
    mesh = np.array([0, 0.3, 0.3 + shortest, 0.3 + 2 * shortest, 0.8, 1.1])

    def f(t, y):
        return 1 - rate * y

    y = fdeint(f, y0, [0, 1.1], alpha, scheme="collocation", mesh=Points(tuple(mesh)))[-1]
    expected = dense_solution(f, y0, lambda t: y0 + 0 * t[:, None], alpha, mesh, [0, 1.1])[-1]
    for found, exact in zip(
        torch.autograd.grad(y.sum(), [alpha, rate, y0]),
        torch.autograd.grad(expected.sum(), [alpha, rate, y0]),
        strict=True,
    ):
        assert float((found - exact).abs().max()) <= 1e-12


def test_a_solve_goes_on_with_its_breakpoints():
    options: dict[str, Any] = {"breakpoints": [ON, OFF], "rtol": 1e-9, "atol": 1e-9, "full": True}
    first = fdeint(pulsed(1.0), tensor(0.0), [0, 0.4], 0.5, **options)
    for more in ({}, {"max_step": 0.1}, {"breakpoints": [OFF]}):
        found = first.continued([0.4, 1.0], **more)
        assert abs(float(found.ys[-1]) - answer(1.0, 0.5, 1.0)) <= 1e-8
        if "max_step" in more:
            assert float(np.diff(found.mesh)[first.mesh.numel() - 1 :].max()) <= 0.1
    at_the_jump = fdeint(pulsed(1.0), tensor(0.0), [0, ON], 0.5, rtol=1e-9, atol=1e-9, full=True)
    found = at_the_jump.continued([ON, OFF]).continued([OFF, 1.0])
    assert abs(float(found.ys[-1]) - answer(1.0, 0.5, 1.0)) <= 1e-8


def test_events_are_found_on_both_sides_of_a_jump():
    level = Event(lambda t, y: y - 0.5)
    options: dict[str, Any] = {"breakpoints": [ON, OFF], "rtol": 1e-9, "atol": 1e-9, "full": True}
    times = fdeint(pulsed(0.0), tensor(0.0), [0, 1], 0.5, events=level, **options).events[0].times.numpy()
    assert np.abs(answer(times, 0.5, 0.0) - 0.5).max() <= 1e-8
    assert len(times) == 2


def test_a_bad_sample_is_left_out_beside_a_jump():
    def f(t, y):
        return torch.where(y > 1, y**2 * 30, -y) + 3.0 * ((t > ON) & (t < OFF))

    y0 = tensor(0.0, 2.0).view(2, 1)
    found = fdeint(f, y0, [0, 1], 0.5, breakpoints=[ON, OFF], rtol=1e-6, atol=1e-6, throw=False, full=True)
    assert found.failed.isnan().tolist() == [True, False]


REFUSED = [
    ({"rtol": 1e-6, "max_step": 0.0}, ValueError, "max_step > 0"),
    ({"rtol": 1e-6, "max_step": "long"}, TypeError, "needs a real number"),
    ({"rtol": 1e-6, "breakpoints": [0.5, 0.5]}, ValueError, "breakpoints=.*increas"),
    ({"rtol": 1e-6, "breakpoints": [0.5, math.inf]}, ValueError, "breakpoints=.*finite"),
    ({"rtol": 1e-6, "breakpoints": "noon"}, TypeError, "breakpoints"),
    ({"rtol": 1e-6, "breakpoints": [[0.5]]}, ValueError, "breakpoints"),
    ({"scheme": "collocation", "n_steps": 5, "max_step": 0.1}, ValueError, "max_step.*pass rtol"),
    ({"scheme": "collocation", "breakpoints": [0.5]}, ValueError, "breakpoints.*pass rtol"),
    ({"scheme": "trapezoid", "n_steps": 5, "max_step": 0.1}, ValueError, "needs scheme='collocation'"),
    ({"n_steps": 5, "breakpoints": [0.5]}, ValueError, "needs scheme='collocation'"),
]


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED)
def test_what_cannot_be_done_is_refused(options, kind, text):
    given: dict[str, Any] = options
    with pytest.raises(kind, match=text):
        fdeint(lambda t, y: -y, tensor(1.0), [0, 1], 0.5, **given)


def test_a_jump_that_is_not_said_is_no_wrong_number():
    with pytest.raises(FloatingPointError, match="pass breakpoints where f jumps"):
        fdeint(pulsed(0.0), tensor(0.0), TS, 0.5, rtol=1e-9, atol=1e-9)
    ts = [0.0, 0.2, 0.32, 0.4, 0.48, 0.7, 1.0]  # at a jump that ends a step, what was seen does not say that it is one
    y = fdeint(pulsed(0.0), tensor(0.0), ts, 0.5, rtol=1e-5, atol=1e-5)[:, 0].numpy()
    assert np.abs(y - answer(ts, 0.5, 0.0)).max() <= 1e-4


def test_noise_in_f_ends_in_an_error_that_names_it():
    def f(t, y):
        return -y + 1e-4 * torch.sin(1e9 * t)

    with pytest.raises((StepLimit, FloatingPointError), match="nois"):
        fdeint(f, tensor(1.0), [0, 1], 0.5, rtol=1e-9, atol=1e-9, max_steps=300)
