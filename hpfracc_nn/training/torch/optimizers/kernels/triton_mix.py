"""The kernel of `history_mix` in Triton: a launch for each parameter, every row read once. See triton_blocks.py."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.kernels import triton_launch
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register
from hpfracc_nn.training.torch.optimizers.mix import Mix, cost_of_one_pass

_LAUNCHES = 3  # a launch takes as long as so many small calls of torch; one copies the weights


def run(grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix) -> None:
    from hpfracc_nn.training.torch.optimizers.kernels import triton_blocks

    device = grads[0].device
    numbers = torch.tensor((mix.first, *mix.weights, *mix.gains), dtype=torch.float64).to(device, non_blocking=True)
    with triton_launch.on(device):
        for grad, held, average in zip(grads, rows, averages, strict=True):
            if grad.numel():
                triton_blocks.launch(triton_launch.Plainly, grad, held, average, numbers)
    triton_launch.ran(device, _code(str(grads[0].dtype).removeprefix("torch.")))


def cost(workload: Workload) -> Cost:
    return cost_of_one_pass(workload, _LAUNCHES * workload.rows)


def compiles(workload: Workload) -> Compilation | None:
    return triton_launch.compilation(workload.device, _code(workload.dtype))


def _code(dtype: str) -> Hashable:
    return "mix", dtype


register(
    Kernel("history_mix", "torch", "triton", "blocks", run, cost=cost, refuses=triton_launch.refusal, compiles=compiles)
)
