"""Noisy phase oscillators on a graph: how the synchrony of Kuramoto's model grows with the coupling.

dtheta_i = [omega_i + coupling * mean over the neighbours j of sin(theta_j - theta_i)] dt + sigma dW_i, the drift summed
over the edges of the graph. The gradient of the synchrony in the coupling comes from the same solve, one for each path.

A gradient of each path is exact, and still no use at late times: where the noise makes oscillators slip, paths that
begin side by side part exponentially, and a few of them carry the whole mean. The last lines show it at coupling 1. The
difference of two solves with the same noise, 0.1 above and below, keeps its size. So look at the standard error of a
gradient over paths, and take a horizon at which it is small.

Run:  python examples/noisy_oscillators.py [--quick]
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import hpfracc_nn as fnn

NODES, NEIGHBOURS, SIGMA = 60, 8, 0.3


class Oscillators:
    """The equation; `noise_type` is declared, and drift and diffusion see a batch [paths, nodes]."""

    noise_type = "additive"

    def __init__(self, coupling, generator):
        self.coupling = coupling
        self.omega = 0.5 * torch.randn(NODES, generator=generator)
        steps = torch.arange(1, NEIGHBOURS // 2 + 1)
        start = torch.arange(NODES).repeat_interleave(len(steps))
        end = (start + steps.repeat(NODES)) % NODES  # a ring, each node with its nearest ones
        self.source, self.target = torch.cat([start, end]), torch.cat([end, start])

    def drift(self, t, theta):
        pull = torch.sin(theta[:, self.source] - theta[:, self.target])
        total = torch.zeros_like(theta).index_add(1, self.target, pull)
        return self.omega + self.coupling * total / NEIGHBOURS

    def diffusion(self, t, theta):
        return torch.full_like(theta, SIGMA)


def synchrony(theta):
    """Return the length of each path's mean phase vector: 1 where all phases agree."""
    return torch.hypot(torch.cos(theta).mean(-1), torch.sin(theta).mean(-1))


def solved(value, paths, end):
    """Return the synchrony of each path at the end, and its slope in the coupling."""
    generator = torch.Generator().manual_seed(0)
    start = 0.5 * torch.randn(paths, NODES, generator=generator)
    coupling = torch.full((paths, 1), value, requires_grad=True)  # one for each path
    sde = Oscillators(coupling, torch.Generator().manual_seed(1))
    options = {"scheme": "srk", "generator": torch.Generator().manual_seed(2)}
    order = synchrony(fnn.fsdeint(sde, start, [0.0, end], dt=0.05, **options)[-1])
    return order.detach(), torch.autograd.grad(order.sum(), coupling)[0][:, 0]


def stated(values):
    return f"{values.mean():.3f} +- {values.std() / len(values) ** 0.5:.3f}"


def draw(path, couplings, orders, slopes):
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    panel.plot(couplings, orders, "o-")
    for coupling, order, slope in zip(couplings, orders, slopes, strict=True):
        panel.plot([coupling - 0.2, coupling + 0.2], [order - 0.2 * slope, order + 0.2 * slope], "C1", linewidth=2)
    panel.set(xlabel="coupling", ylabel="synchrony", title="Synchrony at time 10, and its gradient from the same solve")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer paths, a shorter time")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    paths, ends = (32, (5.0, 10.0)) if arguments.quick else (128, (5.0, 10.0, 20.0, 40.0))
    print("coupling    synchrony at time 10   slope in the coupling")
    found = []
    for value in (0.0, 0.5, 1.0, 2.0, 4.0):
        order, slope = solved(value, paths, 10.0)
        print(f"{value:<12g}{stated(order):<23}{stated(slope)}")
        found.append((value, order.mean(), slope.mean()))
    print("\ntime        slope at coupling 1    by differences       largest of a path")
    for end in ends:
        slope, (low, high) = solved(1.0, paths, end)[1], (solved(value, paths, end)[0] for value in (0.9, 1.1))
        print(f"{end:<12g}{stated(slope):<23}{stated((high - low) / 0.2):<21}{slope.abs().max():.1f}")
    draw(arguments.output / "noisy_oscillators.png", *zip(*found, strict=True))


if __name__ == "__main__":
    main()
