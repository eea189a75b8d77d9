"""The equations of `sde.py` and `jax_sde.py` by diffrax: Euler's method, single precision, by XLA, on one thread."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import diffrax
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import torch

Call = Callable[[], None]


def calls(net: torch.nn.Sequential, scale: torch.Tensor, y0: torch.Tensor, n: int) -> tuple[Call, Call]:
    """Return one forward solve of every path, and one with the gradient of its mean square, both compiled.

    Each path draws its own increments, from a key: as they come, or by a Brownian tree for the gradient, where diffrax
    refuses the former; with its default adjoint there, backpropagation through checkpoints.
    """
    linear = [(each.weight, each.bias) for each in net if isinstance(each, torch.nn.Linear)]
    weights = [tuple(jnp.asarray(np.array(part.detach())) for part in pair) for pair in linear]
    parameters = (weights, jnp.asarray(np.array(scale.detach())))
    starts = jnp.asarray(np.array(y0))
    keys = iter(range(1 << 30))

    def drift(t, y, args):
        *hidden, (last, bias) = args[0]
        for weight, shift in hidden:
            y = jnp.tanh(weight @ y + shift)
        return last @ y + bias

    def diffusion(t, y, args):
        return lineax.DiagonalLinearOperator(args[1] * jax.nn.sigmoid(y))

    def as_they_come(key):
        return diffrax.UnsafeBrownianPath((y0.shape[1],), key)

    def tree(key):
        return diffrax.VirtualBrownianTree(0.0, 1.0, 0.5 / n, (y0.shape[1],), key)

    def solve(args, key, path, adjoint):
        def one(start, key):
            terms = diffrax.MultiTerm(diffrax.ODETerm(drift), diffrax.ControlTerm(diffusion, path(key)))
            options = {"adjoint": adjoint, "max_steps": 2 * n}
            return diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 1 / n, start, args, **options).ys[-1]

        return jax.vmap(one)(starts, jax.random.split(key, len(starts)))

    def loss(args, key):
        return jnp.mean(solve(args, key, tree, diffrax.RecursiveCheckpointAdjoint()) ** 2)

    forward = jax.jit(lambda args, key: solve(args, key, as_they_come, diffrax.DirectAdjoint()))
    gradient = jax.jit(jax.value_and_grad(loss))

    def called(function: Callable) -> Call:
        def call() -> None:
            jax.block_until_ready(function(parameters, jax.random.key(next(keys))))

        call()  # compiles
        return call

    return called(forward), called(gradient)


def linear(n: int, y0: jax.Array) -> Callable:
    """Return the solve of the linear equation of `jax_sde.py`, with its states at all steps: (rate, key) -> states.

    By diffrax's defaults: a Brownian tree, and backpropagation through checkpoints.
    """
    ts = jnp.linspace(0, 1, n + 1)

    def solve(rate, key):
        tree = diffrax.VirtualBrownianTree(0.0, 1.0, 0.5 / n, y0.shape, key)
        noise = diffrax.ControlTerm(lambda t, y, rate: lineax.DiagonalLinearOperator(0.5 * jnp.ones_like(y)), tree)
        terms = diffrax.MultiTerm(diffrax.ODETerm(lambda t, y, rate: -rate * y), noise)
        options = {"saveat": diffrax.SaveAt(ts=ts), "stepsize_controller": diffrax.StepTo(ts), "max_steps": n}
        return diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, None, y0, rate, **options).ys

    return solve
