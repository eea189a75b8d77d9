"""What is particular to the blocks: what they save, what they draw, what a compiler is given."""

import math

import pytest

pytest.importorskip("torch")

import torch
from torch.autograd import gradcheck, gradgradcheck

from hpfracc_nn.fractional.torch.parameters import Alpha, ProbabilisticAlpha
from hpfracc_nn.layers.torch import FDEBlock, FSDEBlock
from hpfracc_nn.solvers.torch import NeuralFDE, NeuralFSDE
from hpfracc_nn.solvers.torch.traced import solver_weights
from tests.layer_cases.blocks import Field, Wider


class Constant(torch.nn.Module):
    """One learned number."""

    def __init__(self, value):
        super().__init__()
        self.value = torch.nn.Parameter(torch.tensor(value, dtype=torch.float64))

    def forward(self, t, z):
        return self.value.expand_as(z)


class Decay(torch.nn.Module):
    """-2 z."""

    def forward(self, t, z):
        return -2 * z


def saved_bytes(call):
    """Return how much the graph of a call keeps, each memory once."""
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    assert result.requires_grad
    return sum(kept.values())


def test_the_graph_keeps_the_states_alone():
    x, n_steps = torch.randn(32, 64), 20
    state = 4 * x.numel()
    field = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64))

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = field

        def forward(self, t, z):
            return self.net(z)

    parameters = sum(4 * each.numel() for each in field.parameters())
    once = 9 * state  # f is evaluated at the start, to see that it may be evaluated again
    block = FDEBlock(Wide(), n_steps=n_steps)
    assert saved_bytes(lambda: block(x)) <= (n_steps + 1) * state + parameters + once + 1024
    block.adjoint = False
    assert saved_bytes(lambda: block(x)) > n_steps * 8 * state  # plain backpropagation keeps the 512 of every step


def test_plain_backpropagation_has_second_gradients():
    torch.manual_seed(0)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    block = FDEBlock(Field(dtype=torch.float64), 0.6, n_steps=4, learn_alpha=True, adjoint=False, dtype=torch.float64)
    assert gradgradcheck(block, [x])
    with pytest.raises(RuntimeError, match="adjoint=False for second derivatives"):
        gradgradcheck(
            FDEBlock(Field(dtype=torch.float64)), [torch.randn(2, 3, dtype=torch.float64, requires_grad=True)]
        )


def test_orders_learned_and_fixed_stand_in_a_network():
    torch.manual_seed(0)
    learned = FDEBlock(Field(), learn_alpha=True, n_steps=4)
    fixed = FDEBlock(Field(), [0.2, 0.5, 1.0], n_steps=4)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), learned, fixed, torch.nn.Linear(3, 1))
    x = torch.randn(64, 2)
    y = (x[:, :1] * x[:, 1:]).tanh()
    optimizer = torch.optim.Adam(net.parameters(), 0.02)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert learned.alpha.item() != pytest.approx(0.5, abs=1e-3)
    assert fixed.alpha.tolist() == [0.2, 0.5, 1.0]


@pytest.mark.parametrize("kind", ["ordinary", "stochastic"])
def test_parameters_that_are_passed_for_one_call_get_their_gradients(kind):
    # The adjoint evaluates f after the call, when the module has its own parameters again.
    torch.manual_seed(0)
    ts, y0 = torch.linspace(0, 1, 6), torch.randn(2, 3, dtype=torch.float64)
    found = []
    for adjoint in (True, False):
        torch.manual_seed(1)
        model: torch.nn.Module = NeuralFDE(Field(dtype=torch.float64), 0.7, adjoint=adjoint)
        if kind == "stochastic":
            fields = Field(dtype=torch.float64), Field(plus=1.5, dtype=torch.float64)
            model = NeuralFSDE(*fields, alpha=0.7, adjoint=adjoint)
        given = {name: (2 * value.detach()).requires_grad_() for name, value in model.named_parameters()}
        own = dict(model.named_parameters())
        torch.manual_seed(2)
        ys = torch.func.functional_call(model, given, (y0, ts))
        found.append(torch.autograd.grad(ys.square().sum(), list(given.values())))
        assert all(value is own[name] for name, value in model.named_parameters())
    assert all(bool((each != 0).all()) for each in found[0])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scheme", ["rectangle", "predictor_corrector"])
def test_the_opaque_weights_have_derivatives_of_every_order(scheme):
    alpha = torch.tensor([0.3, 0.9], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda a: solver_weights(a, scheme, 3, 0.25), alpha, fast_mode=True)
    assert gradgradcheck(lambda a: solver_weights(a, scheme, 3, 0.25), alpha, fast_mode=True)


def test_implicit_schemes_are_refused_where_there_are_no_numbers():
    block = FDEBlock(Field(), scheme="trapezoid", n_steps=3)
    assert block(torch.randn(2, 3)).shape == (2, 3)
    with pytest.raises(NotImplementedError, match=r"scheme='trapezoid'.*predictor_corrector"):
        block.to("meta")(torch.randn(2, 3, device="meta"))


def test_a_stochastic_block_draws_in_training_and_in_evaluation_and_can_be_repeated():
    torch.manual_seed(0)
    block, x = FSDEBlock(Field(), Field(plus=1.0), alpha=0.8), torch.randn(5, 3)
    for mode in (block.train(), block.eval()):
        assert not torch.equal(mode(x), mode(x))
        torch.manual_seed(1)
        first = mode(x)
        torch.manual_seed(1)
        assert torch.equal(mode(x), first)
        drawn = [mode(x, generator=torch.Generator().manual_seed(4)) for _ in range(2)]
        assert torch.equal(*drawn)


