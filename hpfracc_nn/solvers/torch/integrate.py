"""One deterministic solve: the mesh, the weights, the plan, the step of each scheme, and the loop over the steps.

A step makes y_n of the memories m, [sets, *shape], or [*shape] where there is one, and of w, the weight of f_n in the
last of them. Its transpose takes the cotangent of y_n apart: into those of the memories, which go to the past, and into
those of every right-hand side that the step has evaluated, which it pulls through f. Its derivative takes those of the
memories to that of y_n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cache import ByteCache, cached_property
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import is_watched
from hpfracc_nn.selection import Plan, Site, Workload
from hpfracc_nn.solvers.explosions import GROWTH, WINDOW, Limits
from hpfracc_nn.solvers.history import Exponentials, History, Kept
from hpfracc_nn.solvers.schemes import BDF2, PredictorCorrector, Rectangle, Scheme, Trapezoid
from hpfracc_nn.solvers.torch.memory import Forward, Matrix, Memory, Operand, Reversed, toeplitz
from hpfracc_nn.solvers.torch.roots import Equation, equation_of, newton_matrix
from hpfracc_nn.solvers.torch.state import Field, Layout, bare, fault, product

_FURTHER = 10.0  # times larger: when a solution that was looked at is looked at again


class Watch:
    """What a solve has grown from, and when it is looked at.

    Args:
        limits: How fast a decay the solve can follow.
        layout: How its states are laid out.
        z0: The state at the start.
    """

    def __init__(self, limits: Limits, layout: Layout, z0: Tensor):
        self.limits, self.layout = limits, layout
        self._start = largest(z0)
        self._bound = max(GROWTH * self._start, torch.finfo(z0.dtype).tiny)

    def is_due(self, size: float) -> bool:
        """Whether a state of that size calls for a look; not where it is no number."""
        return size > self._bound

    def look(
        self,
        n: int,
        size: float,
        states: Sequence[Tensor],
        value: Callable[[int], Tensor],
        most: Callable[[], Tensor] | None = None,
    ) -> None:
        """Raise where the solution explodes.

        Args:
            n: The step.
            size: Of its state.
            states: Those of `WINDOW` steps and of step n; fewer where there are not so many.
            value: Returns the right-hand side at one of the former by its place.
            most: Returns the largest absolute values of the states of all steps; None is of those that are given.

        Raises:
            FloatingPointError: It explodes.
        """
        self._bound = _FURTHER * size
        if n < WINDOW or not self._undoes(n, bare(states[-2]), bare(value(WINDOW - 1))):
            return
        every = [bare(value(k)) for k in range(WINDOW)]
        if any(each.shape != every[0].shape for each in (*map(bare, states), *every)):
            return  # one of them is the same for a batch of vmap
        rows, values = torch.stack([bare(each) for each in states]), torch.stack(every)
        largest_yet = rows.abs().amax(0) if most is None else bare(most())
        for is_exact in (False, True):  # the scheme's own limit takes some time to find
            reach = self._spread(self.limits.reach(n, is_exact), rows)
            found = self.limits.are_exploding(rows, values, reach, self._start, largest_yet)
            if not bool(found.any()):
                return
        last = rows[-1].abs()
        entry = int(torch.where(found, last, torch.zeros_like(last)).argmax())
        rate = float(values[-1].abs().reshape(-1)[entry] / rows[-2].abs().reshape(-1)[entry])
        raise self.limits.error(n, float(last.reshape(-1)[entry]), self._start, rate, self._order(entry, last.shape))

    def _undoes(self, n: int, y: Tensor, f: Tensor) -> bool:
        """Whether f undoes an entry of the state before step n in this step: where it does not, nothing explodes."""
        times = self.limits.times
        longest = max(float(times[n] - times[n - 1]) ** alpha for alpha in self.limits.orders.tolist())
        return y.shape == f.shape and float((torch.add(y, f, alpha=longest) * y).min()) < 0

    def _spread(self, reach: np.ndarray, like: Tensor) -> Tensor:
        """Return a number for each step and order in a shape that broadcasts to that of states."""
        if like.shape[1:] != self.layout.shape:  # a batch of vmap lies in some place
            return torch.from_numpy(reach.min(1)).to(like).view(-1, *[1] * (like.ndim - 1))
        return torch.from_numpy(reach).to(like).view(-1, *self.layout.varying)

    def _order(self, entry: int, shape: torch.Size) -> int:
        """Return which of the orders an entry has; the first where a batch of vmap is in the way."""
        if shape != self.layout.shape:
            return 0
        each = torch.arange(self.layout.orders).view(self.layout.varying)
        return int(each.expand(shape).reshape(-1)[entry])


def largest(z: Tensor) -> float:
    """Return the largest absolute value, NaN where there is one; 0 of a tracer's, which has no numbers."""
    plain = bare(z)
    return 0.0 if is_watched(plain) else float(plain.abs().max())


