"""What is particular to the graph layer: closed forms on small graphs, symmetries, and graphs with nothing in them."""

import math
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn import mittag_leffler
from hpfracc_nn.layers.torch import FractionalGraphConv
from hpfracc_nn.layers.torch.solve import GraphAttention
from hpfracc_nn.solvers.schemes import Rectangle
from tests.layer_cases import Draw
from tests.layer_cases.graph import Messages, inputs

both = pytest.mark.parametrize("func", ["attention", "diffusion"])
PAIR = torch.tensor([[0, 1], [1, 0]])


def made(func="attention", alpha=0.6, **options):
    torch.manual_seed(0)
    options = {"t1": 4.0, "n_steps": 8, "dtype": torch.float64, **options}
    return FractionalGraphConv(3, 4, func=func, alpha=alpha, **options)


@torch.no_grad()
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8, 1.0])
def test_two_nodes_approach_each_other_like_a_mittag_leffler_function(alpha):
    # The difference d of two joined nodes obeys D^alpha d = -2 d; the scheme is of first order.
    x = torch.randn(2, 3, dtype=torch.float64)
    errors = []
    for n_steps in (64, 128):
        layer = made("diffusion", alpha, t1=1.0, n_steps=n_steps)
        start, found = layer.lin(x), layer(x, PAIR)
        exact = mittag_leffler(-2.0, alpha)
        errors.append(float(((found[0] - found[1]) / (start[0] - start[1]) - exact).abs().max()))
        torch.testing.assert_close(found.mean(0), start.mean(0), rtol=1e-12, atol=1e-12)
    assert errors[1] < 0.03
    assert math.log2(errors[0] / errors[1]) == pytest.approx(1, abs=0.25)


@torch.no_grad()
def test_memory_keeps_nodes_apart_at_depth():
    # E_a(-2 t^a) falls like t^-a / (2 Gamma(1 - a)), exp(-2 t) far below what float32 resolves beside 1.
    x, apart = torch.randn(2, 3, dtype=torch.float64), {}
    for alpha in (0.5, 1.0):
        layer = made("diffusion", alpha, t1=32.0, n_steps=128)
        found, start = layer(x, PAIR), layer.lin(x)
        apart[alpha] = float(((found[0] - found[1]) / (start[0] - start[1])).abs().max())
    assert apart[0.5] == pytest.approx(32**-0.5 / (2 * math.gamma(0.5)), rel=0.05)
    assert apart[1.0] < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8, 1.0])
def test_the_longest_step_is_where_the_most_different_nodes_cease_to_approach_each_other(alpha):
    x, longest = torch.randn(2, 3, dtype=torch.float64), made("diffusion", alpha).longest_step
    for factor, is_stable in ((0.97, True), (1.03, False)):
        layer = made("diffusion", alpha, t1=longest * factor * 60, n_steps=60)
        start, found = layer.lin(x), layer(x, PAIR)
        assert bool(((found[0] - found[1]).abs() < (start[0] - start[1]).abs()).all()) == is_stable


@both
@torch.no_grad()
def test_nodes_that_are_renumbered_have_the_same_features(func):
    layer, (x, edges) = made(func), inputs(Draw(), 1)
    order = torch.randperm(len(x))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(x))
    torch.testing.assert_close(layer(x[order], place[edges]), layer(x, edges)[order], rtol=1e-12, atol=1e-12)
    shuffled = torch.randperm(edges.shape[1])
    torch.testing.assert_close(layer(x, edges[:, shuffled]), layer(x, edges), rtol=1e-12, atol=1e-12)


@both
@torch.no_grad()
def test_a_batch_of_graphs_is_each_of_them(func):
    layer, (x, edges) = made(func), inputs(Draw(), 3)
    parts = [layer(part, edges[:, :11]) for part in x.split(6)]
    torch.testing.assert_close(layer(x, edges), torch.cat(parts), rtol=1e-12, atol=1e-12)


