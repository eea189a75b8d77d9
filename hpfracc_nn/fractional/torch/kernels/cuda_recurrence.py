"""Causal Toeplitz product by a recurrence in CUDA, time in the middle: a thread has a signal, its states in registers.

See cuda_recurrence.cu. The number of states is compiled in, rounded up to a multiple of eight.
"""

from __future__ import annotations

from functools import partial

import torch

from hpfracc_nn.fractional.torch.kernels import cuda_launch, cuda_product
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Source
from hpfracc_nn.fractional.torch.kernels.cuda_product import CHUNK, THREADS, Cut, Scan
from hpfracc_nn.fractional.torch.tiles import Shape
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register

_FILLED = 8
_LEAST = 4  # chunks of a segment


def source_of(dtype: torch.dtype, count: int) -> Source:
    """Return the source for a dtype and a number of states."""
    return Source(__package__, "cuda_recurrence.cu", str(dtype).removeprefix("torch."), count)


def cut(shape: Shape, count: int, itemsize: int, device: torch.device) -> Cut:
    """Return how a call is spread: a signal to a thread, parts of it where there are few."""
    batch, _, n, width = shape
    blocks = -(-batch * width // THREADS)
    segment, segments = cuda_product.segmented(-(-n // CHUNK), blocks, _LEAST, device)
    return Cut(blocks, 1, segment, segments, 8 * count + (2 * count + 1) * CHUNK * itemsize)


SCAN = Scan(source_of, cut, multiple=_FILLED)
run, adjoint = (partial(cuda_product.apply, SCAN, backward=backward) for backward in (False, True))
inner = partial(cuda_product.inner, SCAN)


def cost(workload: Workload) -> Cost:
    return cuda_product.cost_of(workload, _cut_of(workload))


def refuses(workload: Workload) -> str | None:
    if (found := cuda_product.refuses(workload)) is not None:
        return found
    if workload.width == 1:
        return "it takes time in the middle, and time is the last axis"
    return cuda_product.too_much_shared(_cut_of(workload).shared, workload)


def compiles(workload: Workload) -> Compilation | None:
    return cuda_launch.compilation(workload, source_of(getattr(torch, workload.dtype), states_of(workload)))


def states_of(workload: Workload) -> int:
    """Return the states that are compiled in; one chunk has none, and is given zeros."""
    states = workload.exponentials if workload.n > CHUNK else 1
    return -(-states // _FILLED) * _FILLED


def _cut_of(workload: Workload) -> Cut:
    itemsize, device = workload.converted.itemsize, torch.device(workload.device)
    return cut(cuda_product.shape_of(workload), states_of(workload), itemsize, device)


register(
    Kernel(
        "toeplitz",
        "torch",
        "cuda",
        "recurrence",
        run,
        adjoint,
        cuda_product.prepare,
        cost,
        refuses,
        cuda_product.saves,
        compiles,
        as_stored=True,
        inner=inner,
    )
)
