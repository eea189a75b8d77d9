"""One deterministic solve: the mesh, the weights, the plan, the step of each scheme, and the loop over the steps.

A step makes y_n of the memories m, the weighted sums over the past, [sets, *shape], or [*shape] where there is one set,
and of w, the weight of f_n in the last set. `forward` does so without a graph; `replay` does so once more with a graph,
where y_n is known.

Shapes: [*shape] a state, a orders alpha, r numbers of a state for each order, sets of weights of the scheme
(`schemes`). The starting weights of f_k are what its weight at each step has beside the weight by lag.

In the gradient of alpha, `cotangents` are those of the memories, [a, n_steps + 1, sets, r], `values` the right-hand
sides, [a, n_steps + 1, r], and `own` the gradients of the weights of f_n in step n, [a, n_steps + 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cache import ByteCache, cached_property
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import is_watched
from hpfracc_nn.selection import Plan, Site
from hpfracc_nn.solvers.explosions import GROWTH, WINDOW, Limits
from hpfracc_nn.solvers.history import Exponentials, History, Kept
from hpfracc_nn.solvers.schemes import BDF2, PredictorCorrector, Rectangle, Scheme, Trapezoid
from hpfracc_nn.solvers.torch.memory import Forward, Matrix, Memory, Reversed, WeightMatrix, picked, toeplitz
from hpfracc_nn.solvers.torch.roots import Equation, equation_of, solved_by
from hpfracc_nn.solvers.torch.state import NAMES, Field, Layout, Signature, bare, evaluated, fault

_FURTHER = 10.0  # a solution that was tested for an explosion is tested again when it is so many times larger


class Watch:
    """The test of a solve for explosions, made whenever a state is much larger than at the last test.

    Args:
        limits: The stability limits of the scheme.
        layout: How the states are laid out.
        z0: The state at the start.
    """

    def __init__(self, limits: Limits, layout: Layout, z0: Tensor):
        self.limits, self.layout = limits, layout
        self._start = largest(z0)
        self._bound = max(GROWTH * self._start, torch.finfo(z0.dtype).tiny)

    def is_due(self, size: float) -> bool:
        """Return whether a state whose largest absolute value is `size` calls for a test; False where it is NaN."""
        return size > self._bound

    def look(
        self,
        n: int,
        size: float,
        states: Sequence[Tensor],
        value: Callable[[int], Tensor],
        most: Callable[[], Tensor] | None = None,
    ) -> None:
        """Raise FloatingPointError where the solution explodes at step n.

        Args:
            n: Index of the step.
            size: The largest absolute value of the state of step n.
            states: The states of the last `WINDOW` steps before step n and of step n; fewer near the start.
            value: Returns the right-hand side at states[k] for k below `WINDOW`.
            most: Returns the largest absolute value of each entry over the states of all steps, [*shape]; None takes it
                over `states`.

        Raises:
            FloatingPointError: The solution explodes.
        """
        self._bound = _FURTHER * size
        if n < WINDOW or not self._undoes(n, bare(states[-2]), bare(value(WINDOW - 1))):
            return
        every = [bare(value(k)) for k in range(WINDOW)]
        if any(each.shape != every[0].shape for each in (*map(bare, states), *every)):
            return  # under vmap some have a batch axis and others not
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
        """Return whether y + dt**alpha f has an entry of the sign opposite to y's, f the right-hand side at y.

        dt is the length of step n, and dt**alpha the largest over the orders. Where there is no such entry, nothing
        explodes.
        """
        times = self.limits.times
        longest = max(float(times[n] - times[n - 1]) ** alpha for alpha in self.limits.orders.tolist())
        return y.shape == f.shape and float((torch.add(y, f, alpha=longest) * y).min()) < 0

    def _spread(self, reach: np.ndarray, like: Tensor) -> Tensor:
        """Return `reach`, one number for each step and order [steps, a], in a shape that broadcasts to states `like`.

        The states are [steps, *shape]. Where they have a batch axis of vmap besides, the result has the least number
        over the orders.
        """
        if like.shape[1:] != self.layout.shape:  # a batch of vmap lies in some place
            return torch.from_numpy(reach.min(1)).to(like).view(-1, *[1] * (like.ndim - 1))
        return torch.from_numpy(reach).to(like).view(-1, *self.layout.varying)

    def _order(self, entry: int, shape: torch.Size) -> int:
        """Return the index of the order that an entry of a state has; 0 where the state has an axis of vmap.

        `entry` is the index in the flattened state, `shape` the state's.
        """
        if shape != self.layout.shape:
            return 0
        each = torch.arange(self.layout.orders).view(self.layout.varying)
        return int(each.expand(shape).reshape(-1)[entry])


def largest(z: Tensor) -> float:
    """Return the largest absolute value in z, NaN if a number is NaN; 0 for a tracer's tensor, which has no numbers."""
    plain = bare(z)
    return 0.0 if is_watched(plain) else float(plain.abs().max())


