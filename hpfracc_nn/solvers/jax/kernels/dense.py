"""A history added up directly: any weights, O(n**2) in matrix products."""

from __future__ import annotations

from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.solvers.history import ANY_MESH, Automatic, Full, History, Window
from hpfracc_nn.solvers.jax.past import Past, Recent, Rows, block_of
from hpfracc_nn.solvers.jax.weights import Weights


def run(weights: Weights, nodes: object, history: History) -> Past:
    if weights.later.ndim == 4:
        head = weights.head.shape[1]
        return Rows(weights.later[head:, ..., head:])
    return Recent(weights.later, history.n if isinstance(history, Window) else weights.later.shape[-1])


def cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, n, size = workload.rows * workload.width, workload.n, workload.itemsize
    blocks = n / block_of(n)
    return Cost(
        flops={"matmul": 3.0 * n**2 * numbers * passes},  # of one and a half memories: a scheme has one or two
        bytes=passes * size * blocks * n * (3.0 * numbers + 1.5 * workload.rows * block_of(n)),
        launches=int(2 * blocks * passes),
        workspace=size * n * (numbers + 1.5 * workload.rows * block_of(n)),
    )


for op in (Automatic.op, Full.op, Window.op, ANY_MESH):
    register(Kernel(op, "jax", "xla", "dense", run=run, cost=cost))
