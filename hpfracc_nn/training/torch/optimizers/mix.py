"""The operation `history_mix`: the average of a gradient with what is remembered of those before it.

    average = first * gradient + sum_r weights[r] * rows[r]
    rows[r] <- rows[r] + gains[r] * (gradient - rows[r])

Both kinds of memory are this one operation. A window of the last gradients is a ring: one gain is 1, in the row of the
gradient that falls out, and all others are 0. Exponentials move all rows, each by its own part. A kernel computes both
lines for all parameters of a device and dtype, and reads and writes as little as it can: with 9 rows of 10 million
float32 values, 360 MB are read at each step whatever is done.

A kernel is called with lists of 1-d tensors of one dtype and device, and rows [R, n]; gradients may have any shape, and
are dense, with their values in the order of the rows. Complex tensors come as real ones of twice the length. Rows that
fade are float32 where the gradients are half as wide. A row that weighs nothing is not read: what is not finite there
must not come into the average. A kernel writes into the averages and, at last, into the rows. What can fail, such as an
allocation, comes before: another kernel may have to begin anew.
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
    """Return the strides of `like` where it is dense, or else of what torch allocates in its place."""
    return torch.empty_like(like, device="meta", memory_format=torch.preserve_format).stride()


def room_like(grad: Tensor, strides: Strides) -> Tensor:
    """Return an uninitialised tensor of the shape of `grad` with these dense strides."""
    return torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device)


def rows_like(line: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return `count` rows of zeros of the shape and strides of `line`, one behind another; shape [count, ...]."""
    shape, strides = (count, *line.shape), (line.numel(), *line.stride())
    return torch.empty_strided(shape, strides, dtype=dtype, device=line.device).zero_()


def in_order(values: Tensor, like: Tensor) -> Tensor:
    """Return `values` as a line, real, in the order of `like`, which is dense: a view where the strides are the same.

    Shapes: values and like [...], result [n], or [2 n] where they are complex.
    """
    if values.stride() != like.stride() or values.is_conj() or values.is_neg():
        values = room_like(like, like.stride()).copy_(values)
    return line_of(values)


def line_of(values: Tensor) -> Tensor:
    """Return values that are dense as a line, real, in the order in which they lie: a view, or themselves."""
    line = values if values.dim() == 1 else values.as_strided((values.numel(),), (1,))
    return torch.view_as_real(line).reshape(-1) if line.is_complex() else line


def lines_of(rows: Tensor) -> Tensor:
    """Return rows laid out as by `rows_like` as lines, real, in the order of `line_of`: a view, or themselves.

    Shapes: rows [R, ...], result [R, n], or [R, 2 n] where they are complex.
    """
    lines = rows
    if rows.dim() != 2:
        count = rows.shape[0]
        values = rows.numel() // count
        lines = rows.as_strided((count, values), (values, 1))
    return torch.view_as_real(lines).flatten(1) if lines.is_complex() else lines


def shaped(lines: Tensor, like: Tensor) -> Tensor:
    """Return what a line made by `line_of`, or lines made by `lines_of`, stand for, in `like`'s shape and strides."""
    rows = lines.shape[:-1]
    if like.is_complex():
        lines = torch.view_as_complex(lines.reshape(*rows, -1, 2))
    return lines.as_strided((*rows, *like.shape), (*(like.numel() for _ in rows), *like.stride()))


def check_belongs(what: str, kept: Tensor, grad: Tensor) -> None:
    """Raise unless a state has shape, dtype and device of the gradient: kernels go by addresses."""
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
    """The numbers of one step; see above."""

    first: float
    weights: tuple[float, ...]
    gains: tuple[float, ...]

    @property
    def written(self) -> int:
        """How many rows change."""
        return sum(gain != 0 for gain in self.gains)


def prepared(
    site: Site, grads: list[Tensor], rows: list[Tensor], averages: list[Tensor], mix: Mix
) -> Callable[[], None]:
    """Return what runs the kernel that the site picks, or raise LookupError if there is none."""
    grad, count, values = grads[0], len(grads), sum(each.numel() for each in grads)
    key = (grad.device, grad.dtype, count, values, len(mix.weights), mix.written, torch.get_num_threads())
    plan = site.pick(key, lambda: workload(grads, mix))
    return partial(carried_out, _MIX, site, plan, grads, rows, averages, mix)


def workload(grads: list[Tensor], mix: Mix) -> Workload:
    """Return what a step asks for: `rows` tensors of `n` values in the mean, `width` rows read or written of each."""
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
    """Return how many rows are read for the average, and how many are written."""
    written = max(1, workload.exponentials)
    return workload.width - written, written


def cost_of_one_pass(workload: Workload, launches: int) -> Cost:
    """Return the cost of a kernel that reads every gradient and row once."""
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
    """Run a plan's kernel once, so that it is compiled: on tensors of one value each.

    What is compiled does not depend on their sizes.
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
