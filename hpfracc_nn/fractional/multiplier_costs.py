"""What the kernels of multipliers cost, the same for every framework's arrays, and where a matrix finds its entries."""

from __future__ import annotations

import math

import numpy as np

from hpfracc_nn.selection import Cost, Workload

_MOST = 1024  # samples: beyond them the transform is always faster, and a matrix takes 8 MiB in float64


def fft(workload: Workload) -> Cost:
    """Return the cost of a product by transforms, of its adjoint, and of the gradient in the factors."""
    return transforms(workload, 1 + workload.needs_gradient + workload.learns_weights)


def transforms(workload: Workload, passes: int) -> Cost:
    """Return the cost of as many pairs of transforms."""
    samples = workload.samples
    return Cost(
        flops={"fft": 5.0 * passes * samples * math.log2(max(2, workload.n)), "elementwise": float(passes * samples)},
        bytes=passes * 6.0 * workload.bytes,  # two transforms, each read and written, and a product between them
        launches=passes * 3,
        workspace=2.0 * workload.bytes,
    )


def dense(workload: Workload) -> Cost:
    """Return the cost of products with the circulant matrices."""
    n, samples = workload.n, workload.samples
    passes = 1 + workload.needs_gradient
    matrices = workload.channels * n * n * workload.itemsize
    # Each channel has its own product, of one row at a time.
    reads = matrices * (samples / n if workload.channels > 1 else 1)
    slope = transforms(workload, int(workload.learns_weights))
    # A learned order makes its matrix anew at each call: a transform and a gather by 8-byte indices.
    made = workload.learns_weights * (3.0 * matrices + 8.0 * n * n)
    return Cost(
        flops={"matmul": 2.0 * samples * n * passes, **slope.flops},
        bytes=passes * (2.0 * workload.bytes + reads) + made + slope.bytes,
        launches=2 * passes + 6 * workload.learns_weights + slope.launches,
        workspace=matrices + slope.workspace,
    )


def refuses_dense(workload: Workload) -> str | None:
    """Return why the matrices are too large, or None."""
    if workload.n > _MOST:
        return f"n={workload.n} is more than {_MOST}: the matrix would be too large"
    return None


def saves(workload: Workload) -> float:
    """Return the bytes that are held for the backward pass: the data, where the factors learn."""
    return float(workload.bytes if workload.learns_weights else 0)


def lags(sizes: tuple[int, ...]) -> np.ndarray:
    """Return where in the flat response to a unit sample the entry (j, i) of the transposed matrix stands, [N, N]."""
    index = np.indices(sizes).reshape(len(sizes), -1)
    apart = (index[:, None, :] - index[:, :, None]) % np.array(sizes)[:, None, None]
    return np.ravel_multi_index(tuple(apart), sizes)
