"""Depth on graphs: a fractional diffusion keeps nodes apart where ordinary diffusion has made them all the same.

Two graphs, a linear encoder and decoder around `FractionalGraphConv` with attention, steps of 1/4, Adam. On the
contextual stochastic block model (Deshpande et al., NeurIPS 2018) 200 nodes in four blocks have 16 noisy features, and
5 nodes of each block a label. In Zachary's karate club nodes have no feature but their number, and 2 of each faction a
label. Nothing is tuned. The rows of 8 steps say that with the depth tuned ordinary diffusion is as good; and on the
club, whose two factions have few ties, it has not come to its end at depth 32.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpfracc_nn.layers.torch import FractionalGraphConv

SEEDS = (0, 1, 2)
HIDDEN, STEP = 16, 0.25


@dataclass(frozen=True)
class Graph:
    """A graph whose nodes are to be told apart.

    Attributes:
        x: Features, [nodes, channels].
        edge_index: Both directions of every edge, [2, edges].
        y: Classes, [nodes].
        labels: How many nodes of each class are labelled.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor
    labels: int

    def labelled(self, seed: int) -> Tensor:
        """Return which nodes are labelled, [nodes]."""
        generator = torch.Generator().manual_seed(seed)
        found = torch.zeros(len(self.y), dtype=torch.bool)
        for each in range(int(self.y.max()) + 1):
            nodes = torch.where(self.y == each)[0]
            found[nodes[torch.randperm(len(nodes), generator=generator)[: self.labels]]] = True
        return found


def rows(quick: bool) -> list[dict]:
    """Return accuracies on the nodes without a label, one for each seed."""
    epochs = 5 if quick else 100
    blocks = [row("block model", block_model, epochs, t1, alpha) for t1, alpha in CASES]
    clubs = [row("karate", karate, epochs, t1, alpha) for t1, alpha in CASES]
    blocks[-1]["bar"] = max(0.70, blocks[1]["mean"] + 0.25)
    clubs[-1]["bar"] = 0.90
    return [*blocks, *clubs]


CASES = ((2.0, 1.0), (32.0, 1.0), (32.0, 0.8), (32.0, 0.5))  # t1 and alpha


def row(task: str, make: Callable[[int], Graph], epochs: int, t1: float, alpha: float) -> dict:
    """Return one row of the table."""
    trained = [accuracy(make(seed), seed, epochs, t1, alpha) for seed in SEEDS]
    values = [value for value, _ in trained]
    return {
        "task": task,
        "model": f"{t1 / STEP:g} steps to {t1:g}, alpha={alpha:g}",
        "parameters": trained[0][1],
        "metric": "test accuracy",
        "values": values,
        "mean": statistics.fmean(values),
        "spread": statistics.stdev(values),
        "bar": None,
        "higher_is_better": True,
    }


def accuracy(graph: Graph, seed: int, epochs: int, t1: float, alpha: float) -> tuple[float, int]:
    """Return the accuracy on the other nodes after so many epochs, and the number of parameters."""
    torch.manual_seed(seed)
    conv = FractionalGraphConv(graph.x.shape[1], HIDDEN, alpha=alpha, t1=t1, n_steps=round(t1 / STEP))
    decoder = nn.Linear(HIDDEN, int(graph.y.max()) + 1)
    parameters = [*conv.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4)
    known = graph.labelled(seed)
    for _ in range(epochs):
        optimizer.zero_grad()
        answers = decoder(conv(graph.x, graph.edge_index))
        functional.cross_entropy(answers[known], graph.y[known]).backward()
        optimizer.step()
    with torch.no_grad():
        right = decoder(conv(graph.x, graph.edge_index)).argmax(1) == graph.y
    return right[~known].double().mean().item(), sum(each.numel() for each in parameters)


def block_model(seed: int, channels: int = 16, signal: float = 2.0) -> Graph:
    """Return four blocks of 50 nodes: edges with probability 0.12 inside and 0.02 between, features of deviation 1."""
    import networkx

    between, inside = 0.02, 0.12
    probabilities = [[inside if i == j else between for j in range(4)] for i in range(4)]
    graph = networkx.stochastic_block_model([50] * 4, probabilities, seed=seed)
    y = torch.arange(4).repeat_interleave(50)
    generator = torch.Generator().manual_seed(seed)
    centres = signal * functional.normalize(torch.randn(4, channels, generator=generator), dim=1)
    x = centres[y] + torch.randn(200, channels, generator=generator)
    return Graph(x, both_ways(graph), y, 5)


def karate(seed: int) -> Graph:
    """Return Zachary's karate club; a node is told by its number."""
    import networkx

    graph = networkx.karate_club_graph()
    y = torch.tensor([int(club == "Officer") for _, club in graph.nodes(data="club")])
    return Graph(torch.eye(len(y)), both_ways(graph), y, 2)


def both_ways(graph: Any) -> Tensor:
    """Return the edges of an undirected networkx graph, [2, edges]."""
    edges = torch.tensor(list(graph.edges())).t()
    return torch.cat([edges, edges.flip(0)], 1)
