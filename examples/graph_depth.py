"""Diffusion over a graph of four blocks, deeper and deeper: with memory the blocks stay apart.

200 nodes have noisy features, more ties inside their block than outside, and 5 of each block a label; a diffusion with
attention, between two linear maps, finds the others. Ordinary diffusion (alpha = 1) forgets like exp(-rate t) what the
nodes began with, so that at depth all are the same and nothing can be learned. With alpha = 1/2 it forgets like
t**-1/2.

The honest reading: this is robustness to depth. With its depth tuned, ordinary diffusion is as accurate.

Run:  python examples/graph_depth.py [--quick]
"""

import argparse
import math
from pathlib import Path

import networkx
import torch
from matplotlib.figure import Figure
from torch.nn import functional

import hpfracc_nn as fnn

STEP = 0.25  # stable for alpha = 1/2 on every graph: the layer's longest_step is 0.34


def blocks():
    """Features, edges both ways, the blocks, and which nodes are labelled."""
    probabilities = [[0.12 if i == j else 0.02 for j in range(4)] for i in range(4)]
    graph = networkx.stochastic_block_model([50] * 4, probabilities, seed=1)
    edges = torch.tensor(list(graph.edges())).t()
    y = torch.arange(4).repeat_interleave(50)
    generator = torch.Generator().manual_seed(1)
    centres = 2 * functional.normalize(torch.randn(4, 16, generator=generator), dim=1)
    x = centres[y] + torch.randn(200, 16, generator=generator)
    known = torch.cat([torch.randperm(50, generator=generator) < 5 for _ in range(4)])
    return x, torch.cat([edges, edges.flip(0)], 1), y, known


def layer(channels, depth, alpha, **options):
    return fnn.FractionalGraphConv(*channels, t1=depth, n_steps=round(depth / STEP), alpha=alpha, **options)


def accuracy(x, edges, y, known, depth, alpha, epochs):
    torch.manual_seed(0)
    conv, decoder = layer((x.shape[1], 16), depth, alpha), torch.nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*conv.parameters(), *decoder.parameters()], lr=0.03, weight_decay=5e-4)
    for _ in range(epochs):
        optimizer.zero_grad()
        functional.cross_entropy(decoder(conv(x, edges))[known], y[known]).backward()
        optimizer.step()
    right = decoder(conv(x, edges)).argmax(1) == y
    return right[~known].double().mean().item()


@torch.no_grad()
def apart(depth, alpha):
    """How far two joined nodes still differ, of 1: E_alpha(-2 t**alpha), about t**-alpha / (2 Gamma(1 - alpha))."""
    conv = layer((1, 1), depth, alpha, func="diffusion", bias=False, dtype=torch.float64)
    x = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    found = conv(x, torch.tensor([[0, 1], [1, 0]]))
    return ((found[0] - found[1]) / conv.lin.weight[0]).abs().item()


def plot(file, depths, found):
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(depths, found[1.0], "o-", depths, found[0.5], "o-")
    axes.set(xscale="log", xlabel="depth (diffusion time)", ylabel="nodes in the right block", ylim=(0.0, 1.0))
    axes.legend(["alpha = 1", "alpha = 0.5"])
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    print(f"picture: {file}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two depths, fewer epochs")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    given = parser.parse_args()
    depths, epochs = ((2.0, 32.0), 12) if given.quick else ((1.0, 2.0, 4.0, 8.0, 16.0, 32.0), 40)

    memory, none, theory = apart(32.0, 0.5), apart(32.0, 1.0), 32**-0.5 / (2 * math.gamma(0.5))
    print(f"two joined nodes at depth 32 differ by {memory:.4f} (in theory {theory:.4f}), without memory by {none:.1e}")
    assert abs(memory / theory - 1) < 0.05
    assert none < 1e-12

    graph, found = blocks(), {1.0: [], 0.5: []}
    print("accuracy without and with memory")
    for depth in depths:
        for alpha, accuracies in found.items():
            accuracies.append(accuracy(*graph, depth, alpha, epochs))
        print(f"depth {depth:<4g}{found[1.0][-1]:8.3f}{found[0.5][-1]:8.3f}")
    assert found[0.5][-1] > found[1.0][-1] + 0.25
    plot(given.output / "graph_depth.png", depths, found)


if __name__ == "__main__":
    main()