Weight = float | Tensor  # the weight of f_n at step n: a number, or a tensor that broadcasts to a state


class Step(Protocol):
    """The step of one scheme: from the memories m and the weight w of f_n to the state y_n.

    Attributes:
        leaves: Leaf tensors that `replay` has created in its graphs.
    """

    leaves: list[Tensor]

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """Write y_n into `out`, from the memories m, the weight w and the state `before` of the step before."""
        ...

    def replay(self, n: int, m: Tensor, w: Weight, y: Tensor, is_last: bool) -> tuple[Tensor, Tensor | None]:
        """Return y_n and f(t_n, y_n) with graphs from the memories and w; explicit steps return None for an unused f.

        Args:
            n: Index of the step.
            m: The memories.
            w: The weight of f_n, a tensor where its gradient is wanted.
            y: The known value of y_n, without a graph.
            is_last: Whether step n is the last, whose f is not used.
        """
        ...


class ExplicitStep:
    """The step of the rectangle rule: y_n = m."""

    def __init__(self, scheme: Rectangle, field: Field):
        self.field = field
        self.leaves: list[Tensor] = []

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """Write y_n = m into `out`: see `Step.forward`."""
        out.copy_(m)

    def replay(self, n: int, m: Tensor, w: Weight, y: Tensor, is_last: bool) -> tuple[Tensor, Tensor | None]:
        """Return y_n = m and f(t_n, m), or None for an unused f: see `Step.replay`."""
        return m, None if is_last else self.field(n, m)


class CorrectedStep:
    """The step of `PredictorCorrector`: p = m[0]; for each correction p = m[1] + w f(t_n, p); y_n = p."""

    def __init__(self, scheme: PredictorCorrector, field: Field):
        self.corrections, self.field = scheme.corrections, field
        self.leaves: list[Tensor] = []

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """Predict y_n, correct it, and write it into `out`: see `Step.forward`."""
        found, history = m.unbind()
        for left in range(self.corrections, 0, -1):
            value, into = self.field(n, found), out if left == 1 else None
            if isinstance(w, Tensor):
                found = torch.addcmul(history, w, value, out=into)
            else:
                found = torch.add(history, value, alpha=w, out=into)

    def replay(self, n: int, m: Tensor, w: Weight, y: Tensor, is_last: bool) -> tuple[Tensor, Tensor | None]:
        """Return y_n, predicted and corrected with a graph, and f there, or None for an unused f: see `Step.replay`."""
        found, history = m.unbind()
        for _ in range(self.corrections):
            found = _added(history, w, self.field(n, found))
        return found, None if is_last else self.field(n, found)


class ImplicitStep:
    """The step of an implicit scheme: y_n solves y_n = m + w f(t_n, y_n).

    Backwards the transposed linear equation is solved, with the Jacobian at the solution.
    """

    def __init__(self, scheme: Trapezoid | BDF2, field: Field):
        self.field = field
        self.leaves: list[Tensor] = []
        self.equation: Equation = equation_of(scheme.roots, field)

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """Solve the equation of step n from the state `before`, and write y_n into `out`: see `Step.forward`."""
        out.copy_(self.equation.root(n, m, w, before))

    def replay(self, n: int, m: Tensor, w: Weight, y: Tensor, is_last: bool) -> tuple[Tensor, Tensor | None]:
        """Return y_n and f(t_n, y_n) with the gradients of the implicit function theorem: see `Step.replay`.

        Backwards, with cotangents g of y_n and fg of f_n, mu solves (1 - w J') mu = g + J' fg, J the Jacobian of f at
        y_n. The cotangent of m is mu, and that of f_n in all is fg + w mu.
        """
        z, value = evaluated(self.field, n, y)
        self.leaves.append(z)
        return solved_by(self.equation, n, w, z, value, m)


def _added(history: Tensor, w: Weight, value: Tensor) -> Tensor:
    """Return history + w * value."""
    return torch.addcmul(history, w, value) if isinstance(w, Tensor) else torch.add(history, value, alpha=w)


