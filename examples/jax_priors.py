"""Priors on the rate and the order of a relaxation, and their posterior by NumPyro's NUTS through the solver.

D^alpha y = -rate y is observed at twenty times with noise. The solve is a part of the model: gradients in the rate and
in the order come from the exact adjoint of the scheme.

Run:  python examples/jax_priors.py [--quick]
"""

import argparse
from pathlib import Path

import jax
import numpy as np
import numpyro
from jax import numpy as jnp
from matplotlib.figure import Figure
from numpyro import distributions
from numpyro.infer import MCMC, NUTS

from hpfracc_nn.fractional.special.functions import mittag_leffler
from hpfracc_nn.solvers.jax import fdeint

ALPHA, RATE, NOISE = 0.7, 1.5, 0.02
TS = np.linspace(0, 2, 21)


def relaxation(rate, alpha):
    return fdeint(lambda t, y: -rate * y, jnp.ones(()), TS, alpha, n_steps=40)


def model(observed):
    rate = numpyro.sample("rate", distributions.LogNormal(0.0, 1.0))
    alpha = numpyro.sample("alpha", distributions.Uniform(0.3, 1.0))
    noise = numpyro.sample("noise", distributions.HalfNormal(0.1))
    numpyro.sample("y", distributions.Normal(relaxation(rate, alpha)[1:], noise), obs=observed)


def draw(path, samples):
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    panel.plot(samples["rate"], samples["alpha"], ".", markersize=3, alpha=0.5, label="posterior")
    panel.plot(RATE, ALPHA, "k+", markersize=12, label="true")
    panel.set(xlabel="rate", ylabel="order alpha", title="What twenty noisy values leave open")
    panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder for the picture")
    arguments = parser.parse_args()
    count = 150 if arguments.quick else 1000
    truth = np.array([mittag_leffler(-RATE * t**ALPHA, ALPHA) for t in TS[1:]])
    observed = jnp.asarray(truth + NOISE * np.random.default_rng(0).standard_normal(truth.shape))
    sampler = MCMC(NUTS(model), num_warmup=count, num_samples=count, progress_bar=False)
    sampler.run(jax.random.key(0), observed)
    samples = sampler.get_samples()
    for name, true in (("rate", RATE), ("alpha", ALPHA)):
        mean, deviation = float(samples[name].mean()), float(samples[name].std())
        print(f"{name}: {mean:.3f} +- {deviation:.3f} (true {true})")
        assert abs(mean - true) < 4 * deviation, name
        assert deviation < 0.2, name
    draw(arguments.output / "jax_priors.png", samples)


if __name__ == "__main__":
    main()
