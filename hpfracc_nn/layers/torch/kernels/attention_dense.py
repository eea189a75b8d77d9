"""Attention with the weights of all queries at once: few calls, and memory for queries times keys."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hpfracc_nn.layers.attention import OP
from hpfracc_nn.layers.torch.attention_formula import Attention, Given
from hpfracc_nn.selection import Cost, Kernel, Workload, register

CALLS = 12  # dispatches of one forward pass
_PASSES = 9  # element-wise passes over the weights, each read and written
_KEPT = 8 << 20  # bytes: on a CPU the system takes larger arrays back, and hands each out anew, page by page
_PAGE = 8 * 4096  # bytes that are handed out in the time of a dispatch
_HELD = 4  # arrays of the weights' size that exist at once, forward
BACK = 3  # a backward pass: the formula again, and its transposes


def run(attention: Attention, given: Given) -> tuple[Tensor, Tensor | None]:
    return attention.formula(given)


def adjoint(
    attention: Attention, given: Given, grads: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor | None]:
    return attention.pulled(given, grads, wanted)


def pairs(workload: Workload) -> int:
    """Return queries times keys of all heads."""
    return workload.rows * workload.n * workload.exponentials


def cost(workload: Workload) -> Cost:
    times = 1 + BACK * workload.needs_gradient
    found = float(pairs(workload))
    weights = found * workload.itemsize
    pages = weights / _PAGE if weights > _KEPT and workload.device == "cpu" else 0.0
    return Cost(
        flops={"matmul": 4.0 * found * workload.width * times, "elementwise": _PASSES * found * times},
        bytes=2.0 * _PASSES * weights * times + 4.0 * workload.bytes * times,
        launches=int((CALLS + _PASSES * pages) * times),
        workspace=weights * (_HELD + 2 * _HELD * workload.needs_gradient),
    )


def saves(workload: Workload) -> float:
    """Queries, keys and values."""
    return float(workload.bytes + 2 * workload.rows * workload.exponentials * workload.width * workload.itemsize)


register(Kernel(OP, "torch", "torch", "dense", run, adjoint, cost=cost, saves=saves))
