"""The operation `history_mix`: the average of a gradient with the history of past gradients, which is then updated.

    average = first * gradient + sum_r weights[r] * rows[r]
    rows[r] <- rows[r] + gains[r] * (gradient - rows[r])

The rows of a parameter are its history: past gradients, or moving averages of them. Both kinds of memory are this one
operation. A window of the last gradients is a ring: one gain is 1, in the row of the gradient that falls out, and all
others are 0. Exponentials move all rows, each by its own part. A kernel computes both formulas for all parameters of a
device and dtype, and reads and writes as little as possible: with 9 rows of 10 million float32 values, 360 MB are read
at each step whatever is done.

A kernel is called with lists of 1-d tensors of one dtype and device, and rows [R, n]; gradients may have any shape, and
are dense, with their values in the order of the rows. Complex tensors come as real ones of twice the length. Moving
averages of gradients in half precision are float32. A row of weight 0 is not read: numbers in it that are not finite
must not come into the average. A kernel writes into the averages and, at last, into the rows. Whatever can fail, such
as an allocation, comes before, so that another kernel can begin anew.

A line is a tensor [n] of a parameter's values in the order in which they lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch import device  # noqa: F401  registered on import
from hpfracc_nn.selection import Cost, Plan, Site, Work, Workload, carried_out, register_rehearsal

Strides = tuple[int, ...]


def dense_strides(like: Tensor) -> Strides:
    """Return the strides of `like` if it is dense, else the dense strides that torch allocates for such a tensor."""
    return torch.empty_like(like, device="meta", memory_format=torch.preserve_format).stride()


def empty_strided_like(grad: Tensor, strides: Strides) -> Tensor:
    """Return an uninitialised tensor with the shape, dtype and device of `grad` and the given dense strides."""
    return torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device)


def rows_like(line: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return `count` rows of zeros with the shape and strides of `line`, one behind another: shape [count, ...]."""
    shape, strides = (count, *line.shape), (line.numel(), *line.stride())
    return torch.empty_strided(shape, strides, dtype=dtype, device=line.device).zero_()


def in_order(values: Tensor, like: Tensor) -> Tensor:
    """Return `values` as a real line with its values in the order of `like`, which is dense.

    The result is a view if both have the same strides, else a copy.

    Shapes: values and like [...], result [n], or [2 n] for complex values.
    """
    if values.stride() != like.stride() or values.is_conj() or values.is_neg():
        values = empty_strided_like(like, like.stride()).copy_(values)
    return line_of(values)


def line_of(values: Tensor) -> Tensor:
    """Return a dense tensor as a real line, its values in the order in which they lie in memory: a view, or itself."""
    line = values if values.dim() == 1 else values.as_strided((values.numel(),), (1,))
    return torch.view_as_real(line).reshape(-1) if line.is_complex() else line


def lines_of(rows: Tensor) -> Tensor:
    """Return rows that `rows_like` made as real lines, in the order of `line_of`: a view, or the rows themselves.

    Shapes: rows [R, ...], result [R, n], or [R, 2 n] for complex rows.
    """
    lines = rows
    if rows.dim() != 2:
        count = rows.shape[0]
        values = rows.numel() // count
        lines = rows.as_strided((count, values), (values, 1))
    return torch.view_as_real(lines).flatten(1) if lines.is_complex() else lines


def shaped(lines: Tensor, like: Tensor) -> Tensor:
    """Return a view of a line, or of lines, in the shape and strides of `like`: the inverse of `line_of`, `lines_of`.

    Shapes: lines [n] or [R, n], like [...], result [...] or [R, ...].
    """
    rows = lines.shape[:-1]
    if like.is_complex():
        lines = torch.view_as_complex(lines.reshape(*rows, -1, 2))
    return lines.as_strided((*rows, *like.shape), (*(like.numel() for _ in rows), *like.stride()))


