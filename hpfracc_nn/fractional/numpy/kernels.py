"""The kernels for NumPy arrays, registered on import: dense, fft, and the recurrence that Numba compiles.

Each computes an operator on data [batch, channels, n, width], contiguous, aligned and of the dtype that is computed in:

- `prepare(weights, workload)`: the weights as the linear operator that the kernel takes.
- `run(operator, boundary, x, y)`: writes the definition's operator on x into y.
- `adjoint(operator, boundary, g, gx)`: writes its transpose on g into gx.

The dense product takes O(n**2) time and memory, and has the least overhead on short series. The zero-padded real FFT
takes O(n log n) time and O(n) memory. Its rounding is relative to the largest weight and the largest sample of a row:
it is computed in float64, so that float32 keeps its digits where weights or samples differ by orders of magnitude. The
recurrence is what `torch/kernels/numba_recurrence.py` is for tensors, on one thread: O(n) time, no memory but the
result's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.fft import irfft, rfft

from hpfracc_nn.fractional import boundary
from hpfracc_nn.fractional.boundary import Boundary
from hpfracc_nn.fractional.linear import Column, StateSpace, padded_length, saves
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numba import kernel as recurrence
from hpfracc_nn.fractional.numpy.weights import MATRIX_KEPT, Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

LONGEST = 4096  # samples of a dense product
MOST_GIB = 1.0

Step = Callable[[Any, np.ndarray, np.ndarray], None]  # of the operator, the data, and the array of the result


def _column(weights: Weights, workload: Workload) -> Column:
    return weights.column()


def _wrong_dtype(workload: Workload) -> str | None:
    if workload.dtype not in ("float32", "float64"):
        return f"{workload.dtype} is not computed in; it takes float32 and float64"
    return None


def _around(run: Step, adjoint: Step) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the `run` and `adjoint` of a kernel that computes only the triangular product and its transpose.

    The arguments are called with (operator, data, result) and write the product, or its transpose, into the result. The
    functions returned add the differences before the product and the boundary columns after it.
    """

    def run_all(operator: Any, b: Boundary, x: np.ndarray, y: np.ndarray) -> None:
        with _quietly():
            if b.differences > 0:
                boundary.difference_into(x, d := np.empty_like(x), b, NUMPY)
            else:
                d = boundary.difference(x, b)
            run(operator, d, y)
            if b.columns is not None:
                for column, value in zip(b.columns, boundary.values(x, d, b), strict=True):
                    y += column[:, :, None] * value

    def adjoint_all(operator: Any, b: Boundary, g: np.ndarray, gx: np.ndarray) -> None:
        with _quietly():
            gd = np.empty_like(g)
            adjoint(operator, g, gd)
            boundary.transposed_into(gd, g, gx, b)

    return run_all, adjoint_all


def _quietly() -> np.errstate:
    """Return a context without NumPy's warnings of inf - inf; such rows are computed again, see `fractional.gaps`."""
    return np.errstate(invalid="ignore")


class _Lower:
    @staticmethod
    def operands(column: Column) -> np.ndarray:
        """Return the lower triangular Toeplitz matrices of the weights, [channels, n, n], contiguous.

        These matrices multiply data [n, width] from the left; for that their transpose, `Column.matrix`, is slower.
        """
        n = column.weights.shape[1]
        backwards = NUMPY.pad(column.weights[:, ::-1], 0, n - 1, axis=1)
        return np.ascontiguousarray(sliding_window_view(backwards, n, axis=-1)[:, ::-1])


def _dense(column: Column, x: np.ndarray, y: np.ndarray) -> None:
    if x.shape[3] > 1:
        np.matmul(column.matrix_by(_Lower), x, out=y)
    else:
        _multiply_rows(column.matrix, x, y)


def _dense_adjoint(column: Column, g: np.ndarray, gx: np.ndarray) -> None:
    if g.shape[3] > 1:
        np.matmul(column.matrix, g, out=gx)
    else:
        _multiply_rows(column.matrix.mT, g, gx)


def _multiply_rows(matrix: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    signals, results = (a.reshape(a.shape[:3]).swapaxes(0, 1) for a in (x, y))
    np.matmul(signals, matrix, out=results)  # one product per channel, not per signal


def _dense_cost(workload: Workload) -> Cost:
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


def _too_large(workload: Workload) -> str | None:
    gib = workload.channels * workload.n**2 * workload.itemsize / 2**30
    if workload.n > LONGEST:
        return f"n={workload.n} is above {LONGEST}: the matrix needs {gib:.3g} GiB"
    if gib > MOST_GIB:
        return f"the matrices of {workload.channels} channels need {gib:.3g} GiB, above {MOST_GIB:g} GiB"
    return None


_run, _adjoint = _around(_dense, _dense_adjoint)
register(
    Kernel(
        op="toeplitz",
        framework="numpy",
        backend="numpy",
        algorithm="dense",
        run=_run,
        adjoint=_adjoint,
        prepare=_column,
        cost=_dense_cost,
        refuses=lambda workload: _wrong_dtype(workload) or _too_large(workload),
        saves=saves,
    )
)


class _Spectrum:
    @staticmethod
    def operands(column: Column) -> np.ndarray:
        """Return the complex128 transform of the weights, zero-padded to the FFT's length.

        It is [channels, length // 2 + 1, 1].
        """
        return _transformed(column.weights[:, :, None], padded_length(column.weights.shape[1]))


def _transformed(x: np.ndarray, length: int) -> np.ndarray:
    return rfft(x.astype(np.float64, copy=False), length, axis=-2)


def _filter(x: np.ndarray, spectrum: np.ndarray, y: np.ndarray) -> None:
    length = padded_length(x.shape[2])
    transformed = _transformed(x, length)
    transformed *= spectrum
    y[...] = irfft(transformed, length, axis=-2, overwrite_x=True)[:, :, : x.shape[2]]


def _fft_cost(workload: Workload) -> Cost:
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


_run, _adjoint = _around(
    lambda column, x, y: _filter(x, column.cached(_Spectrum), y),
    lambda column, g, gx: _filter(g, column.cached(_Spectrum).conj(), gx),
)
register(
    Kernel(
        op="toeplitz",
        framework="numpy",
        backend="numpy",
        algorithm="fft",
        run=_run,
        adjoint=_adjoint,
        prepare=_column,
        cost=_fft_cost,
        refuses=_wrong_dtype,
        saves=saves,
    )
)


def _chunks(weights: Weights, workload: Workload) -> StateSpace:
    return weights.chunks(recurrence.CHUNK)


def _one_thread() -> int:
    return 1  # as the other kernels here, and as the probe says


def _recur(model: StateSpace, b: Boundary, x: np.ndarray, y: np.ndarray) -> None:
    recurrence.apply("forward", model.cached(recurrence.Forward), b.arrays, x, y, _one_thread)


def _recur_back(model: StateSpace, b: Boundary, g: np.ndarray, gx: np.ndarray) -> None:
    recurrence.apply("backward", model.cached(recurrence.Backward), b.arrays, g, gx, _one_thread)


register(
    Kernel(
        op="toeplitz",
        framework="numpy",
        backend="numba",
        algorithm="recurrence",
        run=_recur,
        adjoint=_recur_back,
        prepare=_chunks,
        cost=recurrence.cost,
        refuses=recurrence.refuses,
        saves=saves,
        compiles=recurrence.compiles,
    )
)
