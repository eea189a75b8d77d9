"""What a right-hand side holds gets its gradients, wherever f holds it and whatever it was made of."""

from functools import partial

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import fdeint
from tests.solver_cases import tensor

TS = torch.linspace(0, 1, 81, dtype=torch.float64)


def solved(f, adjoint=True, **options):
    return fdeint(f, tensor(1.0), TS, 0.6, adjoint=adjoint, **options).square().sum()


def decay(rate, t, y):
    return -rate * y


def by_default(rate):
    def f(t, y, rate=rate):
        return -rate * y

    return f


class Held:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, t, y):
        return -self.rate * y


WAYS = {
    "closure": lambda rate: lambda t, y: -rate * y,
    "function in a closure": lambda rate: (lambda inner: lambda t, y: inner(t, y))(lambda t, y: -rate * y),
    "dictionary": lambda rate: (lambda held: lambda t, y: -held["rate"] * y)({"rate": rate}),
    "default": by_default,
    "partial": lambda rate: partial(decay, rate),
    "object": Held,
    "method": lambda rate: Held(rate).__call__,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_that_is_no_leaf_may_be_asked_itself(way):
    def asked(adjoint):
        raw = tensor(0.3).requires_grad_()
        rate = raw.exp()
        rate.retain_grad()
        for _ in range(2):
            solved(WAYS[way](rate), adjoint).backward(retain_graph=True)
        return raw.grad, rate.grad, *torch.autograd.grad(solved(WAYS[way](rate), adjoint), [rate])

    for one, other in zip(asked(True), asked(False), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_a_second_derivative_by_the_adjoint_is_refused_wherever_the_tensor_is_held(way):
    def hessian(adjoint):
        return torch.autograd.functional.hessian(lambda rate: solved(WAYS[way](rate), adjoint), torch.tensor(1.3))

    with pytest.raises(RuntimeError, match="cannot be differentiated again; pass adjoint=False"):
        hessian(True)
    assert hessian(False) > 0


def test_a_hook_on_a_tensor_that_is_no_leaf_is_refused():
    rate = tensor(0.3).requires_grad_().exp()
    rate.register_hook(lambda g: g.clamp(-0.05, 0.05))
    with pytest.raises(ValueError, match=r"a tensor of shape \(1,\) has a hook.*adjoint=False"):
        solved(lambda t, y: -rate * y)


def test_what_lies_behind_another_counts_once():
    def gradients(adjoint, are_given=False):
        raw = tensor(0.3, -0.2).requires_grad_()
        rate = raw.exp()
        both = rate * raw
        one, other = rate.unbind()
        last = other * 2

        def f(t, y):  # a leaf, what is made of it, what is made of both, and one of two results of an operation
            return -rate.sum() * y + raw[0] + both.sum() * torch.cos(t) - one * y - last

        return torch.autograd.grad(solved(f, adjoint, params=[rate, both, last] if are_given else None), raw)[0]

    expected = gradients(False)
    torch.testing.assert_close(gradients(True), expected, rtol=1e-11, atol=0)
    torch.testing.assert_close(gradients(True, are_given=True), expected, rtol=1e-11, atol=0)


def test_one_of_several_results_does_not_hide_the_others():
    def gradients(adjoint):
        raw = tensor(0.3, -0.2).requires_grad_()
        one, other = raw.exp().unbind()
        last = other * 2
        return torch.autograd.grad(solved(lambda t, y: -one * y - last, adjoint), raw)[0]

    torch.testing.assert_close(gradients(True), gradients(False), rtol=1e-11, atol=0)


def test_a_graph_that_f_only_reads_numbers_of_is_left_alone():
    rate = tensor(1.2).requires_grad_()
    before = fdeint(lambda t, y: -rate * y, tensor(1.0), TS, 0.6)
    before.sum().backward()  # the graph behind is gone
    solved(lambda t, y: -rate * y + before.detach()[-1]).backward()
    assert rate.grad is not None
    assert rate.grad.isfinite()


EARLY, LATE = (torch.nn.Linear(1, 1).double() for _ in range(2))


def by_name(t, y):
    return EARLY(y) if t < 0.5 else LATE(y)


def through_another(t, y):
    return by_name(t, y)


class Switch:
    def __init__(self):
        self.layers = [EARLY, LATE]

    def __call__(self, t, y):
        return self.layers[int(t >= 0.5)](y)


@pytest.mark.parametrize("f", [by_name, through_another, lambda t, y: by_name(t, y), Switch(), Switch().__call__])
def test_a_network_that_is_used_late_has_gradients(f):
    parameters = [*EARLY.parameters(), *LATE.parameters()]
    found, expected = (torch.autograd.grad(solved(f, adjoint), parameters) for adjoint in (True, False))
    for one, other in zip(found, expected, strict=True):
        assert other.abs().sum() > 0
        torch.testing.assert_close(one, other, rtol=1e-11, atol=0)


def test_what_is_never_used_has_no_gradient():
    used, spare = (torch.nn.Linear(1, 1).double() for _ in range(2))
    held = torch.nn.ModuleList([used, spare])
    solved(lambda t, y: held[0](y) + held[0].bias).backward()
    assert used.weight.grad is not None
    assert spare.weight.grad is None
