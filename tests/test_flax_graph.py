"""The graph layer in Flax: closed forms on small graphs, symmetries, and graphs as lists and as matrices."""

import math

import numpy as np
import pytest

pytest.importorskip("flax")

import jax
from flax import linen, nnx
from jax import numpy as jnp
from jax.experimental import checkify

from hpfracc_nn import mittag_leffler
from hpfracc_nn.fractional.jax.arrays import widest
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax import linen as of_linen
from hpfracc_nn.layers.flax import nnx as of_nnx
from hpfracc_nn.layers.flax.functional import solve
from hpfracc_nn.layers.flax.functional.solve import Adjacency, Edges

# Node 5 is isolated, and at node 4 no edge arrives but its own.
PAIRS = np.array([[0, 1, 1, 2, 2, 3, 3, 0, 4], [1, 0, 2, 1, 3, 2, 0, 3, 4]])
NODES = 6


def graphs(weight):
    """One graph, as a list and as a matrix."""
    matrix = np.zeros((NODES, NODES))
    matrix[PAIRS[1], PAIRS[0]] = weight
    return Edges(jnp.asarray(PAIRS[0]), jnp.asarray(PAIRS[1]), jnp.asarray(weight)), Adjacency(jnp.asarray(matrix))


def matrix_of(flow):
    """Return A - D of a flow, column by column."""
    return np.asarray(flow(jnp.eye(NODES)))


def softmax_rows(scores, weight):
    """Return the attention row by row, over the edges of weight above 0."""
    found = np.zeros((NODES, NODES))
    for i in range(NODES):
        arriving = np.flatnonzero(weight[i] > 0)
        if arriving.size:
            shares = weight[i, arriving] * np.exp(scores[i, arriving] - scores[i, arriving].max())
            found[i, arriving] = shares / shares.sum()
            found[i, i] -= 1
    return found


def test_a_list_and_a_matrix_are_the_same_flow_of_means():
    rng = np.random.default_rng(0)
    weight = rng.uniform(0.5, 2, PAIRS.shape[1])
    with jax.enable_x64(True):
        listed, dense = graphs(weight)
        x = jnp.asarray(rng.standard_normal((NODES, 3)))
        expected = softmax_rows(np.zeros((NODES, NODES)), np.asarray(dense.weight))
        for graph in (listed, dense):
            np.testing.assert_allclose(matrix_of(solve.mean_flow(graph, x)), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.slow
def test_attention_is_the_mean_of_the_heads_softmax_over_arriving_edges(heads):
    rng = np.random.default_rng(1)
    weight = np.asarray(rng.uniform(0.5, 2, PAIRS.shape[1]))
    weight[2] = 0.0  # an edge that is as one that is not there
    with jax.enable_x64(True):
        query, key = (jnp.asarray(3 * rng.standard_normal((NODES, heads, 4))) for _ in range(2))
        listed, dense = graphs(weight)
        scores = np.einsum("ihd,jhd->hij", query, key) / 2
        expected = np.mean([softmax_rows(each, np.asarray(dense.weight)) for each in scores], 0)
        for graph in (listed, dense):
            found = matrix_of(solve.attention_flow(query, key, graph))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("score", [1.0, 1e4])
@pytest.mark.slow
def test_an_edge_of_weight_zero_counts_for_nothing_however_large_its_score(score):
    x = score * jnp.array([[1.0], [1000.0], [2.0]])[:, :, None]

    def weights(weight):
        graph = Edges(jnp.array([0, 1, 2]), jnp.array([2, 2, 2]), weight)
        return solve.attention_flow(x, x, graph).weights

    weight = jnp.array([1.0, 0.0, 0.5])
    other = solve.attention_flow(x, x, Edges(jnp.array([0, 2]), jnp.array([2, 2]), weight[::2])).weights
    np.testing.assert_allclose(weights(weight)[::2], other, rtol=1e-6)
    assert float(weights(weight)[1]) == 0
    assert bool(jnp.isfinite(jax.jacrev(weights)(weight)).all())


def graph_layer(func="attention", alpha=0.6, **options):
    core = functional.FractionalGraphConv(3, 4, func=func, alpha=alpha, **{"t1": 2.0, "n_steps": 6, **options})
    return core, core.init(jax.random.key(0), widest())


def start_of(params, x):
    start = x @ params["lin"]["kernel"]
    return start + jnp.broadcast_to(params["lin"]["bias"], start.shape)


def nodes(seed=0, count=NODES):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((count, 3)))


