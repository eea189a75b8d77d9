"""Causal Toeplitz products with the whole column of weights, any weights: dense and FFT.

The dense kernel multiplies with the triangular matrix, for short series. The zero-padded FFT takes O(n log n) time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import Boundary, values
from hpfracc_nn.fractional.linear import Column, padded_length, refuses_large, saves
from hpfracc_nn.fractional.torch.tiles import (
    Shape,
    by_tiles,
    differenced,
    factors_of,
    in_tiles,
    is_narrow,
    multiplied,
    tile_bytes,
)
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_LARGEST = 1 << 30  # bytes of all matrices


def prepare(weights: Weights, workload: Workload) -> Column:
    return weights.column()


Correlate = Callable[[Tensor, Tensor], Tensor]


def _inner(
    run: Callable[..., None],
    correlate: Correlate,
    column: Column,
    b: Boundary,
    shape: Shape,
    x: Tensor,
    g: Tensor,
) -> Tensor:
    """Return for each channel the sum of what `run` makes of x, times g: the weights times the correlation of d and g.

    Neither the matrix of these weights nor its product with d is made. Time must be last.

    Args:
        run: The kernel's, for data with time in the middle.
        correlate: Returns the sums over the batch and the times t of d[t] g[t + k], [channels, n], of two tiles.
        column: The weights, those of a derivative.
        b: Around the product.
        shape: Of x and g: batch, channels, n, width.
        x: The samples.
        g: What the result is multiplied with.
    """
    if shape[3] > 1:
        return multiplied(run, column, b, shape, x, g)
    x, g = x.view(shape), g.view(shape)
    (rows, pairs), row, sums = in_tiles(x, g), None, []
    for (part, grads), d in zip(pairs, differenced(x, rows, b.n, b), strict=True):
        found = correlate(d, grads)
        row = found if row is None else row.add_(found)
        sums.append([(grads * value).sum(0)[..., 0] for value in values(part, d, b)] if factors_of(b) else [])
    assert row is not None, "an empty product is not computed"
    total = (row * column.weights).sum(-1, dtype=torch.float64)
    for each in sums:
        for factor, value in zip(factors_of(b), each, strict=True):
            total += (value * factor[..., 0]).sum(-1, dtype=torch.float64)
    return total


def _correlated_densely(d: Tensor, g: Tensor) -> Tensor:
    """Return the sums of d[t] g[t + k] along the diagonals of a matrix product."""
    batch, channels, n, _ = d.shape
    room = d.new_zeros(channels, n * n + n)  # n more than the matrix has: its rows are read one after the other
    matrix = room[:, : n * n].view(channels, n, n)
    data, grads = d.view(batch, channels, n), g.view(batch, channels, n)
    if channels == 1:
        torch.mm(data[:, 0].t(), grads[:, 0], out=matrix[0])
    else:
        torch.bmm(data.permute(1, 2, 0), grads.transpose(0, 1), out=matrix)
    matrix.triu_()  # of negative lags, which the rows below read
    return room.as_strided((channels, n, n), (n * n + n, n + 1, 1)).sum(1)


def _correlated_by_fft(d: Tensor, g: Tensor) -> Tensor:
    n, size = d.shape[2], padded_length(d.shape[2])
    found = torch.fft.rfft(d[..., 0], size).conj_physical_().mul_(torch.fft.rfft(g[..., 0], size)).sum(0)
    return torch.fft.irfft(found, size)[:, :n]


def dense_cost(workload: Workload) -> Cost:
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


_dense = by_tiles(
    lambda column: partial(_multiply, column.matrix),
    lambda column: partial(_multiply, column.matrix.mT),
    turns_narrow=True,
)
register(
    Kernel(
        "toeplitz",
        "torch",
        "torch",
        "dense",
        *_dense,
        prepare,
        dense_cost,
        lambda workload: refuses_large(workload, _LARGEST),
        saves,
        inner=partial(_inner, _dense[0], _correlated_densely),
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
        workspace=fft_workspace(workload),
    )


def fft_workspace(workload: Workload) -> float:
    """Return the bytes of a tile: differences, and four padded: spectrum, results and a copy of both (measured)."""
    return tile_bytes(workload) * (1 + 4 * padded_length(workload.n) / max(1, workload.n))


def _filter(spectrum: Tensor, x: Tensor, out: Tensor) -> None:
    n, size = x.shape[2], padded_length(x.shape[2])
    transformed = torch.fft.rfft(x, size, dim=2)
    transformed *= spectrum
    out.copy_(torch.fft.irfft(transformed, size, dim=2)[:, :, :n])


_fft = by_tiles(
    lambda column: partial(_filter, column.spectrum), lambda column: partial(_filter, column.spectrum.conj())
)
register(
    Kernel(
        "toeplitz",
        "torch",
        "torch",
        "fft",
        *_fft,
        prepare,
        fft_cost,
        saves=saves,
        inner=partial(_inner, _fft[0], _correlated_by_fft),
    )
)
