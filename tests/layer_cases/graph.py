"""FROND: the explicit Caputo sum over messages, with the attention edge by edge."""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn.layers.torch import FractionalGraphConv
from tests.layer_cases import LayerCase
from tests.layer_cases.blocks import rectangle

STEPS, END, CHANNELS, NODES = 5, 4.0, 4, 6
# Node 5 is isolated, node 4 has a self loop and no other edge arrives there, and one edge is there twice.
EDGES = [[0, 1, 1, 2, 2, 3, 3, 0, 4, 4, 0], [1, 0, 2, 1, 3, 2, 0, 3, 4, 0, 1]]


class Messages(nn.Module):
    """What a user writes: the sum of the neighbours' tanh(W x), less x."""

    def __init__(self, device: Any = None, dtype: Any = None):
        super().__init__()
        self.net = nn.Linear(CHANNELS, CHANNELS, device=device, dtype=dtype)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        sent = torch.tanh(self.net(x)).index_select(0, edge_index[0])
        if edge_weight is not None:
            sent = sent * edge_weight[:, None]
        return sent.new_zeros(x.shape).index_add(0, edge_index[1], sent) - x


class Own(FractionalGraphConv):
    """The layer around a module of the user's."""

    def __init__(self, *given: Any, device: Any = None, dtype: Any = None, **options: Any):
        super().__init__(*given, func=Messages(device, dtype), device=device, dtype=dtype, **options)


def plain(linear: Any) -> Callable[[np.ndarray], np.ndarray]:
    weight, bias = (each.detach().double().numpy() for each in (linear.weight, linear.bias))
    return lambda x: x @ weight.T + bias


def mean_of_neighbours(scores: np.ndarray, edges: np.ndarray, nodes: int) -> np.ndarray:
    """Return A - D of positive scores of the edges, row by row."""
    matrix = np.zeros((nodes, nodes))
    for i in range(nodes):
        arriving = [e for e in range(edges.shape[1]) if edges[1, e] == i and scores[e] > 0]
        for e in arriving:
            matrix[i, edges[0, e]] += scores[e] / sum(scores[other] for other in arriving)
        matrix[i, i] -= bool(arriving)
    return matrix


def of_attention(layer: Any, x: np.ndarray, edges: np.ndarray, given: np.ndarray | None = None) -> Any:
    start, (nodes, heads, d) = plain(layer.lin)(x), (len(x), layer.func.heads, layer.func.head_channels)
    queries, keys = (plain(each)(start).reshape(nodes, heads, d) for each in (layer.func.query, layer.func.key))
    matrix = np.zeros((nodes, nodes))
    for head in range(heads):
        products = [queries[i, head] @ keys[j, head] / math.sqrt(d) for j, i in edges.T]
        scores = np.exp(products) * (1.0 if given is None else given)
        matrix += mean_of_neighbours(scores, edges, nodes) / heads
    return rectangle(lambda t, z: matrix @ z, start, layer.alpha.detach().numpy(), STEPS, END / STEPS)


def of_diffusion(layer: Any, x: np.ndarray, edges: np.ndarray, given: np.ndarray | None = None) -> Any:
    weights = np.ones(edges.shape[1]) if given is None else given
    matrix = mean_of_neighbours(weights, edges, len(x))
    start = plain(layer.lin)(x)
    return rectangle(lambda t, z: matrix @ z, start, layer.alpha.detach().numpy(), STEPS, END / STEPS)


def of_messages(layer: Any, x: np.ndarray, edges: np.ndarray, given: np.ndarray) -> Any:
    net = plain(layer.func.net)

    def f(t: float, z: np.ndarray) -> np.ndarray:
        found, sent = -z, np.tanh(net(z))
        for e, (j, i) in enumerate(edges.T):
            found[i] = found[i] + given[e] * sent[j]
        return found

    return rectangle(f, plain(layer.lin)(x), layer.alpha.detach().numpy(), STEPS, END / STEPS)


