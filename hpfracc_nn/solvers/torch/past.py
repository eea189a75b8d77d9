"""The past of a solve: values go in, memories come out, one step after the other.

Steps are taken in blocks. When a block begins, the plan's kernel brings what all its steps have of the past before
it; the block's own steps are one small product each. So the kernels work on matrices, whatever the history.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from hpfracc_nn.selection import Plan, Site, Work, carried_out
from hpfracc_nn.selection.workload import Direction
from hpfracc_nn.solvers.torch.forms import Form
from hpfracc_nn.solvers.torch.kernels.blocks import block_length
from hpfracc_nn.solvers.torch.operand import Operand


class Past:
    """The values so far, and the plan's kernel to add them up.

    Args:
        operand: The weights.
        site: That picked the plan.
        plan: Whose kernel is begun with.
        direction: Of the pass.
        like: A state [a, r], for its shape, dtype and device.
        starts: What the first values bring besides, [a, outs, steps + 1, k], where one goes in per step; or None.
    """

    def __init__(
        self,
        operand: Operand,
        site: Site,
        plan: Plan,
        direction: Direction,
        like: Tensor,
        starts: Tensor | None = None,
    ):
        a, width = like.shape
        self.operand, self.site, self.plan, self.direction = operand, site, plan, direction
        self.block = block_length(like.numel())
        self.values = like.new_zeros(a, (operand.steps + 1) * operand.ins, width)
        self.seconds = 0.0
        self._starts = starts
        self._form: Form | None = None
        self._reached = 0  # blocks before it are in the form's states
        self._first = self._begin = 0
        self._far = self._near = like  # of the present block, set when it begins
        self._work = _FORWARD if direction == "forward" else _BACKWARD

    def push(self, n: int, value: Tensor) -> None:
        """Put in what step n brings: [a, r], or [a, ins, r]."""
        ins = self.operand.ins
        if ins == 1:
            self.values[:, n].copy_(value)
        else:
            self.values[:, n * ins : (n + 1) * ins].copy_(value)

    def begin(self, first: int, base: Tensor | None = None) -> int:
        """Begin the block of steps that starts at `first`, and return where it ends.

        Args:
            first: A multiple of `block`; blocks begin in turn, and all before were pushed.
            base: What the memories begin with, broadcast to [a, outs, rows, r]; None is 0.
        """
        last = min(first + self.block, self.operand.steps + 1)
        started = time.perf_counter()
        out = carried_out(self._work, self.site, self.plan, self, first, last)
        self.seconds += time.perf_counter() - started
        assert self._form is not None, "a kernel has run"
        if base is not None:
            out += base
        near, before = self._form.near(first, last), min(first, self._form.overlap)
        if self._starts is not None:
            near = self._with_starts(first, last, near, out)
        self._first, self._begin, self._far = first, first - before, out
        self._near = near
        return last

    def memory(self, n: int) -> Tensor:
        """Return the memories of step n, which is in the present block and whose past was pushed: [a, outs, r]."""
        ins, k = self.operand.ins, n - self._begin
        i = n - self._first
        return torch.baddbmm(
            self._far[:, :, i], self._near[:, :, i, : k * ins], self.values[:, self._begin * ins : n * ins]
        )

    def memories(self, first: int, last: int) -> Tensor:
        """Return those of all steps of the present block at once, [a, outs, rows, r]: their past was pushed before."""
        a, outs, rows, k = self._near.shape
        recent = self.values[:, self._begin * self.operand.ins : last * self.operand.ins]
        return self._far + torch.bmm(self._near.reshape(a, outs * rows, k), recent).view(a, outs, rows, -1)

    def adopt(self, plan: Plan) -> None:
        """Go on with another plan's kernel: it is shown all blocks that were, which are in `values`."""
        self._form = plan.kernel.prepare(self.operand, plan.workload)
        self.plan = plan
        for first in range(0, self._reached, self.block):
            plan.kernel.run(self._form, self.values, first, first + self.block, self._room(self.block))

    def far(self, plan: Plan, first: int, last: int) -> Tensor:
        """Return what a plan's kernel has of the past before the block, [a, outs, rows, r]."""
        if self._form is None or plan is not self.plan or self._reached != first:  # the last: it failed halfway
            self._reached = first
            self.adopt(plan)
        kernel = plan.kernel
        kernel.calls["run" if self.direction == "forward" else "adjoint"] += 1
        out = self._room(last - first)
        self._reached = -1
        (kernel.run if self.direction == "forward" else kernel.adjoint)(self._form, self.values, first, last, out)
        self._reached = last
        return out

    def _room(self, rows: int) -> Tensor:
        return self.values.new_zeros(self.values.shape[0], self.operand.outs, rows, self.values.shape[-1])

    def _with_starts(self, first: int, last: int, near: Tensor, out: Tensor) -> Tensor:
        """Add what the first values bring besides: to the near weights in the first block, to the memories later."""
        assert self._starts is not None, "there are some"
        count = min(self._starts.shape[-1], last)
        some = self._starts[:, :, first:last, :count]
        if first:
            out += torch.matmul(some, self.values[:, None, :count])
            return near
        near = near.clone()
        is_past = torch.arange(last, device=near.device)[:, None] > torch.arange(count, device=near.device)
        near[..., :count] += some * is_past
        return near


def _far(plan: Plan, past: Past, first: int, last: int) -> Tensor:
    return past.far(plan, first, last)


_FORWARD = Work(_far, is_timed=False)
_BACKWARD = Work(_far, direction="backward", is_timed=False)
