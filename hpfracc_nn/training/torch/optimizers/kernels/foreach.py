"""The average by torch's lists of tensors: one pass for each row, on every device and in every dtype.

On an accelerator a pass over all tensors is one launch. Half precision is added up in float32, and rounded once; rows
that are float32 beside it move in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.training.torch.optimizers.mix import Mix, passes_of

_HALF = (torch.float16, torch.bfloat16)


def run(grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix) -> None:
    sums = [average.float() for average in averages] if averages[0].dtype in _HALF else averages
    torch._foreach_copy_(sums, grads)
    if mix.first != 1:
        torch._foreach_mul_(sums, mix.first)
    for row, weight in enumerate(mix.weights):
        if weight:
            torch._foreach_add_(sums, [each[row] for each in rows], alpha=weight)
    if sums is not averages:
        torch._foreach_copy_(averages, sums)
    if rows[0].dtype != grads[0].dtype:
        torch._foreach_copy_(sums, grads)
        grads = sums
    # From here on nothing is allocated, which could fail: the rows are changed last, all of them or none.
    for row, gain in enumerate(mix.gains):
        if gain:
            follow([each[row] for each in rows], grads, gain)


def follow(rows: list[Tensor], grads: list[Tensor], gain: float) -> None:
    """Bring the rows nearer to the gradients: by all of the difference where the gain is 1."""
    if gain == 1:
        torch._foreach_copy_(rows, grads)
    else:
        torch._foreach_lerp_(rows, grads, gain)


def cost(workload: Workload) -> Cost:
    read, written = passes_of(workload)
    passes = 4 + 3 * read + 3 * written
    calls = 2 + read + written
    itemsize = max(workload.itemsize, 4)  # of the sums, in which half precision is added up
    return Cost(
        flops={"elementwise": float(calls * workload.rows * workload.n)},
        bytes=float(passes * workload.rows * workload.n * itemsize),
        launches=calls * (workload.rows if workload.device == "cpu" else 1),
        workspace=4.0 * workload.rows * workload.n if workload.itemsize == 2 else 0.0,
    )


register(Kernel("history_mix", "torch", "torch", "foreach", run, cost=cost))
