"""The exact adjoint of the discrete scheme, as one custom autograd function.

Only the states are saved. Backwards in time, the cotangent of every right-hand side is the same history run backwards
on the cotangents of the memories; a step needs products of one Jacobian with one vector, and what the parameters have
of them is computed for many steps at once. The gradient is that of the numbers that were computed, not of a
continuous adjoint equation, which for alpha < 1 is 4 to 10 % off and does not improve with the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.selection import Plan
from hpfracc_nn.solvers.torch.casts import without
from hpfracc_nn.solvers.torch.faults import check_once
from hpfracc_nn.solvers.torch.field import product
from hpfracc_nn.solvers.torch.orders import order_gradient
from hpfracc_nn.solvers.torch.parameters import ParameterGradient, direct_parts
from hpfracc_nn.solvers.torch.problem import Problem
from hpfracc_nn.solvers.torch.solving import evaluated
from hpfracc_nn.solvers.torch.steps import step_of
from hpfracc_nn.solvers.torch.tenure import Tenure


def recorded(
    problem: Problem,
    plan: Plan,
    z0: Tensor,
    dz0: Tensor | None,
    alpha: Tensor | None,
    parameters: tuple[Tensor, ...],
    read: tuple[Tensor, ...],
) -> Tensor:
    """Return the states at all steps, [n_steps + 1, *shape], with their gradients.

    Args:
        problem: What is solved.
        plan: Of both passes.
        z0: The state at the start, [*shape].
        dz0: Its derivative, for orders above 1, or None.
        alpha: The orders as a tensor of [a] values whose gradient is wanted, or None.
        parameters: The tensors that f has graphs to.
        read: The tensors that f reads.
    """
    return _Solve.apply(problem, plan, read, z0, dz0, alpha, *parameters)  # type: ignore[no-any-return]


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: Problem, plan: Plan, read: tuple[Tensor, ...], *tensors: Tensor) -> Tensor:
        z0, dz0, alpha, *parameters = tensors
        states = problem.solve(plan, z0.detach(), None if dz0 is None else dz0.detach())
        ctx.problem, ctx.plan, ctx.tenure = problem, plan, Tenure([problem.field.f], read)
        ctx.save_for_backward(states, dz0, alpha, *parameters)
        return states.clone()  # the caller may write to its own, and f may have kept a view of these

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        check_once("fdeint", grads)
        (g,) = grads
        states, dz0, alpha, *parameters = ctx.saved_tensors
        problem: Problem = ctx.problem
        problem.site.again(ctx.plan)
        learns = alpha is not None and ctx.needs_input_grad[5]
        wanted = [each for each, needs in zip(parameters, ctx.needs_input_grad[6:], strict=True) if needs]
        sweep = Backward(problem, ctx.plan, states, dz0, g.contiguous(), wanted, learns)
        with without(g.device.type), ctx.tenure.renewed(wanted):
            z0_gradient, dz0_gradient = sweep.run()
            of_alpha = sweep.order_gradient(alpha) if learns else None
            found = iter(direct_parts(wanted, sweep.gradient.totals))
        return (
            None,
            None,
            None,
            z0_gradient,
            None if dz0 is None else dz0_gradient,
            of_alpha,
            *(next(found) if needs else None for needs in ctx.needs_input_grad[6:]),
        )


class Backward:
    """The sweep from the last step to the first.

    Args:
        problem: What was solved.
        plan: Of the forward pass.
        states: That it found, [n_steps + 1, *shape].
        dz0: The derivative at the start, or None.
        g: The loss's cotangents of them.
        parameters: Whose gradients are wanted.
        learns: Whether alpha's is.
    """

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        states: Tensor,
        dz0: Tensor | None,
        g: Tensor,
        parameters: list[Tensor],
        learns: bool,
    ):
        self.problem, self.plan, self.states, self.dz0, self.g = problem, plan, states, dz0, g
        self.gradient = ParameterGradient(problem.field, parameters)
        self.learns = learns
        self.past = problem.reversed_past(plan)
        self.values: Tensor | None = None  # the right-hand sides [n_steps + 1, *shape], where they are needed
        self.of_weights: list[Tensor | None] = [None] * (problem.n_steps + 1)

    def run(self) -> tuple[Tensor, Tensor]:
        """Return the gradients in the state at the start and in its derivative."""
        problem, past, last = self.problem, self.past, self.problem.n_steps
        step, weights = step_of(problem.scheme, problem.field), problem.own_weights
        with torch.no_grad():
            replayed = self._replayed() if step.needs_memories else self.states
            for first in range(0, last + 1, past.block):
                for k in range(first, min(past.begin(first), last)):
                    n = last - k
                    fg = self._with_starts(n, past.memory(k)) if k else None
                    mu = step.backward(self, n, self.states[n], self.g[n], fg, weights[n], replayed[n])
                    past.put(k, mu)
            fg = self._with_starts(0, past.memory(last))
            z0_gradient = self.g[0] + self.pull(0, self.states[0], fg)
            self.gradient.flush()
            problem.tell(self.plan, past)
            totals = problem.packing.viewed(past.values.sum(2))  # of step n_steps - k at k
            return z0_gradient + totals.sum(0), torch.tensordot(problem.elapsed.flip(0), totals, 1)

    def pull(self, n: int, z: Tensor, g: Tensor) -> Tensor:
        """See `steps.Sweep`."""
        leaf, value = self.evaluated(n, z)
        return self.through(n, leaf, value, g)

    def through(self, n: int, z: Tensor, value: Tensor, g: Tensor) -> Tensor:
        """See `steps.Sweep`."""
        self.gradient.remember(n, z.detach(), g)
        return product(value, [z], g)[0]

    def evaluated(self, n: int, z: Tensor) -> tuple[Tensor, Tensor]:
        """See `steps.Sweep`."""
        leaf, value = evaluated(self.problem.field, n, z)
        if value.requires_grad and not self.gradient.parameters:  # else all steps are looked at together
            self.gradient.check(value, leaf)
        return leaf, value

    def remember(self, n: int, z: Tensor, g: Tensor) -> None:
        """See `steps.Sweep`."""
        self.gradient.remember(n, z, g)

    def weight(self, n: int, g: Tensor, value: Tensor) -> None:
        """See `steps.Sweep`."""
        if self.learns:
            found = self.problem.packing.matrix((g * value)[None]).sum((1, 2))
            before = self.of_weights[n]
            self.of_weights[n] = found if before is None else before + found

    def order_gradient(self, alpha: Tensor) -> Tensor:
        """Return alpha's gradient, from the cotangents of the memories and the right-hand sides."""
        if self.values is None:
            self.values = self._all_values()
        packing = self.problem.packing
        nothing = self.values.new_zeros(packing.orders)
        own = torch.stack([nothing if each is None else each for each in self.of_weights], -1)
        return order_gradient(self.problem, alpha, self.past.values.flip(1), packing.matrix(self.values), own)

    def _with_starts(self, n: int, fg: Tensor) -> Tensor:
        """Add what the first right-hand sides brought to every later step besides."""
        kept = self.problem.kept
        if kept is None or kept.starts is None or n >= kept.starts.shape[-1]:
            return fg
        starts = torch.as_tensor(kept.starts)[:, :, n + 1 :, n].flip(-1).to(fg)  # [a, sets, later steps]
        found = torch.einsum("acn,ancr->ar", starts, self.past.values[:, : starts.shape[-1]])
        return fg + self.problem.packing.viewed(found)

    def _replayed(self) -> Tensor:
        """Return the memories of all steps once more, [n_steps + 1, sets, *shape], from the states."""
        self.values = self._all_values()
        return self.problem.memories(self.plan, self.states[0], self.dz0, self.values)

    def _all_values(self) -> Tensor:
        """Return the right-hand sides at the states, [n_steps + 1, *shape]; the last is not used and 0."""
        found = self.gradient.evaluate(self.states[:-1])
        return torch.cat([found, torch.zeros_like(found[:1])])