@both
@torch.no_grad()
def test_nodes_without_arriving_edges_stay_as_they_are(func):
    layer, x = made(func), torch.randn(4, 3, dtype=torch.float64)
    start, found = layer.lin(x), layer(x, torch.tensor([[0, 1, 3], [1, 2, 2]]))
    assert torch.equal(found[[0, 3]], start[[0, 3]])
    assert not torch.allclose(found[[1, 2]], start[[1, 2]])


@both
@pytest.mark.parametrize("edges", [torch.zeros(2, 0).long(), torch.arange(4).expand(2, 4)], ids=["none", "self loops"])
def test_without_edges_between_nodes_nothing_moves(func, edges):
    layer, x = made(func, learn_alpha=True), torch.randn(4, 3, dtype=torch.float64)
    found = layer(x, edges)
    torch.testing.assert_close(found, layer.lin(x), rtol=1e-12, atol=1e-12)
    found.sum().backward()
    assert layer.order.raw.grad.abs() < 1e-12


@both
@torch.no_grad()
def test_equal_features_stay_equal_and_others_between_their_extremes(func):
    layer, (x, edges) = made(func), inputs(Draw(), 1)
    torch.testing.assert_close(layer(torch.ones_like(x), edges), layer.lin(torch.ones_like(x)), rtol=1e-12, atol=0)
    start, found = layer.lin(x), layer(x, edges)
    assert bool((found <= start.amax(0) + 1e-12).all() & (found >= start.amin(0) - 1e-12).all())


