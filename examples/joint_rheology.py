"""One material, three experiments: which model, and how surely?

A gel is simulated as two spring-pots with 3 % noise: a step of strain, a step of stress and a frequency sweep. Models
are compared on the relaxation data alone and on all data together.

Run:  python examples/joint_rheology.py [--quick]
"""

import argparse
from pathlib import Path

import numpy as np

from hpfracc_nn.models import Experiment, compare
from hpfracc_nn.models.rheology import FractionalMaxwell, FractionalZener, Maxwell, SpringPot, prony

NOISE = 0.03
MODELS = [Maxwell, SpringPot, FractionalMaxwell(beta=0), FractionalMaxwell, FractionalZener, prony(3, equilibrium=0)]


def measured(rng):
    gel = FractionalMaxwell(V=10, alpha=0.8, G=5, beta=0.2)
    t, omega = np.geomspace(0.01, 1000, 60), np.geomspace(0.01, 100, 30)

    def noisy(values):
        return values * np.exp(NOISE * rng.standard_normal(np.shape(values)))

    modulus = gel.complex_modulus(omega)
    return [
        Experiment.relaxation(t, noisy(gel.relaxation(t)), noise=NOISE),
        Experiment.creep(t, noisy(gel.creep(t)), noise=NOISE),
        Experiment.oscillation(omega, noisy(modulus.real), noisy(modulus.imag), noise=NOISE),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="compare three models only")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    models = MODELS[1:4] if arguments.quick else MODELS
    experiments = measured(np.random.default_rng(0))
    for name, data in (("relaxation alone", experiments[:1]), ("three experiments", experiments)):
        compared = compare(models, data)
        print(f"{name}\n{compared.table()}\n\n{compared.best.summary()}\n")
    path = arguments.output / "joint_rheology.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    compared.best.plot().savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
