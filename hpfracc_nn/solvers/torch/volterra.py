"""Blocks of steps of a stochastic Volterra equation, with the history of the deterministic solver as its memory.

    X_n = x0 + sum over j < n of w_(n-j) Z_j + sigma g_(n-1) zeta_(n-1),        Z_j = h f_j + g_j dW_j.

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
from hpfracc_nn.solvers.torch.blocks import Advance, Tensors
from hpfracc_nn.solvers.torch.coefficients import Coefficients
from hpfracc_nn.solvers.torch.kernels.blocks import block_length
from hpfracc_nn.solvers.torch.operand import Toeplitz, toeplitz
from hpfracc_nn.solvers.torch.orders import by_lag
from hpfracc_nn.solvers.torch.own_sums import BufferedSums, TrackedSums
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
        self._buffers: dict[int, BufferedSums] = {}
        self.block = block_length(numbers)

    def run(self, first: int, last: int, carry: Tensors, shared: Tensors, past: Tensors, noise: Tensor) -> Advance:
        """See `blocks.Steps`; `past` is rows [steps, *shape] and weights by lag [steps, sets, *varying]."""
        sums, driving = self._sums_of(*past), self._driving(noise, shared)
        states: list[Tensor] = []
        values: list[Tensor] = []
        memory = sums.first
        residual = carry[0] if first and carry else None
        for i, drives in enumerate(zip(*driving, strict=True)):
            y = memory if residual is None else memory + residual
            states.append(y)
            value, residual = self._step(first + i, y, *drives)
            values.append(value)
            if first + i + 1 < last:
                memory = sums.following(i, value)
        if last > self.n_steps:
            states.append(memory if residual is None else memory + residual)
        if residual is None or last > self.n_steps:
            return Advance(states, (), values)
        return Advance(states, (residual,), values)

    def _sums_of(self, rows: Tensor, weights: Tensor) -> BufferedSums | TrackedSums:
        """Return the sums of a block; buffers serve all blocks of one length."""
        if self.is_tracked:
            return TrackedSums(rows, weights)
        found = self._buffers.get(rows.shape[0])
        if found is None:
            found = self._buffers[rows.shape[0]] = BufferedSums(rows, weights)
        else:
            found.begin(rows)
        return found

    def _driving(self, noise: Tensor, shared: Tensors) -> list[Tensors]:
        """Return the increments of each step; where there is a residual, then its noise and what stands before it."""
        if not self.weights.has_residual:
            return [noise.unbind()]
        increments, others = noise.unbind(1)
        deviation = shared[0] / math.sqrt(self.c.dt)  # of an increment that becomes a standard normal number
        if deviation.numel() == 1:
            return [increments.unbind(), (others * deviation.reshape(())).unbind()]
        return [increments.unbind(), others.unbind(), (deviation,) * noise.shape[0]]

    def _step(
        self, n: int, y: Tensor, increment: Tensor, other: Tensor | None = None, deviation: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return what step n brings the past, and the residual's term."""
        c = self.c
        drift, g = c.drift(n, y) * c.dt, c.diffusion(n, y)
        value = torch.stack([drift, c.applied(g, increment)]) if self.weights.sets > 1 else c.moved(drift, g, increment)
        if other is None:
            return value, None
        residual = c.applied(g, other)
        return value, residual if deviation is None else residual * deviation


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
        self._past = Past(operand, problem.site, plan, "forward", problem.packing, problem.like)
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
        self._block = block_length(problem.packing.orders * problem.packing.width)
        self._top = -(-(problem.n_steps + 1) // self._block) * self._block - 1
        columns = torch.nn.functional.pad(forward.columns, (0, self._top - problem.n_steps))
        operand = Toeplitz(columns, forward.nodes, forward.coefficients)
        self._past = Past(operand, problem.site, plan, "backward", problem.packing, problem.like)
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
        problem: The weights and the history.
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
        given = self.weights.weights(alpha, problem.n_steps, problem.dt, TORCH)
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
            given = self.weights.weights(orders, problem.n_steps, problem.dt, TORCH)
            used = problem.history.used(given, problem.kept.nodes, TORCH)
            outputs, grads = [used.columns], [columns]
            if sigma:
                outputs.append(volterra.residual(orders, problem.dt, TORCH))
                grads.append(sigma[0].double().reshape(-1))
        (found,) = torch.autograd.grad(outputs, orders, grads)
        return found

    def _sigma(self, values: Tensor) -> Tensors:
        return (self.problem.packing.spread(values).to(self.problem.like),) if self.weights.has_residual else ()
