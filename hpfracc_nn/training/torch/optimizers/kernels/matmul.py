"""The average as one product of a vector with the rows, for each parameter: every row is read once."""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.training.torch.optimizers.mix import Mix, passes_of

_DTYPES = ("float32", "float64")


def run(grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix) -> None:
    weights = torch.tensor(mix.weights, dtype=grads[0].dtype)
    replaced = [row for row, gain in enumerate(mix.gains) if gain == 1]
    gains = None if replaced else torch.tensor(mix.gains, dtype=grads[0].dtype)[:, None]
    for grad, held, average in zip(grads, rows, averages, strict=True):
        torch.addmv(grad, held.t(), weights, beta=mix.first, out=average)
    # From here on nothing is allocated, which could fail: the rows are changed last, all of them or none.
    for grad, held in zip(grads, rows, strict=True):
        if gains is not None:
            held.lerp_(grad, gains)
        for row in replaced:
            held[row].copy_(grad)


def cost(workload: Workload) -> Cost:
    read, written = passes_of(workload)
    passes = 3 + read + 3 * written
    samples = workload.rows * workload.n
    return Cost(
        flops={"matmul": 2.0 * read * samples, "elementwise": float(written * samples)},
        bytes=float(passes * samples * workload.itemsize),
        launches=2 * workload.rows,
    )


def refuses(workload: Workload) -> str | None:
    if workload.device != "cpu":
        return f"its weights lie on the CPU and the data on {workload.device}"
    if workload.dtype not in _DTYPES:
        return f"{workload.dtype} would be rounded after every row; it takes float32 and float64"
    return None


register(Kernel("history_mix", "torch", "torch", "matmul", run, cost=cost, refuses=refuses))
