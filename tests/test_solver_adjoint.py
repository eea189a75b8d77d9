"""Gradients of a solve: the adjoint against backpropagation and finite differences, and what it keeps."""

import gc
import math
import weakref

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import (
    BDF2,
    SCHEMES,
    Exponentials,
    FixedPoint,
    Graded,
    Newton,
    PredictorCorrector,
    Trapezoid,
    Window,
    fdeint,
)
from tests.solver_cases import Counted, tensor

SCHEME_OPTIONS = [PredictorCorrector(3), Trapezoid(Newton(dense=0)), Trapezoid(FixedPoint()), BDF2(FixedPoint())]
SLOW = pytest.mark.slow
HISTORY_OPTIONS = [
    "auto",
    pytest.param("full", marks=SLOW),
    pytest.param("fft", marks=SLOW),
    Exponentials(1e-3),
    Window(9),
]


def network(width=3):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(width, 6), torch.nn.Tanh(), torch.nn.Linear(6, width), torch.nn.Tanh()
    ).double()


def gradients(alpha, adjoint, *, n_steps=12, f=None, **options):
    """Return the solution and the gradients of a loss over all of it, in y0, alpha, dy0 and the parameters."""
    net = network()
    y0 = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    dy0 = torch.full((2, 3), 0.5, dtype=torch.float64, requires_grad=True) if (alpha > 1).any() else None
    right = f(net) if f else (lambda t, y: net(y) + torch.sin(t))
    ts = torch.linspace(0, 1.2, n_steps + 1, dtype=torch.float64)
    ys = fdeint(right, y0, ts, alpha, dy0=dy0, adjoint=adjoint, **options)
    loss = (ys * torch.linspace(1, 9, ys.numel(), dtype=torch.float64).cos().view_as(ys)).sum()
    wanted = [y0, alpha, *([] if dy0 is None else [dy0]), *net.parameters()]
    return [ys.detach(), *torch.autograd.grad(loss, wanted)]


def assert_same(found, expected, tolerance=1e-12):
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= tolerance * other.norm()


