"""The past of a solve: values go in, memories come out, one step after the other.

Steps are taken in blocks. When a block begins, the plan's kernel brings what all its steps have of the past before it;
the block's own steps are one small product each. So the kernels work on matrices, whatever the history.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from hpfracc_nn.selection import Plan, Site, Work, carried_out
from hpfracc_nn.selection.workload import Direction
from hpfracc_nn.solvers.torch.forms import Form
from hpfracc_nn.solvers.torch.kernels.blocks import block_length
from hpfracc_nn.solvers.torch.operand import Operand
from hpfracc_nn.solvers.torch.packing import Packing


class Past:
    """The values so far, and the plan's kernel to add them up.

    Args:
        operand: The weights.
        site: That picked the plan.
        plan: Whose kernel is begun with.
        direction: Of the pass.
        packing: How a value is laid out; it goes in and comes out as [*shape].
        like: A tensor of the values' dtype and device.
        starts: What the first values bring besides, [a, outs, steps + 1, k], where one goes in per step; or None.
        block: Steps of a block; None is what suits the solver of deterministic equations.

    Attributes:
        values: All that goes in, [a, steps + 1, ins, r].
        views: The same by step, [steps + 1, *shape], or [steps + 1, ins, *shape] where several go in.
    """

    def __init__(
        self,
        operand: Operand,
        site: Site,
        plan: Plan,
        direction: Direction,
        packing: Packing,
        like: Tensor,
        starts: Tensor | None = None,
        block: int | None = None,
    ):
        self.operand, self.site, self.plan, self.direction, self.packing = operand, site, plan, direction, packing
        self.block = block_length(packing.orders * packing.width) if block is None else block
        self.values = like.new_zeros(packing.orders, operand.steps + 1, operand.ins, packing.width)
        views = packing.viewed(self.values)
        self.views = views[:, 0] if operand.ins == 1 else views
        self.seconds = 0.0
        self._merged = self.values.view(packing.orders, -1, packing.width)
        self._starts = starts
        self._form: Form | None = None
        self._reached = 0  # steps before it are in the form's states
        self._first = self._begin = 0  # of the present block, and of what its near weights reach
        self._slots: Sequence[Tensor] = ()
        self._far: Sequence[Tensor] = ()
        self._near: Sequence[Tensor] = ()
        self._out = self._weights = like
        self._kept: tuple[Tensor, Sequence[Tensor]] | None = None
        self._own: tuple[Tensor, Tensor] | None = None
        self._is_one = packing.orders == 1
        self._shape = (operand.outs, *packing.shape) if operand.outs > 1 else tuple(packing.shape)
        self._work = _FORWARD if direction == "forward" else _BACKWARD

    def begin(self, first: int, base: Tensor | None = None) -> int:
        """Begin the block of steps that starts at `first`, and return where it ends.

        Args:
            first: A multiple of `block`; blocks begin in turn, and all before were put in.
            base: What the memories begin with, [*shape] or [rows, *shape]; None is 0.
        """
        last = self._open(first, base)
        out, near = self._out, self._weights
        self._far = (out[0].transpose(0, 1) if self._is_one else out.transpose(0, 2).transpose(1, 2)).unbind()
        self._near, self._slots = self._rows(near), self.views[first:last].unbind()
        return last

    def _open(self, first: int, base: Tensor | None) -> int:
        """Make the block's memories of what is before it, and its near weights; return where it ends."""
        last = min(first + self.block, self.operand.steps + 1)
        started = time.perf_counter()
        out = carried_out(self._work, self.site, self.plan, self, first, last)
        self.seconds += time.perf_counter() - started
        assert self._form is not None, "a kernel has run"
        if base is not None:
            views = self.packing.viewed(out)
            views += base
        near, before = self._form.near(first, last), min(first, self._form.overlap)
        if self._starts is not None:
            near = self._with_starts(first, last, near, out)
        self._first, self._begin, self._out, self._weights = first, first - before, out, near
        return last

    def opened(self, first: int, base: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Begin a block whose own steps the caller adds up; see `begin`.

        Returns:
            What the block's memories have of all steps before it, [outs, rows, *shape], and the weights of its own
            steps by lag from 0 on, [rows, outs * ins, *varying] with `varying` as the packing has it.
        """
        self._open(first, base)
        ins, begin = self.operand.ins, self._begin
        before = (first - begin) * ins
        out = self._out
        if before:
            recent = self._merged[:, None, begin * ins : first * ins]
            out = out + torch.matmul(self._weights[..., :before], recent)
        if self._own is None or self._own[0] is not self._weights:
            self._own = self._weights, self._by_lag(before)
        return self.packing.viewed(out), self._own[1]

    def _by_lag(self, before: int) -> Tensor:
        """Return the weights of the block's own steps by lag; those of most blocks are the same."""
        a, outs, rows, _ = self._weights.shape
        own = self._weights[:, :, -1, before:].reshape(a, outs, rows, self.operand.ins).flip(2)
        return own.permute(2, 1, 3, 0).reshape(rows, outs * self.operand.ins, *self.packing.varying)

    def put(self, n: int, value: Tensor) -> None:
        """Put in the value of step n, which is in the present block."""
        self._slots[n - self._first].copy_(value)

    def memory(self, n: int) -> Tensor:
        """Return the memories of step n, which is in the present block and whose past was put in.

        [*shape], or [outs, *shape] where there are several.
        """
        i, begin, ins = n - self._first, self._begin, self.operand.ins
        k = (n - begin) * ins
        if self._is_one:
            found = torch.addmm(self._far[i], self._near[i], self._merged[0].narrow(0, begin * ins, k))
            return found.view(self._shape)
        found = torch.baddbmm(self._far[i], self._near[i], self._merged.narrow(1, begin * ins, k))
        return self.packing.viewed(found if self.operand.outs > 1 else found[:, 0])

    def memories(self, first: int, last: int) -> Tensor:
        """Return those of all steps of the present block at once: their past was put in before.

        [outs, rows, *shape].
        """
        a, outs, rows, k = self._weights.shape
        ins = self.operand.ins
        recent = self._merged[:, self._begin * ins : last * ins]
        return self.packing.viewed(
            self._out + torch.bmm(self._weights.reshape(a, outs * rows, k), recent).view(a, outs, rows, -1)
        )

    def adopt(self, plan: Plan) -> None:
        """Go on with another plan's kernel: it is shown all blocks that were, which are in `values`."""
        self._form = plan.kernel.prepare(self.operand, plan.workload)
        self.plan = plan
        for first in range(0, self._reached, self.block):
            plan.kernel.run(self._form, self._merged, first, first + self.block, self._room(self.block))

    def far(self, plan: Plan, first: int, last: int) -> Tensor:
        """Return what a plan's kernel has of the past before the block, [a, outs, rows, r]."""
        if self._form is None or plan is not self.plan or self._reached != first:  # the last: it failed halfway
            self._reached = first
            self.adopt(plan)
        kernel = plan.kernel
        kernel.calls["run" if self.direction == "forward" else "adjoint"] += 1
        out = self._room(last - first)
        self._reached = -1
        (kernel.run if self.direction == "forward" else kernel.adjoint)(self._form, self._merged, first, last, out)
        self._reached = last
        return out

    def _room(self, rows: int) -> Tensor:
        return self.values.new_zeros(self.values.shape[0], self.operand.outs, rows, self.values.shape[-1])

    def _rows(self, near: Tensor) -> Sequence[Tensor]:
        """Return the near weights of each step of the block; those of most blocks are the same."""
        if self._kept is not None and self._kept[0] is near:
            return self._kept[1]
        before, ins = self._first - self._begin, self.operand.ins
        each = near[0].unbind(1) if self._is_one else near.unbind(2)
        found = [row[..., : (before + i) * ins] for i, row in enumerate(each)]
        self._kept = near, found
        return found

    def _with_starts(self, first: int, last: int, near: Tensor, out: Tensor) -> Tensor:
        """Add what the first values bring besides: to the near weights in the first block, to the memories later."""
        assert self._starts is not None, "there are some"
        count = min(self._starts.shape[-1], last)
        some = self._starts[:, :, first:last, :count]
        if first:
            out += torch.matmul(some, self._merged[:, None, :count])
            return near
        near = near.clone()
        is_past = torch.arange(last, device=near.device)[:, None] > torch.arange(count, device=near.device)
        near[..., :count] += some * is_past
        return near


def _far(plan: Plan, past: Past, first: int, last: int) -> Tensor:
    return past.far(plan, first, last)


_FORWARD = Work(_far, is_timed=False)
_BACKWARD = Work(_far, direction="backward", is_timed=False)
