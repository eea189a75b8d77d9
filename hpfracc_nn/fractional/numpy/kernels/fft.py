"""Causal Toeplitz product by zero-padded real FFT: O(n log n) time, O(n) memory, any weights.

An FFT's rounding is relative to the largest weight and the largest sample of a row. It is computed in
float64, so that float32 keeps its digits where weights or samples differ by orders of magnitude.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from hpfracc_nn.selection import Cost, Kernel, Workload, register


def prepare(column: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.ascontiguousarray(column, dtype)


def run(column: np.ndarray, x: np.ndarray) -> np.ndarray:
    length = padded_length(x.shape[2])
    return _back(_spectrum(column[:, :, None], length) * _spectrum(x, length), x)


def adjoint(column: np.ndarray, g: np.ndarray) -> np.ndarray:
    length = padded_length(g.shape[2])
    return _back(np.conj(_spectrum(column[:, :, None], length)) * _spectrum(g, length), g)


def gram(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    n = x.shape[2]
    length = padded_length(n)
    products = np.conj(_spectrum(x, length)) * _spectrum(g, length)
    gradient = irfft(products.sum(axis=(0, 3)), length, axis=-1)[:, :n]
    return np.ascontiguousarray(gradient, dtype=x.dtype)


def cost(workload: Workload) -> Cost:
    n, channels, signals = workload.n, workload.channels, workload.rows * workload.width
    length = padded_length(n)
    bins = length // 2 + 1
    passes = 1 + workload.needs_gradient
    one = 2.5 * length * math.log2(max(length, 2))  # real transform
    if workload.itemsize == 4:
        one *= 2  # float64 work at the rate of float32, which is about twice as fast
    transforms = passes * (2 * signals + channels)
    products = passes * signals
    if workload.learns_weights:
        transforms += 2 * signals + channels
        products += signals
    # Each transform reads and writes reals of `length` and a spectrum, in float64; so does each product.
    traffic = 8.0 * (transforms * (length + 2 * bins) + products * 6 * bins) + 2.0 * passes * workload.bytes
    return Cost(
        {"fft": one * transforms, "elementwise": 6.0 * bins * products},
        traffic,
        launches=5 * (passes + workload.learns_weights),
        workspace=8.0 * signals * (length + 4 * bins),
    )


def refuses(workload: Workload) -> str | None:
    if workload.dtype not in ("float32", "float64"):
        return f"{workload.dtype} is not computed in; it takes float32 and float64"
    return None


def saves(workload: Workload) -> float:
    return float(workload.bytes) if workload.learns_weights else 0.0


def padded_length(n: int) -> int:
    """Return a length with small factors, at least 2n - 1 so that nothing wraps round."""
    return next_fast_len(max(2 * n - 1, 1), real=True)


def _spectrum(samples: np.ndarray, length: int) -> np.ndarray:
    return rfft(samples.astype(np.float64, copy=False), length, axis=-2)


def _back(spectrum: np.ndarray, like: np.ndarray) -> np.ndarray:
    full = irfft(spectrum, padded_length(like.shape[2]), axis=-2, overwrite_x=True)
    return np.ascontiguousarray(full[:, :, : like.shape[2]], dtype=like.dtype)


register(
    Kernel(
        op="toeplitz",
        framework="numpy",
        backend="numpy",
        algorithm="fft",
        run=run,
        adjoint=adjoint,
        gram=gram,
        prepare=prepare,
        cost=cost,
        refuses=refuses,
        saves=saves,
    )
)
