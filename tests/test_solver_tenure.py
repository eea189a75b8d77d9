"""The backward pass evaluates f as it was when the equation was solved, and leaves it as it was before the pass."""

import gc
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from hpfracc_nn.solvers import SDE, NeuralFDE, fdeint, fsdeint
from hpfracc_nn.solvers.torch.snapshot import Snapshot

TS = torch.linspace(0, 1, 9, dtype=torch.float64)
CONTEXT = torch.zeros(4, dtype=torch.float64)


def start(n=3):
    return torch.linspace(-1, 1, 4 * n, dtype=torch.float64).view(n, 4)


class Field(nn.Module):
    """tanh(W z + u), u a plain attribute, scaled by a plain number, with layers that training changes."""

    scale: float
    options: dict[str, Any]
    gain: torch.Tensor
    seen: Any
    late: Any
    last: Any
    kept: Any

    def __init__(self, *layers: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 4).double()
        self.layers = nn.Sequential(*layers).double()
        self.u, self.scale, self.options = torch.zeros(4, dtype=torch.float64), 1.0, {"shift": 0.0, "trace": []}
        self.register_buffer("gain", torch.ones(4, dtype=torch.float64))

    def forward(self, t, z):
        self.seen, found = z, self.layers(self.net(z)) + self.u
        self.options["trace"].append(z)
        return self.scale * self.gain * torch.tanh(found) + self.options["shift"]


def by_fdeint(f, z, adjoint=True):
    return fdeint(f, z, TS, 0.6, adjoint=adjoint)[-1].square().sum()


def by_implicit(f, z, adjoint=True):
    return fdeint(f, z, TS, 0.6, scheme="trapezoid", adjoint=adjoint)[-1].square().sum()


def by_fsdeint(f, z, adjoint=True):
    generator = torch.Generator().manual_seed(5)
    sde = SDE(f, lambda t, z: 0.3 * f(t, z), "diagonal")
    return fsdeint(sde, z, TS, alpha=0.8, adjoint=adjoint, generator=generator)[-1].square().sum()


SOLVES = pytest.mark.parametrize("solve", [by_fdeint, by_implicit, by_fsdeint])


def gradients(f, loss):
    return torch.autograd.grad(loss, list(f.parameters()), allow_unused=True)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def set_attribute(f, value):
    f.u = torch.full((4,), value, dtype=torch.float64)


def set_number(f, value):
    f.scale = 1 + value


def set_entry(f, value):
    f.options["shift"] = value


def set_buffer(f, value):
    f.gain = torch.full((4,), 1 + value, dtype=torch.float64)


def set_layer(f, value):
    f.net = nn.Linear(4, 4).double()
    nn.init.constant_(f.net.weight, value)
    nn.init.constant_(f.net.bias, value)


CHANGES = pytest.mark.parametrize("change", [set_attribute, set_number, set_entry, set_buffer, set_layer])


@SOLVES
@CHANGES
@pytest.mark.parametrize("adjoint", [True, False])
def test_what_f_is_given_after_a_solve_does_not_reach_the_gradient(solve, change, adjoint):
    def of(later):
        f = Field()
        change(f, 0.2)
        parameters = list(f.parameters())
        loss = solve(f, start(), adjoint)
        if later:
            change(f, -0.7)
        return torch.autograd.grad(loss, parameters)

    assert_same(of(True), of(False))


@SOLVES
@pytest.mark.parametrize("layer", [nn.Dropout, lambda: nn.BatchNorm1d(4)], ids=["dropout", "batch norm"])
def test_train_before_the_backward_pass_is_that_of_the_next_call(solve, layer):
    f = Field(layer()).eval()
    expected = gradients(f, solve(f, start(), False))
    loss = solve(f, start())
    f.train()
    statistics = [each.clone() for each in f.buffers()]
    assert_same(gradients(f, loss), expected)
    assert all(module.training for module in f.modules())
    assert all(map(torch.equal, f.buffers(), statistics))


@SOLVES
def test_what_a_hypernetwork_gave_f_has_its_gradient(solve):
    f, hyper = Field(), nn.Linear(2, 4).double()
    contexts = torch.eye(2, dtype=torch.float64)

    def of(adjoint):
        loss = torch.zeros((), dtype=torch.float64)
        for context in contexts:
            f.u = hyper(context)
            loss = loss + solve(f, start(), adjoint)
        given = f.u
        return torch.autograd.grad(loss, [*hyper.parameters(), given])

    assert_same(of(True), of(False))


