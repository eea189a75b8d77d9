"""The kernels at any times, the same for every framework's arrays, and what they cost.

`dense` is one matrix product, O(n**2) time and memory, for any orders and short series; `chunked_scan` are products
inside chunks and states between them, O(n Q) time and memory.
"""

from __future__ import annotations

import math
from typing import Any

from hpfracc_nn.fractional.nonuniform.weights import CHUNKS, LENGTH, ROWS
from hpfracc_nn.selection import Cost, Kernel, Workload, register

OP = "nonuniform"
_LARGEST = 1 << 30  # bytes of all matrices
_WEIGHT = 150.0  # element-wise operations that make a weight of the matrix and its derivative
_NEAR_WEIGHT = 300.0  # the same of one near the diagonal, where there is no series
_KEPT = 30  # numbers that autograd keeps of a learned weight while its derivative is computed


def dense(workload: Workload) -> Cost:
    """Return the cost of the product with the matrices."""
    passes = _passes(workload)
    matrices = float(workload.channels * workload.n**2 * workload.width)
    return Cost(
        flops={
            "matmul": 2.0 * workload.samples * workload.n * passes,
            "elementwise": _WEIGHT * matrices / 2 * workload.learns_weights,
        },
        bytes=passes * (2.0 * workload.bytes + matrices * workload.itemsize),
        launches=passes * 2,
        workspace=(1 + workload.learns_weights) * matrices * workload.itemsize
        + 8.0 * _KEPT * workload.learns_weights * matrices * min(1.0, ROWS / workload.n),
    )


def chunks(workload: Workload) -> Cost:
    """Return the cost of products inside chunks and of the states between them."""
    passes, states, width = _passes(workload), workload.exponentials, workload.width
    count = math.ceil(workload.n / LENGTH)
    near = float(workload.channels * count * LENGTH**2 * width)
    far = float(workload.channels * count * LENGTH * states * (width + 1))
    scanned = 2.0 * (workload.rows * count * states) * max(1, math.ceil(math.log2(count)))
    return Cost(
        flops={
            "matmul": passes * 2.0 * workload.samples * (LENGTH + states * (1 + 1 / width)),
            "elementwise": passes * scanned + _NEAR_WEIGHT * near / 2 * workload.learns_weights,
        },
        bytes=passes * (4.0 * workload.bytes + (near + far) * workload.itemsize + 8 * scanned),
        launches=passes * (12 + 4 * math.ceil(math.log2(max(count, 2)))),
        workspace=(1 + workload.learns_weights) * (near + far) * workload.itemsize
        + 24.0 * workload.rows * count * states
        + 8.0 * _KEPT * workload.learns_weights * near * min(1.0, CHUNKS / count),
    )


def refuses_dense(workload: Workload) -> str | None:
    """Return why the matrices are too large, or None."""
    size = workload.channels * workload.n**2 * workload.width * workload.itemsize
    if size > _LARGEST:
        return f"n={workload.n + 1} needs {size / 2**30:.3g} GiB of matrices"
    return None


def refuses_chunks(workload: Workload) -> str | None:
    """Return why there are no states, or None."""
    if workload.exponentials == 0 and workload.n > LENGTH:
        return "above order 1 an integral's memory grows, and is no sum of decaying exponentials"
    return None


def saves(workload: Workload) -> float:
    """Return the bytes that are held for the backward pass: the data, where the weights learn."""
    return float(workload.bytes if workload.learns_weights else 0)


def _passes(workload: Workload) -> int:
    return 1 + workload.needs_gradient + workload.learns_weights


def register_kernels(framework: str, backend: str, **options: Any) -> None:
    """Register both kernels for the arrays of a framework; `options` are those of `Kernel`."""
    for algorithm, prepare, cost, refuses in (
        ("dense", _matrix, dense, refuses_dense),
        ("chunked_scan", _chunks, chunks, refuses_chunks),
    ):
        register(
            Kernel(
                op=OP,
                framework=framework,
                backend=backend,
                algorithm=algorithm,
                run=_run,
                adjoint=_adjoint,
                prepare=prepare,
                cost=cost,
                refuses=refuses,
                **options,
            )
        )


def _matrix(weights: Any, workload: Workload) -> Any:
    return weights.matrix()


def _chunks(weights: Any, workload: Workload) -> Any:
    return weights.chunks()


def _run(form: Any, z: Any) -> Any:
    return form.product(z)


def _adjoint(form: Any, g: Any) -> Any:
    return form.adjoint(g)
