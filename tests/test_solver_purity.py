"""Right-hand sides that the adjoint may not evaluate again, wherever they hide what they change; and those it may."""

from functools import partial

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from hpfracc_nn import FractionalLayer
from hpfracc_nn.solvers import SDE, fdeint, fsdeint
from tests.solver_cases import tensor

TS = torch.linspace(0, 1, 11, dtype=torch.float64)
RATE = tensor(1.2, 0.7).requires_grad_()


def solve(f, **options):
    y0 = torch.tensor([[0.5, 1.0], [0.2, -0.3]], dtype=torch.float64, requires_grad=True)
    ys = fdeint(f, y0, TS, 0.6, **options)
    return [ys.detach(), *torch.autograd.grad(ys.square().sum(), [y0, RATE], allow_unused=True)]


class Held:
    """A callable that holds its module, under a name that is no parameter's."""

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, t, y):
        return self.layer(-RATE * y)

    def method(self, t, y):
        return self(t, y)


def applied(layer, t, y):
    return layer(-RATE * y)


WAYS = {
    "closure": lambda layer: lambda t, y: layer(-RATE * y),
    "list": lambda layer: (lambda layers: lambda t, y: layers[0](-RATE * y))([layer]),
    "object": Held,
    "method": lambda layer: Held(layer).method,
    "partial": lambda layer: partial(applied, layer),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (torch.nn.Dropout(0.5), "random numbers"),
        (torch.nn.BatchNorm1d(2).double(), r"changes its buffer|changes a tensor"),
    ],
    ids=["dropout", "batch normalisation"],
)
def test_a_layer_that_trains_is_refused_wherever_it_is_held(way, layer, reason):
    f = WAYS[way](layer.train())
    with pytest.raises(ValueError, match=rf"({reason}).*eval\(\) on the module.*adjoint=False"):
        solve(f)
    assert solve(f, adjoint=False)[0].isfinite().all()
    layer.eval()
    assert solve(f)[0].isfinite().all()


def test_statistics_without_a_module_are_seen_too():
    mean, variance = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"changes a tensor of shape \(2,\) that it holds"):
        solve(lambda t, y: functional.batch_norm(-RATE * y, mean, variance, training=True))


def test_a_result_that_comes_out_otherwise_is_refused():
    generator, rng, calls = torch.Generator().manual_seed(0), np.random.default_rng(0), []

    def counting(t, y):
        calls.append(t)
        return -RATE * y / len(calls)

    for f in (
        counting,
        lambda t, y: -RATE * y * torch.rand((), generator=generator),
        lambda t, y: -RATE * y * rng.random(),
    ):
        with pytest.raises(ValueError, match=r"returns something else when it is evaluated again.*adjoint=False"):
            solve(f)


