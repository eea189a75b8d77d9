"""The Bagley-Torvik equation, a plate in a viscous fluid: y'' + y^(3/2) / 2 + y / 2 = 8, y(0) = y'(0) = 0.

It has two fractional orders' worth of terms; the solver takes it as a system with one order for each entry. The plate
is then designed: which stiffness lets it swing to 10 at most? The gradient comes from the exact adjoint.

Run:  python examples/bagley_torvik.py [--quick]
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

from hpfracc_nn.solvers import Graded, MultiTerm, fdeint

PODLUBNY = {0.5: 0.81475694938329363, 1.0: 2.9525835880389811, 2.0: 9.7126942765742399, 5.0: 26.400021162098176}


def motion(stiffness, ts, n_steps):
    """The displacement at the times."""
    plate = MultiTerm({2: 1.0, 1.5: 0.5, 0: stiffness}, lambda t, y: torch.full_like(y, 8.0))
    rest = torch.zeros((), dtype=torch.float64)
    state = plate.state(rest, rest)
    return fdeint(plate, state, ts, plate.alpha, scheme="trapezoid", mesh=Graded(2.0), n_steps=n_steps)[:, 0]


def draw(path, times, motions):
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    for stiffness, displacement in motions.items():
        panel.plot(times, displacement, label=f"stiffness {stiffness:.2f}")
    panel.plot(list(PODLUBNY), list(PODLUBNY.values()), "k.", label="exact")
    panel.axhline(10, color="0.6", linestyle="--")
    panel.set(xlabel="time", ylabel="displacement", title="The plate, and the plate that rises to 10")
    panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    n_steps = 100 if arguments.quick else 400
    ts = torch.tensor([0.0, *PODLUBNY], dtype=torch.float64)
    for t, found, exact in zip(ts[1:], motion(0.5, ts, n_steps)[1:], PODLUBNY.values(), strict=True):
        print(f"t={t:g}: {found:.6f}, exact {exact:.6f}")

    stiffness = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    times = torch.linspace(0, 10, 41, dtype=torch.float64)
    for _ in range(5):  # Newton's method for max y = 10
        highest = motion(stiffness, times, n_steps).max()
        (slope,) = torch.autograd.grad(highest, stiffness)
        with torch.no_grad():
            stiffness -= (highest - 10) / slope
    stiffness, fine = stiffness.item(), torch.linspace(0, 20, 201, dtype=torch.float64)
    print(f"with stiffness {stiffness:.4f} it rises to {motion(stiffness, times, n_steps).max():.4f}")
    motions = {each: motion(each, fine, 2 * n_steps) for each in (0.5, stiffness)}
    draw(arguments.output / "bagley_torvik.png", fine, motions)


if __name__ == "__main__":
    main()
