"""The same solve in plain aten: for ordinary backpropagation, second derivatives and transforms of torch.func.

Every step keeps a graph and its own copy of the past, so that memory grows with n_steps**2; the kernels of the history
are not used and the manager is not asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import is_batched
from hpfracc_nn.solvers.explosions import WINDOW
from hpfracc_nn.solvers.torch.explosions import largest
from hpfracc_nn.solvers.torch.faults import check_states
from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.problem import Problem
from hpfracc_nn.solvers.torch.solving import Equation, equation_of, evaluated
from hpfracc_nn.solvers.torch.transforms import root_in_graph
from hpfracc_nn.solvers.torch.wrapped import bare, is_finite

Step = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Rows:
    """The weights of each step, as a graph of alpha where it has one.

    Args:
        problem: What is solved.
        orders: [a], float64.
    """

    def __init__(self, problem: Problem, orders: Tensor):
        self.problem, self.orders = problem, orders
        self._starts: Tensor | None = None
        self._columns: Tensor | None = None
        if problem.kept is not None:
            given = problem.scheme.weights(orders, problem.n_steps, problem.dt, TORCH)
            used = problem.history.used(given, problem.kept.nodes, TORCH)
            self._columns = used.columns.to(problem.like)
            self._starts = None if used.starts is None else used.starts.to(problem.like)

    def __getitem__(self, n: int) -> Tensor:
        """Return what the right-hand sides 0 to n have in the memories of step n, [a, sets, n + 1]."""
        if self._columns is None:
            block = self.problem.scheme.block(self.orders, self.problem.times, range(n, n + 1), range(n + 1), TORCH)
            return block[:, :, 0].to(self.problem.like)
        row = self._columns[..., : n + 1].flip(-1)
        if self._starts is None:
            return row
        first = self._starts[:, :, n, : n + 1]
        return torch.cat([row[..., : first.shape[-1]] + first, row[..., first.shape[-1] :]], -1)


def solve(problem: Problem, z0: Tensor, dz0: Tensor | None, orders: Tensor, is_seen: bool = False) -> Tensor:
    """Return the states at all steps, [n_steps + 1, *shape], each with its graph.

    Args:
        problem: What is solved.
        z0: The state at the start, [*shape].
        dz0: Its derivative, or None.
        orders: [a], float64.
        is_seen: Whether a transform of torch.func, forward mode or a tracer looks at the operations.
    """
    step = _step_of(problem, is_seen)
    field, rows = problem.field, Rows(problem, orders)
    states, values, packing = [z0], [field(0, z0)], problem.packing
    for n in range(1, problem.n_steps + 1):
        row = rows[n]
        past = torch.einsum("acn,anr->acr", row[..., :-1], packing.matrix(torch.stack(values)))
        base = z0 if dz0 is None else problem.base(z0, dz0, n, n + 1)[0]
        w = packing.spread(row[:, -1, -1])
        y = step(n, base + packing.viewed(past), w, states[-1])
        states.append(y)
        if n < problem.n_steps:
            values.append(field(n, y))
        if problem.progress is not None:
            problem.progress(n, problem.n_steps)
    _look(problem, states, values)
    check_states(field, states)
    return torch.stack(states)


def _look(problem: Problem, states: list[Tensor], values: list[Tensor]) -> None:
    """Raise where the solution explodes, at the last step or before the first one that is not finite."""
    watch = problem.watch(states[0])
    if watch is None:
        return
    if not is_finite(states[-1]):
        states = list(takewhile(is_finite, states))
    if not states or not watch.is_due(size := largest(states[-1])):
        return
    begin = max(0, len(states) - 1 - WINDOW)

    def most() -> Tensor:
        plain = map(bare, states)
        last = bare(states[-1])
        return torch.stack([each.abs() for each in plain if each.shape == last.shape]).amax(0)

    watch.look(len(states) - 1, size, states[begin:], lambda k: values[begin + k], most)


def _step_of(problem: Problem, is_seen: bool) -> Step:
    """Return what makes y_n of n, the memories [sets, *shape], the weight of f_n and the state before."""
    field, scheme = problem.field, problem.scheme
    roots = getattr(scheme, "roots", None)
    if roots is not None and is_seen:
        return partial(root_in_graph, field, roots)
    if roots is not None:
        return partial(_root, field, equation_of(roots, field))
    if scheme.sets == 1:
        return lambda n, memory, w, before: memory[0]
    return partial(_corrected, field, scheme.corrections)  # type: ignore[attr-defined]


def _corrected(field: Field, corrections: int, n: int, memory: Tensor, w: Tensor, before: Tensor) -> Tensor:
    y = memory[0]
    for _ in range(corrections):
        y = memory[1] + w * field(n, y)
    return y


def _root(field: Field, equation: Equation, n: int, memories: Tensor, w: Tensor, before: Tensor) -> Tensor:
    """The solution of y = memory + w f(y), with the implicit function theorem's gradient in all that is in it."""
    memory, weight = memories[0], _number(w)
    with torch.no_grad():
        y = equation.root(n, memory.detach(), weight, before.detach())
    z, value = evaluated(field, n, y)
    residual = memory + w * value - y
    return _Implicit.apply(equation, n, weight, z, value, residual)  # type: ignore[no-any-return]


def _number(w: Tensor) -> Any:
    """Return a weight as steps take it: a number where there is one."""
    return w.item() if w.numel() == 1 else w.detach()


class _Implicit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, equation: Equation, n: int, weight: Any, z: Tensor, value: Tensor, residual: Tensor
    ) -> Tensor:
        ctx.given = equation, n, weight
        ctx.save_for_backward(z, value)  # with their graph: f may hold something else by then
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "fdeint: an implicit step cannot be differentiated twice; take the derivative by torch.func, "
                "such as torch.func.hessian, or use scheme='predictor_corrector'."
            )
        if is_batched(grads[0]):
            raise RuntimeError(
                "fdeint: an implicit step takes one cotangent at a time, and not many as by is_grads_batched=True or "
                "jacobian(vectorize=True); leave these out, or use torch.func.jacrev."
            )
        equation, n, weight = ctx.given
        z, value = ctx.saved_tensors
        return None, None, None, None, None, equation.transposed(n, z, value, weight, grads[0])
