"""Causal Toeplitz product by chunks: products in torch, the scan between chunks compiled by Numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec

import numpy as np
from torch import Tensor

from hpfracc_nn.fractional.torch.kernels import chunks
from hpfracc_nn.selection import Kernel, Workload, register


def scan(states: Tensor, rows: int, count: int, decay: Tensor, reverse: bool) -> Callable[[], None]:
    """Return what replaces the states in place by the state before each chunk; the running state is float64."""
    view, factor, compiled = states.numpy().reshape(rows, count, -1), decay.numpy(), _compiled()
    if view.shape[2] != factor.size:
        factor = np.repeat(factor, view.shape[2] // factor.size)
    return lambda: compiled(view, factor, reverse)


@cache
def _compiled() -> Callable[[np.ndarray, np.ndarray, bool], None]:
    from numba import njit

    return njit(nogil=True, cache=True)(_scan)


def _scan(states: np.ndarray, decay: np.ndarray, reverse: bool) -> None:
    rows, count, k = states.shape
    before, factor = np.empty(k), decay.copy()  # arrays of its own: the compiler sees that nothing overlaps
    for row in range(rows):
        before[:] = 0.0
        for step in range(count):
            chunk = count - 1 - step if reverse else step
            for q in range(k):
                added = np.float64(states[row, chunk, q])
                state = before[q]
                states[row, chunk, q] = state
                before[q] = factor[q] * state + added


def refuses(workload: Workload) -> str | None:
    if workload.device != "cpu":
        return f"it computes on the CPU and the data lie on {workload.device}"
    if find_spec("numba") is None:
        return "Numba is not installed; pip install 'hpfracc-nn[numba]'"
    return chunks.refuses(workload)


run, adjoint, gram = (partial(step, scan=scan) for step in (chunks.run, chunks.adjoint, chunks.gram))

register(
    Kernel(
        "toeplitz",
        "torch",
        "numba",
        "chunked_scan",
        run,
        adjoint,
        gram,
        chunks.prepare,
        chunks.cost,
        refuses,
        chunks.saves,
    )
)
