"""Noisy phase oscillators on a graph: how the synchrony of Kuramoto's model grows with the coupling.

dtheta_i = [omega_i + coupling * mean over the neighbours j of sin(theta_j - theta_i)] dt + sigma dW_i, the drift summed
over the edges of the graph. The gradient of the synchrony in the coupling comes from the same solve.

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
    """Return the mean length of the mean phase vector over paths: 1 where all phases agree."""
    return torch.hypot(torch.cos(theta).mean(-1), torch.sin(theta).mean(-1)).mean()


def draw(path, couplings, orders, slopes):
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    panel.plot(couplings, orders, "o-")
    for coupling, order, slope in zip(couplings, orders, slopes, strict=True):
        panel.plot([coupling - 0.2, coupling + 0.2], [order - 0.2 * slope, order + 0.2 * slope], "C1", linewidth=2)
    panel.set(xlabel="coupling", ylabel="synchrony", title="Synchrony, and its gradient from the same solve")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer paths, a shorter time")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    quick, found = arguments.quick, []
    paths, end = (16, 10.0) if quick else (64, 40.0)
    generator = torch.Generator().manual_seed(0)
    start = 0.5 * torch.randn(paths, NODES, generator=generator)
    print("coupling    synchrony    its slope in the coupling")
    for value in (0.0, 0.5, 1.0, 2.0, 4.0):
        coupling = torch.tensor(value, requires_grad=True)
        sde = Oscillators(coupling, torch.Generator().manual_seed(1))
        options = {"scheme": "srk", "generator": torch.Generator().manual_seed(2)}
        last = fnn.fsdeint(sde, start, [0.0, end], dt=0.05, **options)[-1]
        order = synchrony(last)
        (slope,) = torch.autograd.grad(order, coupling)
        print(f"{value:<12g}{order.item():<13.3f}{slope.item():.3f}")
        found.append((value, order.item(), slope.item()))
    draw(arguments.output / "noisy_oscillators.png", *zip(*found, strict=True))


if __name__ == "__main__":
    main()
