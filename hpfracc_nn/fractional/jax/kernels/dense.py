"""Causal Toeplitz product by one matrix product with the triangular matrix: short series, any weights."""

from __future__ import annotations

from hpfracc_nn.fractional.jax import products
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.products import transposed
from hpfracc_nn.fractional.jax.weights import Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_LARGEST = 1 << 28  # bytes of all matrices: those of a fixed order are constants of what is compiled


def prepare(weights: Weights, workload: Workload) -> Array:
    return weights.matrix()


def run(matrix: Array, x: Array) -> Array:
    return products.dense(x, matrix)


def cost(workload: Workload) -> Cost:
    n, samples, size = workload.n, workload.samples, workload.itemsize
    passes = 1 + workload.needs_gradient + workload.learns_weights
    matrix = workload.channels * n * n * size
    return Cost(
        flops={"matmul": 2.0 * samples * n * passes, "elementwise": 20.0 * matrix / size * workload.learns_weights},
        bytes=passes * (2.0 * samples * size + 3.0 * matrix),
        launches=passes,
        workspace=(1 + workload.learns_weights) * matrix,
    )


def refuses(workload: Workload) -> str | None:
    size = workload.channels * workload.n**2 * workload.itemsize
    if size > _LARGEST:
        return f"n={workload.n} needs {size / 2**30:.3g} GiB of matrices"
    return None


register(
    Kernel(
        "toeplitz",
        "jax",
        "xla",
        "dense",
        run=run,
        adjoint=transposed(run),
        prepare=prepare,
        cost=cost,
        refuses=refuses,
    )
)
