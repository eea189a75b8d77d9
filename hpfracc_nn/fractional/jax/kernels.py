"""The kernels for JAX's arrays, registered on import: dense, fft and a chunked scan, which XLA compiles.

A kernel's `run(form, d)` is a pure function of arrays, linear in the data, that JAX differentiates and XLA compiles
with what stands around it. It is chosen when a call is traced. Nothing is timed unasked: see `planning.py`.
"""

from __future__ import annotations

import math

from jax import numpy as jnp

from hpfracc_nn.fractional.jax import products
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.products import transposed
from hpfracc_nn.fractional.jax.weights import ChunkForm, Weights
from hpfracc_nn.fractional.numpy.weights import padded_length
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_LARGEST = 1 << 28  # bytes of all matrices: those of a fixed order are constants of what is compiled
_OPERATIONS = 30  # of one state in the scan and its conversions, measured on one core


def chunk_length(workload: Workload) -> int:
    """Samples per chunk, as for torch's products: 64 where a chunk is multiplied from the left."""
    return 128 if workload.width == 1 else 64


def _chunks(weights: Weights, workload: Workload) -> ChunkForm:
    return weights.chunks(chunk_length(workload))


def _scan(form: ChunkForm, x: Array) -> Array:
    n, length = x.shape[2], form.length
    padded = -(-n // length) * length
    if padded != n:
        x = jnp.pad(x, ((0, 0), (0, 0), (0, padded - n), (0, 0)))
    if form.into is None or form.far is None:
        return products.dense(x, form.near)[:, :, :n]
    return products.chunked(x, form.near, form.into, form.far, form.powers)[:, :, :n]


def _scan_cost(workload: Workload) -> Cost:
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


def _no_exponentials(workload: Workload) -> str | None:
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
        run=_scan,
        adjoint=transposed(_scan),
        prepare=_chunks,
        cost=_scan_cost,
        refuses=_no_exponentials,
    )
)


def _dense(matrix: Array, x: Array) -> Array:
    return products.dense(x, matrix)


def _matrix(weights: Weights, workload: Workload) -> Array:
    return weights.matrix()


def _dense_cost(workload: Workload) -> Cost:
    n, samples, size = workload.n, workload.samples, workload.itemsize
    passes = 1 + workload.needs_gradient + workload.learns_weights
    matrix = workload.channels * n * n * size
    return Cost(
        flops={"matmul": 2.0 * samples * n * passes, "elementwise": 20.0 * matrix / size * workload.learns_weights},
        bytes=passes * (2.0 * samples * size + 3.0 * matrix),
        launches=passes,
        workspace=(1 + workload.learns_weights) * matrix,
    )


def _too_large(workload: Workload) -> str | None:
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
        run=_dense,
        adjoint=transposed(_dense),
        prepare=_matrix,
        cost=_dense_cost,
        refuses=_too_large,
    )
)


def _filter(form: tuple[Array, int], x: Array) -> Array:
    spectrum, length = form
    return products.filtered(x, spectrum, length)


def _spectrum(weights: Weights, workload: Workload) -> tuple[Array, int]:
    return weights.spectrum()


def _fft_cost(workload: Workload) -> Cost:
    size = padded_length(workload.n)
    passes = 1 + workload.needs_gradient + workload.learns_weights
    points = 2.0 * workload.rows * workload.width * size * passes
    return Cost(
        flops={"fft": 2.5 * points * math.log2(max(2, size)), "elementwise": points},
        bytes=2.0 * points * workload.itemsize,
        launches=4 * passes,
        workspace=4.0 * points / passes * workload.itemsize,
    )


register(
    Kernel("toeplitz", "jax", "xla", "fft", run=_filter, adjoint=transposed(_filter), prepare=_spectrum, cost=_fft_cost)
)
