"""Causal Toeplitz product by the exponentials' recurrence, compiled by Numba: the whole operator in one pass.

What `torch/kernels/numba_recurrence.py` is for tensors, on one thread: O(n) time, no memory but the result's.
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.numba import kernel
from hpfracc_nn.fractional.numpy.boundary import Frame
from hpfracc_nn.fractional.numpy.weights import ChunkForm, Weights
from hpfracc_nn.selection import Kernel, Workload, register


def prepare(weights: Weights, workload: Workload) -> ChunkForm:
    return weights.chunks(kernel.CHUNK)


def run(form: ChunkForm, frame: Frame, x: np.ndarray, y: np.ndarray) -> None:
    kernel.apply("forward", form.forward, frame.arrays, x, y, _threads)


def adjoint(form: ChunkForm, frame: Frame, g: np.ndarray, gx: np.ndarray) -> None:
    kernel.apply("backward", form.backward, frame.arrays, g, gx, _threads)


def _threads() -> int:
    return 1  # as the other kernels here, and as the probe says


register(
    Kernel(
        op="toeplitz",
        framework="numpy",
        backend="numba",
        algorithm="recurrence",
        run=run,
        adjoint=adjoint,
        prepare=prepare,
        cost=kernel.cost,
        refuses=kernel.refuses,
        saves=kernel.saves,
        compiles=kernel.compiles,
    )
)
