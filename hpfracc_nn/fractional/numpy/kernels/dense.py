"""Causal Toeplitz product by a matrix product: O(n**2) time and memory, least overhead on short series."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from hpfracc_nn.selection import Cost, Kernel, Workload, register

LONGEST = 4096
MOST_GIB = 1.0


def prepare(column: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return np.ascontiguousarray(column, dtype)


def run(column: np.ndarray, x: np.ndarray) -> np.ndarray:
    return _apply(toeplitz(column), x)


def adjoint(column: np.ndarray, g: np.ndarray) -> np.ndarray:
    return _apply(toeplitz(column).swapaxes(1, 2), g)


def gram(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    _, channels, n, _ = x.shape
    # products[c, t, t + k], padded so that a row one longer starts each line at its own diagonal
    products = np.zeros((channels, n, max(2 * n - 1, 1)), x.dtype)
    products[:, :, :n] = np.matmul(_columns(x), _columns(g).swapaxes(1, 2))
    step, _, item = products.strides
    lines = products.strides[1] + item
    return as_strided(products, (channels, n, n), (step, lines, item), writeable=False).sum(axis=1)


def cost(workload: Workload) -> Cost:
    n, channels = workload.n, workload.channels
    passes = 1 + workload.needs_gradient
    matrix = channels * n * n
    product = 2.0 * workload.samples * n
    flops = {"matmul": product * passes, "elementwise": float(matrix * passes)}
    # The matrix is written and read once; the samples are read, brought into order and written.
    traffic = passes * (2 * matrix * workload.itemsize + 4 * workload.bytes)
    if workload.learns_weights:
        flops["matmul"] += product
        flops["elementwise"] += matrix
        traffic += 4 * matrix * workload.itemsize + 4 * workload.bytes
    size = matrix * workload.itemsize
    held = 2 * size if workload.learns_weights else size
    return Cost(flops, traffic, launches=5 * passes + 4 * workload.learns_weights, workspace=held)


def refuses(workload: Workload) -> str | None:
    if workload.dtype not in ("float32", "float64"):
        return f"{workload.dtype} is not computed in; it takes float32 and float64"
    gib = workload.channels * workload.n**2 * workload.itemsize / 2**30
    if workload.n > LONGEST:
        return f"n={workload.n} is above {LONGEST}: the matrix needs {gib:.3g} GiB"
    if gib > MOST_GIB:
        return f"the matrices of {workload.channels} channels need {gib:.3g} GiB, above {MOST_GIB:g} GiB"
    return None


def saves(workload: Workload) -> float:
    return float(workload.bytes) if workload.learns_weights else 0.0


def toeplitz(column: np.ndarray) -> np.ndarray:
    """Return the lower triangular matrices [channels, n, n] with first columns [channels, n]."""
    channels, n = column.shape
    backwards = np.concatenate([column[:, ::-1], np.zeros((channels, n - 1), column.dtype)], axis=1)
    # contiguous, or NumPy multiplies it without BLAS
    return np.ascontiguousarray(sliding_window_view(backwards, n, axis=-1)[:, ::-1])


def _apply(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    batch, channels, n, width = x.shape
    if width > 1:
        return np.matmul(matrix, x)
    signals = x.reshape(batch, channels, n).swapaxes(0, 1)  # one product per channel, not per signal
    y = np.matmul(signals, matrix.swapaxes(1, 2))
    return np.ascontiguousarray(y.swapaxes(0, 1)).reshape(x.shape)


def _columns(x: np.ndarray) -> np.ndarray:
    """Return [channels, n, batch * width]: every signal of a channel side by side."""
    return x.transpose(1, 2, 0, 3).reshape(x.shape[1], x.shape[2], -1)


register(
    Kernel(
        op="toeplitz",
        framework="numpy",
        backend="numpy",
        algorithm="dense",
        run=run,
        adjoint=adjoint,
        gram=gram,
        prepare=prepare,
        cost=cost,
        refuses=refuses,
        saves=saves,
    )
)