Weight = float | Tensor  # of f_n at step n: a number, or what broadcasts to a state


class Line(NamedTuple):
    """f at one point, and its derivatives.

    Attributes:
        value: f, [d].
        jacobian: By the state, [d, d].
        slopes: By alpha, which f does not know, and by the numbers in f: [d, 1 + k].
    """

    value: Tensor
    jacobian: Tensor
    slopes: Tensor

    def along(self, s: Tensor) -> Tensor:
        """Return the derivatives of f for a state that has the derivatives s, [d, 1 + k]."""
        return torch.addmm(self.slopes, self.jacobian, s)


class Sweep(Protocol):
    """What a transpose asks of the backward pass."""

    def pull(self, n: int, z: Tensor, g: Tensor) -> Tensor:
        """Return g times the Jacobian of f in y at (t_n, z), and remember both for the parameters."""
        ...

    def through(self, n: int, z: Tensor, value: Tensor, g: Tensor) -> Tensor:
        """The same where f(t_n, z) was evaluated before."""
        ...

    def evaluated(self, n: int, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return z as a leaf and f(t_n, z), which has a graph."""
        ...

    def remember(self, n: int, z: Tensor, g: Tensor) -> None:
        """Let f(t_n, z) bring the parameters what they have of g."""
        ...

    def weight(self, n: int, g: Tensor, value: Tensor) -> None:
        """Let the weight of f_n at step n have <g, value>, where alpha is learned."""
        ...


class Step(Protocol):
    """One scheme's step.

    Attributes:
        needs_memories: Whether the transpose needs the memories again.
    """

    needs_memories: bool

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """Write y_n into `out`, from the memories and the state before."""
        ...

    def backward(self, sweep: Sweep, n: int, y: Tensor, g: Tensor, fg: Tensor | None, w: Weight, m: Tensor) -> Tensor:
        """Return the cotangents of the memories, of the same shape.

        Args:
            sweep: The backward pass.
            n: The step.
            y: y_n.
            g: The loss's own cotangent of y_n.
            fg: That of f_n from later steps, or None where there are none.
            w: The weight of f_n.
            m: The memories, where they are needed.
        """
        ...

    def tangent(self, m: Tensor, w: Weight, own: float, at: Line, guesses: Sequence[Line]) -> Tensor:
        """Return the derivatives of y_n by alpha and by the numbers in f, [d, 1 + k].

        Args:
            m: Those of the memories, [sets, d, 1 + k], or [d, 1 + k] where there is one.
            w: The weight of f_n.
            own: Its derivative by alpha.
            at: f at y_n.
            guesses: f where else the step evaluates it, in that order.
        """
        ...


class ExplicitStep:
    """y_n = m."""

    needs_memories = False

    def __init__(self, scheme: Rectangle, field: Field):
        pass

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """See `Step`."""
        out.copy_(m)

    def backward(self, sweep: Sweep, n: int, y: Tensor, g: Tensor, fg: Tensor | None, w: Weight, m: Tensor) -> Tensor:
        """See `Step`."""
        return g if fg is None else g + sweep.pull(n, y, fg)

    def tangent(self, m: Tensor, w: Weight, own: float, at: Line, guesses: Sequence[Line]) -> Tensor:
        """See `Step`."""
        return m


class CorrectedStep:
    """p = m[0]; as often as it is corrected, p = m[1] + w f(p); y_n = p."""

    needs_memories = True

    def __init__(self, scheme: PredictorCorrector, field: Field):
        self.corrections, self.field = scheme.corrections, field

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """See `Step`."""
        found, history = m.unbind()
        for left in range(self.corrections, 0, -1):
            value, into = self.field(n, found), out if left == 1 else None
            if isinstance(w, Tensor):
                found = torch.addcmul(history, w, value, out=into)
            else:
                found = torch.add(history, value, alpha=w, out=into)

    def backward(self, sweep: Sweep, n: int, y: Tensor, g: Tensor, fg: Tensor | None, w: Weight, m: Tensor) -> Tensor:
        """See `Step`."""
        total = g if fg is None else g + sweep.pull(n, y, fg)
        predicted, history = m.unbind()
        graphs = [sweep.evaluated(n, predicted)]
        for _ in range(self.corrections - 1):
            graphs.append(sweep.evaluated(n, _added(history, w, graphs[-1][1].detach())))
        corrected: Tensor | None = None
        for z, value in reversed(graphs):
            corrected = total if corrected is None else corrected + total
            sweep.weight(n, total, value.detach())
            total = sweep.through(n, z, value, total * w)
        assert corrected is not None, "there is a correction"
        return torch.stack([total, corrected])

    def tangent(self, m: Tensor, w: Weight, own: float, at: Line, guesses: Sequence[Line]) -> Tensor:
        """See `Step`."""
        found, history = m.unbind()
        for line in guesses:
            found = history + w * line.along(found)
            found[:, 0] += own * line.value
        return found


class ImplicitStep:
    """y_n = m + w f(t_n, y_n), solved; the transpose is solved with the transposed Jacobian at the solution."""

    needs_memories = False

    def __init__(self, scheme: Trapezoid | BDF2, field: Field):
        self.field = field
        self.equation: Equation = equation_of(scheme.roots, field)

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """See `Step`."""
        out.copy_(self.equation.root(n, m, w, before))

    def backward(self, sweep: Sweep, n: int, y: Tensor, g: Tensor, fg: Tensor | None, w: Weight, m: Tensor) -> Tensor:
        """See `Step`: (1 - w J') mu = g + J' fg, and f_n has fg + w mu in all."""
        z, value = sweep.evaluated(n, y)
        total = g if fg is None else g + product(value, [z], fg)[0]
        mu = self.equation.transposed(n, z, value, w, total)
        sweep.weight(n, mu, value.detach())
        sweep.remember(n, y, mu * w if fg is None else fg + mu * w)
        return mu

    def tangent(self, m: Tensor, w: Weight, own: float, at: Line, guesses: Sequence[Line]) -> Tensor:
        """See `Step`: (1 - w J) s = m + w q + own f."""
        known = m + w * at.slopes
        known[:, 0] += own * at.value
        return torch.linalg.solve_ex(newton_matrix(at.jacobian, w, at.value), known).result


def _added(history: Tensor, w: Weight, value: Tensor, out: Tensor | None = None) -> Tensor:
    """Return history + w * value."""
    if isinstance(w, Tensor):
        return torch.addcmul(history, w, value, out=out)
    return torch.add(history, value, alpha=w, out=out)


@singledispatch
def step_of(scheme: Scheme, field: Field) -> Step:
    """Return the step of a scheme."""
    raise TypeError(f"{scheme!r} has no step in torch; register one by step_of.register.")


step_of.register(Rectangle, ExplicitStep)
step_of.register(PredictorCorrector, CorrectedStep)
step_of.register(Trapezoid, ImplicitStep)
step_of.register(BDF2, ImplicitStep)


T = TypeVar("T")
_CACHE = ByteCache(1 << 28)
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
        self.layout = self.field.layout
        self.like = self.field.times[0]
        self.kept = self._cached(self._uniform, self.dt, self.history) if self.is_uniform else None
        self.matrix = None if self.is_uniform else self._cached(self._any_mesh, self.times.tobytes())
        self.own_weights = self._diagonal()  # of f_n in the last memory of step n

    def pick(self, needs_gradient: bool) -> Plan:
        """Ask the manager for a plan of both passes."""
        like, layout, states = self.like, self.layout, self._states()
        key = (
            layout.orders,
            layout.width,
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
                rows=layout.orders,
                n=self.n_steps,
                width=layout.width,
                channels=layout.orders,
                exponentials=states,
                needs_gradient=needs_gradient,
                threads=torch.get_num_threads(),
            )

        return self.site.pick((*key, torch.get_num_threads()), describe)

    def past(self, plan: Plan) -> Memory:
        """Return the past of a forward pass."""
        starts = None
        operand: Operand
        if self.kept is None:
            assert self.matrix is not None, "one of the two is there"
            operand = Forward(self.matrix, self.like)
        else:
            operand = toeplitz(self.kept, self.like)
            starts = None if self.kept.starts is None else torch.as_tensor(self.kept.starts).to(self.like)
        return Memory(operand, self.site, plan, "forward", self.layout, self.like, starts)

    def reversed_past(self, plan: Plan) -> Memory:
        """Return that of the adjoint, in which step k is step n_steps - k."""
        operand: Operand
        if self.kept is None:
            assert self.matrix is not None, "one of the two is there"
            operand = Reversed(Forward(self.matrix, self.like))
        else:
            operand = toeplitz(self.kept, self.like, backward=True)
        return Memory(operand, self.site, plan, "backward", self.layout, self.like)

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
            states = self.like.new_empty(self.n_steps + 1, *self.layout.shape)
            weights, last_step, before = self.own_weights, self.n_steps, z0
            watch = self.watch(z0)
            for first in range(0, last_step + 1, past.block):
                end = past.begin(first, self.base(z0, dz0, first, min(first + past.block, last_step + 1)))
                for n, state, room in zip(range(first, end), states[first:end].unbind(), past.slots, strict=True):
                    if n:
                        step.forward(n, past.memory(n), weights[n], before, state)
                    else:
                        state.copy_(z0)
                    if n < last_step:
                        room.copy_(field(n, state))
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
        past.values[:, :, 0] = self.layout.as_matrix(values)
        found = values.new_empty(stop, self.scheme.sets, *self.layout.shape)
        for first in range(0, stop, past.block):
            end = past.begin(first, self.base(z0, dz0, first, min(first + past.block, stop)))
            found[first:end] = past.memories(first, end).transpose(0, 1)
        return found

    def tell(self, plan: Plan, past: Memory) -> None:
        """Give the manager the time that the kernel took, where it wants to know."""
        if past.plan is plan and plan.due(past.direction):
            self.site.manager.record(plan, past.seconds, past.direction)

    def watch(self, z0: Tensor) -> Watch | None:
        """Return what looks after explosions, for schemes that explode."""
        decay = getattr(self.scheme, "stability", None)
        if decay is None:
            return None
        limits = Limits("fdeint", self.scheme.name, decay, self.orders, self.times, self.field.begin)
        return Watch(limits, self.layout, z0)

    def _check(self, first: int, last: int, states: Tensor, past: Memory, watch: Watch | None) -> None:
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

    def _look(self, end: int, size: float, states: Tensor, past: Memory, watch: Watch | None) -> None:
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

    def _cached(self, build: Callable[[], T], *key: Hashable) -> T:
        """Return weights that are kept for later solves, where the orders stay."""
        if not self.is_fixed:
            return build()
        name = _NAMES[self.like.dtype]
        return _CACHE.get((self.scheme, tuple(self.orders.tolist()), self.n_steps, name, *key), build)

    def _uniform(self) -> Kept:
        weights = self.scheme.weights(self.orders, self.n_steps, self.dt, NUMPY)
        return self.history.keep(weights, _NAMES[self.like.dtype], NUMPY)

    def _any_mesh(self) -> Matrix:
        return Matrix(self.scheme, self.orders, self.times)

    def _states(self) -> int:
        """Return the states that can stand for the weights: exponentials and exact lags; 0 where none can."""
        if self.kept is None:
            return 0
        if self.kept.nodes is not None:
            return int(self.kept.nodes.rates.size)
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
        return [self.layout.broadcast(one) for one in each]


_AT_ONCE = 1 << 20  # numbers that are transformed together
_ROWS = 64


def order_gradient(problem: Problem, alpha: Tensor, cotangents: Tensor, values: Tensor, own: Tensor) -> Tensor:
    """Return the gradient in alpha [a], float64: one correlation of cotangents and values, through the formulas.

    Args:
        problem: What was solved.
        alpha: The orders, [a].
        cotangents: Of the memories, [a, n_steps + 1, sets, r].
        values: The right-hand sides, [a, n_steps + 1, r].
        own: Gradients of the weights of f_n at step n, [a, n_steps + 1].
    """
    with torch.enable_grad():
        orders = alpha.detach().double().requires_grad_()
        if problem.kept is None:
            return _of_matrix(problem, orders, cotangents, values, own)
        weights = problem.history.used(
            problem.scheme.weights(orders, problem.n_steps, problem.dt, TORCH), problem.kept.nodes, TORCH
        )
    columns = by_lag(cotangents, values)
    columns[:, -1, 0] = own.double().sum(-1)
    outputs, grads = [weights.columns], [columns]
    if weights.starts is not None:
        starts = _of_starts(cotangents, values, own, weights.starts.shape[-1])
        outputs.append(weights.starts)
        grads.append(starts)
    (found,) = torch.autograd.grad(outputs, orders, grads)
    return found


def by_lag(cotangents: Tensor, values: Tensor) -> Tensor:
    """Return sum over n, r of cotangents[n] values[n - lag], [a, sets, n_steps + 1] in float64; lag 0 is left out."""
    a, n, sets, width = cotangents.shape
    total = torch.zeros(a, sets, n + 1, dtype=torch.complex128, device=values.device)
    part = max(1, _AT_ONCE // (2 * n * sets))
    for begin in range(0, width, part):
        some = slice(begin, begin + part)
        later = torch.fft.rfft(cotangents[..., some].double(), 2 * n, dim=1)
        earlier = torch.fft.rfft(values[..., some].double(), 2 * n, dim=1)
        total += torch.einsum("afcr,afr->acf", later, earlier.conj())
    found = torch.fft.irfft(total, 2 * n)[..., :n]
    found[..., 0] = 0
    return found


def _of_starts(cotangents: Tensor, values: Tensor, own: Tensor, count: int) -> Tensor:
    """Return the gradients of the starts, [a, sets, n_steps + 1, count]."""
    n = cotangents.shape[1]
    found = torch.einsum("ancr,akr->acnk", cotangents.double(), values[:, :count].double())
    found = found * (torch.arange(n, device=found.device)[:, None] > torch.arange(count, device=found.device))
    for k in range(min(count, n)):
        found[:, -1, k, k] += own[:, k]
    return found


def _of_matrix(problem: Problem, orders: Tensor, cotangents: Tensor, values: Tensor, own: Tensor) -> Tensor:
    """The same by blocks of rows of the matrix, whose formulas are traced one block at a time."""
    found = torch.zeros_like(orders)
    steps = torch.arange(problem.n_steps + 1, device=values.device)
    for first in range(1, problem.n_steps + 1, _ROWS):
        last = min(first + _ROWS, problem.n_steps + 1)
        rows = problem.scheme.block(orders, problem.times, range(first, last), range(last), TORCH)
        grads = torch.einsum("ancr,akr->acnk", cotangents[:, first:last].double(), values[:, :last].double())
        grads = grads * (steps[first:last, None] > steps[:last])
        grads[:, -1, steps[: last - first], steps[first:last]] = own[:, first:last].double()
        found = found + torch.autograd.grad(rows, orders, grads)[0]
    return found
