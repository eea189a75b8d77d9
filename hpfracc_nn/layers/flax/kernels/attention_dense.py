"""Attention with the weights of all queries at once: memory for queries times keys, in both passes."""

from __future__ import annotations

from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.layers.attention import OP
from hpfracc_nn.layers.flax.attention.formula import Attention, Given
from hpfracc_nn.layers.flax.attention.parts import Averages
from hpfracc_nn.selection import Cost, Kernel, Workload, register

PASSES = 6  # over the weights, each read and written, in what XLA fuses
BACK = 2  # a backward pass, in forward passes
_HELD = 4  # arrays of the weights' size that exist at once


def run(attention: Attention, given: Given, items: Array) -> Averages:
    return attention.formula(given, jnp.arange(given.q.shape[2]), items)


def pairs(workload: Workload) -> float:
    """Return queries times keys of all heads."""
    return float(workload.rows * workload.n * workload.exponentials)


def cost(workload: Workload) -> Cost:
    times, found = 1 + BACK * workload.needs_gradient, pairs(workload)
    weights = found * workload.itemsize
    return Cost(
        flops={"matmul": 4.0 * found * workload.width * times, "elementwise": PASSES * found * times},
        bytes=2.0 * PASSES * weights * times + 4.0 * workload.bytes * times,
        launches=times,
        workspace=weights * _HELD * (1 + workload.needs_gradient),
    )


register(Kernel(OP, "jax", "xla", "dense", run, cost=cost))
