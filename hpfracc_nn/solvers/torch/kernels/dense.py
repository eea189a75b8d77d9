"""A history added up directly, one matrix product for each block of steps: any weights."""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.solvers.torch.memory import OPS, Blocks, Operand, Toeplitz, add_product, block_length, run, saves


class DenseForm(Blocks):
    """See `memory.Form`."""

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """See `memory.Form.far`."""
        if not first:
            return
        if isinstance(self.operand, Toeplitz):  # copying rows is faster upwards; the result is small
            a, outs, rows, width = out.shape
            begin, ins = max(0, first - self.operand.reach), self.operand.ins
            weights = self.operand.upside_down(first, last, begin, first).reshape(a, outs * rows, -1)
            past = values[:, begin * ins : first * ins]
            out += torch.bmm(weights, past).view(a, outs, rows, width).flip(2)
        else:
            past = values[:, : first * self.operand.ins]
            add_product(self.operand.rectangle(first, last, 0, first), past, out)


def prepare(operand: Operand, workload: Workload) -> DenseForm:
    return DenseForm(operand)


def cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, size = workload.rows * workload.width, workload.itemsize
    blocks = workload.n / block_length(numbers)
    pairs = workload.n**2 / 2
    return Cost(
        flops={"matmul": 3.0 * pairs * numbers * passes},
        bytes=passes * size * (blocks * workload.n / 2 * numbers + 3.0 * pairs * workload.rows),
        launches=int(4 * blocks * passes),
        workspace=3.0 * size * block_length(numbers) * workload.n * workload.rows,
    )


for op in (OPS["auto"], OPS["full"], OPS["window"], OPS["mesh"]):
    register(Kernel(op, "torch", "torch", "dense", run, run, prepare, cost, saves=saves))
