"""Time-fractional diffusion D^alpha u = u_xx on [0, 1], by the method of lines, against its exact solution.

u(0, x) = sin(pi x) decays as E_alpha(-pi**2 t**alpha), at first faster than any exponential and then much slower. The
semi-discrete system is stiff: the implicit trapezoid rule on a graded mesh takes it.

Run:  python examples/subdiffusion.py [--quick]
"""

import argparse
import math

import numpy as np
import torch

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="coarser")
    quick = parser.parse_args().quick
    points, n_steps = (15, 30) if quick else (63, 120)
    ts = torch.tensor([0.0, 0.001, 0.01, 0.1, 1.0], dtype=torch.float64)
    for alpha in (0.5, 0.9):
        with torch.no_grad():
            x, u = solved(alpha, points, ts, n_steps)
        exact = relaxation(ts.numpy(), alpha, rate=math.pi**2)[:, None] * np.sin(math.pi * x.numpy())
        print(f"alpha={alpha}, {points} points, {n_steps} steps")
        for t, found, true in zip(ts, u.numpy(), exact, strict=True):
            print(f"  t={t:g}: middle {found[points // 2]:.6f}, largest error {np.abs(found - true).max():.1e}")


if __name__ == "__main__":
    main()
