"""The order of a fractional diffusion from observations of its solution: a physics-informed network, inverse problem.

u solves D_t^alpha u = u_xx + f on [0, 1], and is observed on a grid, with noise; alpha is not known. A network stands
for u, automatic differentiation gives u_xx, and a `FractionalLayer` with a learned order gives D_t^alpha. Network and
order are fitted together, to the observations and to the equation. Here u = t^2 sin(pi x), alpha = 0.6.

Beside a free network an order is a measurement only because the equation ties the two: f is known, and u is observed.
Noise of 2 % still moves it by some hundredths.

Run:  python examples/fractional_pinn.py [--quick]
"""

import argparse
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure

import hpfracc_nn as fnn

ALPHA, FIRST = 0.6, 0.27
X, T = torch.linspace(0, 1, 16).double(), torch.linspace(0, 1, 31).double()
SINE = torch.sin(math.pi * X)[:, None]
EXACT = SINE * T**2
FORCING = SINE * (math.gamma(3) / math.gamma(3 - ALPHA) * T ** (2 - ALPHA) + math.pi**2 * T**2)
SEARCH = dict(max_iter=250, max_eval=500, history_size=50, tolerance_grad=1e-12, tolerance_change=1e-14)


class Network(torch.nn.Module):
    """u(x, t) = t x (1 - x) times a network: 0 at the start and at both ends."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(2, 20), torch.nn.Tanh(), torch.nn.Linear(20, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1)
        ).double()

    def forward(self):
        """Return u and u_xx on the grid, [points, times]."""
        x = X[:, None].expand(len(X), len(T)).clone().requires_grad_()
        u = T * x * (1 - x) * self.net(torch.stack([x, T.expand_as(x)], -1))[..., 0]
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return u, bend


def fitted(noise, seed=0):
    """Return the network, the layer, and alpha after every evaluation."""
    torch.manual_seed(seed)
    net, dt = Network(), (T[1] - T[0]).item()
    derivative = fnn.FractionalLayer(FIRST, "caputo", scheme="l1_2", learn_alpha=True, dt=dt, dtype=torch.float64)
    observed = EXACT + noise * torch.randn(EXACT.shape, dtype=torch.float64)
    parameters = [*net.parameters(), *derivative.parameters()]
    optimizer = torch.optim.LBFGS(parameters, line_search_fn="strong_wolfe", **SEARCH)
    alphas = []

    def closure():
        optimizer.zero_grad()
        u, bend = net()
        residual = (derivative(u) - bend - FORCING)[1:-1, 1:]
        loss = residual.square().mean() + 100 * (u - observed).square().mean()
        loss.backward()
        alphas.append(derivative.alpha.item())
        return loss

    optimizer.step(closure)
    return net, derivative, alphas


def plot(file, found):
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot(xlabel="evaluations of the loss", ylabel="alpha", ylim=(0.2, 0.8))
    axes.axhline(ALPHA, color="0.6", linestyle="--", label="true order")
    for noise, alphas in found.items():
        axes.plot(alphas, label=f"{noise:.0%} noise")
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    print(f"picture: {file}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without noise alone")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    given, found = parser.parse_args(), {}
    print("noise   alpha (0.6)   error of u")
    for noise, bar in ((0.0, 0.01),) if given.quick else ((0.0, 0.01), (0.02, 0.05)):
        net, derivative, found[noise] = fitted(noise)
        error = (net()[0] - EXACT).norm() / EXACT.norm()
        alpha = derivative.alpha.item()
        print(f"{noise:<8.0%}{alpha:<14.4f}{error.item():.1e}")
        assert abs(alpha - ALPHA) < bar
    plot(given.output / "fractional_pinn.png", found)


if __name__ == "__main__":
    main()
