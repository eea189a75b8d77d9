"""Causal Toeplitz products with the whole column of weights, any weights: dense and FFT.

The dense kernel multiplies with the triangular matrix, for short series. The zero-padded FFT takes O(n log n) time.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from hpfracc_nn.fractional.linear import Column, padded_length, refuses_large, saves
from hpfracc_nn.fractional.torch.tiles import by_tiles, is_narrow, tile_bytes
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_LARGEST = 1 << 30  # bytes of all matrices


def prepare(weights: Weights, workload: Workload) -> Column:
    return weights.column()


def dense_cost(workload: Workload) -> Cost:
    n, samples, size = workload.n, workload.samples, workload.itemsize
    passes = 1 + workload.needs_gradient + workload.learns_weights
    matrix = workload.channels * n * n * size
    turned = is_narrow(workload.samples, workload.width)
    # For differences, for the adjoint, for a copy with channels first, and for copies with time last, there and back.
    tiles = 1 + workload.needs_gradient + (workload.channels > 1) + 2 * turned
    return Cost(
        flops={"matmul": 2.0 * samples * n * passes},
        bytes=passes
        * ((2.0 + 8.0 * turned) * samples * size + 3.0 * matrix),  # read once, at a third of the speed of a copy
        launches=4 + 5 * workload.needs_gradient + 10 * workload.learns_weights,  # with the passes around the product
        workspace=(1 + workload.learns_weights) * matrix + tiles * tile_bytes(workload),
    )


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
        "toeplitz",
        "torch",
        "torch",
        "dense",
        *by_tiles(
            lambda column: partial(_multiply, column.matrix),
            lambda column: partial(_multiply, column.matrix.mT),
            turns_narrow=True,
        ),
        prepare,
        dense_cost,
        lambda workload: refuses_large(workload, _LARGEST),
        saves,
    )
)


# A transform on a CPU pays for its plan anew at each call: this many small calls, and this many operations a point of
# one signal, measured from 1 x 1024 to 1 x 65536 on one core.
_PLANNING = 4
_PLANNING_POINT = 160
_STRIDED = 2  # times as long, where time is in the middle


def fft_cost(workload: Workload) -> Cost:
    size = padded_length(workload.n)
    transforms = 2 + 2 * workload.needs_gradient + 2 * workload.learns_weights
    signals = workload.rows * workload.width
    flops = 2.5 * signals * size * math.log2(max(2, size)) * transforms * (1 if workload.width == 1 else _STRIDED)
    return Cost(
        flops={"fft": flops, "elementwise": (signals + _PLANNING_POINT) * size * transforms},
        bytes=2.0 * signals * size * workload.itemsize * transforms,
        launches=(2 + _PLANNING) * transforms,
        workspace=fft_workspace(workload, size),
    )


def fft_workspace(workload: Workload, size: int) -> float:
    """Return the bytes of a tile's differences, and of its spectrum, results and a copy of both, padded (measured).

    Args:
        workload: What is to be computed.
        size: Samples to which a signal is padded.
    """
    return tile_bytes(workload) * (1 + 4 * size / max(1, workload.n))


def _filter(spectrum: Tensor, x: Tensor, out: Tensor) -> None:
    n, size = x.shape[2], padded_length(x.shape[2])
    transformed = torch.fft.rfft(x, size, dim=2)
    transformed *= spectrum
    out.copy_(torch.fft.irfft(transformed, size, dim=2)[:, :, :n])


register(
    Kernel(
        "toeplitz",
        "torch",
        "torch",
        "fft",
        *by_tiles(
            lambda column: partial(_filter, column.spectrum), lambda column: partial(_filter, column.spectrum.conj())
        ),
        prepare,
        fft_cost,
        saves=saves,
    )
)
