"""Solves in plain operations: for backpropagation, second derivatives, transforms of torch.func, and compilers.

Every step keeps a graph and its own copy of the past, so that memory grows with n_steps**2; the history's kernels and
the manager are not used. `last` reads no number of a tensor, so that compilers can trace it: a compiled graph holds
every step and its own product with the whole past.

The parts of the weights' formulas that do not depend on alpha are computed by NumPy, which no compiler traces. The
custom operation `hpfracc_nn::solver_weights` stands for the formulas; its backward is the same operation with one
derivative more.

Shapes: a orders alpha, sets of weights of the scheme (`schemes`), [*shape] a state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import plainly
from hpfracc_nn.solvers.explosions import WINDOW
from hpfracc_nn.solvers.schemes import SCHEMES, PredictorCorrector, Rectangle, Scheme
from hpfracc_nn.solvers.torch.integrate import Problem, largest
from hpfracc_nn.solvers.torch.roots import Equation, equation_of, number, root_in_graph, solved_by
from hpfracc_nn.solvers.torch.state import Field, bare, check_states, evaluated, is_finite

_LIBRARY = torch.library.Library("hpfracc_nn", "FRAGMENT")
_LIBRARY.define(
    "solver_weights(Tensor alpha, str scheme, int n_steps, float dt, int derivative=0) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_OPERATION = torch.ops.hpfracc_nn.solver_weights.default


def solver_weights(alpha: Tensor, scheme: str, n_steps: int, dt: float) -> Tensor:
    """Return a scheme's weights on a uniform mesh, differentiable in alpha.

    Args:
        alpha: The orders, [a], float64.
        scheme: The name of a scheme with at most one starting column.
        n_steps: The number of steps.
        dt: The step size.

    Returns:
        Shape [a, 2 sets, n_steps + 1], float64: the weights by lag of each set, then for each set what the weight of
        f_0 at each step has beside them.
    """
    found: Tensor = _OPERATION(alpha, scheme, n_steps, dt)
    return found


def _run(alpha: Tensor, scheme: str, n_steps: int, dt: float, derivative: int = 0) -> Tensor:
    with plainly(), torch.enable_grad():
        orders = alpha.detach().requires_grad_()
        found = _stacked(orders, scheme, n_steps, dt)
        for _ in range(derivative):
            found = _derivative(found, orders)
        return found.detach()


def _stacked(orders: Tensor, scheme: str, n_steps: int, dt: float) -> Tensor:
    weights = SCHEMES[scheme]().weights(orders, n_steps, dt, TORCH)
    starts = torch.zeros_like(weights.columns) if weights.starts is None else weights.starts[..., 0]
    return torch.cat([weights.columns, starts], 1)


def _derivative(values: Tensor, orders: Tensor) -> Tensor:
    """Return the derivatives of values [a, ...] in orders [a], where values[i] depends on orders[i] alone.

    They are the product of the Jacobian J with ones, computed as the derivative of u -> J' u.
    """
    u = torch.zeros_like(values, requires_grad=True)
    (pulled,) = torch.autograd.grad(values, orders, u, create_graph=True)
    (found,) = torch.autograd.grad(pulled.sum(), u, create_graph=True)
    return found


def _fake(alpha: Tensor, scheme: str, n_steps: int, dt: float, derivative: int = 0) -> Tensor:
    return alpha.new_empty(alpha.shape[0], 2 * SCHEMES[scheme]().sets, n_steps + 1)


def _saved(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    alpha, *given = inputs
    ctx.given = (*given, 0)[:4]
    ctx.save_for_backward(alpha)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (alpha,) = ctx.saved_tensors
    *given, derivative = ctx.given
    return (grad * _OPERATION(alpha, *given, derivative + 1)).sum((1, 2)), None, None, None, None


_LIBRARY.impl("solver_weights", _run, "CompositeExplicitAutograd")
torch.library.register_fake(_OPERATION, _fake, lib=_LIBRARY)
torch.library.register_autograd(_OPERATION, _backward, setup_context=_saved, lib=_LIBRARY)


Step = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Rows:
    """The weights of the right-hand sides in the sums of each step, indexed by step, with a graph from the orders.

    Args:
        problem: The solve.
        orders: The orders alpha, [a], float64.
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
        """Return the weights of the right-hand sides f_0 to f_n in the memories of step n, [a, sets, n + 1]."""
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
        problem: The solve.
        z0: The state at the start, [*shape].
        dz0: The derivative at the start, or None.
        orders: The orders alpha, [a], float64.
        is_seen: Whether a transform of torch.func, forward mode or a tracer follows the operations.
    """
    step = _step_of(problem, is_seen)
    field, rows = problem.field, Rows(problem, orders)
    states, values, layout = [z0], [field(0, z0)], problem.layout
    for n in range(1, problem.n_steps + 1):
        row = rows[n]
        past = torch.einsum("acn,anr->acr", row[..., :-1], layout.as_matrix(torch.stack(values)))
        base = z0 if dz0 is None else problem.base(z0, dz0, n, n + 1)[0]
        w = layout.broadcast(row[:, -1, -1])
        y = step(n, base + layout.as_state(past), w, states[-1])
        states.append(y)
        if n < problem.n_steps:
            values.append(field(n, y))
        if problem.progress is not None:
            problem.progress(n, problem.n_steps)
    _look(problem, states, values)
    check_states(field, states)
    return torch.stack(states)


def _look(problem: Problem, states: list[Tensor], values: list[Tensor]) -> None:
    """Raise FloatingPointError where the solution explodes at its last step, or its last before a state is not finite.

    `values` are the right-hand sides at the states.
    """
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
    """Return the scheme's step as a function (n, memories, w, before) -> y_n.

    `memories` are the sums over the past of step n, [sets, *shape], w the weight of f_n in the last of them, `before`
    the state of the step before. `is_seen` says whether a transform of torch.func, forward mode or a tracer follows the
    operations.
    """
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
    """Return the solution y of `y = memories[0] + w f(t_n, y)`, with its gradient by the implicit function theorem.

    The iteration begins at `before`, the state of the step before.
    """
    memory = memories[0]
    with torch.no_grad():
        y = equation.root(n, memory.detach(), number(w), before.detach())
    return solved_by(equation, n, w, *evaluated(field, n, y), memory)[0]


def last(
    owner: str,
    f: Callable[[Tensor, Tensor], Tensor],
    y0: Tensor,
    alpha: Tensor,
    t1: float,
    n_steps: int,
    scheme: Scheme,
) -> Tensor:
    """Return the state at t1 of D^alpha y = f(t, y), y(0) = y0, in n_steps equal steps that a compiler can trace.

    Args:
        owner: Name of the class whose solve it is, for messages.
        f: The right-hand side.
        y0: The state at 0.
        alpha: The orders, at most 1, float64, with no more axes than y0; the shape broadcasts to y0's.
        t1: The time at the end.
        n_steps: The number of steps.
        scheme: The scheme, an explicit one.

    Raises:
        NotImplementedError: The scheme is implicit.
        ValueError: f returns another shape than y0's.
        TypeError: f returns no tensor, or another dtype than y0's.
    """
    if not isinstance(scheme, Rectangle | PredictorCorrector):
        raise NotImplementedError(
            f"{owner}(scheme={scheme.name!r}): solves equations, for which it looks at numbers that a compiler does "
            "not have; pass scheme='rectangle' or 'predictor_corrector', or keep the compiler away by "
            "torch.compiler.disable."
        )
    aligned = alpha.to(y0.device).reshape((1,) * (y0.ndim - alpha.ndim) + alpha.shape)
    rows = _rows(scheme, aligned, t1 / n_steps, n_steps)
    times = torch.linspace(0, t1, n_steps + 1, dtype=torch.float64).to(y0).unbind()
    corrections = scheme.corrections if isinstance(scheme, PredictorCorrector) else 0

    def rate(n: int, y: Tensor) -> Tensor:
        found = f(times[n], y)
        check_like(owner, "f", found, y0.shape, y0.dtype)
        return found

    y, values = y0, [rate(0, y0)]
    for n in range(1, n_steps + 1):
        weights = rows(n).to(y0)
        past = (weights[:, :-1] * torch.stack(values)).sum(1)
        y = y0 + past[0]
        for _ in range(corrections):
            y = y0 + past[1] + weights[1, -1] * rate(n, y)
        if n < n_steps:
            values.append(rate(n, y))
    return y


def check_like(owner: str, argument: str, found: Any, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raise unless a right-hand side returned a tensor of a shape and dtype; no number of it is read.

    Args:
        owner: Name of the class or function that solves, for messages.
        argument: The name of the right-hand side in the message.
        found: What the right-hand side returned.
        shape: The shape that it has to have.
        dtype: The dtype that it has to have.

    Raises:
        TypeError: `found` is no tensor, or one of another dtype.
        ValueError: The shape of `found` is another.
    """
    if not isinstance(found, Tensor):
        raise TypeError(
            f"{owner}({argument}): needs a tensor of shape {tuple(shape)}; {argument} returned {type(found).__name__}."
        )
    if found.dtype != dtype:
        raise TypeError(
            f"{owner}({argument}): needs the state's dtype {dtype}; {argument} returned {found.dtype}; convert it "
            "there, or pass the state in that dtype."
        )
    if found.shape != shape:
        raise ValueError(
            f"{owner}({argument}): needs shape {tuple(shape)}; {argument} returned {tuple(found.shape)}; return a "
            "tensor of that shape."
        )


def _rows(scheme: Scheme, alpha: Tensor, dt: float, n_steps: int) -> Callable[[int], Tensor]:
    """Return a function from n to the weights of f_0 to f_n in step n of a uniform mesh.

    The weights are [sets, n + 1, *alpha.shape], float64.
    """
    weights = solver_weights(alpha.reshape(-1), scheme.name, n_steps, dt)
    columns, starts = weights.split(scheme.sets, dim=1)

    def row(n: int) -> Tensor:
        found = columns[..., : n + 1].flip(-1)
        found = torch.cat([found[..., :1] + starts[..., n : n + 1], found[..., 1:]], -1)
        return found.movedim(0, -1).reshape(*found.shape[1:], *alpha.shape)

    return row