def check_belongs(what: str, kept: Tensor, grad: Tensor) -> None:
    """Raise RuntimeError unless a tensor of a state has the shape, dtype and device of the gradient.

    Kernels compute with addresses, and would read wrong memory. `what` describes the tensor `kept` in the message.
    """
    if kept.shape != grad.shape or kept.dtype != grad.dtype or kept.device != grad.device:
        raise RuntimeError(
            f"the state holds {what} of shape {tuple(kept.shape)}, {kept.dtype} on {kept.device}, and the gradient has "
            f"shape {tuple(grad.shape)}, {grad.dtype} on {grad.device}: what is remembered belongs to one parameter as "
            "it is; drop it with optimizer.state.pop(parameter), or make a new optimizer."
        )


def as_real(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return complex tensors as real ones with one more axis, and all others as they are."""
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]


@dataclass(frozen=True, slots=True)
class Mix:
    """The numbers of one step of `history_mix`: `first`, and the weight and the gain of each row."""

    first: float
    weights: tuple[float, ...]
    gains: tuple[float, ...]

    @property
    def written(self) -> int:
        """The number of rows that change, those with a gain other than 0."""
        return sum(gain != 0 for gain in self.gains)


def prepared(
    site: Site, grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix
) -> Callable[[], None]:
    """Return a function that runs the kernel that the site picks; raise LookupError if no kernel takes the gradients.

    Args:
        site: The optimizer's call site.
        grads: The gradients as lines, of one dtype and device.
        rows: The rows of each gradient's history, [R, n] each.
        averages: The lines that the averages are written into.
        mix: The numbers of the step.
    """
    grad, count, values = grads[0], len(grads), sum(each.numel() for each in grads)
    key = (grad.device, grad.dtype, count, values, len(mix.weights), mix.written, torch.get_num_threads())
    plan = site.pick(key, lambda: workload(grads, mix))
    return partial(carried_out, _MIX, site, plan, grads, rows, averages, mix)


def workload(grads: list[Tensor], mix: Mix) -> Workload:
    """Return the workload of one step on these gradients.

    Its `rows` is the number of tensors, `n` their mean number of values, and `width` the number of rows of each that
    are read, plus the number of those that are written.
    """
    values = sum(each.numel() for each in grads)
    return Workload(
        "history_mix",
        "torch",
        device=str(grads[0].device),
        dtype=str(grads[0].dtype).removeprefix("torch."),
        rows=len(grads),
        n=-(-values // len(grads)),
        width=len(mix.weights) + mix.written,
        exponentials=mix.written if mix.written > 1 else 0,
        threads=torch.get_num_threads(),
        in_place=True,
    )


def passes_of(workload: Workload) -> tuple[int, int]:
    """Return how many rows of each tensor a step reads for the average, and how many it writes."""
    written = max(1, workload.exponentials)
    return workload.width - written, written


def cost_of_one_pass(workload: Workload, launches: int) -> Cost:
    """Return the cost of a kernel that reads every gradient and row once, by so many `launches`."""
    read, written = passes_of(workload)
    samples = workload.rows * workload.n
    return Cost(
        flops={"elementwise": float((1 + read + written) * samples)},
        bytes=float((2 + read + 2 * written) * samples * workload.itemsize),
        launches=launches,
    )


def _run(plan: Plan, grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix) -> None:
    plan.kernel.calls["run"] += 1
    plan.kernel.run(grads, rows, averages, mix)


def _rehearse(plan: Plan) -> None:
    """Run a plan's kernel once, on tensors of one value each, so that the kernel is compiled.

    The compiled program does not depend on the sizes of tensors.
    """
    asked = plan.workload
    read, written = passes_of(asked)
    count = max(read, written)
    place = {"dtype": getattr(torch, asked.dtype), "device": torch.device(asked.device)}
    gains = tuple(float(row < written) / (2 if written > 1 else 1) for row in range(count))
    given = [torch.zeros(1, **place)], [torch.zeros(count, 1, **place)], [torch.zeros(1, **place)]
    plan.kernel.run(*given, Mix(1.0, (0.0,) * count, gains))


_MIX = Work(_run)
register_rehearsal("history_mix", "torch", _rehearse)