@pytest.mark.parametrize("alpha", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_two_nodes_approach_each_other_like_a_mittag_leffler_function(alpha):
    # The difference d of two joined nodes obeys D^alpha d = -2 d; the scheme is of first order.
    errors, exact = [], mittag_leffler(-2.0, alpha)
    with jax.enable_x64(True):
        x, pair = nodes(count=2), jnp.array([[0.0, 1.0], [1.0, 0.0]])
        for n_steps in (64, 128):
            core, params = graph_layer("diffusion", alpha, t1=1.0, n_steps=n_steps)
            start, found = start_of(params, x), core(params, x, adjacency=pair)
            errors.append(float(jnp.abs((found[0] - found[1]) / (start[0] - start[1]) - exact).max()))
            np.testing.assert_allclose(found.mean(0), start.mean(0), rtol=1e-12, atol=1e-12)
    assert errors[1] < 0.03
    assert math.log2(errors[0] / errors[1]) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("func", ["attention", pytest.param("diffusion", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_graph_is_the_same_as_a_list_as_a_padded_one_as_a_matrix_and_renumbered(func):
    core, _ = graph_layer(func)
    with jax.enable_x64(True):
        _, params = graph_layer(func)
        x, pairs = nodes(), jnp.asarray(PAIRS)
        weight = jnp.asarray(np.random.default_rng(1).uniform(0.5, 2, PAIRS.shape[1]))
        found = core(params, x, pairs, weight)
        padded = jnp.concatenate([pairs, jnp.zeros((2, 3), int)], 1)
        longer = core(params, x, padded, jnp.concatenate([weight, jnp.zeros(3)]))
        matrix = core(params, x, adjacency=jnp.zeros((NODES, NODES)).at[pairs[1], pairs[0]].set(weight))
        order = np.random.default_rng(2).permutation(NODES)
        place = jnp.asarray(np.argsort(order))
        renumbered = core(params, x[order], place[pairs], weight)[place]
        for other in (longer, matrix, renumbered):
            np.testing.assert_allclose(other, found, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(found[5], start_of(params, x)[5])  # at which no edge arrives


@pytest.mark.slow
def test_a_map_over_graphs_is_each_of_them():
    core, params = graph_layer()
    rng = np.random.default_rng(3)
    x, matrices = jnp.asarray(rng.standard_normal((3, 5, 3))), jnp.asarray(rng.uniform(0, 1, (3, 5, 5)) > 0.5, float)
    found = jax.vmap(lambda x, matrix: core(params, x, adjacency=matrix))(x, matrices)
    for each, one, matrix in zip(found, x, matrices, strict=True):
        np.testing.assert_allclose(each, core(params, one, adjacency=matrix), rtol=1e-4, atol=1e-4)


class Messages(nnx.Module):
    """What a user writes: the sum of the neighbours' tanh(W x), less x."""

    def __init__(self, width, rngs):
        self.net = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x, edge_index, edge_weight=None):
        sent = jnp.tanh(self.net(x))[edge_index[0]]
        sent = sent if edge_weight is None else sent * edge_weight[:, None]
        return jnp.zeros_like(x).at[edge_index[1]].add(sent) - x


class LinenMessages(linen.Module):
    @linen.compact
    def __call__(self, x, edge_index, edge_weight=None):
        sent = jnp.tanh(linen.Dense(x.shape[1], name="net")(x))[edge_index[0]]
        sent = sent if edge_weight is None else sent * edge_weight[:, None]
        return jnp.zeros_like(x).at[edge_index[1]].add(sent) - x


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["attention", "of one's own"])
def test_modules_of_both_kinds_are_the_same_layer(own):
    options = {"alpha": 0.6, "t1": 1.0, "n_steps": 3, "learn_alpha": True}
    x, pairs, weight = nodes().astype(jnp.float32), jnp.asarray(PAIRS), jnp.ones(PAIRS.shape[1])
    rngs = nnx.Rngs(0)
    module = of_nnx.FractionalGraphConv(3, 4, func=Messages(4, rngs) if own else "attention", rngs=rngs, **options)
    shell = of_linen.FractionalGraphConv(3, 4, func=LinenMessages() if own else "attention", **options)
    state = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    made = shell.init(jax.random.key(0), x, pairs)["params"]
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, state)
    run, apply = nnx.jit(lambda module, *given: module(x, *given)), jax.jit(shell.apply)
    for given in ((pairs,), (pairs, weight)) if own else ((pairs, weight),):
        np.testing.assert_allclose(apply({"params": state}, x, *given), run(module, *given), rtol=1e-5, atol=1e-6)
    loss = nnx.jit(nnx.grad(lambda module: (module(x, pairs, weight) ** 2).sum()))
    grads = nnx.to_pure_dict(loss(module))
    assert all(float(jnp.abs(leaf).sum()) > 0 for leaf in jax.tree.leaves(grads) if leaf.size > 1)


def test_kernels_and_biases_are_drawn_apart():
    core = functional.FractionalGraphConv(3, 4, kernel_init=jax.random.normal, bias_init=jax.random.normal)
    drawn = jnp.concatenate([each.reshape(-1) for each in jax.tree.leaves(core.init(jax.random.key(0)))])
    assert jnp.unique(drawn).size == drawn.size


def test_the_longest_step_is_that_of_the_rectangle_rule():
    core, params = graph_layer(alpha=1.0)
    assert core.longest_step(params) == pytest.approx(1.0)
    core, params = graph_layer(scheme="predictor_corrector")
    assert core.longest_step(params) is None
    core, params = graph_layer(learn_alpha=True)
    with pytest.raises(TypeError, match=r"FractionalGraphConv.longest_step: needs orders that are known; ask for it"):
        jax.jit(core.longest_step)(params)


def refused(**changed):
    given = {"x": jnp.ones((3, 3)), "edge_index": jnp.array([[0, 1], [1, 2]]), **changed}
    core, params = graph_layer()
    return core(params, given.pop("x"), **given)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: refused(x=jnp.ones((1, 3, 3))), ValueError, r"needs \[nodes, 3\]"),
        (lambda: refused(x=jnp.ones((3, 5))), ValueError, "in_channels=5"),
        (lambda: refused(x=jnp.ones((3, 3), int)), TypeError, "dtype int32"),
        (lambda: refused(edge_index=jnp.array([[0], [3]])), ValueError, "from 0 to 2.*names 3"),
        (lambda: refused(edge_index=jnp.array([[-1], [0]])), ValueError, "names -1"),
        (lambda: refused(edge_index=jnp.zeros((4, 2), int)), ValueError, r"needs \[2, edges\]"),
        (lambda: refused(edge_index=jnp.eye(3)), TypeError, "adjacency=..."),
        (lambda: refused(edge_index=None), ValueError, "needs a graph"),
        (lambda: refused(adjacency=jnp.eye(3)), ValueError, "pass one of them"),
        (lambda: refused(edge_index=None, adjacency=jnp.eye(4)), ValueError, r"needs \[3, 3\]"),
        (lambda: refused(edge_weight=jnp.ones((2, 1))), ValueError, "each of the 2 edges"),
        (lambda: refused(edge_weight=jnp.ones(2, int)), TypeError, "edge_weight of dtype int32"),
        (lambda: graph_layer(alpha=1.3), ValueError, "0 < alpha <= 1"),
        (lambda: graph_layer(alpha=[0.2, 0.3]), ValueError, "each of the 4"),
        (lambda: graph_layer(func="gat"), ValueError, "'attention', 'diffusion'"),
    ],
)
def test_what_cannot_be_is_told(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_traced_edges_that_name_no_node_raise_under_checkify():
    core, params = graph_layer("diffusion", n_steps=1)
    checked = checkify.checkify(jax.jit(lambda pairs: core(params, jnp.ones((3, 3)), pairs)))
    error, _ = checked(jnp.array([[0], [3]]))
    with pytest.raises(checkify.JaxRuntimeError, match="needs nodes from 0 to 2"):
        error.throw()
