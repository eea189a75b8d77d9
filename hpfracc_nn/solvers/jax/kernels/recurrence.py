"""A history as decaying exponentials: two matrix products for each block of steps, O(n) in all."""

from __future__ import annotations

from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.solvers.history import Automatic, Exponentials, History
from hpfracc_nn.solvers.jax.past import Past, Recent, block_of
from hpfracc_nn.solvers.jax.weights import Weights


def run(weights: Weights, nodes: Nodes | None, history: History) -> Past:
    if nodes is None:  # so few steps that all lags are exact
        return Recent(weights.later, weights.later.shape[-1])
    return Recent(weights.later, nodes.first - 1, nodes, weights.coefficients)


def cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, n, block = workload.rows * workload.width, workload.n, block_of(workload.n)
    states = max(1, workload.exponentials)
    return Cost(
        flops={"matmul": 2.0 * passes * n * numbers * (1.5 * (states + block) + states)},
        bytes=passes * workload.itemsize * n / block * (4.0 * states + 3.0 * block) * numbers,
        launches=int(4 * n / block * passes),
        workspace=2.0 * states * numbers * workload.itemsize,
    )


def refuses(workload: Workload) -> str | None:
    if workload.exponentials == 0:
        return "the weights are no sum of exponentials to the dtype's tolerance, or so few that they are exact"
    return None


for op in (Automatic.op, Exponentials.op):
    register(Kernel(op, "jax", "xla", "recurrence", run=run, cost=cost, refuses=refuses))
