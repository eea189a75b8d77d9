"""Causal Toeplitz product by zero-padded real FFT: O(n log n) time, O(n) memory, any weights.

An FFT's rounding is relative to the largest weight and the largest sample of a row. It is computed in
float64, so that float32 keeps its digits where weights or samples differ by orders of magnitude.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.fft import irfft

from hpfracc_nn.fractional.numpy.boundary import in_passes
from hpfracc_nn.fractional.numpy.weights import ColumnForm, Weights, padded_length, transform
from hpfracc_nn.selection import Cost, Kernel, Workload, register


def prepare(weights: Weights, workload: Workload) -> ColumnForm:
    return weights.column


def run(form: ColumnForm, x: np.ndarray, y: np.ndarray) -> None:
    _filter(x, form.spectrum, y)


def adjoint(form: ColumnForm, g: np.ndarray, gx: np.ndarray) -> None:
    _filter(g, np.conj(form.spectrum), gx)


def cost(workload: Workload) -> Cost:
    signals = workload.rows * workload.width
    length = padded_length(workload.n)
    bins = length // 2 + 1
    passes = 1 + workload.needs_gradient + workload.learns_weights
    one = 2.5 * length * math.log2(max(length, 2))  # real transform
    if workload.itemsize == 4:
        one *= 2  # float64 work at the rate of float32, which is about twice as fast
    transforms = passes * 2 * signals  # the column's own is kept
    products = passes * signals
    # Each transform reads and writes reals of `length` and a spectrum, in float64; so does each product.
    traffic = 8.0 * (transforms * (length + 2 * bins) + products * 6 * bins) + 2.0 * passes * workload.bytes
    return Cost(
        {"fft": one * transforms, "elementwise": 6.0 * bins * products},
        traffic,
        launches=5 * passes,
        workspace=8.0 * signals * (length + 4 * bins),
    )


def refuses(workload: Workload) -> str | None:
    if workload.dtype not in ("float32", "float64"):
        return f"{workload.dtype} is not computed in; it takes float32 and float64"
    return None


def saves(workload: Workload) -> float:
    return float(workload.bytes) if workload.learns_weights else 0.0


def _filter(x: np.ndarray, spectrum: np.ndarray, y: np.ndarray) -> None:
    length = padded_length(x.shape[2])
    transformed = transform(x, length)
    transformed *= spectrum
    y[...] = irfft(transformed, length, axis=-2, overwrite_x=True)[:, :, : x.shape[2]]


_run, _adjoint = in_passes(run, adjoint)
register(
    Kernel(
        op="toeplitz",
        framework="numpy",
        backend="numpy",
        algorithm="fft",
        run=_run,
        adjoint=_adjoint,
        prepare=prepare,
        cost=cost,
        refuses=refuses,
        saves=saves,
    )
)
