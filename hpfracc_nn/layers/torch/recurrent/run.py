"""A recurrence over a series: by the loops of its cell, with their gradients, or in plain torch for what traces it.

A plain call runs the cell's loop inside one custom autograd function, which keeps the gates, the memories and what was
remembered; the loop back is the transpose, with the memory run backwards in time. A call that functorch or forward mode
looks at, a backward pass that is differentiated again and batched gradients take the same formula in plain torch, which
adds up the past by all of its exact weights. For compilers there is an operation of its own, `opaque.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import has_tangent, is_batched, is_plain
from hpfracc_nn.fractional.torch.weights import apart
from hpfracc_nn.layers.torch.recurrent.cells import Cell, Given, Made
from hpfracc_nn.layers.torch.recurrent.memory import Memory, Sums, lag_weights
from hpfracc_nn.selection.workload import Direction
from hpfracc_nn.solvers.torch.own_sums import TrackedSums

_BLOCK = 32  # steps of the plain formula that share one product with what is older


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A cell with a memory."""

    cell: Cell
    memory: Memory

    def __call__(self, given: Given) -> tuple[Tensor, Tensor]:
        """Return the outputs [n, batch, outputs] and what is remembered of steps 1 to n, [n, batch, units]."""
        present = [each for each in given if each is not None]
        if torch.is_inference_mode_enabled():
            # The kernels keep working memory, and autograd refuses tensors that inference mode made.
            with torch.inference_mode(False), torch.no_grad():
                return self(given)
        if not all(map(is_plain, present)) or given.projected.is_meta or not given.projected.numel():
            return self.formula(given)
        if torch.is_grad_enabled() and any(each.requires_grad for each in present):
            return _Recorded.apply(self, *given)
        sums = self.sums(given, needs_gradient=False)
        made = self.cell.run(given, sums, keeps=False)
        return made.out.contiguous(), _remembered(sums, made)

    def sums(self, given: Given, *, needs_gradient: bool, direction: Direction = "forward") -> Sums:
        """Return what adds up the past; asks the manager."""
        n = given.projected.shape[0]
        return self.memory.sums(given.alpha, given.value, n, needs_gradient=needs_gradient, direction=direction)

    def formula(self, given: Given) -> tuple[Tensor, Tensor]:
        """Return the same in plain torch."""
        n, window = given.projected.shape[0], self.memory.window
        weights = lag_weights(given.alpha, n + 1, window).to(given.value.dtype)
        by_lag = weights.reshape(-1, n + 1).t()[:, None, None]  # [n + 1, one set, 1, orders], like [batch, units]
        h, values, out = given.h, [given.value], []
        for first in range(0, n + 1, _BLOCK):
            end = min(first + _BLOCK, n + 1)
            older = 0 if window is None else max(0, first - window)
            sums = TrackedSums(_far(weights, values[older:first], given.value, end - first), by_lag)
            m = sums.first
            for k in range(first, end):
                if k:
                    h, value = self.cell.step(given, given.projected[k - 1], h, m)
                    out.append(h)
                    values.append(value)
                if k + 1 < end:
                    m = sums.following(k - first, values[k])
        return torch.stack(out), torch.stack(values[1:])


def _remembered(sums: Sums, made: Made) -> Tensor:
    """Return what is remembered of steps 1 to n, which autograd must not take for a view of another output."""
    return sums.packing.viewed(made.values)[1:, 0].detach()


def _far(weights: Tensor, values: list[Tensor], like: Tensor, rows: int) -> Tensor:
    """Return what the next `rows` steps have of these values, which end at the step before: [rows, batch, units]."""
    if not values:
        return like.new_zeros(rows, *like.shape)
    past, count = torch.stack(values), len(values)
    steps = torch.arange(count, count + rows, device=like.device)
    lags = steps[:, None] - torch.arange(count, device=like.device)
    if weights.ndim == 1:
        return torch.tensordot(weights[lags], past, 1)
    return torch.einsum("urj,jbu->rbu", weights[:, lags], past)


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recurrence: Recurrence, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        given = Given(*tensors)  # type: ignore[arg-type]
        sums = recurrence.sums(given, needs_gradient=True)
        made = recurrence.cell.run(given, sums, keeps=True)
        ctx.recurrence, ctx.sums = recurrence, sums
        ctx.save_for_backward(*given, made.out, made.values, *made.kept)
        ctx.set_materialize_grads(False)
        out = made.out.clone(memory_format=torch.contiguous_format)  # the caller may change the outputs in place
        return out, _remembered(sums, made)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        count = len(Given._fields)
        saved = ctx.saved_tensors  # once: a checkpoint recomputes them when they are asked for
        given, kept = Given(*saved[:count]), saved[count:]
        out, values = grads
        needs = ctx.needs_input_grad[1:]
        if out is None and values is None:
            return (None,) * (1 + count)
        present = [each for each in grads if each is not None]
        if torch.is_grad_enabled() or any(is_batched(each) or has_tangent(each) for each in present):
            return None, *_by_formula(ctx.recurrence, given, grads, needs)
        sums: Sums = ctx.sums
        sums.memory.site.again(sums.plan)
        made, learns = Made(kept[0], kept[1], kept[2:]), needs[Given._fields.index("alpha")]
        with torch.autocast(given.value.device.type, enabled=False):
            return None, *gradients_by_loop(ctx.recurrence, given, made, sums, out, values, learns=learns)


def gradients_by_loop(
    recurrence: Recurrence,
    given: Given,
    made: Made,
    sums: Sums,
    out: Tensor | None,
    values: Tensor | None,
    *,
    learns: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of what was given, in its order.

    Args:
        recurrence: The cell and its memory.
        given: What it was computed from.
        made: By the loop, which kept what is needed.
        sums: With the plan of the pass.
        out: Cotangents of the outputs, or None.
        values: Of what is remembered of steps 1 to n, or None.
        learns: Whether alpha's gradient is wanted.
    """
    pulled = recurrence.cell.pull(given, made, sums, torch.zeros_like(made.out) if out is None else out, values)
    alpha = None
    if learns:
        alpha = sums.order_gradient(made.values, pulled.memories).reshape(given.alpha.shape)
    return pulled.projected, pulled.h, pulled.value, alpha, pulled.weight, pulled.bias, pulled.projection


def _by_formula(
    recurrence: Recurrence, given: Given, grads: tuple[Tensor | None, ...], needs: tuple[bool, ...]
) -> list[Tensor | None]:
    """Return the same, themselves differentiable where gradients are on."""
    creates = torch.is_grad_enabled()
    with torch.enable_grad():
        given = Given(*map(apart, given))  # type: ignore[arg-type]
        wanted = [each for each, need in zip(given, needs, strict=True) if need and each is not None]
        pairs = [(y, g) for y, g in zip(recurrence.formula(given), grads, strict=True) if g is not None]
        outputs, cotangents = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outputs, wanted, cotangents, create_graph=creates, allow_unused=True))
    return [next(found) if need and each is not None else None for each, need in zip(given, needs, strict=True)]
