"""A history by square blocks of doubling size, each by FFT: exact, O(n log(n)**2)."""

from __future__ import annotations

import math

from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.solvers.history import Automatic, FFTBlocks, History
from hpfracc_nn.solvers.jax.past import DIRECT, Past, Squares, block_of
from hpfracc_nn.solvers.jax.weights import Weights


def run(weights: Weights, nodes: object, history: History) -> Past:
    return Squares(weights.later)


def cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, n = workload.rows * workload.width, workload.n
    points, run = n * numbers, min(n, DIRECT)
    levels = max(0, math.ceil(math.log2(n / run)))
    return Cost(
        flops={
            "matmul": 3.0 * passes * points * run,
            "fft": passes * points * 6.0 * sum(math.log2(2 * run * 2**k) for k in range(levels)),
        },
        bytes=passes * workload.itemsize * points * (3.0 * run / block_of(run) + 12.0 * levels),
        launches=int((2 * n / block_of(run) + 8 * n / run) * passes),
        workspace=4.0 * points * workload.itemsize,
    )


for op in (Automatic.op, FFTBlocks.op):
    register(Kernel(op, "jax", "xla", "fft", run=run, cost=cost))