@singledispatch
def step_of(scheme: Scheme, field: Field) -> Step:
    """Return the `Step` of a scheme for a right-hand side; raise TypeError for a scheme that has none."""
    raise TypeError(f"{scheme!r} has no step in torch; register one by step_of.register.")


step_of.register(Rectangle, ExplicitStep)
step_of.register(PredictorCorrector, CorrectedStep)
step_of.register(Trapezoid, ImplicitStep)
step_of.register(BDF2, ImplicitStep)


T = TypeVar("T")
_CACHE = ByteCache(1 << 28)

Progress = Callable[[int, int], None]


@dataclass(eq=False)
class Problem:
    """A deterministic solve: all that it needs beside the tensors whose gradients are wanted.

    Attributes:
        field: The right-hand side.
        scheme: How steps are taken.
        history: How the past is kept.
        site: The call site that picks the plans, which are kernels of the history.
        orders: alpha's values, [a].
        times: The mesh, as time since the start, [n_steps + 1].
        is_uniform: Whether the steps of the mesh are equal.
        is_fixed: Whether no gradient in the orders is wanted, so that the weights are cached for other solves.
        progress: Called as progress(steps done, steps in all) after each block of steps, or None.
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
        self.own_weights = self._diagonal()  # for each step n, the weight of f_n in the last memory

    def pick(self, needs_gradient: bool) -> Plan:
        """Return the plan that the call site picks for this solve: which kernel adds up the past, in both passes."""
        return picked(self.site, self.layout, self.like, self.n_steps, self._states(), needs_gradient)

    def past(self, plan: Plan) -> Memory:
        """Return the empty memory of a forward pass, whose past the plan's kernel adds up."""
        starts = None
        matrix: WeightMatrix
        if self.kept is None:
            assert self.matrix is not None, "one of the two is there"
            matrix = Forward(self.matrix, self.like)
        else:
            matrix = toeplitz(self.kept, self.like)
            starts = None if self.kept.starts is None else torch.as_tensor(self.kept.starts).to(self.like)
        return Memory(matrix, self.site, plan, "forward", self.layout, self.like, starts)

    def reversed_past(self, plan: Plan) -> Memory:
        """Return the empty memory of the adjoint, in which time is reversed: its step k is step n_steps - k."""
        matrix: WeightMatrix
        if self.kept is None:
            assert self.matrix is not None, "one of the two is there"
            matrix = Reversed(Forward(self.matrix, self.like))
        else:
            matrix = toeplitz(self.kept, self.like, backward=True)
        return Memory(matrix, self.site, plan, "backward", self.layout, self.like)

    @cached_property
    def elapsed(self) -> Tensor:
        """The time since the start at every step, [n_steps + 1], in the states' dtype.

        It is exact to rounding, which the difference of two late times in that dtype is not.
        """
        return torch.from_numpy(self.times).to(self.like)

    def base(self, z0: Tensor, dz0: Tensor | None, first: int, last: int) -> Tensor:
        """Return the Taylor polynomial at steps first to last - 1, [rows, *shape]; [*shape] where it is constant."""
        if dz0 is None:
            return z0
        return z0 + self.elapsed[first:last].view(-1, *[1] * z0.ndim) * dz0

    def solve(
        self, plan: Plan, z0: Tensor, dz0: Tensor | None, sums: Tensor | None = None, signatures: Tensor | None = None
    ) -> Tensor:
        """Return the states at all steps, [n_steps + 1, *shape]; without a graph.

        Args:
            plan: The plan whose kernel adds up the past.
            z0: The state at the start, [*shape].
            dz0: The derivative at the start, [*shape], or None.
            sums: A buffer for the memories of all steps, [n_steps + 1, sets, *shape], or None.
            signatures: A buffer for the `Signature` of each right-hand side and, at the last step, of the state,
                [2, n_steps + 1]; or None.

        Raises:
            FloatingPointError: A state or a right-hand side is not finite, or the solution explodes.
        """
        with torch.no_grad():
            past, step, field = self.past(plan), step_of(self.scheme, self.field), self.field
            states = self.like.new_empty(self.n_steps + 1, *self.layout.shape)
            weights, last_step, before = self.own_weights, self.n_steps, z0
            watch, kept = self.watch(z0), None if sums is None else sums.unbind()
            signature = None if signatures is None else Signature()
            for first in range(0, last_step + 1, past.block):
                end = past.begin(first, self.base(z0, dz0, first, min(first + past.block, last_step + 1)))
                for n, state, room in zip(range(first, end), states[first:end].unbind(), past.slots, strict=True):
                    if n:
                        m = past.memory(n)
                        step.forward(n, m, weights[n], before, state)
                        if kept is not None:
                            kept[n].copy_(m)
                    else:
                        state.copy_(z0)
                    if n < last_step:
                        room.copy_(field(n, state))
                    before = state
                self._check(first, end, states, past, watch)
                if signatures is not None and signature is not None:
                    signatures[:, first:end] = signature(past.views[first:end])
                    if end > last_step:
                        signatures[:, last_step:] = signature(states[last_step:])
                if self.progress is not None:
                    self.progress(end - 1, last_step)
        past.tell()
        return states

    def watch(self, z0: Tensor) -> Watch | None:
        """Return the test of a solve from z0 for explosions, or None for a scheme without a stability limit."""
        decay = getattr(self.scheme, "stability", None)
        if decay is None:
            return None
        limits = Limits("fdeint", self.scheme.name, decay, self.orders, self.times, self.field.begin)
        return Watch(limits, self.layout, z0)

    def _check(self, first: int, last: int, states: Tensor, past: Memory, watch: Watch | None) -> None:
        """Raise where a state or right-hand side of steps `first` to last - 1 is not finite, or the solution explodes.

        One number tests all steps, so that it takes one transfer from the device.
        """
        end = min(last, self.n_steps)
        sums = states[first:last].sum() + past.values[:, first:end].sum()
        size = float(states[last - 1].abs().max() + 0 * sums)  # NaN where a number is not finite
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
        """Raise FloatingPointError where the solution explodes at step end - 1.

        `states` are the states of all steps, `past` holds the right-hand sides, `size` is the largest absolute value of
        the state of step end - 1.
        """
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
        """Return `build()`, from a cache that solves with the same scheme, orders, number of steps and `key` share.

        Where a gradient in the orders is wanted, nothing is cached.
        """
        if not self.is_fixed:
            return build()
        name = NAMES[self.like.dtype]
        return _CACHE.get((self.scheme, tuple(self.orders.tolist()), self.n_steps, name, *key), build)

    def _uniform(self) -> Kept:
        weights = self.scheme.weights(self.orders, self.n_steps, self.dt, NUMPY)
        return self.history.keep(weights, NAMES[self.like.dtype], NUMPY)

    def _any_mesh(self) -> Matrix:
        return Matrix(self.scheme, self.orders, self.times)

    def _states(self) -> int:
        """Return how many exponentials replace the weights by lag, or how many exact lags the history keeps instead.

        The result is 0 for a history that keeps the weights by lag and has no exponentials.
        """
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


