"""Time-fractional diffusion D^alpha u = u_xx on [0, 1], by the method of lines, against its exact solution.

u(0, x) = sin(pi x) decays as E_alpha(-pi**2 t**alpha), at first faster than any exponential and then much slower. The
semi-discrete system is stiff: the implicit trapezoid rule on a graded mesh takes it.

Run:  python examples/subdiffusion.py [--quick]
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from hpfracc_nn.data import relaxation
from hpfracc_nn.solvers import fdeint


def solved(alpha, points, ts, n_steps):
    """The solution at inner points and the times, [times, points]."""
    dx = 1 / (points + 1)
    x = torch.linspace(dx, 1 - dx, points, dtype=torch.float64)
    second = torch.diag(torch.full((points,), -2.0)) + torch.diag(torch.ones(points - 1), 1)
    laplacian = ((second + second.T - torch.diag(second.diagonal())) / dx**2).double()
    u0 = torch.sin(math.pi * x)
    return x, fdeint(lambda t, u: laplacian @ u, u0, ts, alpha, scheme="trapezoid", mesh="graded", n_steps=n_steps)


def draw(path, found):
    figure, fine = Figure(figsize=(6, 4), layout="constrained"), np.geomspace(1e-4, 1, 200)
    panel = figure.subplots()
    for number, (alpha, (ts, middle)) in enumerate(found.items()):
        panel.loglog(
            fine, relaxation(fine, alpha, rate=math.pi**2), color=f"C{number}", label=f"alpha = {alpha}, exact"
        )
        panel.loglog(ts[1:], middle[1:], "o", color=f"C{number}", label="solved")
    panel.loglog(fine, np.exp(-(math.pi**2) * fine), "k:", label="ordinary diffusion")
    panel.set(xlabel="time", ylabel="u in the middle", ylim=(1e-4, 2), title="First faster, then much slower")
    panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="coarser")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    quick, middles = arguments.quick, {}
    points, n_steps = (15, 30) if quick else (63, 120)
    ts = torch.tensor([0.0, 0.001, 0.01, 0.1, 1.0], dtype=torch.float64)
    for alpha in (0.5, 0.9):
        with torch.no_grad():
            x, u = solved(alpha, points, ts, n_steps)
        exact = relaxation(ts.numpy(), alpha, rate=math.pi**2)[:, None] * np.sin(math.pi * x.numpy())
        print(f"alpha={alpha}, {points} points, {n_steps} steps")
        for t, found, true in zip(ts, u.numpy(), exact, strict=True):
            print(f"  t={t:g}: middle {found[points // 2]:.6f}, largest error {np.abs(found - true).max():.1e}")
        middles[alpha] = ts.numpy(), u[:, points // 2].numpy()
    draw(arguments.output / "subdiffusion.png", middles)


if __name__ == "__main__":
    main()
