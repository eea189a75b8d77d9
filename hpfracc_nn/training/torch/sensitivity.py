"""Derivatives of a whole solution by its orders and a few numbers in f: the scheme linearised, forward in time.

With s the derivative of the states by one number, and q the derivative of f by this number at a fixed state, the scheme
for s is the scheme for y with J s + q in place of f: the same weights, the same history, and a linear equation where
the scheme for y has an equation. The derivative by an order also has a term from the weights, dW/dalpha f, in the
entries of the state that have this order. So these are the derivatives of the numerical solution, as the adjoint's are,
right to rounding whatever the size of a number, and all of them cost about one more solve.

A state [*shape] has d values and a orders. The k numbers are the parameters in f, and J is df/dy, [d, d]. Derivatives
by the orders and by the numbers are the columns of [d, a + k]. A scheme has as many `sets` of weights as it evaluates
sums of past right-hand sides at a step: two for a predictor and corrector. Such a sum is a memory. f_n is f at step n,
w its weight in the equation of step n.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.selection import Plan
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.torch.integrate import Problem, Weight
from hpfracc_nn.solvers.torch.memory import Memory
from hpfracc_nn.solvers.torch.roots import newton_matrix
from hpfracc_nn.solvers.torch.state import Field, Layout, forward_product

_ROWS = 64  # rows of a matrix of weights that are computed together
_BYTES = 1 << 25  # bytes of Jacobians that are computed together

Parametric = Callable[[Tensor, Tensor, Tensor], Tensor]  # f(t, y, numbers)
T = TypeVar("T")

# Errors that a function may raise under vmap. The function is then called step by step, and raises its own again.
_NOT_TOGETHER = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,  # vmap's own: values that are read, in-place writes to a tensor without the batch, no rule
    TypeError,
    ValueError,
)

_log = logging.getLogger("hpfracc_nn.solvers")


class BatchedSteps:
    """A function evaluated at many steps: in one call under `torch.func.vmap` if possible, else step by step.

    A small network is as fast for 64 steps as for one. Where the function's control flow depends on values, or an
    operation has no rule for a batch, forward or backward, the function is called step by step from then on.

    Args:
        function: Takes tensors without an axis of steps to one tensor.
        may_batch: Whether the function may be called for many steps at once.
    """

    def __init__(self, function: Callable[..., Any], may_batch: bool = True):
        self._function, self._may_batch = function, may_batch

    def __call__(self, columns: tuple[Tensor, ...], then: Callable[[Tensor], T]) -> T:
        """Return then(values), `values` those of the function at all steps, [steps, ...].

        Args:
            columns: The arguments of the function, each with an axis of steps in front.
            then: Called with the values; called a second time, with values that were computed step by step, if it
                fails for those of a batch.
        """
        if self._may_batch:
            try:
                return then(torch.func.vmap(self._function)(*columns))
            except _NOT_TOGETHER as error:
                self._may_batch = False
                _log.debug("f is evaluated step by step: %s", str(error).partition("\n")[0])
        each = zip(*(column.unbind() for column in columns), strict=True)
        return then(torch.stack([self._function(*arguments) for arguments in each]))


def tangents(
    problem: Problem,
    states: Tensor,
    f: Parametric,
    numbers: Tensor,
    start: Tensor,
    dz0: Tensor | None = None,
    slope: Tensor | None = None,
) -> Tensor:
    """Return the derivatives of the states by the orders and by the numbers, [n_steps + 1, a + k, *shape].

    Jacobians are dense: this is for states of up to some hundred numbers.

    Args:
        problem: The problem that was solved.
        states: The solution, [n_steps + 1, *shape].
        f: The right-hand side, a function of time, state and numbers.
        numbers: The parameters in f, [k].
        start: Derivatives of the state at the start, [a + k, *shape]; those by the orders are 0.
        dz0: The slope at the start, [*shape], or None.
        slope: The derivatives of the slope at the start, like `start`, or None.
    """
    with torch.no_grad():
        along = None if slope is None else slope.reshape(slope.shape[0], -1).T
        found = _Sweep(problem, states, f, numbers, dz0).run(start.reshape(start.shape[0], -1).T, along)
    return found.transpose(1, 2).reshape(states.shape[0], start.shape[0], *states.shape[1:])


class Line(NamedTuple):
    """The right-hand side f linearised at one step: its value and derivatives.

    Attributes:
        value: The value of f, [d].
        jacobian: The derivatives of f by the state, [d, d].
        slopes: The derivatives of f at a fixed state by the orders, which are 0, and by the numbers in f: [d, a + k].
    """

    value: Tensor
    jacobian: Tensor
    slopes: Tensor

    def along(self, s: Tensor) -> Tensor:
        """Return the total derivatives of f by the orders and numbers, [d, a + k], for those of the state, s.

        These are slopes + jacobian s, with s [d, a + k].
        """
        return torch.addmm(self.slopes, self.jacobian, s)


class _Sweep:
    """The linearised solve, whose states are the derivatives [d, a + k] of the solution.

    Args:
        problem: The problem that was solved.
        states: The solution, [n_steps + 1, *shape].
        f: The right-hand side, as a function of time, state and numbers.
        numbers: The parameters in f, [k].
        dz0: The slope at the start, [*shape], or None.
    """

    def __init__(self, problem: Problem, states: Tensor, f: Parametric, numbers: Tensor, dz0: Tensor | None):
        self.problem, self.states, self.numbers, self.dz0 = problem, states, numbers, dz0
        layout = problem.layout
        self.size, self.orders = states[0].numel(), layout.orders
        self.count = self.orders + numbers.numel()
        has_order = layout.broadcast(torch.arange(self.orders)).expand(layout.shape).reshape(-1)
        self.has_order = torch.nn.functional.one_hot(has_order, self.orders).to(states)  # [d, a]
        self._together = BatchedSteps(f)

    def run(self, start: Tensor, slope: Tensor | None) -> Tensor:
        """Return the derivatives of the states at all steps, [n_steps + 1, d, a + k].

        `start` and `slope` are the derivatives of the state and of its slope at the start, [d, a + k]; `slope` may be
        None.
        """
        problem, last = self.problem, self.problem.n_steps
        values = self._values(self.states)
        of_weights, own = order_tangent(problem, values)
        of_weights = of_weights.reshape(*of_weights.shape[:2], self.size, 1) * self.has_order
        guesses = self._guesses(problem.scheme.sets > 1, values)
        past, weights = self._past(), problem.own_weights
        shape = (*self.states.shape[1:], self.count)
        found = self.states.new_empty(last + 1, self.size, self.count)
        for first in range(0, last + 1, past.block):
            stop = min(first + past.block, last + 1)
            base = start.repeat(of_weights.shape[0], stop - first, 1, 1)
            base[..., : self.orders] += of_weights[:, first:stop]
            if slope is not None:
                base += problem.elapsed[first:stop, None, None] * slope
            steps = range(first, past.begin(first, base.reshape(*base.shape[:2], *shape)))
            others = zip(*(self._lines(steps, each) for each in guesses), strict=True) if guesses else repeat(())
            for n, line, lines in zip(steps, self._lines(steps, self.states), others, strict=False):
                if n:
                    m = past.memory(n)
                    m = m.reshape(*m.shape[: m.ndim - len(shape)], self.size, self.count)
                    by_order = (own[n] @ self.has_order.T)[:, None] * self.has_order
                    found[n] = _tangent(problem.scheme, m, self._by_entry(weights[n]), by_order, line, lines)
                else:
                    found[n] = start
                if n < last:
                    past.put(n, line.along(found[n]).reshape(shape))
        return found

    def _by_entry(self, w: Weight) -> Weight:
        """Return w, the weight of f_n, as it is if it is a number, else for each entry of the state, [d, 1]."""
        return w.expand(self.problem.layout.shape).reshape(-1, 1) if isinstance(w, Tensor) else w

    def _lines(self, steps: range, states: Tensor) -> Iterator[Line]:
        """Yield for each of the steps one `Line`: f, and its derivatives by the state, orders and numbers.

        Args:
            steps: The numbers of the steps.
            states: The states at all steps, [n_steps + 1, *shape]; those at `steps` are used.
        """
        most = max(1, _BYTES // (8 * self.size**2))
        for first in range(steps.start, steps.stop, most):
            some = slice(first, min(first + most, steps.stop))
            yield from map(Line, *(each.unbind() for each in self._linearised(some, states[some])))

    def _linearised(self, some: slice, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return f, [steps, d], its Jacobians, [steps, d, d], and its derivatives by the orders (0) and numbers.

        The derivatives by orders and numbers have shape [steps, d, a + k].

        Args:
            some: The steps.
            states: The states at these steps alone, [steps, *shape].
        """
        count = states.shape[0]
        z = states.detach().clone().requires_grad_()
        numbers = self.numbers.repeat(count, 1).requires_grad_()

        def differentiated(out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            flat = out.reshape(count, -1)
            by_state, by_number = zip(*(_gradients(column.sum(), z, numbers) for column in flat.unbind(1)), strict=True)
            slopes = torch.stack(by_number, 1)
            nothing = flat.new_zeros(*flat.shape, self.orders)  # f does not depend on the orders
            return flat.detach(), torch.stack(by_state, 1), torch.cat([nothing, slopes], -1)

        with torch.enable_grad():
            return self._together((self.problem.field.times[some], z, numbers), differentiated)

    def _values(self, states: Tensor) -> Tensor:
        """Return f at all steps, each at its time and its row of `states`; both have shape [n_steps + 1, *shape]."""
        numbers = self.numbers.expand(states.shape[0], -1)
        return self._together((self.problem.field.times, states, numbers), lambda out: out)

    def _guesses(self, are_needed: bool, values: Tensor) -> list[Tensor]:
        """Return the predictions of y_n at which a predictor-corrector scheme evaluates f, in the order of evaluation.

        Each prediction has shape [n_steps + 1, *shape], for all steps n.

        Args:
            are_needed: Whether the scheme is a predictor-corrector; if not, the result is [].
            values: f at the states of the solution, [n_steps + 1, *shape].
        """
        if not are_needed:
            return []
        problem = self.problem
        memories = _memories(problem, problem.pick(False), self.states[0], self.dz0, values)
        each = problem.own_weights
        w = torch.stack([torch.as_tensor(one, dtype=torch.float64).to(values) for one in each])
        w = w.view(len(each), *problem.layout.varying)
        found = [memories[:, 0]]
        for _ in range(problem.scheme.corrections - 1):  # type: ignore[attr-defined]
            found.append(memories[:, 1] + w * self._values(found[-1]))
        return found

    def _past(self) -> Memory:
        """Return an empty memory for right-hand sides of shape [*shape, a + k]: the derivatives of f."""
        wide, field = copy.copy(self.problem), self.problem.field
        layout = wide.layout
        wide.layout = Layout((torch.Size((*layout.shape, self.count)),), False, (*layout.varying, 1))
        wide.field = Field(field.f, wide.layout, self.problem.times, self.problem.like)
        return wide.past(wide.pick(False))


def _gradients(out: Tensor, z: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of one entry of f by state, [steps, d], and by number, [steps, k].

    Gradients by arguments that the entry does not depend on are 0.

    Args:
        out: The entry, summed over the steps.
        z: The states, [steps, *shape].
        numbers: The numbers, repeated for each step, [steps, k].
    """
    if not out.requires_grad:
        return torch.zeros_like(z).reshape(z.shape[0], -1), torch.zeros_like(numbers)
    found = torch.autograd.grad(out, [z, numbers], retain_graph=True, allow_unused=True)
    by_state, by_number = (torch.zeros_like(x) if g is None else g for g, x in zip(found, (z, numbers), strict=True))
    return by_state.reshape(z.shape[0], -1), by_number


def order_tangent(problem: Problem, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return derivatives of the memories by the orders for fixed right-hand sides: by their weights alone.

    Args:
        problem: The problem that was solved.
        values: The right-hand sides f at all steps, [n_steps + 1, *shape].

    Returns:
        The derivatives of the memories, each entry's by the order of this entry, [sets, n_steps + 1, *shape]; and the
        derivatives of the weights w of f_n by the orders, [n_steps + 1, a].
    """
    orders = torch.as_tensor(problem.orders).to(values.device, torch.float64).requires_grad_()
    rows_of_values = problem.layout.as_matrix(values)  # [a, n_steps + 1, r]
    count, steps = values.shape[0], torch.arange(values.shape[0], device=values.device)
    found = values.new_zeros(orders.numel(), problem.scheme.sets, count, rows_of_values.shape[-1])
    own = values.new_zeros(count, orders.numel())
    rows_of = _rows_by_lag(problem, orders) if problem.kept is not None else partial(_rows_of_mesh, problem, orders)
    for first in range(1, count, _ROWS):
        last = min(first + _ROWS, count)
        rows = rows_of(first, last).to(values)  # [a, sets, rows, last]
        own[first:last] = rows[:, -1, steps[: last - first], steps[first:last]].T
        found[:, :, first:last] = (rows * (steps[first:last, None] > steps[:last])) @ rows_of_values[:, None, :last]
    return problem.layout.as_state(found), own


def _rows_of_mesh(problem: Problem, orders: Tensor, first: int, last: int) -> Tensor:
    """Return the derivatives by the orders of the weights at the steps first, ..., last - 1, on any mesh.

    Args:
        problem: The problem that was solved.
        orders: The orders, as a tensor that requires a gradient.
        first: The first of the steps.
        last: One past the last of the steps.

    Returns:
        The derivatives, [a, sets, last - first, last]: in a row for each of the steps, in a column for each step whose
        right-hand side is weighted.
    """
    with torch.enable_grad():
        block = problem.scheme.block(orders, problem.times, range(first, last), range(last), TORCH)
    return _slope(orders, block)


def _rows_by_lag(problem: Problem, orders: Tensor) -> Callable[[int, int], Tensor]:
    """Return a function of (first, last) that returns the same as `_rows_of_mesh`, fast on a uniform mesh."""
    assert problem.kept is not None, "the mesh is uniform"
    with torch.enable_grad():
        weights = problem.scheme.weights(orders, problem.n_steps, problem.dt, TORCH)
        weights = problem.history.used(weights, problem.kept.nodes, TORCH)
    columns = _slope(orders, weights.columns)
    starts = None if weights.starts is None else _slope(orders, weights.starts)
    backwards = torch.cat([columns.flip(-1), columns.new_zeros(columns.shape)], -1)  # lag n_steps comes first

    def rows(first: int, last: int) -> Tensor:
        windows = backwards.unfold(-1, last, 1)  # window i begins with lag n_steps - i
        found = windows[:, :, problem.n_steps - last + 1 : problem.n_steps - first + 1].flip(2).clone()
        if starts is not None:
            count = min(starts.shape[-1], last)
            found[..., :count] += starts[:, :, first:last, :count]
        return found

    return rows


def _slope(orders: Tensor, weights: Tensor) -> Tensor:
    """Return the derivatives of weights [a, ...] by the orders [a] from which they were computed, like the weights.

    The derivative of each weight is by its own order.
    """
    return forward_product(orders, weights)(torch.ones_like(orders)).detach()


def _tangent(scheme: Scheme, m: Tensor, w: Weight, own: Tensor, at: Line, guesses: Sequence[Line]) -> Tensor:
    """Return the derivatives of y_n by the orders and by the numbers in f, [d, a + k].

    Args:
        scheme: The scheme of the solve.
        m: The derivatives of the memories, [sets, d, a + k], or [d, a + k] for one set.
        w: The weight of f_n, a number or [d, 1].
        own: The derivatives of w by the orders, [d, a].
        at: f and its derivatives at y_n.
        guesses: f and its derivatives at the predictions of y_n, in the order of evaluation.
    """
    orders = own.shape[1]
    if scheme.is_implicit:  # the equation is (1 - w J) s = m + w q + own f
        known = m + w * at.slopes
        known[:, :orders] += own * at.value[:, None]
        return torch.linalg.solve_ex(newton_matrix(at.jacobian, w, at.value[:, None]), known).result
    if scheme.sets == 1:
        return m
    found, history = m.unbind()
    for line in guesses:
        found = history + w * line.along(found)
        found[:, :orders] += own * line.value[:, None]
    return found


def _memories(problem: Problem, plan: Plan, z0: Tensor, dz0: Tensor | None, values: Tensor) -> Tensor:
    """Return the memories of all steps for known right-hand sides, [n_steps + 1, sets, *shape].

    The Taylor polynomial at the start is included.

    Args:
        problem: The problem that was solved.
        plan: The plan whose kernel computes the sums.
        z0: The state at the start, [*shape].
        dz0: The slope of the state at the start, [*shape], or None.
        values: The right-hand sides, [n_steps + 1, *shape].
    """
    past, stop = problem.past(plan), problem.n_steps + 1
    past.values[:, :, 0] = problem.layout.as_matrix(values)
    found = values.new_empty(stop, problem.scheme.sets, *problem.layout.shape)
    for first in range(0, stop, past.block):
        end = past.begin(first, problem.base(z0, dz0, first, min(first + past.block, stop)))
        found[first:end] = past.memories(first, end).transpose(0, 1)
    return found
