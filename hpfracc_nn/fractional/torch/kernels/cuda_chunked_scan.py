"""Causal Toeplitz product by a fused chunked scan in CUDA, time last: the operator in one pass over the data.

See cuda_chunked_scan.cu. Chunks have 16 samples and not the 128 that suit matrix units: products are plain, 16 + 4 K
operations a sample with K states, which is what the memory of a large device allows in the time of reading and writing.
"""

from __future__ import annotations

from functools import partial

import torch

from hpfracc_nn.fractional.torch.kernels import cuda_launch, cuda_product
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Source
from hpfracc_nn.fractional.torch.kernels.cuda_product import CHUNK, THREADS, Cut, Scan
from hpfracc_nn.fractional.torch.tiles import Shape
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register

_PIECE = 16  # chunks that one thread scans
_HEADS = {4: 32, 8: 48}  # bytes of `Head`


def source_of(dtype: torch.dtype, count: int = 0) -> Source:
    """Return the source for a dtype; the number of states is an argument."""
    return Source(__package__, "cuda_chunked_scan.cu", str(dtype).removeprefix("torch."))


def cut(shape: Shape, count: int, itemsize: int, device: torch.device) -> Cut:
    """Return how a call is spread: whole signals to a block, several where they are short, parts where they are few."""
    batch, channels, n, _ = shape
    chunks, capacity = -(-n // CHUNK), THREADS * (2 if itemsize == 4 else 1)
    side = min(capacity, 1 << (chunks - 1).bit_length())
    group = capacity // side
    blocks = -(-batch // group) * channels
    segment, segments = cuda_product.segmented(chunks, blocks, side, device)
    return Cut(blocks, side, segment, segments, _shared(capacity, side, count, itemsize))


def _shared(chunks: int, side: int, count: int, itemsize: int) -> int:
    """Return the bytes that `room_of` takes."""
    group, pieces, tile = chunks // side, chunks // min(side, _PIECE), side * CHUNK + 2
    parts = (
        (2 + pieces + group) * count * 8,
        group * _HEADS[itemsize],
        count * CHUNK * itemsize,
        count * CHUNK * itemsize,
        CHUNK * itemsize,
        count * (chunks + 1) * itemsize,
        2 * group * itemsize,
        group * (tile + tile // CHUNK + 1) * itemsize,
    )
    return sum(-(-part // 16) * 16 for part in parts)


SCAN = Scan(source_of, cut, multiple=1)
run, adjoint = (partial(cuda_product.apply, SCAN, backward=backward) for backward in (False, True))
inner = partial(cuda_product.inner, SCAN)


def cost(workload: Workload) -> Cost:
    return cuda_product.cost_of(workload, _cut_of(workload))


def refuses(workload: Workload) -> str | None:
    if (found := cuda_product.refuses(workload)) is not None:
        return found
    if workload.width > 1:
        return f"it takes time as the last axis; {workload.width} samples lie side by side"
    return cuda_product.too_much_shared(_cut_of(workload).shared, workload)


def compiles(workload: Workload) -> Compilation | None:
    return cuda_launch.compilation(workload, source_of(getattr(torch, workload.dtype)))


def _cut_of(workload: Workload) -> Cut:
    count = workload.exponentials if workload.n > CHUNK else 0
    return cut(cuda_product.shape_of(workload), count, workload.converted.itemsize, torch.device(workload.device))


register(
    Kernel(
        "toeplitz",
        "torch",
        "cuda",
        "chunked_scan",
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
