"""A multiplier by one matrix product with its circulant matrix: short signals and small boxes.

Entry (i, j) is the response to a unit sample, taken at i - j modulo the size of each axis.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn.fractional import multiplier_costs as costs
from hpfracc_nn.fractional.torch.multiplied import OP, Symbol
from hpfracc_nn.fractional.torch.streams import placed
from hpfracc_nn.selection import Kernel, Workload, register


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


@placed
def _lags(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return where in the flat response the entry (j, i) of the transposed matrix stands."""
    with torch.inference_mode(False):
        return torch.as_tensor(costs.lags(sizes), device=device)


register(Kernel(OP, "torch", "torch", "dense", run, adjoint, prepare, costs.dense, costs.refuses_dense, costs.saves))
