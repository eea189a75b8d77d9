"""The memory of a solve: values go in, weighted sums over the past come out, one step after the other.

A value is what one step adds to the past: the right-hand side f_n, or in the adjoint the cotangents of a step's sums.
Steps are taken in blocks. When a block begins, the plan's kernel adds up, for all steps of the block, the values before
the block; the sum over the block's own values is one small product for each step. So the kernels work on matrices,
whatever the history.

The weights are a matrix, whose rows are steps and whose columns are values, and any rectangle of it can be had.
Forward, one value goes in per step and one sum for each set of weights comes out; in the adjoint, with time reversed,
one value for each set goes in and one sum comes out. Values lie side by side by step, [a, steps * ins, r], so that
both are one matrix product.

Shapes: a orders, r numbers of a state for each order, `ins` values that go in and `outs` sums that come out per step,
rows: steps of a block. The near weights of a block are those of its own values and of the last `overlap` values before
it, which the kernel leaves to them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cache import cached_property, nbytes
from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.selection import Plan, Site, Work, Workload, carried_out
from hpfracc_nn.selection.workload import Direction
from hpfracc_nn.solvers.history import ANY_MESH, Automatic, Exponentials, FFTBlocks, Full, Kept, Window
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.torch.state import NAMES, Layout

_AT_ONCE = 32  # steps whose weights of f_n at step n are computed together
_KEPT = 1 << 26  # bytes that the cached blocks of one matrix may take


class WeightMatrix(Protocol):
    """The matrix of weights of the past: rows are steps, columns are values; any rectangle of it is made on demand.

    Attributes:
        outs: How many sums over the past come out per step.
        ins: How many values go in per step.
        steps: The last step; steps are counted from 0.
    """

    outs: int
    ins: int
    steps: int

    def rectangle(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """Return the weights, in the sums of steps first to last - 1, of the values of steps begin to end - 1.

        Shape [a, outs, rows, columns * ins]; 0 where a value's step is not before the sum's.
        """
        ...


class Toeplitz:
    """An `WeightMatrix` whose weights depend on the lag alone, as on a uniform mesh.

    Args:
        columns: Weights by lag, from 0 on, [a, outs, ins, steps + 1], float64 or the values' dtype; that of lag 0 is
            ignored.
        nodes: Nodes of the sum of exponentials that stands for the weights from lag `nodes.first` on, or None.
        coefficients: Coefficients of the exponentials, [a, outs, ins, q], or None.
        reach: The largest lag whose weight is not 0, or None where all lags may have one.

    Attributes:
        backwards: The weights from the largest lag down to lag 1, then `steps` + 1 zeros, [a, outs, ins, 2 steps + 1].
    """

    def __init__(
        self,
        columns: Tensor,
        nodes: Nodes | None = None,
        coefficients: Tensor | None = None,
        *,
        reach: int | None = None,
    ):
        self.columns, self.nodes, self.coefficients = columns, nodes, coefficients
        self.outs, self.ins = columns.shape[1], columns.shape[2]
        self.steps = columns.shape[-1] - 1
        self.reach = self.steps if reach is None else reach
        self.backwards = torch.cat([columns[..., 1:].flip(-1), columns.new_zeros(columns.shape)], -1).contiguous()

    def rectangle(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """Return the weights of steps first to last - 1 for values begin to end - 1: see `WeightMatrix.rectangle`."""
        return self.upside_down(first, last, begin, end).flip(-2)

    def upside_down(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """Return `rectangle` with its rows in the opposite order, which is a view where one value goes in per step."""
        start = self.steps - last + 1 + begin  # index in `backwards` of the lag from value `begin` to step last - 1
        windows = self.backwards.unfold(-1, end - begin, 1)[..., start : start + last - first, :]
        if self.ins == 1:
            return windows[:, :, 0]
        return windows.permute(0, 1, 3, 4, 2).reshape(windows.shape[0], self.outs, last - first, -1)


class Matrix:
    """A scheme's weights on any mesh, in float64 by NumPy; blocks are cached, up to `_KEPT` bytes.

    Args:
        scheme: The scheme.
        alpha: The orders, [a].
        times: The mesh, as time since the start, [steps + 1].
    """

    def __init__(self, scheme: Scheme, alpha: np.ndarray, times: np.ndarray):
        self.scheme, self.alpha, self.times = scheme, alpha, times
        self._buffer = _KEPT
        self._blocks: dict[tuple[int, int, int, int], np.ndarray] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that this object holds, cached blocks included."""
        return nbytes(vars(self))

    def block(self, first: int, last: int, begin: int, end: int) -> np.ndarray:
        """Return the weights, in the sums of steps first to last - 1, of the values of steps begin to end - 1.

        Shape [a, sets, rows, columns]; 0 where a value's step is not before the sum's.
        """
        key = (first, last, begin, end)
        found = self._blocks.get(key)
        if found is None:
            found = self.scheme.block(self.alpha, self.times, range(first, last), range(begin, end), NUMPY)
            if end > first:
                found = found * (np.arange(first, last)[:, None] > np.arange(begin, end))
            if found.nbytes <= self._buffer:
                self._buffer -= found.nbytes
                self._blocks[key] = found
        return found

    @cached_property
    def diagonal(self) -> np.ndarray:
        """The weights of f_n at step n itself, [a, sets, steps + 1]; 0 at step 0."""
        n = self.times.size
        found = np.zeros((self.alpha.size, self.scheme.sets, n))
        for first in range(1, n, _AT_ONCE):
            some = range(first, min(first + _AT_ONCE, n))
            block = self.scheme.block(self.alpha, self.times, some, some, NUMPY)
            found[..., some.start : some.stop] = np.diagonal(block, axis1=-2, axis2=-1)
        return found


