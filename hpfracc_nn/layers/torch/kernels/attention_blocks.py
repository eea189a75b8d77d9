"""Attention block of queries by block of queries: memory for a block, whose weights stay in the cache.

Keys that no query of a block may see are left out, which halves a causal pass. The backward pass computes each block's
weights once more and adds up what it gives to the keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from hpfracc_nn.layers.attention import OP
from hpfracc_nn.layers.torch.attention_formula import Attention, Given
from hpfracc_nn.layers.torch.attention_parts import Place, averaged, pulled
from hpfracc_nn.layers.torch.kernels import attention_dense as dense
from hpfracc_nn.selection import Cost, Kernel, Workload, register

BLOCK = 1 << 18  # weights: 1 MiB in float32; the best of 2**15 to 2**20 on a core with 2 MiB of second-level cache


def run(attention: Attention, given: Given) -> tuple[Tensor, Tensor | None]:
    return averaged(places(attention, given), given, attention.needs_weights, attention.formula)


def adjoint(
    attention: Attention, given: Given, grads: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor | None]:
    def pull(part: Given, some: Sequence[Tensor | None], first: int) -> list[Tensor | None]:
        return attention.pulled(part, some, wanted, first)

    return pulled(places(attention, given), given, grads, wanted, pull)


def places(attention: Attention, given: Given) -> Iterator[Place]:
    """Yield the blocks: several items of the batch where they are short, else some queries of one."""
    batch, heads, queries, _ = given.q.shape
    keys = given.k.shape[2]
    items = max(1, BLOCK // max(1, heads * queries * keys))
    rows = queries if items > 1 else max(1, min(queries, BLOCK // max(1, heads * keys)))
    for item in range(0, batch, items):
        for row in range(0, queries, rows):
            last = min(row + rows, queries)
            seen = min(last, keys) if attention.is_causal else keys
            yield slice(item, item + items), slice(row, last), slice(0, seen)


def cost(workload: Workload) -> Cost:
    whole, gradient = dense.cost(workload), workload.needs_gradient
    blocks = max(1.0, dense.pairs(workload) / BLOCK)
    # Of several blocks the weights stay in the cache; keys and values are read again by every block of their head.
    again = blocks * 2.0 * workload.exponentials * workload.width * workload.itemsize
    return Cost(
        flops=whole.flops,
        bytes=whole.bytes if blocks == 1 else whole.bytes / 3 + again,
        launches=int((dense.CALLS * (1 + dense.BACK * gradient) + 8 * (1 + gradient)) * blocks),
        workspace=min(whole.workspace, 12.0 * BLOCK * workload.itemsize),
    )


register(Kernel(OP, "torch", "torch", "blocks", run, adjoint, cost=cost, saves=dense.saves))