@pytest.mark.parametrize("alpha", [0.7, 1.0])
def test_without_noise_a_stochastic_block_is_the_ordinary_one(alpha):
    torch.manual_seed(0)
    drift, x = Field(dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    still = FSDEBlock(drift, Constant(0.0), "additive", alpha=alpha, n_steps=6)
    torch.testing.assert_close(still(x), FDEBlock(drift, alpha, n_steps=6)(x), rtol=1e-12, atol=1e-13)


@torch.no_grad()
def test_the_moments_of_a_stochastic_block_are_those_of_eulers_scheme():
    # z_(n+1) = (1 - 2 h) z_n + s dW: mean (1 - 2 h)**n, variance s**2 h sum over k < n of (1 - 2 h)**(2 k).
    n, h, s, paths = 8, 1 / 8, 0.7, 40_000
    block = FSDEBlock(Decay(), Constant(s), "additive", n_steps=n)
    found = block(torch.ones(paths, 1, dtype=torch.float64), generator=torch.Generator().manual_seed(0))
    mean, variance = (1 - 2 * h) ** n, s**2 * h * sum((1 - 2 * h) ** (2 * k) for k in range(n))
    assert found.mean().item() == pytest.approx(mean, abs=4 * math.sqrt(variance / paths))
    assert found.var().item() == pytest.approx(variance, rel=4 * math.sqrt(2 / paths))


def test_a_right_hand_side_that_draws_is_refused_with_the_way_out():
    class Dropped(Field):
        def forward(self, t, z):
            return torch.nn.functional.dropout(super().forward(t, z), 0.5, self.training)

    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match=r"draws random numbers.*adjoint=False"):
        FDEBlock(Dropped())(x)
    FDEBlock(Dropped(), adjoint=False)(x).sum().backward()
    FDEBlock(Dropped()).eval()(x).sum().backward()


BLOCKS = {
    "ordinary": lambda **options: FDEBlock(Field(), **options),
    "stochastic": lambda **options: FSDEBlock(Field(), Field(plus=1.5), **options),
}
KINDS = pytest.mark.parametrize("made", BLOCKS.values(), ids=BLOCKS)


@KINDS
@pytest.mark.parametrize("n_steps", [1, 3])
def test_what_a_block_returns_may_be_written_to(made, n_steps):
    def gradient(inplace):
        torch.manual_seed(0)
        block = made(alpha=0.7, n_steps=n_steps)
        net = torch.nn.Sequential(block, torch.nn.ReLU(inplace=inplace))
        net(torch.randn(4, 3)).sum().backward()
        return torch.cat([each.grad.view(-1) for each in block.parameters()])

    assert torch.equal(gradient(True), gradient(False))


@KINDS
@pytest.mark.parametrize("kind", [Alpha, ProbabilisticAlpha])
def test_an_order_is_shared_by_blocks(made, kind):
    torch.manual_seed(0)
    order = kind(0.8, (0.5, 1.0))
    blocks = made(alpha=order, n_steps=3), made(alpha=order, n_steps=3)
    torch.nn.Sequential(*blocks)(torch.randn(4, 3)).square().sum().backward()
    assert all(any(each is order for each in block.modules()) for block in blocks)
    assert float(order.raw.grad) != 0
    assert blocks[0].alpha.item() == pytest.approx(0.8, abs=1e-6)
    with pytest.raises(ValueError, match=r"Block\(alpha of type \w*Alpha, bounds=.*leave them out"):
        made(alpha=order, bounds=(0.6, 0.9))


@KINDS
def test_many_cotangents_at_once_are_refused_with_the_way_out(made):
    x = torch.randn(2, 3)
    with pytest.raises(RuntimeError, match=r"one cotangent at a time.*adjoint=False"):
        torch.autograd.functional.jacobian(made(alpha=0.7, n_steps=2), x, vectorize=True)
    torch.autograd.functional.jacobian(made(alpha=0.7, n_steps=2, adjoint=False), x, vectorize=True)


@KINDS
def test_the_tracer_of_scripts_is_refused_with_the_way_out(made):
    with pytest.raises(RuntimeError, match=r"torch.jit.trace cannot follow it; call it outside the traced part"):
        torch.jit.trace(made(alpha=0.7, n_steps=2), torch.randn(2, 3))


class Scriptable(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 3)

    def forward(self, t: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        found = torch.tanh(self.net(z))
        return found if self.training else 2 * found


@KINDS
def test_scripted_right_hand_sides_are_those_of_the_call(made):
    def gradients(is_scripted):
        torch.manual_seed(0)
        block, plain = made(alpha=0.7, n_steps=3), Scriptable()
        field = torch.jit.script(plain) if is_scripted else plain
        if isinstance(block, FDEBlock):
            block.f = field
        else:
            block.equation.drift = field
        given = {name: (2 * each.detach()).requires_grad_() for name, each in block.named_parameters()}
        loss = torch.func.functional_call(block.train(), given, (torch.ones(2, 3),)).sum()
        block.eval()
        found = torch.autograd.grad(loss, list(given.values()))
        assert not any(each.training for each in block.modules())
        return found

    for one, other in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_a_compiled_block_refuses_another_shape():
    with pytest.raises(Exception, match=r"FDEBlock\(f\): needs shape"):
        torch.compile(FDEBlock(Wider(), n_steps=2), backend="eager")(torch.randn(2, 3))