class Forward:
    """The weights of a `Matrix` as the `WeightMatrix` of a forward pass.

    Args:
        matrix: The weights.
        like: A tensor of the values' dtype and device.
    """

    ins = 1

    def __init__(self, matrix: Matrix, like: Tensor):
        self.matrix, self._like = matrix, like
        self.outs, self.steps = matrix.scheme.sets, matrix.times.size - 1

    def rectangle(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """Return the weights of steps first to last - 1 for values begin to end - 1: see `WeightMatrix.rectangle`."""
        return torch.from_numpy(self.matrix.block(first, last, begin, end)).to(self._like)


class Reversed:
    """The `WeightMatrix` of an adjoint: the transpose of a forward one, with time reversed: its step k is step n - k.

    Args:
        forward: The matrix of the forward pass, with n steps.
    """

    outs = 1

    def __init__(self, forward: Forward):
        self.forward, self.ins, self.steps = forward, forward.outs, forward.steps

    def rectangle(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """Return the weights, steps counted backwards, of steps first to last - 1 for values begin to end - 1.

        See `WeightMatrix.rectangle`.
        """
        top = self.steps + 1
        found = self.forward.rectangle(top - end, top - begin, top - last, top - first)  # [a, sets, values, steps]
        turned = found.flip(-1, -2).permute(0, 3, 2, 1)
        return turned.reshape(found.shape[0], 1, last - first, -1)


def toeplitz(kept: Kept, like: Tensor, *, backward: bool = False) -> Toeplitz:
    """Return the weights `kept` by a history as a `Toeplitz` matrix, for the forward pass or, transposed, the adjoint.

    `like` is a tensor of the values' dtype and device.
    """

    def placed(part: object) -> Tensor:
        tensor = torch.as_tensor(part).detach().to(like)
        return tensor[:, None] if backward else tensor[:, :, None]

    c = None if kept.coefficients is None else placed(kept.coefficients)
    return Toeplitz(placed(kept.columns), kept.nodes, c)


class PastSum:
    """How a kernel adds up the past of one solve: its weights, and what the kernel keeps of older values.

    The values of a block's own steps are added up by the code that takes the steps, with the weights that `near`
    returns; `far` adds what is older than `near` reaches. Where the weights are Toeplitz, the near weights of all
    blocks of one length are the same.

    Args:
        matrix: The weights.

    Attributes:
        overlap: The number of values before a block that `near` covers too.
    """

    overlap = 0

    def __init__(self, matrix: WeightMatrix):
        self.matrix = matrix
        self._near: dict[tuple[int, int], Tensor] = {}

    @classmethod
    def prepare(cls, matrix: WeightMatrix, workload: Workload) -> Self:
        """Return a new sum over the past with these weights: a kernel's `prepare`."""
        return cls(matrix)

    def near(self, first: int, last: int) -> Tensor:
        """Return the near weights of the block of steps first to last - 1: those of values from first - overlap on.

        Shape [a, outs, rows, columns * ins], the columns being values max(first - overlap, 0) to last - 1; 0 where a
        value's step is not before the sum's.
        """
        before = min(first, self.overlap)
        if not isinstance(self.matrix, Toeplitz):
            return self.matrix.rectangle(first, last, first - before, last)
        key = (before, last - first)
        found = self._near.get(key)
        if found is None:
            found = self._near[key] = self._rectangle(before, before + last - first).contiguous()
        return found

    def _rectangle(self, before: int, last: int) -> Tensor:
        return self.matrix.rectangle(before, last, 0, last)

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """Add to `out`, the sums of steps first to last - 1, the weighted values before max(first - overlap, 0).

        It is called for one block after the other, from the first on.

        Args:
            values: The values of all steps, of which those before `first` are there, [a, (steps + 1) * ins, r].
            first: The first step of the block.
            last: The step after the block.
            out: The block's sums, [a, outs, rows, r].
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what is far.")


def add_product(weights: Tensor, values: Tensor, out: Tensor) -> None:
    """Add weights [a, outs, rows, k] times values [a, k, r] to out [a, outs, rows, r], which is contiguous."""
    a, outs, rows, k = weights.shape
    torch.baddbmm(
        out.view(a, outs * rows, -1), weights.reshape(a, outs * rows, k), values, out=out.view(a, outs * rows, -1)
    )


# The operation of each history by its name, and the one of meshes whose steps are not equal.
OPS = {each.name: each.op for each in (Automatic, Full, FFTBlocks, Exponentials, Window)} | {"mesh": ANY_MESH}

# (most numbers of a state, steps of a block): every step reads the block's own values from memory once more.
_LENGTHS = ((256, 64), (2048, 32))
_SHORTEST = 16


def block_length(numbers: int) -> int:
    """Return how many steps a block has, for states of `numbers` entries."""
    for most, length in _LENGTHS:
        if numbers <= most:
            return length
    return _SHORTEST


def saves(workload: Workload) -> float:
    """Return the bytes that a solve holds for its backward pass: those of the states, or 0 without a gradient."""
    return float(workload.bytes if workload.needs_gradient else 0)


def run(past_sum: PastSum, values: Tensor, first: int, last: int, out: Tensor) -> None:
    """Add the far past to `out`, the sums of a block: a kernel's `run`; see `PastSum.far`.

    On a transposed matrix the same function is the kernel's adjoint.
    """
    past_sum.far(values, first, last, out)


def picked(
    site: Site,
    layout: Layout,
    like: Tensor,
    n_steps: int,
    states: int,
    needs_gradient: bool,
    direction: Direction = "forward",
) -> Plan:
    """Return the plan that a call site picks for a history: which kernel adds up the past, in both passes.

    Args:
        site: The call site.
        layout: How its states are laid out.
        like: A tensor of the states' dtype and device.
        n_steps: The number of steps of the solve.
        states: How many exponentials, or exact lags, replace the weights by lag; 0 where nothing replaces them.
        needs_gradient: Whether there will be a backward pass.
        direction: The pass that picks the plan; "backward" where no forward pass has picked one.
    """
    threads = torch.get_num_threads()

    def describe() -> Workload:
        return Workload(
            op=site.op,
            framework="torch",
            device=str(like.device),
            dtype=NAMES[like.dtype],
            rows=layout.orders,
            n=n_steps,
            width=layout.width,
            channels=layout.orders,
            exponentials=states,
            needs_gradient=needs_gradient,
            threads=threads,
        )

    key = (layout.orders, layout.width, n_steps, like.dtype, like.device, states, needs_gradient, threads)
    return (site.pick if direction == "forward" else site.pick_backward)(key, describe)


class Memory:
    """The past of one pass: the values of all steps so far, and the plan's kernel, which adds them up.

    Args:
        matrix: The weights.
        site: The call site that picked the plan.
        plan: The plan whose kernel adds up the past, at least at first.
        direction: The pass, "forward" or "backward".
        layout: How values and sums are laid out; outside, each is [*shape].
        like: A tensor of the values' dtype and device.
        starts: What the weights of the first k values have beside those by lag, [a, outs, steps + 1, k], where one
            value goes in per step; or None.
        block: The number of steps of a block; None is what suits the solver of deterministic equations.

    Attributes:
        values: The values of all steps, [a, steps + 1, ins, r].
        views: Views of `values` by step, [steps + 1, *shape], or [steps + 1, ins, *shape] where several go in per step.
        first: The first step of the present block.
        slots: A view of `views` for each step of the present block, into which its value is written.
        seconds: The time that the kernel has taken so far.
    """

    def __init__(
        self,
        matrix: WeightMatrix,
        site: Site,
        plan: Plan,
        direction: Direction,
        layout: Layout,
        like: Tensor,
        starts: Tensor | None = None,
        block: int | None = None,
    ):
        self.matrix, self.site, self.direction, self.layout = matrix, site, direction, layout
        self.plan = self._picked = plan
        self.block = block_length(layout.orders * layout.width) if block is None else block
        self.values = like.new_zeros(layout.orders, matrix.steps + 1, matrix.ins, layout.width)
        views = layout.as_state(self.values)
        self.views = views[:, 0] if matrix.ins == 1 else views
        self.seconds = 0.0
        self._merged = self.values.view(layout.orders, -1, layout.width)
        self._starts = starts
        self._form: PastSum | None = None
        self._reached = 0  # the sum has been shown the blocks before this step; -1 while it runs
        self.first = self._begin = 0  # first step of the present block, first value that its near weights cover
        self.slots: Sequence[Tensor] = ()
        self._far: Sequence[Tensor] = ()
        self._near: Sequence[Tensor] = ()
        self._out = self._weights = like
        self._kept: tuple[Tensor, Sequence[Tensor]] | None = None
        self._own: tuple[Tensor, Tensor] | None = None
        self._is_one = layout.orders == 1
        self._shape = (matrix.outs, *layout.shape) if matrix.outs > 1 else tuple(layout.shape)
        self._work = _FORWARD if direction == "forward" else _BACKWARD

    def tell(self) -> None:
        """Report the kernel's time to the manager if a measurement is due and no fallback has replaced the plan."""
        if self.plan is self._picked and self.plan.due(self.direction):
            self.site.manager.record(self.plan, self.seconds, self.direction)

    def begin(self, first: int, base: Tensor | None = None) -> int:
        """Begin the block of steps that starts at `first`; return the step after its last.

        Args:
            first: The first step, a multiple of `block`. Blocks begin in turn, when all earlier values were put in.
            base: What is added to the sums of the block's steps, [*shape] or [rows, *shape]; None is 0.
        """
        last = self._open(first, base)
        out, near = self._out, self._weights
        self._far = (out[0].transpose(0, 1) if self._is_one else out.transpose(0, 2).transpose(1, 2)).unbind()
        self._near, self.slots = self._rows(near), self.views[first:last].unbind()
        return last

    def _open(self, first: int, base: Tensor | None) -> int:
        """Begin a block: make its sums over the far past and its near weights; return the step after its last.

        `first` is the block's first step, `base` what is added to its sums, [*shape] or [rows, *shape]; None is 0.
        """
        last = min(first + self.block, self.matrix.steps + 1)
        started = time.perf_counter()
        out = carried_out(self._work, self.site, self.plan, self, first, last)
        self.seconds += time.perf_counter() - started
        assert self._form is not None, "a kernel has run"
        if base is not None:
            views = self.layout.as_state(out)
            views += base
        near, before = self._form.near(first, last), min(first, self._form.overlap)
        if self._starts is not None:
            near = self._with_starts(first, last, near, out)
        self.first, self._begin, self._out, self._weights = first, first - before, out, near
        return last

    def opened(self, first: int, base: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Begin a block whose own values the caller adds up; arguments as of `begin`.

        Returns:
            The sums of the block's steps over all values before the block, [outs, rows, *shape], and the weights of the
            block's own values by lag, from 0 on, [rows, outs * ins, *varying] with `varying` of the layout.
        """
        self._open(first, base)
        ins = self.matrix.ins
        before = (first - self._begin) * ins
        if self._own is None or self._own[0] is not self._weights:
            self._own = self._weights, self._by_lag(before)
        out = self._out
        if before:
            out = out + torch.matmul(
                self._weights[..., :before], self._merged[:, None, first * ins - before : first * ins]
            )
        return self.layout.as_state(out), self._own[1]

    def _by_lag(self, before: int) -> Tensor:
        """Return the weights of the block's own values by lag, from 0 on, [rows, outs * ins, *varying].

        `before` is the number of columns of the near weights that belong to values before the block.
        """
        a, outs, rows, _ = self._weights.shape
        own = self._weights[:, :, -1, before:].reshape(a, outs, rows, self.matrix.ins).flip(2)
        return own.permute(2, 1, 3, 0).reshape(rows, outs * self.matrix.ins, *self.layout.varying)

    def put(self, n: int, value: Tensor) -> None:
        """Put in the value of step n, a step of the present block."""
        self.slots[n - self.first].copy_(value)

    def memory(self, n: int) -> Tensor:
        """Return the sums over the past of step n, a step of the present block; all earlier values were put in.

        Shape [*shape], or [outs, *shape] where several sums come out.
        """
        i, begin, ins = n - self.first, self._begin, self.matrix.ins
        k = (n - begin) * ins
        if self._is_one:
            found = torch.addmm(self._far[i], self._near[i], self._merged[0].narrow(0, begin * ins, k))
            return found.view(self._shape)
        found = torch.baddbmm(self._far[i], self._near[i], self._merged.narrow(1, begin * ins, k))
        return self.layout.as_state(found if self.matrix.outs > 1 else found[:, 0])

    def memories(self, first: int, last: int) -> Tensor:
        """Return the sums over the past of all steps of the present block at once, [outs, rows, *shape].

        The values of all of the block's steps were put in before. `first` and `last` are its first step and the step
        after it.
        """
        a, outs, rows, k = self._weights.shape
        ins = self.matrix.ins
        recent = self._merged[:, self._begin * ins : last * ins]
        return self.layout.as_state(
            self._out + torch.bmm(self._weights.reshape(a, outs * rows, k), recent).view(a, outs, rows, -1)
        )

    def adopt(self, plan: Plan) -> None:
        """Go on with the kernel of `plan`, after running it on all earlier blocks, whose values are in `values`."""
        self._form = plan.kernel.prepare(self.matrix, plan.workload)
        self.plan = plan
        for first in range(0, self._reached, self.block):
            plan.kernel.run(self._form, self._merged, first, first + self.block, self._buffer(self.block))

    def far(self, plan: Plan, first: int, last: int) -> Tensor:
        """Return the sums of steps first to last - 1 over the far past, by a plan's kernel, [a, outs, rows, r]."""
        if self._form is None or plan is not self.plan or self._reached != first:  # the last: a run failed halfway
            self._reached = first
            self.adopt(plan)
        kernel = plan.kernel
        kernel.calls["run" if self.direction == "forward" else "adjoint"] += 1
        out = self._buffer(last - first)
        self._reached = -1
        (kernel.run if self.direction == "forward" else kernel.adjoint)(self._form, self._merged, first, last, out)
        self._reached = last
        return out

    def _buffer(self, rows: int) -> Tensor:
        return self.values.new_zeros(self.values.shape[0], self.matrix.outs, rows, self.values.shape[-1])

    def _rows(self, near: Tensor) -> Sequence[Tensor]:
        """Return for each step of the block its row of the near weights, cut to the values before the step.

        `near` are the near weights, [a, outs, rows, columns]. The result is cached, because it is the same in most
        blocks.
        """
        if self._kept is not None and self._kept[0] is near:
            return self._kept[1]
        before, ins = self.first - self._begin, self.matrix.ins
        each = near[0].unbind(1) if self._is_one else near.unbind(2)
        found = [row[..., : (before + i) * ins] for i, row in enumerate(each)]
        self._kept = near, found
        return found

    def _with_starts(self, first: int, last: int, near: Tensor, out: Tensor) -> Tensor:
        """Add the `starts` of the first values for steps `first` to last - 1, and return the near weights.

        In the first block the starts are added to a copy of the near weights `near`, in later blocks, times the values,
        to the block's sums `out`, [a, outs, rows, r].
        """
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


def _far(plan: Plan, past: Memory, first: int, last: int) -> Tensor:
    return past.far(plan, first, last)


_FORWARD = Work(_far, is_timed=False)
_BACKWARD = Work(_far, direction="backward", is_timed=False)


class OwnSums:
    """The sums over the past x_i of the steps i of one block, made as its steps are taken.

    x_i = rows[i] + sum over j < i of w_(i-j) Z_j, Z_j the value of the block's step j, and rows[i] the sum over all
    values before the block.
    """

    _rows: Any  # the sums over all values before the block, and of the block's values so far in `TrackedSums`

    @property
    def first(self) -> Tensor:
        """x_0, the sum of the block's first step, [*shape]."""
        found: Tensor = self._rows[0]
        return found

    def room(self, i: int) -> Tensor | None:
        """Return a buffer into which Z_i may be written before it is passed to `following`, or None."""
        return None

    def following(self, i: int, value: Tensor, before: Tensor) -> Tensor:
        """Take Z_i, [*shape] or [sets, *shape], as `value`, and x_i as `before`; return x_(i+1), [*shape].

        It is called for i = 0, 1, ... in turn.
        """
        raise NotImplementedError(f"{type(self).__name__} adds nothing up.")


class TrackedSums(OwnSums):
    """The `OwnSums` for every kind of derivative, in plain torch: each Z is added to all rows that follow.

    Args:
        rows: The sums over all values before the block, [steps, *shape].
        weights: The weights by lag, from 0 on, [steps, sets, *varying], which broadcast to rows.
    """

    def __init__(self, rows: Tensor, weights: Tensor):
        self._rows, self._weights = rows, weights

    def following(self, i: int, value: Tensor, before: Tensor) -> Tensor:
        """Add Z_i, `value`, to the sums of all later steps of the block; return x_(i+1): see `OwnSums.following`."""
        rows = self._rows[1:]
        for k, part in enumerate(value.unbind() if self._weights.shape[1] > 1 else (value,)):
            rows = torch.addcmul(rows, self._weights[1 : 1 + rows.shape[0], k], part)
        self._rows = rows
        return rows[0]


class BufferedSums(OwnSums):
    """The `OwnSums` without a graph: the values lie in one buffer, and each sum over them is one product.

    An object is made once for all blocks of one length, of which one is in use at a time.

    Args:
        rows: The sums over all values before the block, [steps, *shape].
        weights: The weights by lag, from 0 on, [steps, sets, *varying].
    """

    def __init__(self, rows: Tensor, weights: Tensor):
        count, sets = weights.shape[:2]
        self._shape = rows.shape[1:]
        self._is_one = weights[0, 0].numel() == 1
        values, each = rows.new_empty(sets, count, *self._shape), _by_set(weights, self._is_one)
        self._slots = values.unbind(1) if sets > 1 else values[0].unbind()
        # For each i: Z_0 to Z_i, and the weights of lags i + 1 to 1, which make x_(i+1).
        up, steps = each.flip(1), range(count - 1)
        self._past = [
            [(_sides(values[k, : i + 1], self._is_one), up[k, count - 2 - i : -1]) for k in range(sets)] for i in steps
        ]
        self.begin(rows)

    def begin(self, rows: Tensor) -> None:
        """Begin the next block, with its sums `rows` over all values before it, [steps, *shape]."""
        self._rows = (rows.reshape(rows.shape[0], -1) if self._is_one else rows).unbind()

    @property
    def first(self) -> Tensor:
        """x_0, the sum of the block's first step, [*shape]."""
        return self._rows[0].view(self._shape)

    def room(self, i: int) -> Tensor | None:
        """Return the part of the buffer for Z_i, into which the value may be written."""
        return self._slots[i]

    def following(self, i: int, value: Tensor, before: Tensor) -> Tensor:
        """Write Z_i, `value`, into the buffer if it is not there, and return x_(i+1): see `OwnSums.following`."""
        if value is not self._slots[i]:
            self._slots[i].copy_(value)
        row = self._rows[i + 1]
        for values, weights in self._past[i]:
            row = torch.addmv(row, values, weights) if self._is_one else row + (weights * values).sum(0)
        return row.view(self._shape)


class KnownSums(OwnSums):
    """The `OwnSums` of a replay with a graph, where all x_i are known: forward returns them, backward is one product.

    An object is made once for all blocks of one length, of which one is in use at a time.

    Args:
        rows: The sums x_i themselves, [steps, *shape]; a leaf, whose gradient becomes their cotangents.
        weights: The weights by lag, from 0 on, [steps, sets, *varying]; no gradient is taken of them.
    """

    def __init__(self, rows: Tensor, weights: Tensor):
        count, sets = weights.shape[:2]
        self._shape = rows.shape[1:]
        self._is_one = weights[0, 0].numel() == 1
        cotangents, each = torch.empty_like(rows), _by_set(weights, self._is_one)
        self._slots = cotangents.unbind()
        # For each i: the cotangents of x_(i+1) and later sums, and the weights of lags from 1 on, which make Z_i's.
        self._later = [
            [(_sides(cotangents[i + 1 :], self._is_one), each[k, 1 : count - i]) for k in range(sets)]
            for i in range(count - 1)
        ]
        self.begin(rows)

    def begin(self, rows: Tensor) -> None:
        """Begin the next block, with its known sums `rows`, [steps, *shape]."""
        self._rows, self._known = rows.unbind(), rows.detach().unbind()

    def following(self, i: int, value: Tensor, before: Tensor) -> Tensor:
        """Return the known sum x_(i+1), as a function of Z_i, `value`, in the graph: see `OwnSums.following`.

        It also depends on x_i, `before`, so that cotangents come in turn. Nothing of the graph is kept here: nodes of
        the graph hold this object, and such a cycle is never freed.
        """
        found: Tensor = _Following.apply(self, i, value, before, self._rows[i + 1])
        return found

    def known(self, i: int) -> Tensor:
        """Return the known sum x_i, without a graph."""
        return self._known[i]

    def pulled(self, i: int, g: Tensor) -> Tensor:
        """Return Z_i's cotangent from all later sums, given the cotangent g of x_(i+1).

        The cotangents of the sums after x_(i+1) were passed to this method before.
        """
        self._slots[i + 1].copy_(g)
        if self._is_one:
            found = [torch.mv(values, weights).view(self._shape) for values, weights in self._later[i]]
        else:
            found = [(weights * values).sum(0) for values, weights in self._later[i]]
        return found[0] if len(found) == 1 else torch.stack(found)


def _by_set(weights: Tensor, is_one: bool) -> Tensor:
    each = weights.transpose(0, 1)
    return each.reshape(each.shape[:2]) if is_one else each


def _sides(x: Tensor, is_one: bool) -> Tensor:
    return x.view(x.shape[0], -1).T if is_one else x


class _Following(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: KnownSums, i: int, value: Tensor, before: Tensor, row: Tensor) -> Tensor:
        ctx.given = sums, i
        return sums.known(i + 1).detach()  # autograd writes this node on what is returned

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sums, i = ctx.given
        (g,) = grads
        return None, None, sums.pulled(i, g), None, g
