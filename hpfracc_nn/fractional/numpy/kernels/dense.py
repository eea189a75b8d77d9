"""Causal Toeplitz product by a matrix product: O(n**2) time and memory, least overhead on short series."""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.numpy.boundary import in_passes
from hpfracc_nn.fractional.numpy.weights import MATRIX_KEPT, ColumnForm, Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

LONGEST = 4096
MOST_GIB = 1.0


def prepare(weights: Weights, workload: Workload) -> ColumnForm:
    return weights.column


def run(form: ColumnForm, x: np.ndarray, y: np.ndarray) -> None:
    _multiply(form.matrix, x, y)


def adjoint(form: ColumnForm, g: np.ndarray, gx: np.ndarray) -> None:
    _multiply(form.matrix.swapaxes(1, 2), g, gx)


def cost(workload: Workload) -> Cost:
    n, channels = workload.n, workload.channels
    passes = 1 + workload.needs_gradient + workload.learns_weights
    matrix = channels * n * n
    size = matrix * workload.itemsize
    product = 2.0 * workload.samples * n
    built = passes * (size > MATRIX_KEPT)
    flops = {"matmul": product * passes, "elementwise": float(matrix * built)}
    # The matrix is read, and written before where it is not kept; the samples are read, brought into order and written.
    traffic = (passes + built) * size + 4.0 * passes * workload.bytes
    return Cost(flops, traffic, launches=3 * passes + 2 * built, workspace=(1 + workload.learns_weights) * size)


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


def _multiply(matrix: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    batch, channels, n, width = x.shape
    if width > 1:
        np.matmul(matrix, x, out=y)
        return
    signals, results = (a.reshape(batch, channels, n).swapaxes(0, 1) for a in (x, y))
    np.matmul(signals, matrix.swapaxes(1, 2), out=results)  # one product per channel, not per signal


_run, _adjoint = in_passes(run, adjoint)
register(
    Kernel(
        op="toeplitz",
        framework="numpy",
        backend="numpy",
        algorithm="dense",
        run=_run,
        adjoint=_adjoint,
        prepare=prepare,
        cost=cost,
        refuses=refuses,
        saves=saves,
    )
)
