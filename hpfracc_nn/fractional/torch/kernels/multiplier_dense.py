"""A multiplier by one matrix product with its circulant matrix: short signals and small boxes.

Entry (i, j) is the response to a unit sample, taken at i - j modulo the size of each axis.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.kernels.multiplier_fft import transforms
from hpfracc_nn.fractional.torch.multiplied import OP, Symbol
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_MOST = 1024  # samples: beyond them the transform is always faster, and a matrix takes 8 MiB in float64


def prepare(symbol: Symbol, workload: Workload | None = None) -> Tensor:
    """Return the transposed matrices, [*c, N, N] for N samples of all axes."""
    last = tuple(range(-len(symbol.sizes), 0))
    response = torch.fft.irfftn(symbol.values, symbol.sizes, dim=last).flatten(last[0])
    return response[..., _lags(symbol.sizes, response.device)]


def run(matrix: Tensor, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    flat = x.flatten(-len(sizes))
    if matrix.ndim == 2:
        return (flat @ matrix).view(x.shape)
    return torch.matmul(flat.unsqueeze(-2), matrix).squeeze(-2).view(x.shape)


def adjoint(matrix: Tensor, g: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return run(matrix.mT, g, sizes)


@lru_cache(maxsize=64)
def _lags(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return where in the flat response the entry (j, i) of the transposed matrix stands."""
    index = np.indices(sizes).reshape(len(sizes), -1)
    apart = (index[:, None, :] - index[:, :, None]) % np.array(sizes)[:, None, None]
    with torch.inference_mode(False):
        return torch.as_tensor(np.ravel_multi_index(tuple(apart), sizes), device=device)


def cost(workload: Workload) -> Cost:
    n, samples = workload.n, workload.samples
    passes = 1 + workload.needs_gradient
    matrices = workload.channels * n * n * workload.itemsize
    # Each channel has its own product, of one row at a time.
    reads = matrices * (samples / n if workload.channels > 1 else 1)
    slope = transforms(workload, int(workload.learns_weights))
    # A learned order makes its matrix anew at each call: a transform and a gather by 8-byte indices.
    made = workload.learns_weights * (3.0 * matrices + 8.0 * n * n)
    return Cost(
        flops={"matmul": 2.0 * samples * n * passes, **slope.flops},
        bytes=passes * (2.0 * workload.bytes + reads) + made + slope.bytes,
        launches=2 * passes + 6 * workload.learns_weights + slope.launches,
        workspace=matrices + slope.workspace,
    )


def refuses(workload: Workload) -> str | None:
    if workload.n > _MOST:
        return f"n={workload.n} is more than {_MOST}: the matrix would be too large"
    return None


def saves(workload: Workload) -> float:
    return float(workload.bytes if workload.learns_weights else 0)


register(Kernel(OP, "torch", "torch", "dense", run, adjoint, prepare, cost, refuses, saves))