def grand(layer: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """GRAND's Euler loop on dense matrices: X + h (A(X_0) - I) X."""

    def run(x: Tensor, edge_index: Tensor) -> Tensor:
        state = layer.lin(x)
        query, key = layer.func.query(state), layer.func.key(state)
        count = torch.zeros(len(x), len(x), dtype=x.dtype)
        for j, i in edge_index.T:
            count[i, j] += 1
        scores = (query @ key.T / math.sqrt(query.shape[1])).exp() * count
        arrives = count.sum(1, keepdim=True) > 0
        attention = torch.where(arrives, scores / scores.sum(1, keepdim=True), torch.eye(len(x), dtype=x.dtype))
        for _ in range(STEPS):
            state = state + END / STEPS * (attention @ state - state)
        return state

    return run


def inputs(draw: Any, batch: int) -> tuple[Any, ...]:
    """A batch is as many copies of one graph, in one block-diagonal edge_index."""
    edges = draw.integers(EDGES)
    shifted = [edges + NODES * k for k in range(batch)]
    return draw(batch * NODES, 3), torch.cat(shifted, 1) if shifted else edges[:, :0]


def weighted(draw: Any, batch: int) -> tuple[Any, ...]:
    x, edges = inputs(draw, batch)
    weights = draw(edges.shape[1]).abs()
    return x, edges, weights


def call(**changed: Any) -> Any:
    arguments = {"x": torch.ones(3, 3), "edge_index": torch.tensor([[0, 1], [1, 2]]), **changed}
    return FractionalGraphConv(3, 4)(**arguments)


OPTIONS = {"t1": END, "n_steps": STEPS}
CASES = [
    LayerCase(
        FractionalGraphConv,
        (3, CHANNELS),
        inputs,
        of_attention,
        OPTIONS,
        limit=(1.0, grand),
        second=False,  # the exact adjoint has first gradients
        refusals=(
            ("rank", lambda: call(x=torch.ones(1, 3, 3)), ValueError, r"needs \[nodes, 3\]"),
            ("channels", lambda: call(x=torch.ones(3, 5)), ValueError, "in_channels=5"),
            ("integers", lambda: call(x=torch.ones(3, 3).long()), TypeError, "floating"),
            ("too large", lambda: call(edge_index=torch.tensor([[0], [3]])), ValueError, "from 0 to 2.*names 3"),
            ("negative", lambda: call(edge_index=torch.tensor([[-1], [0]])), ValueError, "names -1"),
            ("int32", lambda: call(edge_index=torch.zeros(2, 4).int()), TypeError, "int64"),
            ("pairs", lambda: call(edge_index=torch.zeros(4, 2).long()), ValueError, r"needs \[2, edges\]"),
            ("missing", lambda: call(edge_index=None), TypeError, "sources and targets"),
            ("sparse", lambda: call(edge_index=torch.eye(3).to_sparse()), TypeError, "sparse adjacency"),
            ("weights", lambda: call(edge_weight=torch.ones(2, 1)), ValueError, "each of the 2 edges"),
            ("whole weights", lambda: call(edge_weight=torch.ones(2).long()), TypeError, "edge_weight.float"),
            ("no data", lambda: FractionalGraphConv(3, 4)(object()), TypeError, "Data or Batch"),
            ("alpha", lambda: FractionalGraphConv(3, 4, alpha=1.3), ValueError, "0 < alpha <= 1"),
            ("orders", lambda: FractionalGraphConv(3, 4, alpha=[0.2, 0.3]), ValueError, "each of the 4"),
            ("name", lambda: FractionalGraphConv(3, 4, func="gat"), ValueError, "'attention', 'diffusion'"),
            ("function", lambda: FractionalGraphConv(3, 4, func=cast(Any, torch.tanh)), TypeError, "wrap a function"),
        ),
    ),
    LayerCase(
        FractionalGraphConv,
        (3, CHANNELS),
        weighted,
        of_attention,
        {**OPTIONS, "heads": 2},
        "heads",
        ([0.3, 0.5, 0.8, 0.9], 0.6, [0.9, 0.2, 0.4, 0.7]),
        second=False,
    ),
    LayerCase(
        FractionalGraphConv,
        (3, CHANNELS),
        weighted,
        of_diffusion,
        {**OPTIONS, "func": "diffusion"},
        "mean",
        second=False,
    ),
    LayerCase(Own, (3, CHANNELS), weighted, of_messages, OPTIONS, "messages", second=False),
]
