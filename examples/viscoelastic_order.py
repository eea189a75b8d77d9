"""The order of a viscoelastic relaxation, with its confidence interval, from noisy stress measurements.

A fractional Maxwell element obeys D^alpha s = -s / tau**alpha. Its order says how far the material is from a fluid.

Run:  python examples/viscoelastic_order.py [--quick]
"""

import argparse

import numpy as np
import torch

from hpfracc_nn.data import relaxation
from hpfracc_nn.training import fit_fde


def maxwell(t, stress, parameters):
    return -parameters["rate"] * stress


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one order and fewer steps")
    quick = parser.parse_args().quick
    times = np.geomspace(0.02, 8, 40)
    start = torch.ones(1, dtype=torch.float64)
    rng = np.random.default_rng(0)
    for alpha in (0.6,) if quick else (0.3, 0.6, 0.9):
        stress = relaxation(times, alpha, rate=0.8, noise=0.02, rng=rng)
        fit = fit_fde(maxwell, times, stress[:, None], start, {"rate": 0.5}, n_steps=30 if quick else 100)
        print(f"true alpha {alpha}, rate 0.8, noise 0.02\n{fit.summary()}\n")


if __name__ == "__main__":
    main()
