"""Recover the order of simulated ARFIMA(0, d, 0) series, with its standard error.

Run:  python examples/learn_order.py [--quick]
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from hpfracc_nn.data import arfima
from hpfracc_nn.layers.torch import FractionalDifference


def sum_of_squares(layer, series):
    """The squared one-step errors: what the filter (1 - z)**alpha leaves of the series is noise."""
    return layer(series[None, None]).square().sum()


def learn(series):
    """Return alpha and its standard error, by least squares from the Hessian at the minimum."""
    layer = FractionalDifference(1, init=0.1, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=50, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = sum_of_squares(layer, series) / len(series)
        loss.backward()
        return loss

    optimizer.step(closure)
    (parameter,) = layer.parameters()
    total = sum_of_squares(layer, series)
    (slope,) = torch.autograd.grad(total, parameter, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), parameter)
    (stretch,) = torch.autograd.grad(layer.alpha.sum(), parameter)  # d alpha / d parameter
    variance = 2 * total.detach() / (len(series) - 1) / curvature
    return layer.alpha.item(), math.sqrt(variance.sum()) * abs(stretch.sum().item())


def draw(path, found, theory):
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    for number, (alpha, estimates) in enumerate(found.items()):
        panel.axhspan(alpha - 2 * theory, alpha + 2 * theory, color="0.9")
        panel.axhline(alpha, color="0.5", linewidth=0.8)
        panel.plot(estimates, "o", color=f"C{number}", label=f"true order {alpha}")
    panel.set(xlabel="series", ylabel="estimate", ylim=(0.0, 0.52), title="Orders found; grey: two standard errors")
    panel.legend(loc="upper left", ncols=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter and fewer series")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    quick, orders = arguments.quick, {}
    n, repeats = (500, 3) if quick else (4000, 20)
    rng = np.random.default_rng(0)
    theory = math.sqrt(6 / n) / math.pi
    print(f"{repeats} series of {n} samples for each order; in theory the standard error is {theory:.4f}")
    print("true    mean of estimates    their spread    standard error said    inside 2 of them")
    for alpha in (0.1, 0.25, 0.4):
        found = [learn(torch.from_numpy(arfima(n, alpha, rng))) for _ in range(repeats)]
        estimates, said = np.array(found).T
        orders[alpha] = estimates
        inside = np.sum(np.abs(estimates - alpha) < 2 * said)
        print(
            f"{alpha:<8}{estimates.mean():<21.4f}{estimates.std(ddof=1):<16.4f}{said.mean():<23.4f}"
            f"{inside} of {repeats}"
        )
    draw(arguments.output / "learn_order.png", orders, theory)


if __name__ == "__main__":
    main()
