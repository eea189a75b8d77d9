"""A multiplier by the real fast Fourier transform: O(n log n), any size, one to three axes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.multiplied import OP, Symbol
from hpfracc_nn.selection import Cost, Kernel, Workload, register


def prepare(symbol: Symbol, workload: Workload | None = None) -> Tensor:
    return symbol.values


def run(values: Tensor, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    last = tuple(range(-len(sizes), 0))
    return torch.fft.irfftn(torch.fft.rfftn(x, dim=last) * values, sizes, dim=last)


def adjoint(values: Tensor, g: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return run(values.conj() if values.is_complex() else values, g, sizes)


def cost(workload: Workload) -> Cost:
    return transforms(workload, 1 + workload.needs_gradient + workload.learns_weights)


def transforms(workload: Workload, passes: int) -> Cost:
    """Return the cost of as many pairs of transforms: a product, its adjoint, or the gradient in the factors."""
    samples = workload.samples
    return Cost(
        flops={"fft": 5.0 * passes * samples * math.log2(max(2, workload.n)), "elementwise": float(passes * samples)},
        bytes=passes * 6.0 * workload.bytes,  # two transforms, each read and written, and a product between them
        launches=passes * 3,
        workspace=2.0 * workload.bytes,
    )


def saves(workload: Workload) -> float:
    return float(workload.bytes if workload.learns_weights else 0)


register(Kernel(OP, "torch", "torch", "fft", run, adjoint, prepare, cost, saves=saves))
