"""Forecast the volatility of the S&P 500 in Flax: a learned fractional difference, one lag and a level.

The three parameters of ARFIMA(1, d, 0), trained on the first 1400 of 2000 days by an Adam that remembers its gradients
by a power law; then each of the others is forecast one day ahead, beside an autoregression and HAR. The order has a
learning rate of its own.

Run:  python examples/jax_volatility.py [--quick]
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import hpfracc_nn.jax as fjx
from hpfracc_nn.data import sp500_volatility
from hpfracc_nn.training.baselines import autoregression, har

START = 1400  # days


class Volatility(nnx.Module):
    """What cannot be foreseen of a series [n]: e[t] = u[t] - lag u[t - 1], u = (1 - z)**d (x - level)."""

    def __init__(self, level):
        self.difference = fjx.FractionalDifference(channels=1, start=0.3)
        self.lag = nnx.Param(jnp.zeros(()))
        self.level = nnx.Param(jnp.asarray(level))

    def __call__(self, x):
        u = self.difference((x - self.level[...])[:, None])[:, 0]
        return u - self.lag[...] * jnp.pad(u, (1, 0))[:-1]


def trained(x, steps):
    """Return the model with the least squares of its errors on x."""
    model = Volatility(x.mean())
    rates = {name: optax.cosine_decay_schedule(rate, steps) for name, rate in (("weights", 0.02), ("orders", 0.1))}
    tx = optax.partition({name: fjx.fractional_adam(rate, alpha=0.9) for name, rate in rates.items()}, fjx.param_labels)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        loss, gradient = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, gradient)
        return loss

    for number in range(steps):
        loss = step(model, optimizer)
        if number % (steps // 4) == 0:
            print(f"step {number:4}: mean square {float(loss):.4f}, d = {float(model.difference.alpha[0]):.3f}")
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    steps = 150 if parser.parse_args().quick else 600
    _, series = sp500_volatility(2000)
    x = jnp.asarray(series, jnp.float32)
    model = trained(x[:START], steps)

    error = jax.jit(nnx.merge(*nnx.split(model)))(x)  # zero history: day t knows the days up to t
    variance = series[:START].var()
    errors = {
        "ARFIMA(1, d, 0) in Flax, 3 parameters": float(jnp.mean(error[START:] ** 2)) / variance,
        "HAR, 4 parameters": np.mean((har(series, START) - series[START:]) ** 2) / variance,
        "AR(22), 23 parameters": np.mean((autoregression(series, START, 22) - series[START:]) ** 2) / variance,
    }
    for name, value in errors.items():
        print(f"{name:40} {value:.4f}")
    ours, *others = errors.values()
    assert ours < 0.685, "three parameters forecast as those of `long_memory.py` do"
    assert ours < min(others), "and better than more of them without a long memory"
    (d,) = model.difference.alpha
    assert 0.3 < d < 0.6, "the volatility has a long memory, and nearly none too long to be stationary"


if __name__ == "__main__":
    main()
