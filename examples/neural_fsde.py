"""A neural stochastic equation fitted to paths of a fractional Ornstein-Uhlenbeck process, with and without memory.

The data are paths of dX = -X dt + 0.7 dB with a Hurst index of 0.3. Two models have the same networks: one is driven by
fractional Brownian motion whose Hurst index is learned, the other by Brownian motion. Both are fitted to moments and
variograms of one half of the paths and judged on the other half by the energy score of increments, which sees whole
paths and which neither was fitted to.

Run:  python examples/neural_fsde.py [--quick]
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import hpfracc_nn as fnn
from hpfracc_nn.solvers import Brownian, FractionalBrownian
from hpfracc_nn.training import energy_score, moment_loss, variogram_loss

HURST, RATE, SIGMA, STEPS = 0.3, 1.0, 0.7, 64
TS = torch.linspace(0, 2, STEPS + 1)


class Drift(torch.nn.Module):
    """A small network of the state."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, t, y):
        return self.net(y)


class Diffusion(torch.nn.Module):
    """One learned number."""

    def __init__(self):
        super().__init__()
        self.log_scale = torch.nn.Parameter(torch.zeros(1))

    def forward(self, t, y):
        return self.log_scale.exp().expand_as(y)


def observed(count):
    process = fnn.SDE(lambda t, y: -RATE * y, lambda t, y: torch.full_like(y, SIGMA), "additive")
    generator, noise = torch.Generator().manual_seed(1), FractionalBrownian(HURST)
    return fnn.fsdeint(process, torch.zeros(count, 1), TS, dt=2 / STEPS / 4, noise=noise, generator=generator)


def fitted(paths, rounds, **options):
    torch.manual_seed(0)
    model = fnn.NeuralFSDE(Drift(), Diffusion(), "additive", scheme="heun", **options)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    generator = torch.Generator().manual_seed(2)
    for _ in range(rounds):
        optimizer.zero_grad()
        found = model(torch.zeros(256, 1), TS, generator=generator)
        loss = variogram_loss(found, paths, lags=(1, 2, 4, 8, 16)) + moment_loss(found, paths)
        loss.backward()
        optimizer.step()
    return model


def draw(path, shown):
    figure = Figure(figsize=(9, 3), layout="constrained")
    for panel, (name, paths) in zip(figure.subplots(1, len(shown), sharey=True), shown.items(), strict=True):
        panel.plot(TS, paths[:, :3, 0], linewidth=0.8)
        panel.set(title=name, xlabel="time")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer paths and rounds")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    data = observed(256 if arguments.quick else 1024)
    train, test = data.chunk(2, dim=1)
    shown = {"data": test}
    learned = {"noise": FractionalBrownian(0.45), "learn_hurst": True, "hurst_bounds": (0.02, 0.6)}
    print("driver                  hurst    scale (0.7)    energy score of increments, other half")
    for name, options in (("fractional, learned", learned), ("Brownian", {"noise": Brownian()})):
        model = fitted(train, 60 if arguments.quick else 300, **options)
        with torch.no_grad():
            found = model(torch.zeros(1024, 1), TS, generator=torch.Generator().manual_seed(3))
            score = energy_score(found.diff(dim=0), test.diff(dim=0)).item()
        shown[name] = found
        hurst = 0.5 if model.hurst is None else model.hurst.item()
        print(f"{name:24}{hurst:<9.3f}{model.diffusion.log_scale.exp().item():<15.3f}{score:.4f}")
    draw(arguments.output / "neural_fsde.png", shown)


if __name__ == "__main__":
    main()
