"""Implicit schemes under torch.func and in forward mode: derivatives of every kind, and what is refused."""

import pytest

pytest.importorskip("torch")

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from hpfracc_nn.solvers import BDF2, FixedPoint, NeuralFDE, Newton, Trapezoid, fdeint
from tests.solver_cases import tensor

# PyTorch's own forward mode scripts its decompositions on first use.

TS = torch.linspace(0, 1, 9, dtype=torch.float64)
SLOW = pytest.mark.slow
SCHEMES = [
    Trapezoid(),
    BDF2(),
    pytest.param(Trapezoid(FixedPoint()), marks=SLOW),
    pytest.param(BDF2(Newton(dense=0)), marks=SLOW),
]
Y0, TANGENT = tensor(0.5, 1.0), tensor(0.3, -0.2)


def last(y0, rate=1.5, alpha=0.6, **options):
    return fdeint(lambda t, y: torch.cos(t) - rate * y**2 + y.flip(0) / 4, y0, TS, alpha, **options)[-1]


def jacobian(scheme):
    y0 = Y0.clone().requires_grad_()
    ys = last(y0, scheme=scheme)
    return torch.stack([torch.autograd.grad(each, y0, retain_graph=True)[0] for each in ys])


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_first_derivatives_are_those_of_the_adjoint(scheme):
    def solved(y):
        return last(y, scheme=scheme)

    # The equations are solved to 1e-13; a fixed point is left where the last change is that, which the error is a few
    # times of, at each of 8 steps and at each step's transpose.
    rtol = 1e-9 if isinstance(scheme.roots, FixedPoint) else 1e-11
    expected = jacobian(scheme)
    found = [torch.func.jacrev(solved)(Y0) @ TANGENT, torch.func.jacfwd(solved)(Y0) @ TANGENT]
    found.append(torch.func.jvp(solved, (Y0,), (TANGENT,))[1])
    with forward_ad.dual_level():
        found.append(forward_ad.unpack_dual(solved(forward_ad.make_dual(Y0, TANGENT))).tangent)
    for each in found:
        torch.testing.assert_close(each, expected @ TANGENT, rtol=rtol, atol=0.1 * rtol)


@pytest.mark.parametrize("scheme", SCHEMES[:2], ids=str)
def test_the_order_and_what_f_holds_have_derivatives(scheme):
    def loss(rate, alpha, **options):
        return last(Y0, rate, alpha, scheme=scheme, **options).square().sum()

    given = tensor(1.5), torch.tensor(0.6, dtype=torch.float64)
    leaves = [each.clone().requires_grad_() for each in given]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    for one, other in zip(torch.func.grad(loss, argnums=(0, 1))(*given), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("scheme", [Trapezoid(), pytest.param(BDF2(), marks=SLOW)], ids=str)
def test_second_derivatives_agree_with_differences_of_the_first(scheme):
    def gradient(y):
        return torch.func.grad(lambda y: last(y, scheme=scheme).square().sum())(y)

    step = 1e-5
    expected = torch.stack(
        [(gradient(Y0 + step * unit) - gradient(Y0 - step * unit)) / (2 * step) for unit in torch.eye(2)]
    )
    found = torch.func.hessian(lambda y: last(y, scheme=scheme).square().sum())(Y0)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("scheme", SCHEMES[:2], ids=str)
def test_a_batch_of_states_and_of_what_f_holds_is_its_members(scheme):
    y0 = torch.rand(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rates = tensor(0.2, 1.0, 2.0)  # of which each needs a number of iterations of its own
    found = torch.func.vmap(lambda y, rate: last(y, rate, scheme=scheme))(y0, rates)
    expected = torch.stack([last(y, rate, scheme=scheme) for y, rate in zip(y0, rates, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    slopes = torch.func.vmap(torch.func.grad(lambda y, rate: last(y, rate, scheme=scheme).sum()))(y0, rates)
    assert slopes.shape == (3, 2)


def test_f_need_not_bear_a_batch_of_its_own():
    def solved(y0):
        return fdeint(lambda t, y: -y if float(t) < 0.5 else -2 * y, y0, TS, 0.6, scheme="trapezoid")[-1].sum()

    y0 = Y0.clone().requires_grad_()
    torch.testing.assert_close(torch.func.grad(solved)(Y0), torch.autograd.grad(solved(y0), y0)[0], rtol=1e-11, atol=0)


def test_a_module_is_called_functionally():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(2, 2).double()

        def forward(self, t, y):
            return torch.tanh(self.net(y))

    model = NeuralFDE(Net(), 0.7, learn_alpha=True, scheme="trapezoid", dtype=torch.float64)
    parameters = dict(model.named_parameters())

    def loss(given):
        return torch.func.functional_call(model, given, (Y0, TS)).square().sum()

    found = torch.func.grad(loss)({name: each.detach() for name, each in parameters.items()})
    assert isinstance(found, dict), "a gradient for each name"
    expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_an_equation_that_is_not_solved_says_so_inside_a_transform():
    def solved(y0):
        f = Trapezoid(Newton(iterations=3))
        return fdeint(lambda t, y: -100 * torch.sign(y) * y.abs().sqrt(), y0, TS, 0.5, scheme=f)[-1].sum()

    with pytest.raises(RuntimeError, match=r"the equation of step 1, t=0\.125, did not converge in 3 iterations"):
        torch.func.grad(solved)(tensor(50.0))


def test_a_tracer_is_refused_with_the_way_out():
    with pytest.raises(NotImplementedError, match=r"a tracer's tensors have none; .*predictor_corrector"):
        make_fx(lambda y: last(y, scheme="trapezoid"))(Y0)


def test_plain_backpropagation_names_the_transform_for_a_second_derivative():
    y0 = Y0.clone().requires_grad_()
    (slope,) = torch.autograd.grad(last(y0, scheme="trapezoid").sum(), y0)
    with pytest.raises(RuntimeError, match=r"torch\.func\.hessian"):
        torch.autograd.grad(last(y0, scheme="trapezoid", adjoint=False).sum(), y0, create_graph=True)
    assert slope.isfinite().all()
