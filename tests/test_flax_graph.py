"""The graph layer in Flax: closed forms on small graphs, symmetries, and graphs as lists and as matrices."""

import numpy as np
import pytest

pytest.importorskip("flax")

import jax
from jax import numpy as jnp

from hpfracc_nn.layers.flax.functional import diffusion
from hpfracc_nn.layers.flax.functional.diffusion import Adjacency, Edges

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
            np.testing.assert_allclose(matrix_of(diffusion.mean_flow(graph, x)), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_is_the_mean_of_the_heads_softmax_over_arriving_edges(heads):
    rng = np.random.default_rng(1)
    weight = rng.uniform(0.5, 2, PAIRS.shape[1])
    weight[2] = 0.0  # an edge that is as one that is not there
    with jax.enable_x64(True):
        query, key = (jnp.asarray(3 * rng.standard_normal((NODES, heads, 4))) for _ in range(2))
        listed, dense = graphs(weight)
        scores = np.einsum("ihd,jhd->hij", query, key) / 2
        expected = np.mean([softmax_rows(each, np.asarray(dense.weight)) for each in scores], 0)
        for graph in (listed, dense):
            found = matrix_of(diffusion.attention_flow(query, key, graph))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("score", [1.0, 1e4])
def test_an_edge_of_weight_zero_counts_for_nothing_however_large_its_score(score):
    x = score * jnp.array([[1.0], [1000.0], [2.0]])[:, :, None]

    def weights(weight):
        graph = Edges(jnp.array([0, 1, 2]), jnp.array([2, 2, 2]), weight)
        return diffusion.attention_flow(x, x, graph).weights

    weight = jnp.array([1.0, 0.0, 0.5])
    other = diffusion.attention_flow(x, x, Edges(jnp.array([0, 2]), jnp.array([2, 2]), weight[::2])).weights
    np.testing.assert_allclose(weights(weight)[::2], other, rtol=1e-6)
    assert float(weights(weight)[1]) == 0
    assert bool(jnp.isfinite(jax.jacrev(weights)(weight)).all())
