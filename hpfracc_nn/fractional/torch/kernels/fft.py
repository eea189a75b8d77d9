"""Causal Toeplitz product by zero-padded real FFT: O(n log n) time, any weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.forms import ColumnForm, padded_length
from hpfracc_nn.fractional.torch.tiles import by_tiles, tile_bytes
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

# A transform on a CPU pays for its plan anew at each call: this many small calls, and this many operations a point of
# one signal, measured from 1 x 1024 to 1 x 65536 on one core.
_PLANNING = 4
_PLANNING_POINT = 160
_STRIDED = 2  # times as long, where time is in the middle


def prepare(weights: Weights, workload: Workload) -> ColumnForm:
    return weights.column()


def run(form: ColumnForm, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    for x, out in pairs:
        _filter(x, form.spectrum, out)


def adjoint(form: ColumnForm, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    spectrum = form.spectrum.conj()
    for g, out in pairs:
        _filter(g, spectrum, out)


def cost(workload: Workload) -> Cost:
    size = padded_length(workload.n)
    transforms = 2 + 2 * workload.needs_gradient + 2 * workload.learns_weights
    signals = workload.rows * workload.width
    flops = 2.5 * signals * size * math.log2(max(2, size)) * transforms * (1 if workload.width == 1 else _STRIDED)
    return Cost(
        flops={"fft": flops, "elementwise": (signals + _PLANNING_POINT) * size * transforms},
        bytes=2.0 * signals * size * workload.itemsize * transforms,
        launches=(2 + _PLANNING) * transforms,
        workspace=workspace(workload),
    )


def workspace(workload: Workload) -> float:
    """Return the bytes of a tile: differences, and four padded: spectrum, results and a copy of both (measured)."""
    return tile_bytes(workload) * (1 + 4 * padded_length(workload.n) / max(1, workload.n))


def refuses(workload: Workload) -> str | None:
    return None


def saves(workload: Workload) -> float:
    return float(workload.bytes if workload.learns_weights else 0)


def _filter(x: Tensor, spectrum: Tensor, out: Tensor) -> None:
    n, size = x.shape[2], padded_length(x.shape[2])
    transformed = torch.fft.rfft(x, size, dim=2)
    transformed *= spectrum[..., None]
    out.copy_(torch.fft.irfft(transformed, size, dim=2)[:, :, :n])


register(Kernel("toeplitz", "torch", "torch", "fft", *by_tiles(run, adjoint), prepare, cost, refuses, saves))