_AT_ONCE = 1 << 20  # numbers that are Fourier transformed together
_ROWS = 64  # rows of the matrix of weights whose formulas are traced together


def order_gradient(problem: Problem, alpha: Tensor, cotangents: Tensor, values: Tensor, own: Tensor) -> Tensor:
    """Return the loss's gradient in alpha, [a] in float64, through the formulas of the weights.

    The gradients in the weights are correlations of the memories' cotangents with the right-hand sides.

    Args:
        problem: The solve.
        alpha: The orders, [a].
        cotangents: The cotangents of the memories, [a, n_steps + 1, sets, r].
        values: The right-hand sides, [a, n_steps + 1, r].
        own: The gradients in the weights of f_n at step n, [a, n_steps + 1].
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
    """Return the gradients in the weights by lag, sum over n, r of cotangents[n] values[n - lag]; 0 at lag 0.

    Args:
        cotangents: The cotangents of the memories, [a, n_steps + 1, sets, r].
        values: The right-hand sides, [a, n_steps + 1, r].

    Returns:
        Shape [a, sets, n_steps + 1], float64.
    """
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
    """Return the gradients in the starting weights of f_0 to f_(count - 1), [a, sets, n_steps + 1, count]."""
    n = cotangents.shape[1]
    found = torch.einsum("ancr,akr->acnk", cotangents.double(), values[:, :count].double())
    found = found * (torch.arange(n, device=found.device)[:, None] > torch.arange(count, device=found.device))
    for k in range(min(count, n)):
        found[:, -1, k, k] += own[:, k]
    return found


def _of_matrix(problem: Problem, orders: Tensor, cotangents: Tensor, values: Tensor, own: Tensor) -> Tensor:
    """Return the gradient in alpha, [a], on a mesh whose steps differ.

    The formulas of the weights are traced for one block of rows at a time. `orders` are alpha, a leaf that requires a
    gradient; the other arguments are those of `order_gradient`.
    """
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
