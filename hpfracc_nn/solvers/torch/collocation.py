"""Collocation for tensors: the stage equations, the choice of steps, and the exact adjoint.

A solve returns f at all stages, F, [steps, s, *shape]; the solution at any time is linear in it (`Trajectory`). The
adjoint goes through the steps backwards: with g the cotangent of F_n that comes from outside and from later steps, the
stages of step n solve u = g + M' J' u, M the weights of the step itself and J the Jacobians of f, and J' u is the
cotangent of their states, which the transposed weights bring to earlier steps. The mesh is a constant.

Shapes: [*shape] a state, a orders alpha, r numbers of a state for each, s stages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.collocation import (
    LAST,
    Collocation,
    Controller,
    Group,
    Rule,
    Statistics,
    Tree,
    after,
    estimated,
    from_points,
    rule_of,
    spread,
    within,
)
from hpfracc_nn.solvers.schemes import LARGEST_DENSE
from hpfracc_nn.solvers.torch.adjoint import Gradients, check_repeated, direct_parts
from hpfracc_nn.solvers.torch.roots import TOLERANCES, gmres
from hpfracc_nn.solvers.torch.snapshot import Snapshot
from hpfracc_nn.solvers.torch.state import Field, Layout, Signature, check_once, is_finite, product, without

TINIEST = float(np.finfo(np.float64).tiny)
SMALL = 16  # numbers of a state up to which a Jacobian costs no more than an iteration or two
_SLOW = 0.5  # a contraction that is worse than this has a Jacobian made
_PART = 0.01  # of what a step is allowed: what is left of the stage equations' error
_FLOOR = 32.0  # times eps: what rounding leaves of a change
_GUESSES = 12.0  # iterations that a contraction may still need
_WORSE = 2.0  # changes that grow so much lead away: the iteration begins again
_RENEWED = 3  # times a step has its Jacobian made anew
_STAYS = 8  # steps for which Jacobians at all stages are made after one that needed them
_FEW = 120  # products after which the adjoint of a stiff step has a Jacobian made
_SHORTEST = 16.0  # times eps: of a step, a part of the time


@dataclass(frozen=True, eq=False)
class Mask:
    """Which samples are still solved: of the others f is 0, and is evaluated at another state.

    Attributes:
        first: The first step that it is for.
        is_solved: For each number of a state, [*shape].
        instead: The states that f is evaluated at, [*shape].
    """

    first: int
    is_solved: Tensor
    instead: Tensor


@dataclass(eq=False)
class Problem:
    """What a solve needs beside the tensors that gradients are wanted of.

    Attributes:
        field: The right-hand side.
        scheme: How many stages a step has, and how they are solved.
        orders: alpha's values, [a].
        begin: The time at the start, in the caller's unit.
        rtol: Of the solution, or None on a given mesh.
        atol: The same; a number, or a tensor that broadcasts to a state.
        max_steps: After how many an error is raised.
        throws: Whether one is; else the solve ends, or goes on without the samples that fail.
        statistics: What was done.
        mask: Which samples are solved now; None is all.
    """

    field: Field
    scheme: Collocation
    orders: np.ndarray
    begin: float
    rtol: float | None
    atol: float | Tensor
    max_steps: int
    throws: bool = True
    statistics: Statistics = dataclasses.field(default_factory=Statistics)
    mask: Mask | None = None

    def __post_init__(self) -> None:
        self.layout: Layout = self.field.layout
        self.like = self.field.times[0]
        self.eps = torch.finfo(self.like.dtype).eps
        self.rule: Rule = rule_of(self.scheme.stages)
        self.samples = samples_of(self.layout)
        self.ends = np.append(self.rule.nodes, 1.0)
        self.own = within(self.scheme.stages, self.orders, self.ends, NUMPY)  # [a, s + 1, s]
        self.spread = np.array([spread(self.scheme.stages, alpha) for alpha in self.orders.tolist()])

    def weights_within(self, h: float) -> Tensor:
        """Return the weights of a step's stages in its stages and at its end, [a, s + 1, s]."""
        return self.as_like(self.own * np.power(h, self.orders)[:, None, None])

    def weights_at(self, h: float, places: np.ndarray) -> Tensor:
        """Return the weights of a step's stages at places in it, parts of h, [a, places, s]."""
        own = within(self.scheme.stages, self.orders, np.maximum(places, TINIEST), NUMPY)
        return self.as_like(own * np.power(h, self.orders)[:, None, None])

    def as_like(self, x: np.ndarray | Tensor) -> Tensor:
        """Return numbers as a tensor of the states' dtype and device."""
        return (torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x).to(self.like)

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return weights [a, rows, k] times values [k, *shape], [rows, *shape]."""
        return self.layout.as_state(weights @ self.layout.as_matrix(values))

    def stages(self, n: int, start: float, h: float, states: Tensor) -> Tensor:
        """Return f at the stages of step n, [s, *shape]."""
        times = torch.from_numpy(self.begin + (start + h * self.rule.nodes)).to(self.like).unbind()
        self.statistics.evaluations += len(times)
        mask = self.mask
        if mask is not None:
            states = torch.where(mask.is_solved, states, mask.instead)
        found = torch.stack([self.field.checked(n, t, z) for t, z in zip(times, states.unbind(), strict=True)])
        return found if mask is None else torch.where(mask.is_solved, found, torch.zeros_like(found))

    def base(self, z0: Tensor, dz0: Tensor | None, elapsed: np.ndarray) -> Tensor:
        """Return the Taylor polynomial at times, [times, *shape], or what broadcasts to that."""
        if dz0 is None:
            return z0[None]
        return z0 + self.as_like(elapsed).view(-1, *[1] * z0.ndim) * dz0

    def sizes(self, x: Tensor, scale: Tensor) -> Tensor:
        """Return the root mean squares of x / scale for each sample, [k, samples] for x [k, *shape]."""
        return by_sample(x / scale, self.layout, self.samples)

    def scale(self, *states: Tensor) -> Tensor:
        """Return what a change of a state is measured by, [*shape]."""
        assert self.rtol is not None, "the mesh is given"
        largest = torch.stack([each.abs() for each in states]).amax(0)
        return (self.atol + self.rtol * largest).clamp(min=torch.finfo(self.like.dtype).tiny)


def samples_of(layout: Layout) -> int:
    """Return how many samples a state has: the length of its first axis, where it has more than one.

    A vector of complex numbers, which has two axes here, has a sample for each.
    """
    first = {shape[0] for shape in layout.shapes if len(shape) > 1}
    return first.pop() if len(first) == 1 and all(len(shape) > 1 for shape in layout.shapes) else 1


def by_sample(x: Tensor, layout: Layout, samples: int) -> Tensor:
    """Return the root mean squares over each sample of x [k, *shape], [k, samples]."""
    parts = layout.unravel(x)
    each = [part.reshape(x.shape[0], samples, -1) for part in (parts if isinstance(parts, tuple) else (parts,))]
    whole = each[0] if len(each) == 1 else torch.cat(each, -1)
    return torch.linalg.vector_norm(whole, dim=-1) / math.sqrt(whole.shape[-1])


class Past:
    """The steps that were taken, and their sums as later steps see them.

    Args:
        problem: What is solved.
    """

    def __init__(self, problem: Problem):
        self.problem, self.tree = problem, Tree()
        self.values: list[Tensor] = []  # of each step, [a, s, r]
        self._moments: dict[tuple[int, int], Tensor] = {}  # by first and last step, [a, POINTS, r]

    def append(self, h: float, values: Tensor) -> None:
        """Take a step of length h with values [s, *shape] of f."""
        self.values.append(self.problem.layout.as_matrix(values))
        for group in self.tree.append(h):
            if group.parts is not None:
                parts = [self._upward(group, part) @ self._of(part) for part in group.parts]
                self._moments[group.first, group.last] = parts[0] + parts[1]

    def sums(self, n: int, rows: np.ndarray) -> Tensor:
        """Return the integrals over all steps before n at times after its beginning, [rows, *shape]."""
        layout = self.problem.layout
        parts = self.weighted(n, rows)
        if not parts:
            return self.problem.like.new_zeros(rows.size, *layout.shape)
        total = sum(weights @ self.stacked(sources) for weights, sources in parts)
        return layout.as_state(total)  # type: ignore[arg-type]

    def weighted(self, n: int, rows: np.ndarray) -> list[tuple[Tensor, list[Group]]]:
        """Return weights [a, rows, k] and the groups that they are for, whose k values `stacked` returns."""
        of = self.problem
        return [
            (of.as_like(weights), sources)
            for weights, sources in weights_of(self.tree, n, rows, of.scheme.stages, of.orders, NUMPY)
        ]

    def stacked(self, groups: Sequence[Group]) -> Tensor:
        """Return the values of groups, or of steps, one after the other, [a, k, r]."""
        return torch.cat([self._of(each) for each in groups], 1)

    def _of(self, group: Group) -> Tensor:
        return self.values[group.first] if group.is_step else self._moments[group.first, group.last]

    def _upward(self, group: Group, part: Group) -> Tensor:
        return self.problem.as_like(group.upward(part, self.problem.scheme.stages))


def weights_of(
    tree: Tree, n: int, rows: np.ndarray, stages: int, alpha: Array, xp: Namespace
) -> list[tuple[Array, list[Group]]]:
    """Return what steps before n have at times after its beginning, and whose values the weights are for.

    Args:
        tree: The steps.
        n: The step that looks back.
        rows: Increasing times after its beginning.
        stages: Of a step.
        alpha: [a].
        xp: The namespace of alpha.

    Returns:
        Pairs of weights [a, rows, k] and groups, those of single steps first; none where there is no past.
    """
    groups, steps = tree.cover(n, float(rows[0]))
    found = []
    if steps:
        gap, h = tree.gaps(n, rows, steps)
        weights = after(stages, alpha, gap.reshape(-1), h.reshape(-1), xp)
        found.append((weights.reshape(-1, rows.size, len(steps) * stages), steps))
    if groups:
        found.append((from_points(alpha, tree.distances(n, rows, groups), xp), groups))
    return found


class Stages:
    """Solves the stage equations F = f(H + M F), step by step.

    Args:
        problem: What is solved.
    """

    def __init__(self, problem: Problem):
        self.problem, roots = problem, problem.scheme.roots
        self.count = problem.layout.shape.numel()
        fits = self.count * problem.scheme.stages <= roots.dense
        self.is_dense = fits and (self.count <= SMALL or problem.layout.orders > 1)
        self.split = (
            Split(problem) if not self.is_dense and self.count <= roots.dense and problem.layout.orders == 1 else None
        )
        self._is_newton, self._is_krylov = self.is_dense and self.count <= SMALL, False
        self._jacobian: Tensor | None = None  # [1 or s, d, d]
        self._factors: tuple[Any, Any] | None = None
        self._made_at, self._kept = -1, 0  # in which step it was made, and for how many since one was made for all
        self._rate = 1.0
        self.iterations = min(roots.iterations, 20) if problem.rtol is not None else roots.iterations
        self.tolerance = TOLERANCES[problem.like.dtype] if roots.tolerance is None else roots.tolerance

    def solve(
        self, n: int, start: float, h: float, history: Tensor, weights: Tensor, guess: Tensor, scale: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return F, the states where f was evaluated last, and its values there; None where they are not found.

        Args:
            n: The step.
            start: Its time, since the start.
            h: Its length.
            history: H, [s, *shape].
            weights: M, [a, s, s].
            guess: F, about.
            scale: What the step allows, [*shape], or None where the equation is solved to its own tolerance.
        """
        problem, last, rate = self.problem, math.inf, max(self._rate, 0.01) ** 0.8
        allowed = _PART if scale is not None and problem.scheme.roots.tolerance is None else 1.0
        where, values, renewed, self._is_krylov = (n, start, h), guess, 0, False
        for k in range(self.iterations):
            states = history + problem.mixed(weights, values)
            found = problem.stages(*where, states)
            problem.statistics.iterations += 1
            delta = found - values
            if not is_finite(delta):
                return None
            if self._is_newton:
                delta = self._newton(*where, states, weights, delta)
            change, floor = self._sizes(problem.mixed(weights, delta), states, history, scale)
            theta = change / last if last else 0.0
            if theta < math.inf:
                values = values + delta
                if last < math.inf:
                    rate = theta / (1 - theta) if theta < 1 else math.inf
                    rate = 0.0 if change <= floor and rate > 0.5 else rate  # rounding is all that is left
                if scale is None and rate:  # f was last evaluated before the change, and so are Jacobians backwards
                    rate = max(rate, 1.0)
                if change * rate <= allowed:
                    self._rate = min(rate, 1.0)
                    self._kept += 1
                    return values, states, found
            left = self.iterations - k - 1
            if not theta < math.inf or (last < math.inf and self._is_slow(theta, change, allowed, left)):
                if not change < math.inf or theta >= _WORSE:
                    values = guess
                renewed += 1
                if renewed > _RENEWED or not self._renewed(*where, history + problem.mixed(weights, values)):
                    return None
                change, rate = math.inf, 1.0
            last = change
        return None

    def _sizes(self, change: Tensor, states: Tensor, history: Tensor, scale: Tensor | None) -> tuple[float, float]:
        """Return a change of the stages' states as a part of what is allowed, and the part that rounding is."""
        largest = torch.maximum(states.abs(), history.abs()).amax(0)
        if scale is None:
            scale = (self.tolerance * largest.max()).clamp(min=torch.finfo(change.dtype).tiny)
        found = self.problem.sizes(torch.cat([change, _FLOOR * self.problem.eps * largest[None]]), scale).amax(1)
        return float(found[:-1].max()), float(found[-1])

    def _is_slow(self, theta: float, change: float, allowed: float, left: int) -> bool:
        """Return whether changes that shrink by theta need more iterations than a better Jacobian is worth."""
        if theta >= 1:
            return True
        needed = math.log(allowed * (1 - theta) / change) / math.log(theta)
        if not self._is_newton:
            return needed > _GUESSES or (theta > _SLOW and needed > 3)
        return needed > left or needed > max(4, self.count)

    def _renewed(self, n: int, start: float, h: float, states: Tensor) -> bool:
        """Take to a better Jacobian, at these states; return whether there is one."""
        self._rate = 1.0
        if not self._is_newton:
            self._is_newton = True
            return True
        if self.split is not None:
            if self._made_at != n:
                self._jacobian = self.split.jacobian = None
            self._is_krylov = self._is_krylov or self._made_at == n
            return True
        if not self.is_dense:
            return False
        self._jacobian, self._factors, self._kept = self._made(n, start, h, states, is_one=False), None, 0
        return True

    def _newton(self, n: int, start: float, h: float, states: Tensor, weights: Tensor, residual: Tensor) -> Tensor:
        """Return the change of F that takes the residual away, with the Jacobian that is kept."""
        if not self.is_dense and self.split is None:
            return self._krylov(n, start, h, states, weights, residual)
        if self._jacobian is None:
            self._jacobian, self._factors = self._made(n, start, h, states, is_one=True), None
        if self.split is not None:
            self.split.jacobian = self._jacobian[0]
            if self._is_krylov:
                return self._krylov(n, start, h, states, weights, residual)
            return self.split.solve(h, residual)
        if self._factors is None or self._factors[0] != (n, h):
            if self._made_at != n and self._jacobian.shape[0] > 1:
                if self._kept < _STAYS:
                    self._jacobian = self._made(n, start, h, states, is_one=False)
                else:
                    self._jacobian = self._jacobian[-1:]
            matrix = stage_matrix(self.problem.layout, weights, self._jacobian)
            self._factors = (n, h), torch.linalg.lu_factor_ex(matrix)[:2]
        return torch.linalg.lu_solve(*self._factors[1], residual.reshape(-1, 1)).view_as(residual)

    def _made(self, n: int, start: float, h: float, states: Tensor, is_one: bool) -> Tensor:
        """Return the Jacobian at the middle stage, [1, d, d], or at all of them, [s, d, d]."""
        problem = self.problem
        problem.statistics.jacobians += 1
        problem.statistics.products += self.count * (1 if is_one else states.shape[0])
        self._made_at = n
        with torch.enable_grad():
            z = states.detach().requires_grad_()
            if is_one:
                middle = states.shape[0] // 2
                time = problem.begin + (start + h * problem.rule.nodes[middle])
                problem.statistics.evaluations += 1
                value = problem.field.checked(n, torch.tensor(time).to(problem.like), z[middle])[None]
            else:
                value = problem.stages(n, start, h, z)
        return jacobians(z, value, states.shape[0] // 2)[None] if is_one else jacobians(z, value)

    def _krylov(self, n: int, start: float, h: float, states: Tensor, weights: Tensor, residual: Tensor) -> Tensor:
        """Return what `_newton` does by products with the Jacobians at all stages."""
        problem = self.problem
        with torch.enable_grad():
            z = states.detach().requires_grad_()
            value = problem.stages(n, start, h, z)
            u = torch.zeros_like(value, requires_grad=True)
            (pulled,) = torch.autograd.grad(value, z, u, create_graph=True)

        def apply(v: Tensor) -> Tensor:
            problem.statistics.products += residual.shape[0]
            w = problem.mixed(weights, v)
            found = v - torch.autograd.grad(pulled, u, w, retain_graph=True)[0]
            return found if self.split is None else self.split.solve(h, found)

        found = gmres(apply, residual if self.split is None else self.split.solve(h, residual), 1e-3, 200)
        return torch.full_like(residual, torch.nan) if found is None else found


class Split:
    """Solves 1 - J M, J the same at all stages, as one equation for each eigenvalue of M; orders that are one number.

    Args:
        problem: What is solved.
    """

    def __init__(self, problem: Problem):
        self.alpha = float(problem.orders[0])
        self.jacobian: Tensor | None = None  # [d, d]
        values, vectors = np.linalg.eig(problem.own[0, :-1])
        dtype = torch.promote_types(problem.like.dtype, torch.complex64)
        each = (values, vectors, np.linalg.inv(vectors))
        self._values, self._vectors, self._inverse = (
            torch.from_numpy(x.astype(np.complex128)).to(problem.like.device, dtype) for x in each
        )
        self._kept: tuple[Tensor, float, Any] | None = None

    def solve(self, h: float, residual: Tensor, is_transposed: bool = False) -> Tensor:
        """Return x [s, *shape] with (1 - J M) x = residual, or that of the transpose."""
        assert self.jacobian is not None, "it has been made"
        if self._kept is None or self._kept[0] is not self.jacobian or self._kept[1] != h:
            unit = torch.eye(self.jacobian.shape[0]).to(self._values)
            scaled = self._values.view(-1, 1, 1) * h**self.alpha * self.jacobian
            self._kept = self.jacobian, h, torch.linalg.lu_factor_ex(unit - scaled)[:2]
        flat = residual.reshape(residual.shape[0], -1).to(self._values)
        outer, inner = (self._inverse.T, self._vectors.T) if is_transposed else (self._vectors, self._inverse)
        if is_transposed:  # the transpose, which is the adjoint of what is conjugate
            found = torch.linalg.lu_solve(*self._kept[2], (inner @ flat).conj()[..., None], adjoint=True).conj()
        else:
            found = torch.linalg.lu_solve(*self._kept[2], (inner @ flat)[..., None])
        return (outer @ found[..., 0]).real.to(residual.dtype).view_as(residual)


def jacobians(z: Tensor, value: Tensor, stage: int | None = None) -> Tensor:
    """Return the Jacobians of values [k, *shape], each in its own one of z [s, *shape], [s, d, d]; or that of a stage.

    Args:
        z: Leaves.
        value: With a graph, those of all stages; or those of one, where k is 1.
        stage: Which one is returned, [d, d].
    """
    rows = []
    for e in range(z[0].numel()):
        unit = torch.zeros_like(value).reshape(value.shape[0], -1)
        unit[slice(None) if stage is None or value.shape[0] == 1 else stage, e] = 1
        found = product(value, [z], unit.view_as(value))[0]
        rows.append(found.reshape(z.shape[0], -1) if stage is None else found[stage].reshape(-1))
    return torch.stack(rows, 0 if stage is not None else 1)


def stage_matrix(layout: Layout, weights: Tensor, jacobian: Tensor) -> Tensor:
    """Return 1 - J M for all stages together, [s d, s d]; weights M [a, s, s], J [1 or s, d, d]."""
    a, s, _ = weights.shape
    each = layout.as_state(weights.reshape(a, s * s, 1).expand(a, s * s, layout.width).contiguous()).reshape(s, s, -1)
    d = each.shape[-1]
    mixed = torch.einsum("ipq,ijq->ipjq", jacobian.expand(s, d, d), each).reshape(s * d, s * d)
    return torch.eye(s * d, dtype=mixed.dtype, device=mixed.device) - mixed


@dataclass(eq=False)
class Track:
    """The steps that a solve has taken.

    Attributes:
        lengths: Of the steps.
        values: F of each, [s, *shape].
        states: Where f was evaluated last in each, [s, *shape].
        signatures: Of its values there, [2, s].
        ends: The states at the ends of the steps, [*shape].
        errors: The estimate of each, as a part of what was allowed; NaN on a given mesh.
        status: Why the solve ended: "finished", "event", "max_steps" or "failed".
        message: What an error would have said, or "".
        end: The time of the end, since the start.
        masks: Which samples were solved, from which step on.
        failed: When a sample failed, as time since the start.
    """

    lengths: list[float] = dataclasses.field(default_factory=list)
    values: list[Tensor] = dataclasses.field(default_factory=list)
    states: list[Tensor] = dataclasses.field(default_factory=list)
    signatures: list[Tensor] = dataclasses.field(default_factory=list)
    ends: list[Tensor] = dataclasses.field(default_factory=list)
    errors: list[float] = dataclasses.field(default_factory=list)
    status: str = "finished"
    message: str = ""
    end: float = 0.0
    masks: list[Mask] = dataclasses.field(default_factory=list)
    failed: dict[int, float] = dataclasses.field(default_factory=dict)


@dataclass(eq=False)
class Taken:
    """A step that was tried: its length, F, the states and the values of the last evaluation, and its end."""

    h: float
    values: Tensor
    states: Tensor
    found: Tensor
    end: Tensor
    error: float = math.nan


Watch = Callable[["Integrator", Taken], bool]
Map = Callable[[Tensor], Tensor]


class Integrator:
    """Takes the steps of a solve.

    Args:
        problem: What is solved.
        z0: The state at the start, [*shape].
        dz0: Its derivative, or None.
        past: What was taken before: empty, or the history of a solve that is continued.
        before: The state at the end of the past.
    """

    def __init__(self, problem: Problem, z0: Tensor, dz0: Tensor | None, past: Past, before: Tensor):
        self.problem, self.z0, self.dz0, self.past, self.before = problem, z0, dz0, past, before
        self.stages, self.track, self.signature = Stages(problem), Track(), Signature()
        self.controller = Controller(problem.scheme.stages, float(problem.orders.min()))
        self.time = past.tree.times[-1]
        self._last: Tensor | None = None  # F of the step before
        self._length = 0.0

    @property
    def n(self) -> int:
        """The number of the next step."""
        return len(self.past.values)

    def sums(self, rows: np.ndarray) -> Tensor:
        """Return the Taylor polynomial and the past at times after the present one, [rows, *shape]."""
        return self.problem.base(self.z0, self.dz0, self.time + rows) + self.past.sums(self.n, rows)

    def tried(self, h: float) -> Taken | None:
        """Return the step of length h, or None where its equations are not solved."""
        problem, n = self.problem, self.n
        history = self.sums(h * problem.ends)
        weights = problem.weights_within(h)
        scale = None if problem.rtol is None else problem.scale(self.before)
        found = self.stages.solve(
            n, self.time, h, history[:-1], weights[:, :-1], self._guess(h), None if scale is None else scale
        )
        if found is None:
            return None
        end = history[-1] + problem.mixed(weights[:, -1:], found[0])[0]
        if not is_finite(end):
            return None
        return Taken(h, *found, end)

    def _guess(self, h: float) -> Tensor:
        """Return the values of f on the next step, about: those of the step before, extended as far as they decay."""
        problem, last = self.problem, self._last
        if last is None:
            value = problem.field.checked(0, problem.field.times[0], self.before)
            problem.statistics.evaluations += 1
            return value.expand(problem.scheme.stages, *value.shape)
        coefficients = problem.as_like(problem.rule.coefficients) @ last.reshape(last.shape[0], -1)
        x = 1 + 2 * h / self._length * problem.rule.nodes
        basis = np.polynomial.legendre.legvander(x, last.shape[0] - 1)
        sizes = np.abs(basis[-1]) * torch.linalg.vector_norm(coefficients, dim=1).double().cpu().numpy()
        kept = 1 + int(np.argmin(sizes[1:])) if sizes.size > 1 else 1
        return (problem.as_like(basis[:, :kept]) @ coefficients[:kept]).view_as(last)

    def accept(self, step: Taken) -> None:
        """Take a step."""
        track = self.track
        track.lengths.append(step.h)
        track.values.append(step.values)
        track.states.append(step.states)
        track.signatures.append(self.signature(step.found))
        track.ends.append(step.end)
        track.errors.append(step.error)
        self.past.append(step.h, step.values)
        self.time = self.past.tree.times[-1]
        self.before, self._last, self._length = step.end, step.values, step.h
        self.problem.statistics.steps += 1

    def along(self, mesh: np.ndarray, watch: Watch | None, progress: Callable[[int, int], None] | None) -> Track:
        """Take the steps of a mesh, given as times since the start."""
        for h in np.diff(mesh).tolist():
            step = self.tried(h)
            if step is None:
                raise self._unsolved(h)
            if watch is not None and watch(self, step):
                self.accept(step)
                self.track.status = "event"
                break
            self.accept(step)
            if progress is not None:
                progress(self.n, mesh.size - 1)
        self.track.end = self.time
        return self.track

    def to(
        self,
        end: float,
        watch: Watch | None,
        progress: Callable[[int, int], None] | None,
        first: float | None = None,
    ) -> Track:
        """Take steps to a time since the start, as the tolerance allows them."""
        h = self._first(end) if first is None else first
        before: tuple[float, float] | None = None
        track, is_again = self.track, False
        while self.time < end:
            if len(track.lengths) >= self.problem.max_steps:
                return self._ended("max_steps", self._too_many(end, h))
            left = end - self.time
            h = left if h > 0.999 * left else left / 2 if h > 0.5 * left else h
            step = self.tried(h)
            error = math.inf if step is None else self._error(step)
            if step is None or not error <= 1:
                self.problem.statistics.rejected += 1
                h, before, is_again = self.controller.shrunk(error, h, self.n == 0), None, True
                if h <= self._shortest():
                    if not self._left_out(h):
                        return self._ended("failed", self._stuck(h))
                    h = max(1e3 * h, 1e-9 * self.time)
                continue
            step.error = error
            is_over = watch is not None and watch(self, step)
            self.accept(step)
            if is_over:
                track.status = "event"
                break
            if progress is not None:
                progress(self.n, self.n + math.ceil((end - self.time) / h))
            longer = self.controller.grown(error, h, before, self.time)
            h, before, is_again = min(longer, h) if is_again else longer, (error, h), False
        track.end = self.time
        return track

    def _shortest(self) -> float:
        return max(_SHORTEST * float(np.finfo(np.float64).eps) * self.time, 1e-300)

    def _ended(self, status: str, error: Exception) -> Track:
        if self.problem.throws:
            raise error
        self.track.status, self.track.message, self.track.end = status, str(error), self.time
        return self.track

    def _left_out(self, h: float) -> bool:
        """Go on without the sample that keeps a step from being taken; return whether there are others."""
        problem, layout = self.problem, self.problem.layout
        if problem.throws or len(self.track.failed) + 1 >= problem.samples:
            return False
        weights, guess = problem.weights_within(h)[:, :-1], self._guess(h)
        states = self.sums(h * problem.rule.nodes) + problem.mixed(weights, guess)
        change = problem.stages(self.n, self.time, h, states) - guess
        sizes = problem.sizes(change, problem.scale(self.before)).amax(0)
        sizes = torch.where(torch.isfinite(sizes), sizes, torch.full_like(sizes, torch.inf))
        sizes[list(self.track.failed)] = -1.0
        worst = int(sizes.argmax())
        self.track.failed[worst] = self.time
        is_solved = torch.ones(problem.samples, dtype=torch.bool, device=problem.like.device)
        is_solved[list(self.track.failed)] = False
        each = [is_solved.view(-1, *[1] * (len(shape) - 1)).expand(shape) for shape in layout.shapes]
        mask = layout.ravel(tuple(each)) if layout.is_tuple else each[0]
        good = (
            self.before
            if problem.mask is None
            else torch.where(problem.mask.is_solved, self.before, problem.mask.instead)
        )
        problem.mask = Mask(self.n, mask, good)
        self.track.masks.append(problem.mask)
        self.stages = Stages(problem)
        self._last = None if self._last is None else torch.where(mask, self._last, torch.zeros_like(self._last))
        self.before = torch.where(mask, self.before, torch.zeros_like(self.before))
        return True

    def _error(self, step: Taken) -> float:
        """Return the estimate of a step's error, as a part of what is allowed."""
        problem = self.problem
        some = problem.as_like(problem.rule.coefficients[-LAST:])
        last = (some @ step.values.reshape(step.values.shape[0], -1)).view(LAST, *step.end.shape)
        factor = problem.layout.broadcast(problem.as_like(np.power(step.h, problem.orders) * problem.spread))
        last = last * factor
        if problem.mask is not None:
            last = torch.where(problem.mask.is_solved, last, torch.zeros_like(last))
        sizes = problem.sizes(last, problem.scale(self.before, step.end))
        return float(estimated(sizes.double().cpu().numpy(), NUMPY).max())

    def _first(self, end: float) -> float:
        """Return a first step: one in which f changes by as much as its error may be, about."""
        problem = self.problem
        if self._last is not None:
            return self._length
        field, z0, statistics = problem.field, self.before, problem.statistics
        value = field.checked(0, field.times[0], z0)
        scale = problem.scale(z0)
        slope = float(problem.sizes(value[None], scale).max())
        alpha = self.controller.alpha
        duration = end - self.time
        h = duration if slope == 0 else min(duration, (1 / slope) ** (1 / alpha))
        h = max(h, 1e-290)
        moved = z0 + problem.layout.broadcast(problem.as_like(np.power(h, problem.orders))) * value
        if self.dz0 is not None:
            moved = moved + h * self.dz0
        later = field.checked(0, torch.tensor(problem.begin + h, dtype=torch.float64).to(problem.like), moved)
        statistics.evaluations += 2
        factor = problem.layout.broadcast(problem.as_like(np.power(h, problem.orders)))
        change = float(problem.sizes(((later - value) * factor)[None], scale).max())
        if not change < math.inf:
            return 1e-3 * h
        grown = min((1 / change) ** (1 / (2 * alpha)), 1e6) if change else 1e6
        return max(min(duration, h * grown), 1e-290)

    def _at(self) -> float:
        return self.problem.begin + self.time

    def _unsolved(self, h: float) -> Exception:
        iterations = self.stages.iterations
        return checks.unsolved(
            "fdeint", self.n, self._at(), iterations, "take more steps, or pass rtol and atol, which choose them"
        )

    def _too_many(self, end: float, h: float) -> Exception:
        return checks.too_many("fdeint", self.problem.max_steps, self._at(), self.problem.begin + end, h)

    def _stuck(self, h: float) -> Exception:
        size = float(self.before.abs().max())
        return checks.stuck("fdeint", self.n, self._at(), h, size)


@dataclass(eq=False)
class Mesh:
    """The steps of a solve that is over: their lengths, and the tree that looks back on them."""

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


_AT_ONCE = 1 << 21


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
        problem: What was solved.
        mesh: Its steps.
        times: Since the start.
        values: F, [steps, s, *shape].
        z0: The state at the start.
        dz0: Its derivative, or None.
        alpha: The orders with a graph, [a], or None.
        derivative: 0 or 1.
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
    return torch.cat(found)


def dense_weights(mesh: Mesh, times: np.ndarray, stages: int, alpha: Array, derivative: int = 0) -> Array:
    """Return the weights of all stages at times since the start, [a, times, steps * s]."""
    xp: Namespace = TORCH if isinstance(alpha, Tensor) else NUMPY
    ends, h, count = mesh.times[1:], mesh.lengths, mesh.lengths.size
    own = np.clip(np.searchsorted(ends, times, side="left"), 0, count - 1)
    since = np.maximum(times - mesh.times[own], np.finfo(np.float64).tiny)
    gap = mesh.times[own][:, None] - ends + since[:, None]
    is_past = np.arange(count) < own[:, None]
    gap = np.where(is_past, gap, 1e3 * h)
    weights = after(stages, alpha, gap.reshape(-1), np.broadcast_to(h, gap.shape).reshape(-1), xp, derivative)
    weights = weights.reshape(-1, times.size, count, stages)
    place = np.minimum(since / h[own], 1.0)
    local = within(stages, alpha, place, xp, derivative)
    power = alpha[:, None] - derivative
    local = local * xp.exp(power * xp.constant(np.log(h[own]), alpha))[..., None]
    is_own = xp.constant((np.arange(count) == own[:, None]).astype(np.float64), alpha)
    found = weights * xp.constant(is_past.astype(np.float64), alpha)[..., None] + is_own[..., None] * local[:, :, None]
    return found.reshape(-1, times.size, count * stages)


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
    """Return F of the steps that `run` takes, [steps, s, *shape], with its gradients, and the steps.

    Args:
        problem: What is solved.
        run: Takes the steps.
        earlier: The lengths of the steps of a solve that is continued.
        read: The tensors that f reads.
        known: Their F, [earlier steps, s, *shape], or None.
        before: The state at their end, or None.
        z0: The state at the start, [*shape].
        dz0: Its derivative, or None.
        alpha: The orders as a tensor of [a] values whose gradient is wanted, or None.
        parameters: The tensors that f has graphs to.
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
    """Return what `recorded` does, without a graph."""
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
    """The backward pass, from the last step to the first.

    Args:
        problem: What was solved.
        mesh: All steps, with those of the solve that was continued.
        earlier: How many of them belong to that solve.
        values: F of all steps, [steps, s, *shape].
        states: Where f was evaluated in those of this solve, [steps - earlier, s, *shape].
        alpha: The orders, [a], where their gradient is wanted, else None.
        parameters: The tensors whose gradients are wanted.
        masks: Which samples were solved, from which step on.
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
        """Find all gradients.

        Args:
            grads: The cotangents of F of this solve, [steps - earlier, s, *shape].
            expected: The signatures of its right-hand sides, [2, (steps - earlier) s].
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
        """Return the gradient in the values of the solve that was continued."""
        count = self.earlier * self.problem.scheme.stages
        found = self.problem.layout.as_state(self._of_values[:, :count].contiguous())
        return found.view(self.earlier, self.problem.scheme.stages, *self.problem.layout.shape)

    def _step(self, n: int, g: Tensor, expected: Tensor) -> None:
        """Take the cotangent g of F_n apart; `expected` are the signatures of F_n, [2, s]."""
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
        """See `check_repeated`: of f at some of the stages, `value` with its graph, as z moves."""
        return torch.stack([self._signature.moved(z, value[k]) for k in stages])

    def _transposed(self, n: int, z: Tensor, value: Tensor, weights: Tensor, g: Tensor) -> Tensor:
        """Return u = g + M' J' u."""
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
        """Return what `_transposed` does where products alone do not: with one Jacobian for all stages before them."""
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
        """Bring the cotangents g of the states of step n's stages to what they were made of."""
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
        """Bring the cotangents of groups that end with step n to their parts, the longest first."""
        s = self.problem.scheme.stages
        for group in reversed(self.mesh.tree.groups[n]):
            g = self._of_moments.pop((group.first, group.last), None)
            if g is None or group.parts is None:
                continue
            for part in group.parts:
                self._add(part, self.problem.as_like(group.upward(part, s)).mT @ g, s)

    def _to_orders(self, n: int, rows: np.ndarray, h: float, g: Tensor) -> None:
        """Add the gradient in alpha of the sums of step n, whose cotangents are g, [a, s, r]."""
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