def test_a_place_to_work_in_is_no_state():
    room = torch.empty(2, 2, dtype=torch.float64)

    def working(t, y):
        room.copy_(torch.exp(-y.detach()))
        return -RATE * y + room.clone()

    found, expected = solve(working), solve(lambda t, y: -RATE * y + torch.exp(-y.detach()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_an_operator_of_this_library_may_be_in_f():
    layer = FractionalLayer(0.4, dt=0.1).double()
    found, expected = (
        solve(lambda t, y: -RATE * y + layer(y.repeat(1, 5))[:, -2:], adjoint=adjoint) for adjoint in (True, False)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_nothing_is_watched_where_no_gradient_is_wanted():
    with torch.no_grad():
        y0 = torch.ones(2, 2, dtype=torch.float64)
        assert fdeint(lambda t, y: functional.dropout(-y, 0.5), y0, TS, 0.6).isfinite().all()


class Square(torch.autograd.Function):
    """Without a rule for a batch."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, *grads):
        return 2 * ctx.saved_tensors[0] * grads[0]


class Reading(torch.autograd.Function):
    """With a rule forward, and a backward pass that reads a value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        return (2 if float(x.sum()) > -1e9 else 1) * x * grads[0]


def inplace(t, y):
    found = torch.zeros(2, 2, dtype=y.dtype)
    found[0] = y[0]
    return -RATE * found


def asserting(t, y):
    assert not torch._C._functorch.is_batchedtensor(y)
    return -RATE * y


TABLE = {round(float(t), 6): float(t) for t in TS}

ALONE = {
    "reads a value": lambda t, y: -RATE * y * (1 if y.sum().item() > -1e9 else 2),
    "branches on a value": lambda t, y: -RATE * y if t < 0.45 else RATE * y / 2,
    "writes in place": inplace,
    "has no rule": lambda t, y: -RATE * Square.apply(y),
    "reads a value backwards": lambda t, y: -RATE * Reading.apply(y),
    "asserts": asserting,
    "looks up": lambda t, y: -RATE * y * (1 + TABLE[round(float(t.detach()), 6)]),
    "asks for an attribute": lambda t, y: -RATE * y * (1 + np.asarray(t.detach()).item()),
    "has a size that depends on values": lambda t, y: -RATE * y + y[y > 0].sum(),
}


@pytest.mark.parametrize("scheme", ["predictor_corrector", "trapezoid"])
@pytest.mark.parametrize("name", ALONE)
def test_a_function_that_bears_no_batch_is_evaluated_step_by_step(name, scheme):
    found, expected = (solve(ALONE[name], scheme=scheme, adjoint=adjoint) for adjoint in (True, False))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("way", ["closure", "object", "method", "partial"])
def test_hooks_of_a_module_that_f_holds_see_one_state_at_a_time(way):
    layer, seen = torch.nn.Linear(2, 2).double(), set()
    layer.register_forward_hook(
        lambda module, given, out: seen.add((given[0].shape, torch._C._functorch.is_batchedtensor(given[0])))
    )
    solve(WAYS[way](layer))
    assert seen == {(torch.Size([2, 2]), False)}


@pytest.mark.parametrize("makes_leaves", [False, True])
@pytest.mark.parametrize("n", [5, 41, 200], ids=lambda n: f"{n} times")
@pytest.mark.parametrize("scheme", ["rectangle", "predictor_corrector", "trapezoid"])
def test_what_f_carries_from_step_to_step_is_refused(scheme, n, makes_leaves):
    # Steps are replayed, not continued: a gradient that goes from step to step inside of f would be lost in part.
    rate = torch.tensor([0.7, -0.3], dtype=torch.float64, requires_grad=True)
    before: list[torch.Tensor] = []

    def f(t, y):
        value = -rate * y + (0.5 * before[-1] if t > 0 else 0.0)  # the first value is looked at before
        if makes_leaves:
            value = value * torch.ones(2, dtype=torch.float64, requires_grad=True)
        before.append(value)
        return value

    y = fdeint(f, torch.ones(2, dtype=torch.float64), torch.linspace(0, 1, n, dtype=torch.float64), 0.6, scheme=scheme)
    with pytest.raises(RuntimeError, match="adjoint=False"):
        y.sum().backward()


class Remembering:
    """-rate y and a half of what an evaluation before has returned, kept in one of several ways."""

    def __init__(self, way, every=1, at=None):
        self.rate = torch.tensor([0.7, -0.3], dtype=torch.float64, requires_grad=True)
        self.way, self.every, self.at, self.calls = way, every, at, 0
        self.last, self.values, self.options = None, [], {"last": None}
        kept = None

        def closure(value):
            nonlocal kept
            found, kept = kept, value
            return found

        self.closure = closure

    def swapped(self, value):
        """Return what was kept, and keep a value."""
        if self.way == "closure":
            return self.closure(value)
        if self.way == "number":
            found, self.last = self.last, float(value.detach().sum())
        elif self.way == "attribute":
            found, self.last = self.last, value
        elif self.way == "entry":
            found, self.options["last"] = self.options["last"], value
        else:
            found = self.values[-1] if self.values else None
            self.values.append(value)
        return found

    def __call__(self, t, y):
        value = -self.rate * y
        if t == 0 or (self.at is not None and min(abs(self.at - float(t))) > 1e-9):
            return value
        self.calls += 1
        if self.calls % self.every:
            return value
        before = self.swapped(value)
        return value if before is None else value + 0.5 * before


KEPT = pytest.mark.parametrize("way", ["attribute", "number", "closure", "entry", "list"])
STEPS = pytest.mark.parametrize(
    ("every", "n"), [(1, 5), (1, 400), (7, 400), (50, 400), (150, 400)], ids=lambda value: str(value)
)


@KEPT
@STEPS
@pytest.mark.parametrize("scheme", ["rectangle", "predictor_corrector", "trapezoid"])
def test_a_memory_of_f_is_refused_wherever_it_lies(scheme, every, n, way):
    f = Remembering(way, every)
    y = fdeint(f, torch.ones(2, dtype=torch.float64), torch.linspace(0, 1, n, dtype=torch.float64), 0.6, scheme=scheme)
    with pytest.raises(RuntimeError, match="adjoint=False"):
        y.sum().backward()


@KEPT
@STEPS
@pytest.mark.parametrize("alpha", [1.0, 0.8])
@pytest.mark.parametrize("which", ["drift", "diffusion"])
def test_a_memory_of_drift_or_diffusion_is_refused_wherever_it_lies(which, alpha, every, n, way):
    f, plain = Remembering(way, every), lambda t, y: -0.5 * y
    sde = SDE(f, plain, "diagonal") if which == "drift" else SDE(plain, f, "diagonal")
    ts = torch.linspace(0, 1, n, dtype=torch.float64)
    y = fsdeint(sde, torch.ones(2, dtype=torch.float64), ts, alpha=alpha, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RuntimeError, match="adjoint=False"):
        y.sum().backward()


@KEPT
@pytest.mark.parametrize("solver", ["rectangle", "predictor_corrector", "trapezoid", 1.0, 0.8])
def test_a_memory_that_is_used_at_output_times_only_is_refused(solver, way):
    ts, y0 = torch.linspace(0, 1, 5, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    f = Remembering(way, at=ts.numpy())
    if isinstance(solver, str):
        y = fdeint(f, y0, ts, 0.6, scheme=solver, n_steps=400)
    else:
        sde = SDE(f, lambda t, y: torch.full_like(y, 0.1), "additive")
        y = fsdeint(sde, y0, ts, alpha=solver, dt=0.0025, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RuntimeError, match="adjoint=False"):
        y.sum().backward()


@pytest.mark.parametrize("alpha", [None, 1.0, 0.8])
def test_random_numbers_that_f_draws_after_the_first_step_are_refused(alpha):
    rate = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def f(t, y):
        return -rate * y if t == 0 else -rate * y * torch.rand((), dtype=torch.float64)

    y0 = torch.ones(2, dtype=torch.float64)
    if alpha is None:
        y = fdeint(f, y0, TS, 0.6)
    else:
        y = fsdeint(SDE(f, lambda t, y: torch.ones_like(y), "additive"), y0, TS, alpha=alpha)
    with pytest.raises(RuntimeError, match="adjoint=False"):
        y.sum().backward()


@pytest.mark.parametrize("alpha", [None, 1.0, 0.8])
def test_a_count_of_calls_and_a_log_are_no_memory(alpha):
    calls, log = 0, []

    def f(t, y):
        nonlocal calls
        calls += 1
        log.append((t, y))
        return -RATE * y

    def of(f):
        y0 = torch.tensor([0.5, 0.2], dtype=torch.float64)
        if alpha is None:
            y = fdeint(f, y0, torch.linspace(0, 1, 200, dtype=torch.float64), 0.6)
        else:
            sde = SDE(f, lambda t, y: 0.1 * y, "diagonal")
            ts = torch.linspace(0, 1, 200, dtype=torch.float64)
            y = fsdeint(sde, y0, ts, alpha=alpha, generator=torch.Generator().manual_seed(0))
        return torch.autograd.grad(y.sum(), RATE)[0]

    assert torch.equal(of(f), of(lambda t, y: -RATE * y))


class Cancelling(torch.nn.Module):
    """rate * (L y - L g), L the second difference, whose terms are added up in another order at each call.

    So do the atomic additions of a device, as in messages on a graph. Near g the sum is a small part of its terms.
    """

    def __init__(self, rate, g):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(rate, dtype=torch.float64))
        ones = torch.ones_like(g)
        self.l = torch.diag(-2 * ones) + torch.diag(ones[1:], 1) + torch.diag(ones[1:], -1)
        self.source = self.l @ g
        self.random = np.random.default_rng(0)

    def forward(self, t, y):
        terms = torch.cat([self.l * y, -self.source[:, None]], 1)
        return self.rate * terms[:, self.random.permutation(terms.shape[1])].sum(1)


@pytest.mark.parametrize("distance", [1e-6, 0.0])  # from rest: f is a millionth of its terms, or rounding alone
@pytest.mark.parametrize(
    ("rate", "options"),
    [
        (1e8, {"scheme": "trapezoid"}),
        (1e4, {"scheme": "bdf2"}),
        (1.0, {"scheme": "rectangle"}),
        (1.0, {"alpha": 0.7}),
        (1.0, {"alpha": 1.0}),
    ],
)
def test_a_sum_whose_terms_come_in_another_order_is_the_same_right_hand_side(rate, options, distance):
    g = torch.cos(torch.arange(30, dtype=torch.float64))
    f = Cancelling(rate, g)
    if "scheme" in options:
        y = fdeint(f, g + distance, TS, 0.7, **options)
    else:
        sde = SDE(f, lambda t, y: torch.full_like(y, 1e-9), "diagonal")
        y = fsdeint(sde, g + distance, TS, generator=torch.Generator().manual_seed(0), **options)
    y.sum().backward()
    assert f.rate.grad is not None
    assert torch.isfinite(f.rate.grad)
