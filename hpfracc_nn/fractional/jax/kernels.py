"""The kernels for JAX's arrays, registered on import: dense, fft and a chunked scan, which XLA compiles.

A kernel is a linear operator of `fractional/linear.py`: `run(operator, d)` is a pure function, linear in the data, that
JAX differentiates and XLA compiles with what stands around it. A kernel is chosen when a call is traced. Nothing is
timed unasked: see `planning.py`. The chunked scan is there for GPUs too, in Pallas: see `pallas_scan.py`.

A Workload describes a call by its sizes, dtype and the gradients that it wants; a Cost is what a kernel's time is
estimated from: operations, bytes moved, launches and working memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax

from hpfracc_nn.fractional.jax.arrays import Array, fits
from hpfracc_nn.fractional.jax.weights import Weights
from hpfracc_nn.fractional.linear import StateSpace, padded_length, refuses_large, refuses_long
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_LARGEST = 1 << 28  # bytes of all matrices: those of a fixed order are constants of what is compiled
PALLAS_LENGTH = 16  # samples per chunk of the Pallas kernel: plain products of small matrices
_OPERATIONS = 30  # for one state in the scan and its conversions, measured on one core


def chunk_length(workload: Workload) -> int:
    """Return the samples of a chunk, as for torch's products: 128, or 64 where a chunk is multiplied from the left."""
    return 128 if workload.width == 1 else 64


Run = Callable[[Any, Array], Array]


def in_parts(run: Run, operator: Any, x: Array, chunk: int | None) -> Array:
    """Return run(operator, x) for x [batch, channels, ...].

    Unless `chunk` is None, few items of the batch are computed at a time: at most `chunk` rows, batch times channels,
    but at least one item.
    """
    count = None if chunk is None else max(1, chunk // x.shape[1])
    if count is None or fits(count, x.shape[0]):
        return run(operator, x)
    return jax.lax.map(lambda row: run(operator, row[None])[0], x, batch_size=count)


def _register(
    algorithm: str, prepare: Callable[[Weights, Workload], Any], backend: str = "xla", **options: Any
) -> None:
    register(
        Kernel(
            "toeplitz",
            "jax",
            backend,
            algorithm,
            run=lambda operator, x: operator.matvec(x),
            adjoint=lambda operator, g: operator.rmatvec(g),
            prepare=prepare,
            **options,
        )
    )


def _model(weights: Weights, workload: Workload) -> StateSpace:
    return weights.chunks(chunk_length(workload))


def _scan_cost(workload: Workload) -> Cost:
    """Return the cost of the chunked scan, as `Kernel.cost` does.

    Each pass takes products inside the chunks, into the states and out of them, and a scan of the states.
    """
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


_register(
    "chunked_scan",
    _model,
    cost=_scan_cost,
    refuses=lambda workload: refuses_long(workload, chunk_length(workload)),
)


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


_register(
    "dense",
    lambda weights, workload: weights.dense(),
    cost=_dense_cost,
    refuses=lambda workload: refuses_large(workload, _LARGEST),
)


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


_register("fft", lambda weights, workload: weights.fft(), cost=_fft_cost)


def _pallas(weights: Weights, workload: Workload) -> Any:
    from hpfracc_nn.fractional.jax import pallas_scan

    return pallas_scan.prepare(weights, PALLAS_LENGTH)


def _pallas_cost(workload: Workload) -> Cost:
    """Return the cost of one pass over the samples for each map; see `pallas_scan.py`."""
    k = workload.exponentials if workload.n > PALLAS_LENGTH else 0
    samples = workload.samples
    passes = 1 + workload.needs_gradient + workload.learns_weights
    return Cost(
        flops={"matmul": passes * samples * (2.0 * PALLAS_LENGTH + 4.0 * k)},
        bytes=passes * samples * workload.itemsize * 2.0,
        launches=passes,
    )


def _pallas_refuses(workload: Workload) -> str | None:
    if not workload.device.startswith("cuda"):
        return f"it computes on a GPU and the data lie on {workload.device}"
    return refuses_long(workload, PALLAS_LENGTH)


_register(
    "chunked_scan",
    _pallas,
    backend="pallas",
    cost=_pallas_cost,
    refuses=_pallas_refuses,
    unproven="no device has run it yet",
)
