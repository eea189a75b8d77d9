"""Solves under what torch offers around them: autocast, transforms, the compiler, inference, modules of every kind."""

import pytest

pytest.importorskip("torch")

import math
from typing import Any

import numpy as np
import torch

from hpfracc_nn.solvers import MultiTerm, NeuralFDE, fdeint
from tests.solver_cases import tensor

# PyTorch's own forward mode scripts its decompositions on first use.

TS = torch.linspace(0, 1, 21, dtype=torch.float64)


def decay(t, y):
    return -(y**2)


def solve(y0, **options):
    return fdeint(decay, y0, TS, 0.6, **options)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, 3)

    def forward(self, t, y):
        return torch.tanh(self.net(y))


def test_autocast_reaches_the_right_hand_side_and_nothing_else():
    net, y0 = Net(), torch.randn(4, 3, requires_grad=True)
    seen = set()
    net.net.register_forward_hook(lambda module, given, out: seen.add(out.dtype))
    ts = torch.linspace(0, 1, 41)
    with torch.autocast("cpu", torch.bfloat16):
        found = fdeint(net, y0, ts, 0.6)
        found.sum().backward()
    assert seen == {torch.bfloat16}
    assert found.dtype == torch.float32
    expected = fdeint(net, y0, ts, 0.6)
    # f in bfloat16 is right to 2**-8; sums over the past in bfloat16 would lose far more.
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    assert net.net.weight.grad is not None


def test_routines_that_differ_with_and_without_a_gradient_are_one_right_hand_side_under_autocast():
    encoder = torch.nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True
    ).eval()  # has a routine of its own without one
    gradients: list[Any] = []
    for adjoint in (True, False):
        y0 = torch.ones(2, 5, 8).cumsum(1).div(5).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = fdeint(lambda t, y: encoder(y) - y, y0, torch.linspace(0, 1, 6), 0.7, adjoint=adjoint)
        gradients += torch.autograd.grad(y.square().sum(), y0)
    # both evaluate f in bfloat16, 2**-8, in another order
    torch.testing.assert_close(*gradients, rtol=0, atol=5e-2 * float(gradients[1].abs().max()))


PLACES = pytest.mark.parametrize(("forward", "backward"), [(True, False), (False, True), (True, True)], ids=str)


def autocast(is_on, **options):
    return torch.autocast("cpu", torch.bfloat16, enabled=is_on, **options)


@PLACES
@pytest.mark.parametrize("scheme", ["predictor_corrector", "trapezoid"])
def test_gradients_do_not_depend_on_the_autocast_of_the_backward_pass(scheme, forward, backward):
    def gradients(adjoint, backward):
        net, y0 = Net(), torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
        with autocast(forward):
            loss = fdeint(net, y0, torch.linspace(0, 1, 101), 0.6, scheme=scheme, adjoint=adjoint).sum()
        with autocast(backward):
            return torch.autograd.grad(loss, [y0, *net.parameters()])

    expected = gradients(False, False)
    for one, other in zip(gradients(True, backward), expected, strict=True):
        # A product in bfloat16 is rounded by 2**-9, here once for 64 steps and there once for each.
        assert (one - other).norm() <= (2**-8 if forward else 1e-6) * other.norm()


def test_with_a_graph_nothing_is_added_up_in_half_precision():
    # 1 / 256 added to 1 in bfloat16 is 1: the copy of a weight that served all steps would have a gradient of about 1.
    w = torch.ones(1, 1, requires_grad=True)
    for adjoint in (True, False):
        with autocast(True):
            ys = fdeint(
                lambda t, y: torch.where(t < 0.5 / 512, 1.0, 1 / 256) * torch.nn.functional.linear(0 * y + 1, w),
                torch.zeros(1, 1),
                torch.linspace(0, 512, 513),
                1.0,
                scheme="rectangle",
                adjoint=adjoint,
            )
        (found,) = torch.autograd.grad(ys[-1], w)
        assert found.item() == pytest.approx(1 + 511 / 256, rel=2**-8)


def test_f_is_evaluated_again_as_it_was_at_first():
    net, y0 = Net(), torch.randn(2, 3, requires_grad=True)
    seen: list[Any] = []
    note = seen.append  # a list that f held would be put back

    def f(t, y):
        state = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "xpu")]
        note((*state, torch.is_autocast_cache_enabled()))
        return net(t, y)

    with torch.autocast("xpu", torch.float16), autocast(True, cache_enabled=False):
        loss = fdeint(f, y0, torch.linspace(0, 1, 11), 0.6).sum()
    with torch.autocast("xpu", torch.bfloat16):
        before = len(seen)
        loss.backward()
    assert len(seen) > before
    assert set(seen) == {(("cpu", True, torch.bfloat16), ("xpu", True, torch.float16), False)}
    seen.clear()
    loss = fdeint(f, y0, torch.linspace(0, 1, 11), 0.6).sum()
    with torch.autocast("xpu", torch.bfloat16), autocast(True):
        loss.backward()
    assert {(state[0][1], state[1][1]) for state in seen} == {(False, False)}


