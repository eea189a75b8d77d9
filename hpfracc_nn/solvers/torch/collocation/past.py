"""The steps that were taken, and the solution as it follows from f at their stages.

A solve returns F, the values of f at all stages, [steps, s, *shape]; the solution at any time is linear in F. While
steps are taken, `Past` adds up earlier steps in groups; after the solve, `evaluated_at` adds up the stages one by one.

Shapes: [*shape] a state, a orders alpha, r numbers of a state for each order, s stages, rows: times from which the past
is seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.solvers.collocation import Group, Tree, after, from_points, within
from hpfracc_nn.solvers.torch.collocation.problem import Problem
from hpfracc_nn.solvers.torch.state import infinite_at_start


class Past:
    """The steps that were taken, with F, and their sums as later steps need them.

    Args:
        problem: The solve.

    Attributes:
        tree: The steps, joined into groups.
        values: F of each step, [a, s, r].
    """

    def __init__(self, problem: Problem):
        self.problem, self.tree = problem, Tree()
        self.values: list[Tensor] = []
        self._moments: dict[tuple[int, int], Tensor] = {}  # of groups, by `first` and `last`, [a, POINTS, r]

    def append(self, h: float, values: Tensor) -> None:
        """Append a step of length h with its values F of f, [s, *shape]."""
        self.values.append(self.problem.layout.as_matrix(values))
        for group in self.tree.append(h):
            if group.parts is not None:
                parts = [self._upward(group, part) @ self._of(part) for part in group.parts]
                self._moments[group.first, group.last] = parts[0] + parts[1]

    def sums(self, n: int, rows: np.ndarray) -> Tensor:
        """Return the fractional integrals over all steps before step n at `rows`, times after n's beginning.

        Shape [rows, *shape].
        """
        layout = self.problem.layout
        parts = self.weighted(n, rows)
        if not parts:
            return self.problem.like.new_zeros(rows.size, *layout.shape)
        total = sum(weights @ self.stacked(sources) for weights, sources in parts)
        return layout.as_state(total)  # type: ignore[arg-type]

    def weighted(self, n: int, rows: np.ndarray) -> list[tuple[Tensor, list[Group]]]:
        """Return pairs of weights [a, rows, k] and the groups that they are for, whose k values `stacked` returns.

        The pairs add up to `sums`, whose arguments these are.
        """
        of = self.problem
        return [
            (of.as_like(weights), sources)
            for weights, sources in weights_of(self.tree, n, rows, of.scheme.stages, of.orders, NUMPY)
        ]

    def stacked(self, groups: Sequence[Group]) -> Tensor:
        """Return the moments of groups, or F of single steps, one after the other, [a, k, r]."""
        return torch.cat([self._of(each) for each in groups], 1)

    def _of(self, group: Group) -> Tensor:
        return self.values[group.first] if group.is_step else self._moments[group.first, group.last]

    def _upward(self, group: Group, part: Group) -> Tensor:
        return self.problem.as_like(group.upward(part, self.problem.scheme.stages))


def weights_of(
    tree: Tree, n: int, rows: np.ndarray, stages: int, alpha: Array, xp: Namespace
) -> list[tuple[Array, list[Group]]]:
    """Return the weights of all steps before step n, seen from times after n's beginning, and the groups weighted.

    Args:
        tree: The steps.
        n: The step from whose times the past is seen.
        rows: These times, counted from the beginning of step n, increasing.
        stages: The number of stages s of a step.
        alpha: The orders, [a].
        xp: The namespace of alpha.

    Returns:
        Up to two pairs of weights [a, rows, k] and groups: for single steps, k values of f at their stages; for groups,
        k moments at their points.
    """
    groups, steps = tree.cover(n, float(rows[0]))
    found = []
    if steps:
        gap, h = tree.gaps(n, rows, steps)
        weights = after(stages, alpha, gap.reshape(-1), h.reshape(-1), xp)
        found.append((weights.reshape(-1, rows.size, len(steps) * stages), steps))
    if groups:
        found.append((from_points(alpha, *tree.distances(n, rows, groups), xp), groups))
    return found


@dataclass(eq=False)
class Mesh:
    """The steps of a solve that is over: their lengths, and the tree that joins them into groups."""

    lengths: np.ndarray
    tree: Tree = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.tree = Tree()
        for h in self.lengths.tolist():
            self.tree.append(h)

    @cached_property
    def times(self) -> np.ndarray:
        """The mesh as time since the start, [steps + 1]."""
        return np.array(self.tree.times)


_AT_ONCE = 1 << 21  # weights that are computed together


def evaluated_at(
    problem: Problem,
    mesh: Mesh,
    times: np.ndarray,
    values: Tensor,
    z0: Tensor,
    dz0: Tensor | None,
    alpha: Tensor | None,
    derivative: int = 0,
) -> Tensor:
    """Return the solution at any times of a solve, [times, *shape], or its derivative in time.

    Args:
        problem: The solve.
        mesh: The steps of the solve.
        times: Times since the start, [times].
        values: F, [steps, s, *shape].
        z0: The state at the start.
        dz0: The derivative at the start, or None.
        alpha: The orders as a tensor, [a], where their gradient is wanted, else None.
        derivative: 0 for the solution, 1 for its derivative in time.
    """
    layout = problem.layout
    flat = layout.as_matrix(values.flatten(0, 1))
    rows = max(1, _AT_ONCE // (values.shape[0] * values.shape[1]))
    found = []
    for first in range(0, times.size, rows):
        some = times[first : first + rows]
        weights = dense_weights(
            mesh, some, problem.scheme.stages, problem.orders if alpha is None else alpha, derivative
        )
        part = layout.as_state(problem.as_like(weights) @ flat)
        if not derivative:
            part = part + problem.base(z0, dz0, some)
        elif dz0 is not None:
            part = part + dz0
        found.append(part)
    states = torch.cat(found)
    return infinite_at_start(problem.field, problem.orders, times, states, z0) if derivative else states


def dense_weights(mesh: Mesh, times: np.ndarray, stages: int, alpha: Array, derivative: int = 0) -> Array:
    """Return the weights of F of all steps in the solution at times since the start, [a, times, steps * s].

    With `derivative` = 1 they are those in its derivative in time. At the start itself they are 0, except in the
    derivative for order 1, which is f; for orders below 1, whose derivative is infinite there, they are 0 too.
    """
    xp: Namespace = TORCH if isinstance(alpha, Tensor) else NUMPY
    ends, h, count = mesh.times[1:], mesh.lengths, mesh.lengths.size
    own = np.clip(np.searchsorted(ends, times, side="left"), 0, count - 1)
    since = np.maximum(times - mesh.times[own], np.finfo(np.float64).tiny)
    gap = mesh.times[own][:, None] - ends + since[:, None]
    is_past = np.arange(count) < own[:, None]
    gap = np.where(is_past, gap, 1e3 * h)
    weights = after(stages, alpha, gap.reshape(-1), np.broadcast_to(h, gap.shape).reshape(-1), xp, derivative)
    weights = weights.reshape(-1, times.size, count, stages)
    # Weights that are set to 0 below are first made for the end of the step, where no power overflows.
    needs_start = derivative == 1 and bool((alpha == 1).any())
    place = np.where((times > 0) | needs_start, np.minimum(since / h[own], 1.0), 1.0)
    local = within(stages, alpha, place, xp, derivative)
    power = alpha[:, None] - derivative
    local = local * xp.exp(power * xp.constant(np.log(h[own]), alpha))[..., None]
    # The smallest time, which stands for 0 in `since`, is not small enough: its 0.02nd power is 7e-7.
    is_later = xp.constant((times > 0).astype(np.float64), alpha)
    local = xp.where(power == 0, 1.0, is_later)[..., None] * local
    is_own = xp.constant((np.arange(count) == own[:, None]).astype(np.float64), alpha)
    found = weights * xp.constant(is_past.astype(np.float64), alpha)[..., None] + is_own[..., None] * local[:, :, None]
    return found.reshape(-1, times.size, count * stages)