@pytest.mark.parametrize("history", HISTORY_OPTIONS, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_adjoint_is_backpropagation_of_the_same_scheme(scheme, history):
    options = {"scheme": scheme, "history": history, "n_steps": 66}  # two blocks
    assert_same(gradients(0.6, True, **options), gradients(0.6, False, **options))


@pytest.mark.parametrize("scheme", SCHEME_OPTIONS, ids=str)
def test_it_is_with_every_option_of_a_scheme(scheme):
    # Newton with products and fixed points are solved to 1e-13 of the state in each step and each step's transpose.
    options = {"scheme": scheme}
    assert_same(gradients(0.6, True, **options), gradients(0.6, False, **options))


@pytest.mark.parametrize("alpha", [0.2, 1.0, 1.6, [0.4, 0.7, 0.9], [0.4, 1.7, 0.9], [[0.3], [0.8]]], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_for_every_kind_of_order(scheme, alpha):
    assert_same(gradients(alpha, True, scheme=scheme), gradients(alpha, False, scheme=scheme))


@pytest.mark.parametrize("alpha", [0.4, 1.3, [0.4, 0.7, 0.9]], ids=str)
@pytest.mark.parametrize("scheme", [name for name, each in SCHEMES.items() if not each.needs_uniform])
def test_it_is_on_a_graded_mesh(scheme, alpha):
    options = {"scheme": scheme, "mesh": "graded"}
    assert_same(gradients(alpha, True, **options), gradients(alpha, False, **options))


@pytest.mark.parametrize("mesh", ["uniform", "graded"])
@pytest.mark.parametrize("alpha", [0.6, [0.4, 0.7, 0.9]], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_for_states_of_many_numbers(scheme, alpha, mesh):
    if mesh == "graded" and SCHEMES[scheme].needs_uniform:
        pytest.skip("it needs equal steps")
    order = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    y0 = torch.linspace(-1, 1, 300, dtype=torch.float64).view(100, 3).requires_grad_()
    rate, ts = tensor(0.7, 1.1, 1.6).requires_grad_(), torch.linspace(0, 1, 35, dtype=torch.float64)  # three blocks

    def found(adjoint):
        ys = fdeint(lambda t, y: torch.sin(rate * y), y0, ts, order, scheme=scheme, mesh=mesh, adjoint=adjoint)
        return [ys.detach(), *torch.autograd.grad(ys.square().sum(), [y0, order, rate])]

    assert_same(found(True), found(False))


@pytest.mark.parametrize("n_steps", [1, 2, 3, *(pytest.param(n, marks=SLOW) for n in (63, 64, 65, 128))])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_for_every_number_of_steps(scheme, n_steps):
    assert_same(
        gradients(0.6, True, scheme=scheme, n_steps=n_steps), gradients(0.6, False, scheme=scheme, n_steps=n_steps)
    )


@pytest.mark.slow
@pytest.mark.parametrize("history", ["full", "fft", Exponentials(1e-6)], ids=str)
def test_it_is_over_many_blocks(history):
    # 520 steps of 64: the blocks of the FFT go up to 512 steps.
    options = {"n_steps": 520, "history": history}
    assert_same(gradients(0.6, True, **options), gradients(0.6, False, **options))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.4, [0.4, 0.7, 0.9]], ids=str)
def test_it_is_over_many_blocks_of_a_graded_mesh(alpha):
    options = {"n_steps": 150, "mesh": "graded"}
    assert_same(gradients(alpha, True, **options), gradients(alpha, False, **options))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_random_direction_agrees_with_a_difference(scheme):
    generator = torch.Generator().manual_seed(1)
    matrix, y0 = torch.randn(2, 3, 3, dtype=torch.float64, generator=generator)[0], tensor(0.3, -0.5, 0.8)
    inputs = [y0, torch.tensor(0.7, dtype=torch.float64), matrix]
    ts = torch.linspace(0, 1, 65, dtype=torch.float64)

    def loss(y0, alpha, matrix):
        ys = fdeint(lambda t, y: torch.tanh(matrix @ y) + t, y0, ts, alpha, scheme=scheme, params=[matrix])
        return (ys**2).sum()

    leaves = [each.clone().requires_grad_() for each in inputs]
    found = torch.autograd.grad(loss(*leaves), leaves)
    direction = [torch.randn(each.shape, dtype=torch.float64, generator=generator) for each in inputs]
    step = 1e-5
    ahead, behind = (
        loss(*(each + sign * step * part for each, part in zip(inputs, direction, strict=True))) for sign in (1, -1)
    )
    along = sum(float((each * part).sum()) for each, part in zip(found, direction, strict=True))
    assert along == pytest.approx(((ahead - behind) / (2 * step)).item(), rel=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_at_order_one_the_slope_is_that_from_below(scheme):
    """Without a derivative at the start there are no orders above; the quotient is off by step**2, 1e-8."""

    def end(alpha):
        ts = torch.linspace(0, 2, 21, dtype=torch.float64)
        return fdeint(lambda t, y: -y, torch.ones((), dtype=torch.float64), ts, alpha, scheme=scheme)[-1]

    alpha = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(end(alpha), alpha)
    step = 1e-4
    quotient = (3 * end(1.0) - 4 * end(1 - step) + end(1 - 2 * step)) / (2 * step)
    assert found.item() == pytest.approx(quotient.item(), rel=1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_gradcheck(scheme):
    ts = torch.linspace(0, 1, 6, dtype=torch.float64)

    def solve(y0, alpha, rate):
        return fdeint(lambda t, y: -rate * y + y**2 / 4, y0, ts, alpha, scheme=scheme)

    inputs = [tensor(0.5, 1.0), torch.tensor(0.6, dtype=torch.float64), tensor(1.1)]
    assert torch.autograd.gradcheck(solve, [each.requires_grad_() for each in inputs])


def test_output_times_between_the_points_of_a_graded_mesh_have_gradients():
    ts = tensor(0, 0.013, 0.31, 0.77, 1.0)

    def solve(y0, alpha):
        return fdeint(lambda t, y: -(y**2), y0, ts, alpha, mesh=Graded(3.0), n_steps=30)

    assert torch.autograd.gradcheck(
        solve, [tensor(0.5).requires_grad_(), torch.tensor(0.6, dtype=torch.float64, requires_grad=True)]
    )


@pytest.mark.parametrize("n_steps", [20, 70])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_states_and_their_sums_are_saved_and_the_graph_does_not_grow(scheme, n_steps):
    net, y0 = network(16), torch.randn(4, 16, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    ts = torch.linspace(0, 1, n_steps + 1, dtype=torch.float64)
    saved: weakref.WeakSet = weakref.WeakSet()

    class Kept:
        def __init__(self, x):
            self.x = x
            saved.add(self)

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.x):
        ys = fdeint(lambda t, y: net(y), y0, ts, alpha, scheme=scheme)
    parameters = sum(each.numel() for each in net.parameters())
    distinct = {kept.x.data_ptr(): kept.x.numel() for kept in saved}
    # Besides the states, and the sums over the past where there are two: y0, alpha, the parameters, and what one
    # evaluation of f leaves to torch's own hooks.
    rows = 3 if scheme == "predictor_corrector" else 1
    assert sum(distinct.values()) <= rows * (n_steps + 1) * y0.numel() + 2 * (parameters + 4 * y0.numel())
    assert len(nodes(ys)) < 20


def nodes(y):
    seen, waiting = set(), [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return seen


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_backward_pass_holds_the_graphs_of_some_blocks_and_leaves_none(scheme):
    Counted.alive.clear()
    net, y0 = network(), torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    y = fdeint(lambda t, y: Counted.apply(net(y)) - y, y0, [0.0, 1.0], 0.7, n_steps=400, scheme=scheme)
    y[-1].sum().backward()
    del y
    gc.collect()
    assert max(Counted.alive) <= 150  # two evaluations for each step of a block of at most 64, and a few
    assert not Counted.nodes


def test_a_function_that_cannot_be_vmapped_has_the_same_gradients():
    def branching(net):
        return lambda t, y: net(y) if float(y.detach().sum()) > -1e9 else -y  # reads a value, which vmap refuses

    assert_same(gradients(0.6, True, f=branching), gradients(0.6, True, f=lambda net: lambda t, y: net(y)), 1e-13)


def test_hooks_see_ordinary_tensors():
    net, seen = network(), []
    net.register_forward_hook(lambda module, given, out: seen.append(out.shape))
    y0 = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    fdeint(lambda t, y: net(y), y0, torch.linspace(0, 1, 11), 0.6).sum().backward()

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, t, y):
            return self.net(y)

    seen.clear()
    fdeint(Field(), y0, torch.linspace(0, 1, 11), 0.6).sum().backward()
    assert set(seen) == {torch.Size([2, 3])}


class Field(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.net, self.layer = network(), layer

    def forward(self, t, y):
        return self.layer(self.net(y))


def solve_module(f, **options):
    y0 = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    return fdeint(f, y0, torch.linspace(0, 1, 11), 0.6, **options)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [(torch.nn.Dropout(0.5), "random numbers"), (torch.nn.BatchNorm1d(3).double(), "changes its buffer")],
    ids=["dropout", "batch normalisation"],
)
def test_what_another_evaluation_would_change_is_refused_with_the_way_out(layer, reason):
    with pytest.raises(ValueError, match=rf"{reason}.*eval\(\), or pass adjoint=False"):
        solve_module(Field(layer))
    assert solve_module(Field(layer), adjoint=False).requires_grad
    assert solve_module(Field(layer).eval()).requires_grad
    with torch.no_grad():
        assert solve_module(Field(layer)).isfinite().all()


def test_a_hook_on_a_parameter_is_refused():
    f = Field(torch.nn.Identity())
    f.net[0].weight.register_hook(lambda g: 2 * g)
    with pytest.raises(ValueError, match=r"hook on its gradient.*adjoint=False"):
        solve_module(f)


def test_a_parameter_that_f_makes_something_of_gets_its_gradient():
    raw = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    rate = raw.exp()  # a graph that all calls of f share
    y0, ts = tensor(1.0), torch.linspace(0, 1, 41, dtype=torch.float64)
    found = [
        torch.autograd.grad(fdeint(lambda t, y: -rate * y, y0, ts, 0.6, adjoint=adjoint)[-1], raw, retain_graph=True)[0]
        for adjoint in (True, False)
    ]
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)


def by_steps(us):
    """Return a right-hand side that reads another of 41 tensors at every step of 1/40."""
    return lambda t, y: -us[round(40 * float(t))] * y + torch.sin(t)


@pytest.mark.parametrize("wants_more", [True, False])
@pytest.mark.parametrize(
    ("scheme", "history", "mesh"),
    [
        *((scheme, "auto", "uniform") for scheme in SCHEMES),
        *(("predictor_corrector", history, "uniform") for history in HISTORY_OPTIONS[3:]),
        ("predictor_corrector", "full", Graded(1.0)),  # the same steps
    ],
    ids=str,
)
def test_leaves_that_f_reads_after_the_first_step_get_their_gradients(scheme, history, mesh, wants_more):
    us = [torch.tensor(1 + k / 40, dtype=torch.float64, requires_grad=True) for k in range(41)]
    y0 = tensor(1.0).requires_grad_(wants_more)

    def gradients(adjoint):
        ts, options = torch.linspace(0, 1, 41, dtype=torch.float64), {"scheme": scheme, "history": history}
        ys = fdeint(by_steps(us), y0, ts, 0.6, mesh=mesh, adjoint=adjoint, **options)
        return torch.stack(torch.autograd.grad(ys.square().sum(), us, materialize_grads=True))

    expected = gradients(False)
    assert expected[:40].abs().min() > 0
    torch.testing.assert_close(gradients(True), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("has_others", [True, False])
@pytest.mark.parametrize("hidden", [lambda us: [u.exp() for u in us], lambda us: {0: us}.get], ids=["made", "hidden"])
def test_a_tensor_that_nothing_says_f_will_read_is_refused_backwards(hidden, has_others):
    us = [torch.tensor(0.1, dtype=torch.float64, requires_grad=True) for _ in range(41)]
    rates = hidden(us)
    rate = torch.tensor(1.0, dtype=torch.float64, requires_grad=has_others)
    y0, ts = tensor(1.0).requires_grad_(), torch.linspace(0, 1, 41, dtype=torch.float64)

    def f(t, y):
        k = round(40 * float(t))
        return -rate * y if k < 30 else -(rates(0) if callable(rates) else rates)[k] * y

    with pytest.raises(RuntimeError, match=r"fdeint\(f\).*shape \(\) .*first step.*params=.*or pass adjoint=False"):
        fdeint(f, y0, ts, 0.6)[-1].backward()
    given = us if callable(rates) else rates
    found, expected = (
        torch.autograd.grad(ys[-1], us, retain_graph=True, materialize_grads=True)
        for ys in (fdeint(f, y0, ts, 0.6, params=given), fdeint(f, y0, ts, 0.6, adjoint=False))
    )
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-12, atol=0)


def test_a_leaf_that_f_makes_itself_is_no_such_tensor():
    def force(t, y):  # the slope of an energy, by a gradient of its own
        with torch.enable_grad():
            z = y.detach().requires_grad_()
            return -torch.autograd.grad((z**2).sum() / 2, z, create_graph=True)[0] + 0 * y

    y0 = tensor(1.0).requires_grad_()
    assert fdeint(force, y0, torch.linspace(0, 1, 11), 0.6)[-1].sum().requires_grad
    fdeint(force, y0, torch.linspace(0, 1, 11), 0.6)[-1].sum().backward()


def test_a_second_derivative_needs_plain_backpropagation():
    y0, ts = tensor(1.0).requires_grad_(), torch.linspace(0, 1, 11, dtype=torch.float64)

    def slope(adjoint):
        ys = fdeint(lambda t, y: -(y**2), y0, ts, 0.6, adjoint=adjoint)
        return torch.autograd.grad(ys[-1].sum(), y0, create_graph=True)[0]

    assert torch.autograd.grad(slope(False).sum(), y0)[0].abs() > 0
    with pytest.raises(RuntimeError, match="adjoint=False for second derivatives"):
        slope(True)


def test_float32_follows_float64():
    def found(dtype):
        y0 = torch.linspace(0, 1, 5, dtype=dtype, requires_grad=True)
        ys = fdeint(lambda t, y: -torch.sin(y), y0, torch.linspace(0, 1, 201, dtype=dtype), 0.6)
        return ys.detach(), torch.autograd.grad(ys.square().sum(), y0)[0]

    for one, other in zip(found(torch.float32), found(torch.float64), strict=True):
        # 200 sums in float32: sqrt(200) * 6e-8 each, some tens of them in the gradient.
        torch.testing.assert_close(one.double(), other, rtol=3e-5, atol=1e-5)


def test_the_biased_gradient_of_a_continuous_adjoint_is_not_ours():
    # D^a y = -theta y: dL/dtheta of L = y(1)**2 by E_a and its derivative; a continuous adjoint is 9.5 % off at 0.5.
    theta, ts = tensor(1.0).requires_grad_(), torch.linspace(0, 1, 501, dtype=torch.float64)
    loss = fdeint(lambda t, y: -theta * y, tensor(1.0), ts, 0.5)[-1].square().sum()
    (found,) = torch.autograd.grad(loss, theta)
    value = math.exp(1) * math.erfc(1)  # E_1/2(-1); d/dtheta exp(theta**2) erfc(theta)
    slope = 2 * value - 2 / math.sqrt(math.pi)
    assert found.item() == pytest.approx(2 * value * slope, rel=1e-4)  # 500 steps of order 1.5