def test_a_solve_can_be_vmapped():
    y0 = torch.rand(4, 2, dtype=torch.float64)
    found = torch.func.vmap(solve)(y0)
    torch.testing.assert_close(found, torch.stack([solve(one) for one in y0]), rtol=1e-13, atol=1e-13)


def test_forward_mode_agrees_with_reverse_mode():
    y0, tangent = tensor(0.5, 1.0), tensor(0.3, -0.2)
    along = torch.func.jvp(lambda y: solve(y)[-1], (y0,), (tangent,))[1]
    jacobian = torch.func.jacrev(lambda y: solve(y)[-1])(y0)
    torch.testing.assert_close(along, jacobian @ tangent, rtol=1e-12, atol=1e-13)


def test_the_order_has_derivatives_in_both_modes():
    def last(alpha):
        return fdeint(decay, tensor(0.5), TS, alpha)[-1, 0]

    alpha = torch.tensor(0.6, dtype=torch.float64)
    expected = (last(0.6 + 1e-6) - last(0.6 - 1e-6)).item() / 2e-6
    assert torch.func.grad(last)(alpha).item() == pytest.approx(expected, rel=1e-6)
    assert torch.func.jvp(last, (alpha,), (torch.ones_like(alpha),))[1].item() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="same alpha throughout"):
        torch.func.vmap(last)(alpha.expand(2))


def test_second_derivatives_by_plain_backpropagation():
    y0 = tensor(0.5, 1.0).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda y: solve(y, adjoint=False)[-1], [y0])


def test_a_compiled_model_runs_the_solve_as_it_is():
    model = NeuralFDE(Net(), 0.7)
    y0, ts = torch.randn(4, 3), torch.linspace(0, 1, 11)
    compiled = torch.compile(lambda y: 2 * model(y, ts)[-1], backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(y0), 2 * model(y0, ts)[-1])


def test_inference_mode():
    with torch.inference_mode():
        found = solve(tensor(0.5))
    assert torch.equal(found, solve(tensor(0.5)))


def test_a_tensor_that_is_no_leaf_is_passed_and_counted_once():
    raw = tensor(0.2).requires_grad_()
    rate = raw.exp()

    def gradient(**options):
        ys = fdeint(lambda t, y: -rate * y, tensor(1.0), TS, 0.6, **options)
        return torch.autograd.grad(ys.sum(), raw, retain_graph=True)[0]

    expected = gradient(adjoint=False)
    torch.testing.assert_close(gradient(), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(params=[rate]), expected, rtol=1e-12, atol=0)


