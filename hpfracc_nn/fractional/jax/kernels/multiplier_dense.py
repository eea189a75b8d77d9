"""A multiplier by one matrix product with its circulant matrix: short signals and small boxes.

Entry (i, j) is the response to a unit sample, taken at i - j modulo the size of each axis.
"""

from __future__ import annotations

from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional import multiplier_costs as costs
from hpfracc_nn.fractional.jax.linear import transposed
from hpfracc_nn.fractional.jax.namespace import Array
from hpfracc_nn.fractional.jax.symbol import Symbol
from hpfracc_nn.fractional.workloads import MULTIPLIER
from hpfracc_nn.selection import Kernel, Workload, register


def prepare(symbol: Symbol, workload: Workload | None = None) -> Array:
    """Return the transposed matrices, [channels, N, N] for N samples of all axes."""
    return symbol.matrices()


def run(matrices: Array, x: Array) -> Array:
    if matrices.shape[0] == 1:  # one large product, which XLA does not make of it by itself
        rows = jnp.matmul(x.reshape(-1, matrices.shape[1]), matrices[0], precision=lax.Precision.HIGHEST)
        return rows.reshape(x.shape)
    flat = x.reshape(*x.shape[:2], -1)
    return jnp.einsum("bcj,cji->bci", flat, matrices, precision=lax.Precision.HIGHEST).reshape(x.shape)


register(Kernel(MULTIPLIER, "jax", "xla", "dense", run, transposed(run), prepare, costs.dense, costs.refuses_dense))
