"""One solve: the mesh, the weights, the plan, and the loop over the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cache import Charge, Shelf, cached_property, free
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.selection import Plan, Site, Workload
from hpfracc_nn.solvers.explosions import WINDOW, Limits
from hpfracc_nn.solvers.history import Exponentials, History, Kept
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.torch.explosions import Watch, largest
from hpfracc_nn.solvers.torch.faults import fault
from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.operand import Forward, Matrix, Operand, Reversed, toeplitz
from hpfracc_nn.solvers.torch.past import Past
from hpfracc_nn.solvers.torch.steps import Weight, step_of

T = TypeVar("T")
_SHELF = Shelf(1 << 28)  # bytes of all weights that are kept
_NAMES = {torch.float32: "float32", torch.float64: "float64"}

Progress = Callable[[int, int], None]


@dataclass(eq=False)
class Problem:
    """What a solve needs beside the tensors that gradients are wanted of.

    Attributes:
        field: The right-hand side.
        scheme: How steps are taken.
        history: How the past is kept.
        site: Where plans come from.
        orders: alpha's values, [a].
        times: The mesh, as time since the start, [n_steps + 1].
        is_uniform: Whether its steps are equal.
        is_fixed: Whether the orders stay, so that other solves use the same weights.
        progress: Called as progress(steps done, steps in all) now and then, or None.
    """

    field: Field
    scheme: Scheme
    history: History
    site: Site
    orders: np.ndarray
    times: np.ndarray
    is_uniform: bool
    is_fixed: bool
    progress: Progress | None

    def __post_init__(self) -> None:
        self.n_steps = self.times.size - 1
        self.dt = float(self.times[-1] - self.times[0]) / self.n_steps
        self.packing = self.field.packing
        self.like = self.field.times[0]
        self.kept = self._shelved(self._uniform, self.dt, self.history) if self.is_uniform else None
        self.matrix = None if self.is_uniform else self._shelved(self._any_mesh, self.times.tobytes())
        self.own_weights = self._diagonal()  # of f_n in the last memory of step n

    def pick(self, needs_gradient: bool) -> Plan:
        """Ask the manager for a plan of both passes."""
        like, packing, states = self.like, self.packing, self._states()
        key = (
            packing.orders,
            packing.width,
            self.n_steps,
            like.dtype,
            like.device,
            states,
            needs_gradient,
            self.is_uniform,
        )

        def describe() -> Workload:
            return Workload(
                op=self.site.op,
                framework="torch",
                device=str(like.device),
                dtype=_NAMES[like.dtype],
                rows=packing.orders,
                n=self.n_steps,
                width=packing.width,
                channels=packing.orders,
                exponentials=states,
                needs_gradient=needs_gradient,
                threads=torch.get_num_threads(),
            )

        return self.site.pick((*key, torch.get_num_threads()), describe)

    def past(self, plan: Plan) -> Past:
        """Return the past of a forward pass."""
        starts = None
        operand: Operand
        if self.kept is None:
            assert self.matrix is not None, "one of the two is there"
            operand = Forward(self.matrix, self.like)
        else:
            operand = toeplitz(self.kept, self.like)
            starts = None if self.kept.starts is None else torch.as_tensor(self.kept.starts).to(self.like)
        return Past(operand, self.site, plan, "forward", self.packing, self.like, starts)

    def reversed_past(self, plan: Plan) -> Past:
        """Return that of the adjoint, in which step k is step n_steps - k."""
        operand: Operand
        if self.kept is None:
            assert self.matrix is not None, "one of the two is there"
            operand = Reversed(Forward(self.matrix, self.like))
        else:
            operand = toeplitz(self.kept, self.like, backward=True)
        return Past(operand, self.site, plan, "backward", self.packing, self.like)

    @cached_property
    def elapsed(self) -> Tensor:
        """The time since the start at every step, [n_steps + 1]: in the states' dtype that of a late start is not."""
        return torch.from_numpy(self.times).to(self.like)

    def base(self, z0: Tensor, dz0: Tensor | None, first: int, last: int) -> Tensor:
        """Return the Taylor polynomial at steps first to last - 1, [rows, *shape]; [*shape] where it is constant."""
        if dz0 is None:
            return z0
        return z0 + self.elapsed[first:last].view(-1, *[1] * z0.ndim) * dz0

    def solve(self, plan: Plan, z0: Tensor, dz0: Tensor | None) -> Tensor:
        """Return the states at all steps, [n_steps + 1, *shape]; without a graph.

        Raises:
            FloatingPointError: A state or a right-hand side is not finite, or the solution explodes.
        """
        with torch.no_grad():
            past, step, field = self.past(plan), step_of(self.scheme, self.field), self.field
            states = self.like.new_empty(self.n_steps + 1, *self.packing.shape)
            weights, last_step, before = self.own_weights, self.n_steps, z0
            watch = self.watch(z0)
            for first in range(0, last_step + 1, past.block):
                end = past.begin(first, self.base(z0, dz0, first, min(first + past.block, last_step + 1)))
                for n, state in zip(range(first, end), states[first:end].unbind(), strict=True):
                    if n:
                        step.forward(n, past.memory(n), weights[n], before, state)
                    else:
                        state.copy_(z0)
                    if n < last_step:
                        past.put(n, field(n, state))
                    before = state
                self._check(first, end, states, past, watch)
                if self.progress is not None:
                    self.progress(end - 1, last_step)
        self.tell(plan, past)
        return states

    def memories(self, plan: Plan, z0: Tensor, dz0: Tensor | None, values: Tensor) -> Tensor:
        """Return the memories of all steps, [n_steps + 1, sets, *shape], of right-hand sides that are known.

        Args:
            plan: Whose kernel adds them up.
            z0: The state at the start, [*shape].
            dz0: Its derivative, or None.
            values: The right-hand sides, [n_steps + 1, *shape].
        """
        past, stop = self.past(plan), self.n_steps + 1
        past.values[:, :, 0] = self.packing.matrix(values)
        found = values.new_empty(stop, self.scheme.sets, *self.packing.shape)
        for first in range(0, stop, past.block):
            end = past.begin(first, self.base(z0, dz0, first, min(first + past.block, stop)))
            found[first:end] = past.memories(first, end).transpose(0, 1)
        return found

    def tell(self, plan: Plan, past: Past) -> None:
        """Give the manager the time that the kernel took, where it wants to know."""
        if past.plan is plan and plan.due(past.direction):
            self.site.manager.record(plan, past.seconds, past.direction)

    def watch(self, z0: Tensor) -> Watch | None:
        """Return what looks after explosions, for schemes that explode."""
        decay = getattr(self.scheme, "stability", None)
        if decay is None:
            return None
        limits = Limits("fdeint", self.scheme.name, decay, self.orders, self.times, self.field.begin)
        return Watch(limits, self.packing, z0)

    def _check(self, first: int, last: int, states: Tensor, past: Past, watch: Watch | None) -> None:
        """Raise where a state or a right-hand side of the block is not finite, or the solution explodes: one look for
        all its steps.
        """
        end = min(last, self.n_steps)
        sums = states[first:last].sum() + past.values[:, first:end].sum()
        size = float(states[last - 1].abs().max() + 0 * sums)  # not a number where something is not finite
        if size < math.inf:
            self._look(last, size, states, past, watch)
            return
        for n in range(first, last):
            if not bool(torch.isfinite(states[n]).all()):
                self._look(n, largest(states[n - 1]), states, past, watch)
                raise fault(self.field, n, states[max(n - 1, 0)])
            if n < self.n_steps and not bool(torch.isfinite(past.views[n]).all()):
                raise fault(self.field, n, states[n])

    def _look(self, end: int, size: float, states: Tensor, past: Past, watch: Watch | None) -> None:
        """Raise where the solution explodes up to the step before `end`, whose state has this size."""
        if watch is None or not watch.is_due(size):
            return
        begin, known = max(0, end - 1 - WINDOW), states[:end]
        watch.look(
            end - 1,
            size,
            states[begin:end].unbind(),
            lambda k: past.views[begin + k],
            lambda: torch.maximum(known.amax(0), -known.amin(0)),
        )

    def _shelved(self, build: Callable[[Charge], T], *key: Hashable) -> T:
        """Return weights that are kept for later solves, where the orders stay."""
        if not self.is_fixed:
            return build(free)
        name = _NAMES[self.like.dtype]
        return _SHELF.get((self.scheme, tuple(self.orders.tolist()), self.n_steps, name, *key), build)

    def _uniform(self, charge: Charge) -> Kept:
        weights = self.scheme.weights(self.orders, self.n_steps, self.dt, NUMPY)
        kept = self.history.keep(weights, _NAMES[self.like.dtype], NUMPY)
        for each in (kept.columns, kept.starts, kept.coefficients):
            if each is not None:
                charge(each)
        return kept

    def _any_mesh(self, charge: Charge) -> Matrix:
        return Matrix(self.scheme, self.orders, self.times, charge)

    def _states(self) -> int:
        """Return the states that can stand for the weights: exponentials and exact lags; 0 where none can."""
        if self.kept is None:
            return 0
        if self.kept.nodes is not None:
            return self.kept.nodes.states
        return self.n_steps if isinstance(self.history, Exponentials) else 0

    def _diagonal(self) -> list[Weight]:
        if self.kept is None:
            assert self.matrix is not None, "one of the two is there"
            found = self.matrix.diagonal[:, -1]
        else:
            columns, starts = np.asarray(self.kept.columns), self.kept.starts
            found = np.repeat(columns[:, -1, :1], self.n_steps + 1, axis=1)
            if starts is not None:
                for k in range(min(starts.shape[-1], self.n_steps + 1)):
                    found[:, k] += np.asarray(starts)[:, -1, k, k]
        if found.shape[0] == 1:
            return found[0].tolist()
        each = torch.from_numpy(found.T.copy()).to(self.like).unbind()
        return [self.packing.spread(one) for one in each]