def test_a_parameter_that_is_used_late_is_passed():
    late = tensor(0.7).requires_grad_()

    def f(t, y):
        return -late * y if t > 0.5 else -y

    (found,) = torch.autograd.grad(fdeint(f, tensor(1.0), TS, 0.6, params=[late])[-1], late)
    (expected,) = torch.autograd.grad(fdeint(f, tensor(1.0), TS, 0.6, adjoint=False)[-1], late)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_the_coefficients_of_several_orders_have_gradients():
    def last(c):
        equation = MultiTerm({1.5: 1.0, 0.7: c, 0: 2.0}, lambda t, y: torch.cos(t) + 0 * y)
        start = equation.state(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64))
        return fdeint(equation, start, TS, equation.alpha)[-1, 0]

    c = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(last(c), c)
    expected = (last(0.5 + 1e-6) - last(0.5 - 1e-6)).item() / 2e-6
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("terms", [{1.5: 1.0}, {1.5: 1.0, 0: 2.0}], ids=["alone", "with y"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_forcing_is_broadcast(terms, dtype):
    # A number, a tensor without axes and one of the full shape say the same.
    y0 = torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.5]], dtype=dtype)

    def solved(forcing):
        equation = MultiTerm(terms, forcing)
        return fdeint(equation, equation.state(y0, 0 * y0), TS, equation.alpha)

    expected = solved(lambda t, y: torch.full_like(y, 8.0))
    for forcing in (lambda t, y: 8.0, lambda t, y: 8 + 0 * t, lambda t, y: torch.full((3,), 8.0, dtype=dtype)):
        torch.testing.assert_close(solved(forcing), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("number", [float, np.float64, np.array, torch.tensor])
def test_a_forcing_and_coefficients_that_are_numbers_keep_the_digits_of_the_state(number):
    # D^(1/2) y = c is solved without an error by c t**(1/2) / Gamma(3/2); c in single precision is off by 1.5e-8.
    kept = number(0.1) if number is not torch.tensor else torch.tensor(0.1, dtype=torch.float64)
    start = torch.zeros((), dtype=torch.float64)
    expected = TS.sqrt() / math.gamma(1.5)
    for equation in (
        MultiTerm({0.5: 1.0}, lambda t, y: kept),
        MultiTerm({0.5: kept}, lambda t, y: torch.full_like(y, 0.01)),
        MultiTerm({0.5: 1.0, 0: kept}, lambda t, y: 0.1 + 0.1 * y),
    ):
        found = fdeint(equation, equation.state(start), TS, equation.alpha)[:, 0]
        torch.testing.assert_close(found, 0.1 * expected, rtol=1e-12, atol=1e-12)
    whole = MultiTerm({0.5: 2}, lambda t, y: 1)
    found = fdeint(whole, whole.state(start), TS, whole.alpha)[:, 0]
    torch.testing.assert_close(found, expected / 2, rtol=1e-12, atol=1e-12)


def test_a_learned_order_passes_one_where_the_start_is_at_rest():
    class Decay(torch.nn.Module):
        def forward(self, t, y):
            return -y

    model = NeuralFDE(Decay(), 0.99, learn_alpha=True, bounds=(0.5, 1.5), dtype=torch.float64)
    optimizer, y0 = torch.optim.SGD(model.parameters(), 1.5), tensor(1.0)
    goal = fdeint(lambda t, y: -y, y0, TS, 1.2, dy0=0 * y0)
    for _ in range(30):
        optimizer.zero_grad()
        (model(y0, TS, 0 * y0) - goal).square().sum().backward()
        optimizer.step()
    assert model.alpha.item() == pytest.approx(1.2, abs=1e-2)


def test_an_order_in_a_tensor_may_have_a_derivative_that_it_does_not_need():
    y0, slope = tensor(1.0), tensor(3.0).requires_grad_()
    alpha = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    ys = fdeint(lambda t, y: -y, y0, TS, alpha, dy0=slope)
    torch.testing.assert_close(ys, fdeint(lambda t, y: -y, y0, TS, 0.9), rtol=1e-13, atol=0)
    assert torch.autograd.grad(ys.sum(), slope)[0] == 0


def test_a_right_hand_side_without_the_state_has_gradients():
    rate = tensor(1.5).requires_grad_()
    ys = fdeint(lambda t, y: rate * torch.cos(t), tensor(1.0), TS, 0.6)
    (found,) = torch.autograd.grad(ys[-1], rate)
    torch.testing.assert_close(found, (ys[-1].detach() - 1) / rate.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [0.5, [0.3, 0.5, 0.8]])
def test_a_learned_order_is_trained_within_its_bounds(alpha):
    model = NeuralFDE(Net(), alpha, learn_alpha=True, bounds=(0.2, 0.9))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    y0, ts = torch.ones(2, 3), torch.linspace(0, 1, 21)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(y0, ts)[-1].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert ((model.alpha > 0.2) & (model.alpha < 0.9)).all()
    assert model.alpha.shape == torch.Size([] if alpha == 0.5 else [3])


@pytest.mark.parametrize("scheme", ["trapezoid", "bdf2"])
@pytest.mark.parametrize("width", [1, 5, 20, 140])
def test_implicit_schemes_start_from_rest(scheme, width):
    # The first guess is 0, and says nothing of the size of the solution.
    generator = torch.Generator().manual_seed(width)
    matrix = torch.randn(width, width, generator=generator, dtype=torch.float64) / width - 2 * torch.eye(width)
    force = torch.randn(width, generator=generator, dtype=torch.float64)
    y0 = torch.zeros(width, dtype=torch.float64)
    found = fdeint(lambda t, y: y @ matrix + torch.sin(t) * force, y0, TS[:6], 0.7, scheme=scheme)
    fine = fdeint(lambda t, y: y @ matrix + torch.sin(t) * force, y0, TS[:6], 0.7, scheme=scheme, n_steps=50)
    torch.testing.assert_close(found, fine, rtol=0.1, atol=1e-3)  # the schemes' own error with so few steps


def test_output_times_that_share_a_point_of_the_mesh_have_its_state():
    one = torch.ones(2, dtype=torch.float64)
    ts = torch.tensor([0, 1 / 3, 1 / 3 + 1e-6, 1.0], dtype=torch.float64)
    found = fdeint(lambda t, y: -y, one, ts, 0.5, n_steps=3)
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[3], fdeint(lambda t, y: -y, one, ts[[0, 3]], 0.5, n_steps=3)[1])


def test_a_tuple_may_hold_a_number():
    y0 = torch.ones(2, 3, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    first, second = fdeint(lambda t, y: (-y[0], y[0].sum()), y0, TS, 0.5)
    assert first.shape == (21, 2, 3)
    assert second.shape == (21,)


def test_a_right_hand_side_that_is_a_parameter_gets_its_gradient():
    c = torch.ones(3, dtype=torch.float64, requires_grad=True)
    gradients: list[torch.Tensor] = []
    for adjoint in (True, False):
        y = fdeint(lambda t, y: c, torch.zeros(3, dtype=torch.float64), TS, 0.5, adjoint=adjoint)
        gradients += torch.autograd.grad(y[-1].sum(), c)
    torch.testing.assert_close(*gradients)


def test_a_right_hand_side_that_is_the_state_itself():
    y0 = torch.ones(3, dtype=torch.float64, requires_grad=True)
    gradients: list[torch.Tensor] = []
    for adjoint in (True, False):
        gradients += torch.autograd.grad(fdeint(lambda t, y: y, y0, TS, 0.5, adjoint=adjoint)[-1].sum(), y0)
    torch.testing.assert_close(*gradients)
