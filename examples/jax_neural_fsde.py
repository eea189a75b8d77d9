"""A neural stochastic equation in JAX, trained with optax: its drift is a network, its Hurst index is learned.

The data are paths of dX = -X dt + 0.7 dB with a Hurst index of 0.3. The model knows neither: it is fitted to the
variogram and the moments of the paths, with new random numbers at every step, by the exact adjoint of the scheme.

Run:  python examples/jax_neural_fsde.py [--quick]
"""

import argparse

import jax
import numpy as np
import optax
from jax import numpy as jnp

from hpfracc_nn.solvers import SDE, FractionalBrownian
from hpfracc_nn.solvers.jax import fsdeint

HURST, SIGMA, STEPS = 0.3, 0.7, 64
TS = np.linspace(0, 2, STEPS + 1)
BOUNDS = (0.05, 0.95)

TRUTH = SDE(lambda t, y: -y, lambda t, y: SIGMA * jnp.ones_like(y), "additive")


def drift(t, y, params):
    hidden = jnp.tanh(y @ params["in"] + params["shift"])
    return hidden @ params["out"]


def diffusion(t, y, params):
    return jnp.exp(params["log_scale"]) * jnp.ones_like(y)


MODEL = SDE(drift, diffusion, "additive")


def first(key):
    one, two = jax.random.split(key)
    return {
        "in": jax.random.normal(one, (1, 16)),
        "shift": jnp.zeros(16),
        "out": 0.1 * jax.random.normal(two, (16, 1)),
        "log_scale": jnp.zeros(()),
        "hurst": jnp.zeros(()),  # of BOUNDS, through a sigmoid: 1/2
    }


def hurst_of(params):
    low, high = BOUNDS
    return low + (high - low) * jax.nn.sigmoid(params["hurst"])


def paths(params, key, batch):
    noise = FractionalBrownian(hurst_of(params), BOUNDS)
    return fsdeint(MODEL, jnp.ones((batch, 1)), TS, args=params, noise=noise, scheme="heun", key=key)


def statistics(ys):
    """Logarithms of the mean squared increments over some lags, and mean and deviation along the way."""
    grown = [jnp.log(jnp.mean((ys[lag:] - ys[:-lag]) ** 2)) for lag in (1, 2, 4, 8)]
    return jnp.concatenate([jnp.stack(grown), ys.mean((1, 2))[::8], ys.std((1, 2))[8::8]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps of training")
    steps, batch = (150, 128) if parser.parse_args().quick else (600, 512)
    keys = iter(jax.random.split(jax.random.key(0), steps + 2))
    noise = FractionalBrownian(HURST)
    observed = statistics(fsdeint(TRUTH, jnp.ones((4096, 1)), TS, noise=noise, scheme="heun", key=next(keys)))
    optimizer = optax.adam(3e-2)
    params = first(next(keys))
    state = optimizer.init(params)

    @jax.jit
    def train(params, state, key):
        def loss(params):
            return jnp.mean((statistics(paths(params, key, batch)) - observed) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    for _ in range(steps):
        params, state, value = train(params, state, next(keys))
    found, scale = float(hurst_of(params)), float(jnp.exp(params["log_scale"]))
    print(f"Hurst index {found:.3f} (true {HURST}), scale {scale:.3f} (true {SIGMA}), loss {float(value):.2e}")
    assert abs(found - HURST) < 0.05, found
    assert abs(scale - SIGMA) < 0.1, scale


if __name__ == "__main__":
    main()