def by_name(t, z):
    return torch.tanh(z + CONTEXT)


@pytest.mark.parametrize("way", ["closure", "name", "object"])
def test_what_a_function_reads_is_what_it_read_when_it_was_solved(way, monkeypatch):
    class Held:
        context = None

        def __call__(self, t, z):
            return torch.tanh(z + self.context)

    def of(adjoint):
        held, total, leaves = Held(), torch.zeros((), dtype=torch.float64), []
        for value in (0.3, -0.8):
            context = torch.full((4,), value, dtype=torch.float64, requires_grad=True)
            leaves.append(context)
            monkeypatch.setitem(globals(), "CONTEXT", context)
            held.context = context
            by_closure = lambda t, z: torch.tanh(z + context)  # noqa: B023, E731  the loop binds it anew
            ways: dict[str, Any] = {"closure": by_closure, "name": by_name, "object": held}
            f = ways[way]
            total = total + fdeint(f, start(), TS, 0.6, adjoint=adjoint)[-1].square().sum()
        found = torch.autograd.grad(total, leaves)
        assert CONTEXT is leaves[-1]
        assert held.context is leaves[-1]
        return found

    assert_same(of(True), of(False))


@SOLVES
@pytest.mark.parametrize("name", ["gain", "u", "frozen"])
def test_numbers_that_are_written_into_what_f_reads_are_refused(solve, name):
    f = Field()
    f.net.bias.requires_grad_(name != "frozen")
    loss = solve(f, start())
    with torch.no_grad():
        (f.net.bias if name == "frozen" else getattr(f, name)).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_f_holds_and_does_not_read_may_be_written_to():
    f = Field()
    f.steps = torch.zeros(())
    loss = by_fdeint(f, start())
    f.steps += 1
    loss.backward()


@SOLVES
def test_the_backward_pass_leaves_nothing_on_f(solve):
    f = Field()
    loss = solve(f, start())
    f.seen, f.late, f.u = None, 7, torch.ones(4, dtype=torch.float64)
    before, trace = dict(vars(f)), list(f.options["trace"])
    loss.backward()
    assert list(vars(f)) == list(before)
    assert all(vars(f)[name] is value for name, value in before.items())
    assert all(one is other for one, other in zip(f.options["trace"], trace, strict=True))


def test_an_exception_of_the_backward_pass_leaves_nothing_on_f():
    class Angry(Field):
        def forward(self, t, z):
            if self.scale == 1.0 and torch.is_grad_enabled() and t > 0.5:
                raise OSError("not now")
            return super().forward(t, z)

    f = Angry()
    loss = by_fdeint(f, start())
    f.u, f.scale, f.seen = torch.ones(4, dtype=torch.float64), 2.0, None
    before = dict(vars(f))
    with pytest.raises(OSError, match="not now"):
        loss.backward()
    assert all(vars(f)[name] is value for name, value in before.items())


@SOLVES
def test_parameters_may_be_frozen_before_the_backward_pass(solve):
    def found(adjoint):
        f, z = Field(), start().requires_grad_()
        loss = solve(f, z, adjoint)
        f.net.weight.requires_grad_(False)
        loss.backward()
        assert not f.net.weight.requires_grad
        assert f.net.weight.grad is None
        return f.net.bias.grad, z.grad

    assert_same(found(True), found(False))


@pytest.mark.parametrize("adjoint", [True, False])
def test_the_states_at_all_steps_may_be_written_to(adjoint):
    f = Field()
    parameters = list(f.parameters())
    model = NeuralFDE(f, 0.6, adjoint=adjoint)
    expected = torch.autograd.grad(model(start(), TS).mul(2).square().sum(), parameters)
    assert_same(torch.autograd.grad(model(start(), TS).mul_(2).square().sum(), parameters), expected)


@pytest.mark.slow
def test_graphs_of_earlier_calls_are_let_go():
    f = Field()
    gc.collect()
    others = set(map(id, tenures()))
    for _ in range(4):
        y = fdeint(f, start().requires_grad_(), TS, 0.6)
        y.sum().backward()
        f.last, f.kept = y, {"y": [y]}
    del y
    gc.collect()
    assert len({id(each) for each in tenures()} - others) == 1  # that of the last


def tenures():
    return [each for each in gc.get_objects() if type(each) is Snapshot]
