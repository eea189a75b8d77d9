"""Causal Toeplitz product by one matrix product with the triangular matrix: short series, any weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.forms import ColumnForm
from hpfracc_nn.fractional.torch.tiles import by_tiles, is_narrow, tile_bytes
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_LARGEST = 1 << 30  # bytes of all matrices


def prepare(weights: Weights, workload: Workload) -> ColumnForm:
    return weights.column()


def run(form: ColumnForm, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    for x, out in pairs:
        _multiply(form.matrix, x, out)


def adjoint(form: ColumnForm, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    for g, out in pairs:
        _multiply(form.matrix.mT, g, out)


def cost(workload: Workload) -> Cost:
    n, samples, size = workload.n, workload.samples, workload.itemsize
    passes = 1 + workload.needs_gradient + workload.learns_weights
    matrix = workload.channels * n * n * size
    turned = is_narrow(workload.samples, workload.width)
    # Of differences, of the adjoint, for the order of the channels, turned round and back.
    tiles = 1 + workload.needs_gradient + (workload.channels > 1) + 2 * turned
    return Cost(
        flops={"matmul": 2.0 * samples * n * passes},
        bytes=passes
        * ((2.0 + 8.0 * turned) * samples * size + 3.0 * matrix),  # read once, at a third of the speed of a copy
        launches=4 + 5 * workload.needs_gradient + 10 * workload.learns_weights,  # with the passes around the product
        workspace=(1 + workload.learns_weights) * matrix + tiles * tile_bytes(workload),
    )


def refuses(workload: Workload) -> str | None:
    size = workload.channels * workload.n**2 * workload.itemsize
    if size > _LARGEST:
        return f"n={workload.n} needs {size / 2**30:.3g} GiB of matrices"
    return None


def saves(workload: Workload) -> float:
    return float(workload.bytes if workload.learns_weights else 0)


def _multiply(matrix: Tensor, x: Tensor, out: Tensor) -> None:
    batch, channels, n, width = x.shape
    if width > 1:
        torch.bmm(matrix.transpose(1, 2).expand(batch, n, n), x.view(batch, n, width), out=out.view(batch, n, width))
    elif channels == 1:
        torch.mm(x.view(batch, n), matrix[0], out=out.view(batch, n))
    else:
        out.view(batch, channels, n).copy_(
            torch.bmm(x.view(batch, channels, n).transpose(0, 1), matrix).transpose(0, 1)
        )


register(
    Kernel(
        "toeplitz", "torch", "torch", "dense", *by_tiles(run, adjoint, turns_narrow=True), prepare, cost, refuses, saves
    )
)
