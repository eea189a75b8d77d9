"""Causal Toeplitz product by zero-padded real FFT: O(n log n) time, any weights."""

from __future__ import annotations

import math

from hpfracc_nn.fractional.jax import products
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.products import transposed
from hpfracc_nn.fractional.jax.weights import Weights
from hpfracc_nn.fractional.numpy.weights import padded_length
from hpfracc_nn.selection import Cost, Kernel, Workload, register

Form = tuple[Array, int]


def prepare(weights: Weights, workload: Workload) -> Form:
    return weights.spectrum()


def run(form: Form, x: Array) -> Array:
    spectrum, length = form
    return products.filtered(x, spectrum, length)


def cost(workload: Workload) -> Cost:
    size = padded_length(workload.n)
    passes = 1 + workload.needs_gradient + workload.learns_weights
    points = 2.0 * workload.rows * workload.width * size * passes
    return Cost(
        flops={"fft": 2.5 * points * math.log2(max(2, size)), "elementwise": points},
        bytes=2.0 * points * workload.itemsize,
        launches=4 * passes,
        workspace=4.0 * points / passes * workload.itemsize,
    )


register(Kernel("toeplitz", "jax", "xla", "fft", run=run, adjoint=transposed(run), prepare=prepare, cost=cost))
