"""Causal Toeplitz product by zero-padded real FFT, compiled by XLA: any weights.

Batch and samples are rounded up, so that few shapes are compiled; channels and width are the model's own.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.torch.forms import ColumnForm
from hpfracc_nn.fractional.torch.kernels import fft, xla_arrays
from hpfracc_nn.fractional.torch.kernels.xla_arrays import Array
from hpfracc_nn.fractional.torch.tiles import Pairs, by_tiles
from hpfracc_nn.selection import Cost, Kernel, Workload, register


def run(form: ColumnForm, pairs: Pairs) -> None:
    for x, out in pairs:
        _write(_product, form, x, out)


def adjoint(form: ColumnForm, pairs: Pairs) -> None:
    for g, out in pairs:
        _write(_transpose, form, g, out)


def _write(step: xla_arrays.Step, form: ColumnForm, x: Tensor, out: Tensor) -> None:
    (found,) = xla_arrays.compute(step, (x,), _shape(x), _spectrum_of(form))
    out.copy_(found[: x.shape[0], :, : x.shape[2]])


def _shape(x: Tensor) -> tuple[int, ...]:
    batch, channels, n, width = x.shape
    return xla_arrays.bucket(batch), channels, xla_arrays.bucket(n), width


def _spectrum_of(form: ColumnForm) -> tuple[Array, ...]:
    def padded() -> tuple[Tensor, ...]:
        n = form.column.shape[1]
        return (F.pad(form.column, (0, xla_arrays.bucket(n) - n))[None, :, :, None],)

    return xla_arrays.kept(form, padded, _spectrum)


def _spectrum(column: Array) -> tuple[Array]:
    """In float64, rounded at the end: a float32 transform of 65536 weights costs the result a few 1e-7."""
    from jax import numpy as jnp

    dtype = jnp.complex64 if column.dtype == jnp.float32 else jnp.complex128
    return (jnp.fft.rfft(column.astype(jnp.float64), 2 * column.shape[2], axis=2).astype(dtype),)


def _product(x: Array, spectrum: Array) -> tuple[Array]:
    from hpfracc_nn.fractional.jax import products

    return (products.filtered(x, spectrum, 2 * x.shape[2]),)


def _transpose(g: Array, spectrum: Array) -> tuple[Array]:
    from hpfracc_nn.fractional.jax import products

    return (products.filtered(g, spectrum.conj(), 2 * g.shape[2]),)


def cost(workload: Workload) -> Cost:
    """Two transforms of a whole bucket for each pass, and the calls of XLA."""
    size = 2 * xla_arrays.bucket(max(1, workload.n))
    batch = xla_arrays.bucket(max(1, workload.rows // workload.channels))
    signals = batch * workload.channels * workload.width
    passes = 1 + workload.needs_gradient + workload.learns_weights
    points = 2.0 * signals * size * passes
    return Cost(
        flops={"fft": 2.5 * points * math.log2(size), "elementwise": points},
        bytes=2.0 * points * workload.itemsize,
        launches=passes * xla_arrays.LAUNCHES,
        workspace=2 * fft.workspace(workload),  # XLA also keeps the arguments and the result for itself
    )


_steps = by_tiles(run, adjoint)
register(
    Kernel(
        "toeplitz",
        "torch",
        "xla",
        "fft",
        *_steps,
        fft.prepare,
        cost,
        xla_arrays.refuses,
        fft.saves,
        xla_arrays.compiles,
    )
)
