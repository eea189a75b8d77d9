"""Causal Toeplitz product by chunks: products in torch, scan and difference compiled by Numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.kernels import chunks
from hpfracc_nn.selection import Kernel, Workload, register

_ONE_THREAD = 32768  # samples: up to here torch uses one thread for a pass too


def scan(states: Tensor, rows: int, count: int, form: ChunkForm, reverse: bool) -> Callable[[], None]:
    """Return what replaces the states in place by the state before each chunk; the running state is float64."""
    view, factor, compiled = states.numpy().reshape(rows, count, -1), form.factors, _compiled()
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


def difference(x: Tensor, subtract: bool, out: Tensor) -> bool:
    """Write the first difference of x into out, or return False where torch has more threads for it."""
    if x.shape[3] > 1 or (x.numel() > _ONE_THREAD and torch.get_num_threads() > 1):
        return False
    n = x.shape[2]
    _compiled_difference()(x.detach().numpy().reshape(-1, n), subtract, out.numpy().reshape(-1, out.shape[2]))
    return True


@cache
def _compiled_difference() -> Callable[[np.ndarray, bool, np.ndarray], None]:
    from numba import njit

    return njit(nogil=True, cache=True)(_difference)


def _difference(x: np.ndarray, subtract: bool, out: np.ndarray) -> None:
    rows, n = x.shape
    for row in range(rows):
        out[row, 0] = 0 if subtract else x[row, 0]
        for k in range(1, n):
            out[row, k] = x[row, k] - x[row, k - 1]


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
        difference,
    )
)