@both
@torch.no_grad()
def test_weights_of_edges_count_relative_to_one_another(func):
    layer, (x, edges) = made(func), inputs(Draw(), 1)
    one = torch.ones(edges.shape[1], dtype=torch.float64)
    torch.testing.assert_close(layer(x, edges, 3 * one), layer(x, edges), rtol=1e-12, atol=1e-12)
    one[0] = 0.0
    torch.testing.assert_close(layer(x, edges, one), layer(x, edges[:, 1:]), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_large_scores_do_not_overflow():
    layer, (x, edges) = made(dtype=torch.float32), inputs(Draw(torch.float32), 1)
    layer.func.query.weight.mul_(1e4)
    assert bool(layer(x, edges).isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_edge_of_weight_zero_freezes_no_node(dtype):
    flow, edges = GraphAttention(1, dtype=dtype), torch.tensor([[0, 1, 2], [2, 2, 2]])
    with torch.no_grad():
        for linear in (flow.query, flow.key):
            linear.weight.fill_(1.0)
            linear.bias.zero_()
    x = torch.tensor([[1.0], [1000.0], [2.0]], dtype=dtype)  # scores 2, 2000 and 4
    weight = torch.tensor([1.0, 0.0, 0.5], dtype=dtype, requires_grad=True)
    found, expected = flow(x, edges, weight), flow(x, edges[:, [0, 2]], weight.detach()[[0, 2]])
    torch.testing.assert_close(found.weights[[0, 2]], expected.weights)
    assert float(found.weights[1].detach()) == 0
    assert torch.equal(found.share, expected.share)
    (gradient,) = torch.autograd.grad(found.weights[0], weight)
    assert bool(gradient.isfinite().all())
    tiny = flow(x, edges, torch.tensor([1.0, 1e-30, 0.0], dtype=dtype))
    torch.testing.assert_close(tiny.weights.sum(), torch.ones((), dtype=dtype))


def test_a_weight_at_zero_has_its_gradient():
    flow, (x, edges) = GraphAttention(4, dtype=torch.float64), inputs(Draw(), 1)
    x = torch.randn(len(x), 4, dtype=torch.float64)
    near, at = (torch.full((edges.shape[1],), 1.0, dtype=torch.float64) for _ in range(2))
    near[0], at[0] = 1e-9, 0.0
    gradients = [torch.autograd.functional.jacobian(lambda w: flow(x, edges, w).weights, each) for each in (near, at)]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-7)


@torch.no_grad()
def test_vmap_takes_many_features_and_graphs():
    layer, (x, edges) = made(), inputs(Draw(), 1)
    many, graphs = torch.stack([x, 2 * x]), torch.stack([edges, edges.flip(1).flip(0)])
    for dims, each in ((0, graphs), ((0, None), edges)):
        found = torch.func.vmap(layer, dims)(many, each)
        expected = [layer(one, other) for one, other in zip(many, each if dims == 0 else [edges, edges], strict=True)]
        torch.testing.assert_close(found, torch.stack(expected))


@torch.no_grad()
def test_weights_that_are_passed_go_before_those_of_an_object():
    layer, (x, edges) = made(), inputs(Draw(), 1)
    own, given = torch.rand(2, edges.shape[1], dtype=torch.float64)
    for data in (SimpleNamespace(x=x, edge_index=edges), SimpleNamespace(x=x, edge_index=edges, edge_weight=own)):
        assert torch.equal(layer(data, edge_weight=given), layer(x, edges, given))


def test_the_longest_step_is_only_known_of_the_rectangle_rule():
    assert made().longest_step is not None
    assert made(scheme="trapezoid").longest_step is None


def test_edges_that_are_written_to_before_the_backward_pass_are_refused():
    for func in ("attention", Messages().double()):
        layer, (x, edges) = made(func), inputs(Draw(), 1)
        loss = layer(x, edges).sum()
        edges.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@torch.no_grad()
def test_an_object_like_data_is_taken_apart():
    layer, (x, edges) = made(), inputs(Draw(), 1)
    weights = torch.rand(edges.shape[1], dtype=torch.float64)
    assert torch.equal(layer(SimpleNamespace(x=x, edge_index=edges)), layer(x, edges))
    assert torch.equal(layer(SimpleNamespace(x=x, edge_index=edges, edge_weight=None)), layer(x, edges))
    assert torch.equal(layer(SimpleNamespace(x=x, edge_index=edges, edge_weight=weights)), layer(x, edges, weights))


@torch.no_grad()
def test_calls_are_bit_identical_and_float32_is_right_at_depth():
    wide = made(t1=32.0, n_steps=128)
    narrow = made(t1=32.0, n_steps=128, dtype=torch.float32)
    narrow.load_state_dict(wide.state_dict())
    x, edges = inputs(Draw(), 20)
    found = narrow(x.float(), edges)
    assert torch.equal(found, narrow(x.float(), edges))
    expected = wide(x, edges)
    # 128 steps that each add up to 128 numbers, rounded to 6e-8: 7e-7 where errors are independent
    assert float((found.double() - expected).abs().max() / expected.abs().max()) < 3e-6


def test_a_users_module_may_draw_random_numbers_where_it_is_not_called_again():
    class Dropped(Messages):
        def forward(self, x, edge_index, edge_weight=None):
            return super().forward(torch.nn.functional.dropout(x, 0.5, self.training), edge_index)

    x, edges = inputs(Draw(torch.float32), 1)
    with pytest.raises(ValueError, match=r"draws random numbers.*adjoint=False"):
        FractionalGraphConv(3, 4, func=Dropped())(x, edges)
    FractionalGraphConv(3, 4, func=Dropped(), adjoint=False)(x, edges).sum().backward()
    FractionalGraphConv(3, 4, func=Dropped()).eval()(x, edges).sum().backward()


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 1.0])
def test_the_limit_of_stability_is_that_of_the_characteristic_function(alpha):
    # At z = -1 the sum over k of b_k z**(k + 1) is (1 - z) Li_{-alpha}(z) / Gamma(1 + alpha).
    mpmath = pytest.importorskip("mpmath")
    found = Rectangle().stability(alpha)
    assert found == pytest.approx(float(-mpmath.gamma(1 + alpha) / (2 * mpmath.polylog(-alpha, -1))), rel=1e-13)
    for phase in torch.linspace(0.1, math.pi, 8).tolist():  # the disk of a graph's eigenvalues touches the edge, at -2
        z = mpmath.e ** (1j * phase) * (1 - 1e-7)
        edge = mpmath.gamma(1 + alpha) / ((1 - z) * mpmath.polylog(-alpha, z))
        assert abs(edge + found / 2) > found / 2 * (1 - 1e-5)
