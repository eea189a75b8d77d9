"""The kernels that add up a solve's past in JAX, registered when this module is imported, and how a solve picks one.

A kernel's `run(weights, nodes, history)` returns a `Past`, which adds up the weighted right-hand sides of earlier steps
inside of the solve's own loop, so that XLA compiles this sum with the steps. `nodes` are the exponentials that replace
older weights, or None. The `BackendManager` picks the kernel when a solve is traced. Kernels have no adjoint of their
own: JAX transposes the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.jax.arrays import Array, assumed
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.selection import (
    BackendManager,
    Cost,
    Kernel,
    Plan,
    Work,
    Workload,
    carried_out,
    given_manager,
    register,
)
from hpfracc_nn.solvers.history import ANY_MESH, Automatic, Exponentials, FFTBlocks, Full, History, Window
from hpfracc_nn.solvers.jax.memory import DIRECT, Past, Recent, Rows, Squares, Sum, Weights, block_of
from hpfracc_nn.solvers.jax.state import Layout, Orders

Solved = TypeVar("Solved")


def dense(weights: Weights, nodes: object, history: History) -> Past:
    if weights.later.ndim == 4:
        return Rows(weights.later[1:, ..., 1:])
    return Recent(weights.later, history.n if isinstance(history, Window) else weights.later.shape[-1])


def dense_cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, n, size = workload.rows * workload.width, workload.n, workload.itemsize
    blocks = n / block_of(n)
    return Cost(
        flops={"matmul": 3.0 * n**2 * numbers * passes},  # one and a half weighted sums a step: a scheme has one or two
        bytes=passes * size * blocks * n * (3.0 * numbers + 1.5 * workload.rows * block_of(n)),
        launches=int(2 * blocks * passes),
        workspace=size * n * (numbers + 1.5 * workload.rows * block_of(n)),
    )


for op in (Automatic.op, Full.op, Window.op, ANY_MESH):
    register(Kernel(op, "jax", "xla", "dense", run=dense, cost=dense_cost))


def fft(weights: Weights, nodes: object, history: History) -> Past:
    return Squares(weights.later)


def fft_cost(workload: Workload) -> Cost:
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
    register(Kernel(op, "jax", "xla", "fft", run=fft, cost=fft_cost))


def exponentials(weights: Weights, nodes: Nodes | None, history: History) -> Past:
    if nodes is None:  # so few steps that all lags are exact
        return Recent(weights.later, weights.later.shape[-1])
    return Recent(weights.later, nodes.first - 1, nodes, weights.coefficients)


def exponentials_cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, n, block = workload.rows * workload.width, workload.n, block_of(workload.n)
    states = max(1, workload.exponentials)
    return Cost(
        flops={"matmul": 2.0 * passes * n * numbers * (1.5 * (states + block) + states)},
        bytes=passes * workload.itemsize * n / block * (4.0 * states + 3.0 * block) * numbers,
        launches=int(4 * n / block * passes),
        workspace=2.0 * states * numbers * workload.itemsize,
    )


def exponentials_refuses(workload: Workload) -> str | None:
    if workload.exponentials == 0:
        return "the weights are no sum of exponentials to the dtype's tolerance, or so few that they are exact"
    return None


for op in (Automatic.op, Exponentials.op):
    register(
        Kernel(op, "jax", "xla", "recurrence", run=exponentials, cost=exponentials_cost, refuses=exponentials_refuses)
    )


def with_history(
    owner: str,
    manager: BackendManager | None,
    op: str,
    sums: Sum,
    layout: Layout,
    orders: Orders,
    dt: float | Array,
    solve: Callable[[Weights, Callable[[Weights], Past]], Solved],
) -> Solved:
    """Return the result of `solve`, called with the weights of the past and the kernel that the manager picks.

    Args:
        owner: The name of the public function, for messages.
        manager: The manager that picks the kernel; None is the process-wide BackendManager.
        op: The operation under which the history's kernels are registered, such as "history.full".
        sums: The scheme, the history and the mesh: all that determines the weights but the orders and the step.
        layout: How the states are laid out as one array.
        orders: The orders alpha.
        dt: The length of a step, or 1 on a mesh whose steps are not equal.
        solve: Called as solve(weights, past), where `past` makes a `Past` of weights by the picked kernel; returns the
            result.
    """
    nodes = sums.nodes(orders)
    site = given_manager(owner, manager).shared_site(op, "jax", owner)
    key = sums, layout.shape, nodes is None, orders.values is None
    plan = site.pick_traced(key, lambda: _workload_of(site.op, layout, sums.n_steps, nodes))
    return carried_out(_TRACED, site, plan, sums, orders, dt, nodes, solve)  # type: ignore[no-any-return]


def _run(plan: Plan, sums: Sum, orders: Orders, dt: float | Array, nodes: Nodes | None, solve: Any) -> Any:
    kernel = plan.kernel
    kernel.calls["run"] += 1
    nodes = nodes if kernel.algorithm == "recurrence" else None
    return solve(sums.weights(orders, dt, nodes), lambda weights: kernel.run(weights, nodes, sums.history))


_TRACED = Work(_run, is_timed=False)  # how long tracing takes does not say how fast a kernel is


def _workload_of(op: str, layout: Layout, n_steps: int, nodes: Nodes | None) -> Workload:
    """Return the description of a solve by which the manager estimates the costs of kernels, gradients included.

    Args:
        op: The operation under which the history's kernels are registered, such as "history.full".
        layout: How the states are laid out as one array.
        n_steps: The number of steps of the solve.
        nodes: The exponentials that may replace older weights, or None.
    """
    states = n_steps if op == Exponentials.op else 0
    return Workload(
        op=op,
        framework="jax",
        device=device_name(),
        dtype=layout.dtype.name,
        rows=assumed(layout.orders),
        n=n_steps,
        width=math.prod(map(assumed, layout.shape[1:])),
        channels=assumed(layout.orders),
        exponentials=states if nodes is None else nodes.states,
        needs_gradient=True,
        threads=JaxProbe().threads(),
    )
