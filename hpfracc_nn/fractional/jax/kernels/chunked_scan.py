"""Causal Toeplitz product by chunks: matrix products, and a scan of log(chunks) levels between them."""

from __future__ import annotations

from jax import numpy as jnp

from hpfracc_nn.fractional.jax import products
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.products import transposed
from hpfracc_nn.fractional.jax.weights import ChunkForm, Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_OPERATIONS = 30  # of one state in the scan and its conversions, measured on one core


def chunk_length(workload: Workload) -> int:
    """Samples per chunk, as for torch's products: 64 where a chunk is multiplied from the left."""
    return 128 if workload.width == 1 else 64


def prepare(weights: Weights, workload: Workload) -> ChunkForm:
    return weights.chunks(chunk_length(workload))


def run(form: ChunkForm, x: Array) -> Array:
    n, length = x.shape[2], form.length
    padded = -(-n // length) * length
    if padded != n:
        x = jnp.pad(x, ((0, 0), (0, 0), (0, padded - n), (0, 0)))
    if form.into is None or form.far is None:
        return products.dense(x, form.near)[:, :, :n]
    return products.chunked(x, form.near, form.into, form.far, form.powers)[:, :, :n]


def cost(workload: Workload) -> Cost:
    """A product inside the chunks, one into and one out of the states, for each pass."""
    length = chunk_length(workload)
    chunks = -(-workload.n // length)
    k = workload.exponentials if chunks > 1 else 0
    samples = workload.rows * workload.width * chunks * length
    passes = 1 + workload.needs_gradient + workload.learns_weights
    return Cost(
        flops={
            "matmul": passes * samples * (2.0 * length + 4.0 * k),
            "scan": _OPERATIONS * passes * samples / length * k,
        },
        bytes=passes * samples * workload.itemsize * (3.0 + 2.0 * k / length),
        launches=passes * 4,
        workspace=samples * workload.itemsize * (1 + 4 * k / length),
    )


def refuses(workload: Workload) -> str | None:
    """The weights must be a sum of exponentials as soon as there is more than one chunk."""
    if workload.exponentials == 0 and workload.n > chunk_length(workload):
        return f"the weights are no sum of exponentials to {workload.dtype} tolerance"
    return None


register(
    Kernel(
        "toeplitz",
        "jax",
        "xla",
        "chunked_scan",
        run=run,
        adjoint=transposed(run),
        prepare=prepare,
        cost=cost,
        refuses=refuses,
    )
)
