"""Causal Toeplitz product by chunks, all in torch: the scan between chunks is blocked, so few calls do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.kernels import chunks
from hpfracc_nn.fractional.torch.tiles import by_tiles
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_BLOCK = 16  # chunks that are summed by one product; longer runs are scanned block by block


def scan(states: Tensor, rows: int, count: int, form: ChunkForm, reverse: bool) -> Callable[[], None]:
    """Return what replaces the states in place by the state before each chunk; float64 inside."""
    decay = form.decay
    view = states.view(rows, count, decay.shape[0], -1)

    def step() -> None:
        added = view.to(torch.float64)
        before = _blocked(added.flip(1) if reverse else added, decay)
        view.copy_(before.flip(1) if reverse else before)

    return step


def _blocked(added: Tensor, decay: Tensor) -> Tensor:
    """Exclusive scan along axis 1 of [rows, chunks, k, width]: by a product inside blocks, by itself between them."""
    rows, count, k, width = added.shape
    length = min(count, _BLOCK)
    blocks = -(-count // length)
    if blocks * length > count:
        added = torch.nn.functional.pad(added, (0, 0, 0, 0, 0, blocks * length - count))
    power = torch.arange(length + 1, dtype=torch.float64, device=decay.device)
    # decay**0 is 1 also where decay is 0
    powers = torch.where(power == 0, 1.0, decay[:, None] ** power)
    lag = power[:, None] - power[None, :] - 1
    weights = torch.where(lag >= 0, powers[:, lag.clamp(min=0).long()], 0.0)  # [k, length + 1, length + 1]
    grouped = added.reshape(rows, blocks, length, k, width).permute(3, 2, 0, 1, 4).reshape(k, length, -1)
    summed = (
        torch.bmm(weights[:, :, :length], grouped).reshape(k, length + 1, rows, blocks, width).permute(2, 3, 1, 0, 4)
    )
    local = summed[:, :, :length]
    if blocks > 1:
        carried = _blocked(summed[:, :, length], powers[:, length])
        local = local + powers[:, :length].t()[None, None, :, :, None] * carried[:, :, None]
    return local.reshape(rows, blocks * length, k, width)[:, :count]


# Measured on one core: the blocked scan takes as long as this many operations a state, and this many calls a pass.
_OPERATIONS = 100
_CALLS = 60


def cost(workload: Workload) -> Cost:
    found = chunks.cost(workload)
    if workload.n <= chunks.chunk_length(workload):
        return found
    flops = {"matmul": found.flops["matmul"], "scan": _OPERATIONS * found.flops["scan"]}
    return replace(found, flops=flops, launches=found.launches * _CALLS // 3)


run, adjoint = partial(chunks.run, scan=scan), partial(chunks.adjoint, scan=scan)

register(
    Kernel(
        "toeplitz",
        "torch",
        "torch",
        "chunked_scan",
        *by_tiles(run, adjoint, turns_narrow=True),
        chunks.prepare,
        cost,
        chunks.refuses,
        chunks.saves,
    )
)
