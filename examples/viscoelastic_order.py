"""The order of a viscoelastic relaxation, with its confidence interval, from noisy stress measurements.

A fractional Maxwell element obeys D^alpha s = -s / tau**alpha. Its order says how far the material is from a fluid.

Run:  python examples/viscoelastic_order.py [--quick]
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from hpfracc_nn.data import relaxation
from hpfracc_nn.training import fit_fde


def maxwell(t, stress, parameters):
    return -parameters["rate"] * stress


def draw(path, found):
    figure, fine = Figure(figsize=(6, 4), layout="constrained"), np.geomspace(0.02, 8, 200)
    panel = figure.subplots()
    for number, (times, stress, fit) in enumerate(found):
        estimates, (low, high) = fit.estimates, fit.intervals["alpha"]
        curve = relaxation(fine, estimates["alpha"], rate=estimates["rate"])
        panel.plot(times, stress, "o", color=f"C{number}", markersize=4)
        panel.plot(fine, curve, color=f"C{number}", label=f"alpha in [{low:.2f}, {high:.2f}]")
    panel.plot(fine, np.exp(-0.8 * fine), "k:", label="exponential, alpha = 1")
    panel.set(xscale="log", xlabel="time", ylabel="stress", title="Forty stresses each, and the orders that they tell")
    panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one order and fewer steps")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    quick, found = arguments.quick, []
    times = np.geomspace(0.02, 8, 40)
    start = torch.ones(1, dtype=torch.float64)
    rng = np.random.default_rng(0)
    for alpha in (0.6,) if quick else (0.3, 0.6, 0.9):
        stress = relaxation(times, alpha, rate=0.8, noise=0.02, rng=rng)
        fit = fit_fde(maxwell, times, stress[:, None], start, {"rate": 0.5}, n_steps=30 if quick else 100)
        print(f"true alpha {alpha}, rate 0.8, noise 0.02\n{fit.summary()}\n")
        found.append((times, stress, fit))
    draw(arguments.output / "viscoelastic_order.png", found)


if __name__ == "__main__":
    main()
