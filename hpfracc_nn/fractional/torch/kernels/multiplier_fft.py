"""A multiplier by the real fast Fourier transform: O(n log n), any size, one to three axes."""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn.fractional import multiplier_costs as costs
from hpfracc_nn.fractional.torch.multiplied import OP, Symbol
from hpfracc_nn.selection import Kernel, Workload, register


def prepare(symbol: Symbol, workload: Workload | None = None) -> Tensor:
    return symbol.values


def run(values: Tensor, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    last = tuple(range(-len(sizes), 0))
    return torch.fft.irfftn(torch.fft.rfftn(x, dim=last) * values, sizes, dim=last)


def adjoint(values: Tensor, g: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return run(values.conj() if values.is_complex() else values, g, sizes)


register(Kernel(OP, "torch", "torch", "fft", run, adjoint, prepare, costs.fft, saves=costs.saves))
