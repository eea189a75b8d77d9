"""A fractional physics-informed network: D_t^0.6 u = u_xx + f with u = t^2 sin(pi x), forward and inverse.

The setting is that of Pang, Lu & Karniadakis, SISC 41 (2019) A2603: automatic differentiation in space, a discretised
Caputo derivative in time, a forcing that is given. In the inverse problem u is observed on the grid and the order is
not known; it starts at 0.27. A finite-difference solver would be faster for the forward problem.
"""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import torch
from torch import Tensor, nn

from hpfracc_nn.layers.torch import FractionalLayer

SEEDS = (0, 1, 2)
ALPHA, FIRST = 0.6, 0.27
TIMES, POINTS = 31, 16


class Network(nn.Module):
    """u(x, t) = t x (1 - x) times two layers of 20 tanh units, with its second derivative in x.

    The factor has the values at the start and at both ends, as in the paper.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (2, 20, 20, 1)
        self.layers = nn.ModuleList(nn.Linear(*pair, dtype=torch.float64) for pair in pairwise(widths))

    def forward(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and u_xx at points x [points] and times t [times], both [points, times]."""
        where = x[:, None].expand(len(x), len(t)).clone().requires_grad_()
        u = torch.stack([where, t.expand(len(x), len(t))], -1)
        for layer in self.layers[:-1]:
            u = torch.tanh(layer(u))
        u = t * where * (1 - where) * self.layers[-1](u)[..., 0]
        (slope,) = torch.autograd.grad(u.sum(), where, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), where, create_graph=True)
        return u, bend


def rows(quick: bool) -> list[dict]:
    """Return the error of the forward problem and of the order in the inverse one, one value for each seed."""
    seeds = SEEDS[:1] if quick else SEEDS
    forward = [solved(seed, noise=None)[0] for seed in seeds]
    found = [row("forward", "relative error of u", forward, 2e-3)]
    for noise, bar in ((0.0, 0.01), (0.02, 0.02)):
        orders = [abs(solved(seed, noise)[1] - ALPHA) for seed in seeds]
        found.append(row(f"inverse, {noise:.0%} noise", "error of alpha", orders, bar))
    return found


def row(model: str, metric: str, values: list[float], bar: float) -> dict:
    """Return one row of the table; the bar is that of each value, and so of the worst."""
    return {
        "task": "fractional PINN",
        "model": model,
        "parameters": sum(each.numel() for each in Network().parameters()) + (model != "forward"),
        "metric": metric,
        "values": values,
        "mean": statistics.fmean(values),
        "spread": statistics.stdev(values) if len(values) > 1 else 0.0,
        "bar": bar,
        "higher_is_better": False,
    }


def solved(seed: int, noise: float | None, steps: int = 250) -> tuple[float, float]:
    """Return the relative error of u on the grid, and the order.

    Args:
        seed: Of the network and the noise.
        noise: Of the observations, relative to the largest value; None solves the forward problem, without any.
        steps: Of LBFGS.
    """
    torch.manual_seed(seed)
    x, t = torch.linspace(0, 1, POINTS).double(), torch.linspace(0, 1, TIMES).double()
    shape, power = torch.sin(math.pi * x)[:, None], t**2
    exact = shape * power
    forcing = shape * (math.gamma(3) / math.gamma(3 - ALPHA) * t ** (2 - ALPHA) + math.pi**2 * power)
    net, learns = Network(), noise is not None
    observed = exact + (noise or 0.0) * exact.abs().max() * torch.randn(exact.shape, dtype=torch.float64)
    derivative = FractionalLayer(
        FIRST if learns else ALPHA, "caputo", scheme="l1_2", learn_alpha=learns, dt=1 / (TIMES - 1), dtype=torch.float64
    )
    parameters = [*net.parameters(), *derivative.parameters()]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=steps, max_eval=2 * steps, tolerance_grad=1e-12, tolerance_change=1e-14,
        history_size=50, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        u, bend = net(x, t)
        residual = (derivative(u) - bend - forcing)[1:-1, 1:]
        loss = (residual**2).mean()
        if learns:
            loss = loss + 100 * ((u - observed) ** 2).mean()  # u_xx is some 10 times u
        loss.backward()
        return loss

    optimizer.step(closure)
    error = (net(x, t)[0] - exact).norm() / exact.norm()
    return error.item(), torch.as_tensor(derivative.alpha, dtype=torch.float64).item()
