"""Two kernels of `history_mix` by torch's own functions: on lists of tensors, or as products of a vector with the rows.

Lists: one pass for each row, on every device and in every dtype; on an accelerator a pass over all parameters is one
launch. Half precision is added up in float32, and rounded once; float32 rows of such gradients move in float32.

Products, one for each parameter, on the CPU: every row is read once. Large parameters are taken in blocks. The products
allocate nothing: whatever can fail does so before a row was changed.

Shapes: gradient [n], rows [R, n], average [n].
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.training.torch.optimizers.mix import Mix, line_of, passes_of

_HALF = (torch.float16, torch.bfloat16)


def run_lists(grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix) -> None:
    grads = [line_of(grad) for grad in grads]
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
    # From here on nothing is allocated, so that nothing can fail: the rows are changed last, all of them or none.
    for row, gain in enumerate(mix.gains):
        if gain:
            follow([each[row] for each in rows], grads, gain)


def follow(rows: list[Tensor], grads: list[Tensor], gain: float) -> None:
    """Move one row of each parameter towards its gradient: add gain * (gradient - row), or copy it where gain is 1."""
    if gain == 1:
        torch._foreach_copy_(rows, grads)
    else:
        torch._foreach_lerp_(rows, grads, gain)


def cost_of_lists(workload: Workload) -> Cost:
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


register(Kernel("history_mix", "torch", "torch", "foreach", run_lists, cost=cost_of_lists))


_DTYPES = ("float32", "float64")
_BLOCK = 1 << 17  # values


def run(grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix) -> None:
    weights = torch.tensor(mix.weights, dtype=grads[0].dtype)
    weighing = [(begin, end, weights[begin:end]) for begin, end in _runs(mix.weights)]
    replaced = [row for row, gain in enumerate(mix.gains) if gain == 1]
    gains = None if replaced else torch.tensor(mix.gains, dtype=grads[0].dtype)[:, None]
    for each in zip(map(line_of, grads), rows, averages, strict=True):
        for grad, held, average in _blocks(*each):
            added, factor = grad, mix.first
            for begin, end, part in weighing:
                taken = held if part.numel() == weights.numel() else held[begin:end]
                torch.addmv(added, taken.t(), part, beta=factor, out=average)
                added, factor = average, 1.0
            if not weighing:
                torch.mul(grad, mix.first, out=average)
            if gains is not None:
                held.lerp_(grad, gains)
            for row in replaced:
                held[row].copy_(grad)


def _runs(weights: tuple[float, ...]) -> list[tuple[int, int]]:
    """Return the ranges of rows, as (first, one past the last), whose weights are not 0: 0 * inf would be NaN."""
    edges = [False, *(weight != 0 for weight in weights), False]
    changes = [row for row in range(len(weights) + 1) if edges[row] != edges[row + 1]]
    return list(zip(changes[::2], changes[1::2], strict=True))


def _blocks(grad: Tensor, held: Tensor, average: Tensor) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Return matching blocks along n of a gradient [n], its rows `held` [R, n] and its average [n].

    A block is small enough that its rows are still in a cache when they are changed.
    """
    if grad.numel() <= _BLOCK:
        return ((grad, held, average),)
    return zip(grad.split(_BLOCK), held.split(_BLOCK, 1), average.split(_BLOCK), strict=True)


def cost(workload: Workload) -> Cost:
    read, written = passes_of(workload)
    samples = workload.rows * workload.n
    return Cost(
        flops={"matmul": 2.0 * read * samples, "elementwise": float(written * samples)},
        bytes=float((4 + read + 2 * written) * samples * workload.itemsize),
        launches=2 * workload.rows * -(-workload.n // _BLOCK),
    )


def refuses(workload: Workload) -> str | None:
    if workload.device != "cpu":
        return f"its weights lie on the CPU and the data on {workload.device}"
    if workload.dtype not in _DTYPES:
        return f"{workload.dtype} would be rounded after every row; it takes float32 and float64"
    return None


register(Kernel("history_mix", "torch", "torch", "matmul", run, cost=cost, refuses=refuses))
