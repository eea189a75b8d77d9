"""The exact adjoint of a solve by collocation.

F_n are the values of f at the stages of step n. The adjoint goes through the steps backwards: with g the cotangent of
F_n that comes from the loss and from later steps, u solves u = g + M' J' u, M the weights of the step's own stages and
J the Jacobians of f at the stages. J' u is the cotangent of the stages' states, which the transposed weights carry to
earlier steps. The mesh is a constant.

Shapes: [*shape] a state, a orders alpha, r numbers of a state for each order, s stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.collocation import SMALL, Group, within
from hpfracc_nn.solvers.schemes import LARGEST_DENSE
from hpfracc_nn.solvers.torch.adjoint import Gradients, check_repeated, direct_parts
from hpfracc_nn.solvers.torch.collocation.past import Mesh, Past, weights_of
from hpfracc_nn.solvers.torch.collocation.problem import Mask, Problem
from hpfracc_nn.solvers.torch.collocation.stages import Stages, jacobians, stage_matrix
from hpfracc_nn.solvers.torch.collocation.steps import Integrator, Track
from hpfracc_nn.solvers.torch.roots import TOLERANCES, gmres
from hpfracc_nn.solvers.torch.snapshot import Snapshot
from hpfracc_nn.solvers.torch.state import Signature, check_once, is_finite, product, without

_FEW = 120  # products of GMRES after which a stiff step of the adjoint makes a Jacobian as a preconditioner


Map = Callable[[Tensor], Tensor]


def recorded(
    problem: Problem,
    run: Callable[[Integrator], Track],
    earlier: Sequence[float],
    read: tuple[Tensor, ...],
    known: Tensor | None,
    before: Tensor | None,
    z0: Tensor,
    dz0: Tensor | None,
    alpha: Tensor | None,
    parameters: tuple[Tensor, ...],
) -> tuple[Tensor, Track]:
    """Return F of the steps that `run` takes, [steps, s, *shape], with gradients by the adjoint, and their track.

    Args:
        problem: The solve.
        run: Takes the steps with an `Integrator` and returns their track.
        earlier: The lengths of the steps of a solve that is continued; empty for a new solve.
        read: The tensors that f reads.
        known: F of the earlier steps, [earlier steps, s, *shape], or None.
        before: The state at the end of the earlier steps, or None.
        z0: The state at the start, [*shape].
        dz0: The derivative at the start, or None.
        alpha: The orders as a tensor, [a], or None where they are no tensor.
        parameters: The tensors in which f's gradient is wanted.
    """
    kept: list[Track] = []
    found = _Solve.apply(problem, (run, earlier, kept, read, before), known, z0, dz0, alpha, *parameters)
    return found, kept[0]


def solved(
    problem: Problem,
    run: Callable[[Integrator], Track],
    earlier: Sequence[float],
    known: Tensor | None,
    before: Tensor | None,
    z0: Tensor,
    dz0: Tensor | None,
) -> tuple[Tensor, Track]:
    """Return F of the steps that `run` takes, and their track, without a graph; arguments as of `recorded`."""
    with torch.no_grad():
        past = Past(problem)
        for k, h in enumerate(earlier):
            assert known is not None, "there were steps before"
            past.append(h, known[k].detach())
        slope = None if dz0 is None else dz0.detach()
        start = z0.detach() if before is None else before.detach()
        integrator = Integrator(problem, z0.detach(), slope, past, start)
        track = run(integrator)
        if not track.values:
            return problem.like.new_zeros(0, problem.scheme.stages, *problem.layout.shape), track
        return torch.stack(track.values), track


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: Problem, given: Any, *tensors: Tensor) -> Tensor:
        run, earlier, kept, read, before = given
        known, z0, dz0, alpha, *parameters = tensors
        values, track = solved(problem, run, earlier, known, before, z0, dz0)
        kept.append(track)
        ctx.given = problem, [*earlier, *track.lengths], len(earlier), track.masks, Snapshot([problem.field.f], read)
        states = torch.stack(track.states) if track.states else values
        signatures = torch.cat(track.signatures, 1) if track.signatures else values.new_zeros(2, 0)
        ctx.save_for_backward(values, states, signatures, known, z0, dz0, alpha, *parameters)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        check_once("fdeint", grads)
        problem, lengths, earlier, masks, snapshot = ctx.given
        values, states, signatures, known, _, dz0, alpha, *parameters = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        wanted = [each for each, is_needed in zip(parameters, needs[4:], strict=True) if is_needed]
        learns = alpha is not None and needs[3]
        every = values if known is None else torch.cat([known, values])
        replay = Replay(
            problem, Mesh(np.array(lengths)), earlier, every, states, alpha if learns else None, wanted, masks
        )
        with without(grads[0].device.type), snapshot.renewed(wanted):
            replay.run(grads[0], signatures)
            totals = iter(direct_parts(wanted, replay.gradients.totals))
        return (
            None,
            None,
            None if known is None else replay.of_known(),
            replay.of_z0,
            None if dz0 is None else replay.of_dz0,
            replay.of_alpha,
            *(next(totals) if is_needed else None for is_needed in needs[4:]),
        )


class Replay:
    """The backward pass of a solve by collocation, from the last step to the first.

    Args:
        problem: The solve.
        mesh: All steps, those of an earlier solve that was continued included.
        earlier: How many of the steps belong to the earlier solve.
        values: F of all steps, [steps, s, *shape].
        states: The states at which f was evaluated in the steps of this solve, [steps - earlier, s, *shape].
        alpha: The orders, [a], where their gradient is wanted, else None.
        parameters: The tensors whose gradients are wanted.
        masks: The masks of samples that were still solved, in order.

    Attributes:
        gradients: The gradients in the parameters.
        of_z0: The gradient in the state at the start, [*shape].
        of_dz0: The gradient in the derivative at the start, [*shape].
        of_alpha: The gradient in alpha, [a], or None.
    """

    def __init__(
        self,
        problem: Problem,
        mesh: Mesh,
        earlier: int,
        values: Tensor,
        states: Tensor,
        alpha: Tensor | None,
        parameters: list[Tensor],
        masks: list[Mask],
    ):
        self.masks = masks
        self.problem, self.mesh, self.earlier, self.values, self.states = problem, mesh, earlier, values, states
        self.gradients = Gradients(problem.field.label, parameters, problem.field.makes_leaves)
        zero = torch.zeros_like(values[0, 0]) if values.shape[0] else problem.like.new_zeros(problem.layout.shape)
        self.of_z0, self.of_dz0 = zero, zero.clone()
        self.alpha = None if alpha is None else alpha.detach().double()
        self.of_alpha = None if alpha is None else torch.zeros_like(self.alpha)  # type: ignore[arg-type]
        matrix = problem.layout.as_matrix(values.flatten(0, 1))
        self._of_values = torch.zeros_like(matrix)  # cotangents of F, [a, steps * s, r]
        self._of_moments: dict[tuple[int, int], Tensor] = {}
        self._past: Past | None = None
        if alpha is not None:
            self._past = Past(problem)
            for h, each in zip(mesh.lengths.tolist(), values.unbind(), strict=True):
                self._past.append(h, each)
        self._equations, self._signature = Stages(problem), Signature()

    def run(self, grads: Tensor, expected: Tensor) -> None:
        """Compute all gradients, which the attributes and `of_known` hold afterwards.

        Args:
            grads: The loss's cotangents of F of this solve, [steps - earlier, s, *shape].
            expected: The signatures of this solve's right-hand sides, [2, (steps - earlier) s].
        """
        problem, s = self.problem, self.problem.scheme.stages
        with torch.no_grad():
            for n in reversed(range(self.earlier, self.mesh.lengths.size)):
                self._split(n)
                problem.mask = next((each for each in reversed(self.masks) if each.first <= n), None)
                g = grads[n - self.earlier] + problem.layout.as_state(
                    self._of_values[:, n * s : (n + 1) * s].contiguous()
                )
                first = (n - self.earlier) * s
                self._step(n, g, expected[:, first : first + s])
            for n in reversed(range(self.earlier)):
                self._split(n)

    def of_known(self) -> Tensor:
        """Return the gradient in F of the earlier solve that was continued, [earlier, s, *shape]."""
        count = self.earlier * self.problem.scheme.stages
        found = self.problem.layout.as_state(self._of_values[:, :count].contiguous())
        return found.view(self.earlier, self.problem.scheme.stages, *self.problem.layout.shape)

    def _step(self, n: int, g: Tensor, expected: Tensor) -> None:
        """Propagate the cotangent g of F_n through step n, [s, *shape]; `expected` are F_n's signatures, [2, s].

        The gradients in parameters, start and orders are added up, and the cotangents of earlier steps.
        """
        problem, h = self.problem, float(self.mesh.lengths[n])
        start = self.mesh.tree.times[n]
        weights = problem.weights_within(h)[:, :-1]
        with torch.enable_grad():
            z = self.states[n - self.earlier].detach().requires_grad_()
            value = problem.stages(n, start, h, z)
        self.gradients.check([value], [z])
        found = self._signature.sums(value.detach())
        check_repeated(self.gradients.label, problem.field.eps, found, expected, partial(self._moved, z, value))
        u = self._transposed(n, z, value, weights, g)
        (of_states,) = self.gradients.of([value], [u], [z])
        if of_states is not None:
            self._spread(n, start, h, of_states)

    def _moved(self, z: Tensor, value: Tensor, stages: Sequence[int]) -> Tensor:
        """Return `Signature.moved` for f at some `stages`, [stages]; `value` is f at all stages, z their states."""
        return torch.stack([self._signature.moved(z, value[k]) for k in stages])

    def _transposed(self, n: int, z: Tensor, value: Tensor, weights: Tensor, g: Tensor) -> Tensor:
        """Return the solution u of u = g + M' J' u, [s, *shape]; `weights` are M, J the Jacobians of `value` in z."""
        problem = self.problem
        if not value.requires_grad or not is_finite(g):
            return g
        count = z[0].numel()
        if self._equations.is_dense and count <= SMALL:
            return self._by_matrix(z, value, weights, g)

        def apply(v: Tensor) -> Tensor:
            problem.statistics.products += z.shape[0]
            return v - problem.mixed(weights.mT, product(value, [z], v)[0])

        found = gmres(apply, g, TOLERANCES[g.dtype], None if self._equations.split is None else _FEW)
        if found is None and self._equations.split is not None:
            found = self._by_split(n, z, value, apply, g)
        if found is not None:
            return found
        if count * z.shape[0] <= max(problem.scheme.roots.dense, LARGEST_DENSE):
            return self._by_matrix(z, value, weights, g)
        t = problem.begin + self.mesh.tree.times[n]
        way_out = "take more steps, or raise Newton(dense=...) of Collocation"
        raise checks.unsolved("fdeint", n, t, problem.scheme.roots.iterations, way_out, "the adjoint equation")

    def _by_split(self, n: int, z: Tensor, value: Tensor, apply: Map, g: Tensor) -> Tensor | None:
        """Return u as `_transposed` does, by GMRES with one Jacobian for all stages as a preconditioner.

        `apply` is the linear map u -> u - M' J' u. The result is None where GMRES does not converge.
        """
        split, h = self._equations.split, float(self.mesh.lengths[n])
        assert split is not None, "it is there"
        for is_new in (False, True):
            if is_new or split.jacobian is None:
                middle = z.shape[0] // 2
                self.problem.statistics.products += z[0].numel()
                split.jacobian = jacobians(z, value, middle)
            found = gmres(lambda v: split.solve(h, apply(v), True), split.solve(h, g, True), TOLERANCES[g.dtype], _FEW)
            if found is not None:
                return found
        return None

    def _by_matrix(self, z: Tensor, value: Tensor, weights: Tensor, g: Tensor) -> Tensor:
        self.problem.statistics.products += z.numel()
        matrix = stage_matrix(self.problem.layout, weights, jacobians(z, value))
        return torch.linalg.solve_ex(matrix.mT, g.reshape(-1, 1)).result.view_as(g)

    def _spread(self, n: int, start: float, h: float, g: Tensor) -> None:
        """Propagate the cotangents g of the states of step n's stages, [s, *shape], to all that these were made of.

        That is the state and derivative at the start, F of earlier steps, and the orders. `start` is the time at which
        the step begins, h its length.
        """
        problem, layout, s = self.problem, self.problem.layout, self.problem.scheme.stages
        rows = h * problem.rule.nodes
        self.of_z0 = self.of_z0 + g.sum(0)
        self.of_dz0 = self.of_dz0 + torch.tensordot(problem.as_like(start + rows), g, 1)
        later = layout.as_matrix(g)  # [a, s, r]
        for weights, sources in weights_of(self.mesh.tree, n, rows, s, problem.orders, NUMPY):
            self._to_sources(problem.as_like(weights).mT @ later, sources)
        if self.alpha is not None:
            self._to_orders(n, rows, h, later)

    def _to_sources(self, found: Tensor, sources: list[Group]) -> None:
        s, at = self.problem.scheme.stages, 0
        count = found.shape[1] // len(sources)
        for each in sources:
            part, at = found[:, at : at + count], at + count
            self._add(each, part, s)

    def _add(self, group: Group, part: Tensor, s: int) -> None:
        if group.is_step:
            self._of_values[:, group.first * s : group.last * s] += part
            return
        key = group.first, group.last
        before = self._of_moments.get(key)
        self._of_moments[key] = part if before is None else before + part

    def _split(self, n: int) -> None:
        """Pass the cotangents of moments of groups that end with step n on to their parts, the longest group first."""
        s = self.problem.scheme.stages
        for group in reversed(self.mesh.tree.groups[n]):
            g = self._of_moments.pop((group.first, group.last), None)
            if g is None or group.parts is None:
                continue
            for part in group.parts:
                self._add(part, self.problem.as_like(group.upward(part, s)).mT @ g, s)

    def _to_orders(self, n: int, rows: np.ndarray, h: float, g: Tensor) -> None:
        """Add the gradient in alpha that comes from the weights in the stages' states of step n.

        `rows` are the stages' times after the step's beginning, h is its length, and g the cotangents of the states,
        [a, s, r].
        """
        assert self.alpha is not None, "it is wanted"
        assert self._past is not None, "it is there for that"
        s, problem = self.problem.scheme.stages, self.problem
        with torch.enable_grad():
            alpha = self.alpha.requires_grad_()
            past = weights_of(self.mesh.tree, n, rows, s, alpha, TORCH)
            own = within(s, alpha, problem.rule.nodes, TORCH) * torch.exp(alpha * math.log(h))[:, None, None]
        outputs = [weights for weights, _ in past]
        grads = [g.double() @ self._past.stacked(sources).double().mT for _, sources in past]
        grads.append(g.double() @ self._past.values[n].double().mT)
        (found,) = torch.autograd.grad([*outputs, own], alpha, grads)
        assert self.of_alpha is not None, "it is wanted"
        self.of_alpha = self.of_alpha + found
