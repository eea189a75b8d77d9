"""Blocks of steps of a stochastic Volterra equation, with the history of the deterministic solver as its memory.

    X_n = x0 + sum over j < n of h w_(n-j) Z_j + sigma g_(n-1) zeta_(n-1),        Z_j = f_j + g_j dW_j / h.

What a block has of the steps before it comes from the history's kernel; its own steps are added up as they are taken.
The adjoint's memory is the same history run backwards on the cotangents of X_n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.selection import Plan
from hpfracc_nn.solvers.schemes import volterra
from hpfracc_nn.solvers.torch.blocks import Advance, Tensors, steps_of_block
from hpfracc_nn.solvers.torch.coefficients import Coefficients
from hpfracc_nn.solvers.torch.operand import Toeplitz, toeplitz
from hpfracc_nn.solvers.torch.orders import by_lag
from hpfracc_nn.solvers.torch.own_sums import BufferedSums, KnownSums, OwnSums, TrackedSums
from hpfracc_nn.solvers.torch.past import Past
from hpfracc_nn.solvers.torch.problem import Problem


class VolterraBlocks:
    """See `blocks.Steps`; the carry is the residual's term, which is not in the memory.

    Args:
        coefficients: Drift and diffusion.
        weights: How the past is weighted.
        n_steps: From 0 to this one.
        numbers: Of a state.
        is_tracked: Whether autograd follows every sum, as plain backpropagation wants.
    """

    def __init__(
        self,
        coefficients: Coefficients,
        weights: volterra.VolterraWeights,
        n_steps: int,
        numbers: int,
        is_tracked: bool,
    ):
        self.c, self.weights, self.n_steps, self.is_tracked = coefficients, weights, n_steps, is_tracked
        self._buffers: dict[tuple[type, int], BufferedSums | KnownSums] = {}
        self.block = steps_of_block(numbers)

    def run(self, first: int, last: int, carry: Tensors, shared: Tensors, past: Tensors, noise: Tensor) -> Advance:
        """See `blocks.Steps`; `past` is rows [steps, *shape] and weights by lag [steps, sets, *varying].

        With a graph, as a replay has it, the rows are the sums that the block has made before.
        """
        c, sums = self.c, self._sums_of(*past)
        increments, residual = self._driving(noise, shared)
        states: list[Tensor] = []
        values: list[Tensor] = []
        made = [sums.first]
        y = made[0] + carry[0] if first and carry else made[0]
        for i, increment in enumerate(increments):
            n = first + i
            states.append(y)
            drift, g = c.drift(n, y), c.diffusion(n, y)
            values.append(self._value(drift, g, increment, sums.room(i)))
            if n + 1 < last:
                made.append(sums.following(i, values[-1]))
                y = residual.added(i, made[-1], g)
        if last > self.n_steps:
            states.append(y)
            return Advance(states, (), values, made)
        return Advance(states, residual.alone(len(increments) - 1, g), values, made)

    def _sums_of(self, rows: Tensor, weights: Tensor) -> OwnSums:
        """Return the sums of a block; buffers serve all blocks of one length."""
        if self.is_tracked:
            return TrackedSums(rows, weights)
        kind = KnownSums if torch.is_grad_enabled() else BufferedSums
        found = self._buffers.get((kind, rows.shape[0]))
        if found is None:
            found = self._buffers[kind, rows.shape[0]] = kind(rows, weights)
        else:
            found.begin(rows)
        return found

    def _driving(self, noise: Tensor, shared: Tensors) -> tuple[Tensors, NoResidual | Residual]:
        """Return the increments of each step over h, and the residual."""
        if not self.weights.has_residual:
            return (noise / self.c.dt).unbind(), NoResidual()
        increments, others = noise.unbind(1)
        deviation = shared[0] / math.sqrt(self.c.dt)  # of an increment that becomes a standard normal number
        if deviation.numel() == 1:
            others, factor = others * deviation.reshape(()), None
        else:
            factor = deviation
        return (increments / self.c.dt).unbind(), Residual(self.c, others.unbind(), factor)

    def _value(self, drift: Tensor, g: Tensor, increment: Tensor, room: Tensor | None) -> Tensor:
        """Return what a step brings the past, made in `room` where there is some."""
        if self.weights.sets == 1:
            return self.c.moved(drift, g, increment, room)
        return torch.stack([drift, self.c.applied(g, increment)], out=room)


class NoResidual:
    """What a step adds to its memory where the weights say all."""

    def added(self, i: int, memory: Tensor, g: Tensor) -> Tensor:
        """Return the state after step i of the block."""
        return memory

    def alone(self, i: int, g: Tensor) -> Tensors:
        """Return what the next block adds to its first memory."""
        return ()


class Residual:
    """The newest cell's part beside its weight, g times a normal number, which is not in the memory.

    Args:
        coefficients: Drift and diffusion.
        noises: Of each step of a block.
        factor: By which it is multiplied besides, or None.
    """

    def __init__(self, coefficients: Coefficients, noises: Tensors, factor: Tensor | None):
        self.c, self._noises, self._factor = coefficients, noises, factor

    def added(self, i: int, memory: Tensor, g: Tensor) -> Tensor:
        """See `NoResidual`."""
        if self._factor is None:
            return self.c.moved(memory, g, self._noises[i])
        return memory + self.alone(i, g)[0]

    def alone(self, i: int, g: Tensor) -> Tensors:
        """See `NoResidual`."""
        found = self.c.applied(g, self._noises[i])
        return (found if self._factor is None else found * self._factor,)


class Recollection:
    """The past of a forward pass; see `blocks.Memory`.

    Args:
        problem: The weights and the history.
        plan: Of both passes.
        z0: The state at the start, to which the memories are added.
    """

    def __init__(self, problem: Problem, plan: Plan, z0: Tensor):
        assert problem.kept is not None, "the mesh is uniform"
        self.problem, self.plan, self._z0 = problem, plan, z0
        operand = toeplitz(problem.kept, problem.like, backward=True)  # a value for each set goes in, one memory out
        block = steps_of_block(problem.packing.shape.numel())
        self._past = Past(operand, problem.site, plan, "forward", problem.packing, problem.like, block=block)
        self._views = self._past.views

    def opened(self, first: int, last: int) -> Tensors:
        """See `blocks.Memory`."""
        out, weights = self._past.opened(first, self._z0)
        return out[0], weights

    def add(self, first: int, values: list[Tensor]) -> None:
        """See `blocks.Memory`."""
        if values:
            torch.stack(values, out=self._views[first : first + len(values)])

    def tell(self) -> None:
        """Give the manager the time that the kernel took, where it wants to know."""
        self.problem.tell(self.plan, self._past)


class Anticipation:
    """The past of the adjoint, which runs from the last step to the first; see `blocks.Memory`.

    Its steps count down from a number that makes its blocks those of the forward pass.

    Args:
        problem: The weights and the history.
        plan: Of both passes.
    """

    def __init__(self, problem: Problem, plan: Plan):
        assert problem.kept is not None, "the mesh is uniform"
        self.problem, self.plan = problem, plan
        forward = toeplitz(problem.kept, problem.like)
        self._block = steps_of_block(problem.packing.shape.numel())
        self._top = -(-(problem.n_steps + 1) // self._block) * self._block - 1
        columns = torch.nn.functional.pad(forward.columns, (0, self._top - problem.n_steps))
        operand = Toeplitz(columns, forward.nodes, forward.coefficients)
        self._past = Past(operand, problem.site, plan, "backward", problem.packing, problem.like, block=self._block)
        self._views = self._past.views

    def opened(self, first: int, last: int) -> Tensors:
        """Return the cotangents that what the steps of a block bring has from all that follows it."""
        out, _ = self._past.opened(self._top + 1 - first - self._block)
        by_step = out[0] if out.shape[0] == 1 else out.transpose(0, 1)
        return (by_step.flip(0)[: last - first],)

    def add(self, first: int, values: list[Tensor]) -> None:
        """See `blocks.Memory`."""
        begin = self._top + 1 - first - len(values)
        torch.stack(values[::-1], out=self._views[begin : begin + len(values)])

    @property
    def cotangents(self) -> Tensor:
        """Those of all X_n, [a, n_steps + 1, r]."""
        return self._past.values[:, :, 0].flip(1)[:, : self.problem.n_steps + 1]

    def tell(self) -> None:
        """Give the manager the time that the kernel took, where it wants to know."""
        self.problem.tell(self.plan, self._past)


@dataclass(eq=False)
class Weighting:
    """The weights of a solve as functions of alpha.

    Attributes:
        weights: How the past is weighted.
        problem: The history, and the weights as multiples of Z_j.
    """

    weights: volterra.VolterraWeights
    problem: Problem

    def fixed(self) -> Tensors:
        """Return sigma at the present orders, of a shape that broadcasts to a state's; none where there is no such."""
        return self._sigma(torch.from_numpy(volterra.residual(self.problem.orders, self.problem.dt, NUMPY)))

    def traced(self, alpha: Tensor, z0: Tensor) -> tuple[Tensors, Tensors]:
        """Return sigma, and the rows and weights of one block of all steps, as graphs of alpha [a] and z0."""
        problem = self.problem
        assert problem.kept is not None, "the mesh is uniform"
        given = problem.scheme.weights(alpha, problem.n_steps, problem.dt, TORCH)
        columns = problem.history.used(given, problem.kept.nodes, TORCH).columns.to(problem.like)
        count = problem.n_steps + 1
        weights = columns.permute(2, 1, 0).reshape(count, self.weights.sets, *problem.packing.varying)
        rows = z0.expand(count, *z0.shape)
        return self._sigma(volterra.residual(alpha, problem.dt, TORCH)), (rows, weights)

    def order_gradient(self, alpha: Tensor, cotangents: Tensor, values: Tensor, sigma: Tensors) -> Tensor:
        """Return the gradient in alpha [a], float64.

        Args:
            alpha: The orders.
            cotangents: Of the memories of all steps, [a, n_steps + 1, r].
            values: What the steps brought the past, [a, n_steps + 1, sets, r].
            sigma: Gradients of the residual's deviation, where there is one.
        """
        problem = self.problem
        assert problem.kept is not None, "the mesh is uniform"
        columns = torch.cat([by_lag(cotangents[:, :, None], some) for some in values.unbind(2)], 1)
        with torch.enable_grad():
            orders = alpha.detach().double().requires_grad_()
            given = problem.scheme.weights(orders, problem.n_steps, problem.dt, TORCH)
            used = problem.history.used(given, problem.kept.nodes, TORCH)
            outputs, grads = [used.columns], [columns]
            if sigma:
                outputs.append(volterra.residual(orders, problem.dt, TORCH))
                grads.append(sigma[0].double().reshape(-1))
        (found,) = torch.autograd.grad(outputs, orders, grads)
        return found

    def _sigma(self, values: Tensor) -> Tensors:
        return (self.problem.packing.spread(values).to(self.problem.like),) if self.weights.has_residual else ()
