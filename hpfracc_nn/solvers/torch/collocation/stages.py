"""The stage equations of a step by collocation, F = f(H + M F), solved by fixed-point iteration or Newton's method.

F are the values of f at the stages, H the sums over the past at the stages, and M the weights of the step's own F. J
are the Jacobians of f at the stages.

Shapes: [*shape] a state of d numbers, a orders alpha, s stages.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.solvers.collocation import FLOOR, GUESSES, PART, SLOW, SMALL, WORSE
from hpfracc_nn.solvers.torch.collocation.problem import Problem
from hpfracc_nn.solvers.torch.roots import TOLERANCES, gmres
from hpfracc_nn.solvers.torch.state import Layout, is_finite, product

_RENEWED = 3  # how often a step may have its Jacobian made anew
_STAYS = 8  # steps for which Jacobians at all stages are made after a step that needed them


class Stages:
    """The solver of the stage equations F = f(H + M F) of one solve; it keeps the Jacobian from step to step.

    Args:
        problem: The solve.

    Attributes:
        count: The number d of entries of a state.
        is_dense: Whether Newton's method factorises the matrix 1 - J M of all stages.
        split: The solver of 1 - J M by its eigenvalues, for larger states with one order and a dense Jacobian; or None.
        iterations: The most iterations of a step.
        tolerance: The tolerance of the equations in a solve without rtol and atol, relative to the state.
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
        self._made_at, self._kept = -1, 0  # the step in which J was made; steps since J was made at all stages
        self._rate = 1.0
        self.iterations = min(roots.iterations, 20) if problem.rtol is not None else roots.iterations
        self.tolerance = TOLERANCES[problem.like.dtype] if roots.tolerance is None else roots.tolerance

    def solve(
        self, n: int, start: float, h: float, history: Tensor, weights: Tensor, guess: Tensor, scale: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return F, the states at which f was evaluated last, and f there, each [s, *shape]; None if not converged.

        Args:
            n: Index of the step.
            start: The time at which the step begins, since the start.
            h: The length of the step.
            history: H, the sums over the past and the Taylor polynomial at the stages, [s, *shape].
            weights: M, [a, s, s].
            guess: A guess of F, [s, *shape].
            scale: The error that the tolerances allow, [*shape], or None where the equations are solved to their own
                tolerance.
        """
        problem, last, rate = self.problem, math.inf, max(self._rate, 0.01) ** 0.8
        allowed = PART if scale is not None and problem.scheme.roots.tolerance is None else 1.0
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
                    rate = 0.0 if change <= floor and rate > 0.5 else rate  # the change is rounding alone
                if scale is None and rate:  # f was last evaluated before the change, and so are Jacobians backwards
                    rate = max(rate, 1.0)
                if change * rate <= allowed:
                    self._rate = min(rate, 1.0)
                    self._kept += 1
                    return values, states, found
            left = self.iterations - k - 1
            if not theta < math.inf or (last < math.inf and self._is_slow(theta, change, allowed, left)):
                if not change < math.inf or theta >= WORSE:
                    values = guess
                renewed += 1
                if renewed > _RENEWED or not self._renewed(*where, history + problem.mixed(weights, values)):
                    return None
                change, rate = math.inf, 1.0
            last = change
        return None

    def _sizes(self, change: Tensor, states: Tensor, history: Tensor, scale: Tensor | None) -> tuple[float, float]:
        """Return the size of a change of the stages' states, and the size of its rounding, relative to what is allowed.

        `scale` is the error that the tolerances allow, or None for the equations' own tolerance.
        """
        largest = torch.maximum(states.abs(), history.abs()).amax(0)
        if scale is None:
            scale = (self.tolerance * largest.max()).clamp(min=torch.finfo(change.dtype).tiny)
        found = self.problem.sizes(torch.cat([change, FLOOR * self.problem.eps * largest[None]]), scale).amax(1)
        return float(found[:-1].max()), float(found[-1])

    def _is_slow(self, theta: float, change: float, allowed: float, left: int) -> bool:
        """Return whether changes that shrink by theta need so many more iterations that a better Jacobian is cheaper.

        `change` is the last change and `allowed` the wanted one, `left` the number of iterations that may follow.
        """
        if theta >= 1:
            return True
        needed = math.log(allowed * (1 - theta) / change) / math.log(theta)
        if not self._is_newton:
            return needed > GUESSES or (theta > SLOW and needed > 3)
        return needed > left or needed > max(4, self.count)

    def _renewed(self, n: int, start: float, h: float, states: Tensor) -> bool:
        """Improve the iteration; return False where there is nothing better.

        Newton's method replaces fixed-point iteration; else its Jacobian is made anew, here at the given states of all
        stages or in the next iteration; else GMRES solves the linear equations.
        """
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
        """Return Newton's correction of F, the solution x of (1 - J M) x = residual, J the Jacobian that is kept."""
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
        """Return the Jacobian of f at the middle stage, [1, d, d], if `is_one`, else at all stages, [s, d, d]."""
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
        """Return Newton's correction as `_newton` does, by GMRES with products of the Jacobians at all stages.

        Where there is a `split`, it preconditions GMRES. The result is NaN where GMRES does not converge.
        """
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
    """The solver of (1 - J M) x = residual for one J at all stages, by one equation for each eigenvalue of M.

    All entries of the state have the same order.

    Args:
        problem: The solve.

    Attributes:
        jacobian: J, [d, d], or None before it is made.
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
        """Return x, [s, *shape], with (1 - J M) x = residual, or with the transposed matrix; h is the step's length."""
        assert self.jacobian is not None, "it has been made"
        if self._kept is None or self._kept[0] is not self.jacobian or self._kept[1] != h:
            unit = torch.eye(self.jacobian.shape[0]).to(self._values)
            scaled = self._values.view(-1, 1, 1) * h**self.alpha * self.jacobian
            self._kept = self.jacobian, h, torch.linalg.lu_factor_ex(unit - scaled)[:2]
        flat = residual.reshape(residual.shape[0], -1).to(self._values)
        outer, inner = (self._inverse.T, self._vectors.T) if is_transposed else (self._vectors, self._inverse)
        if is_transposed:  # the transpose is the adjoint of the conjugate
            found = torch.linalg.lu_solve(*self._kept[2], (inner @ flat).conj()[..., None], adjoint=True).conj()
        else:
            found = torch.linalg.lu_solve(*self._kept[2], (inner @ flat)[..., None])
        return (outer @ found[..., 0]).real.to(residual.dtype).view_as(residual)


def jacobians(z: Tensor, value: Tensor, stage: int | None = None) -> Tensor:
    """Return the Jacobians of f at all stages, [s, d, d], or at one stage, [d, d].

    Args:
        z: The states of all stages, a leaf, [s, *shape].
        value: f at all stages, with its graph from z, [s, *shape]; or f at the wanted stage alone, [1, *shape].
        stage: The wanted stage; None is all.
    """
    rows = []
    for e in range(z[0].numel()):
        unit = torch.zeros_like(value).reshape(value.shape[0], -1)
        unit[slice(None) if stage is None or value.shape[0] == 1 else stage, e] = 1
        found = product(value, [z], unit.view_as(value))[0]
        rows.append(found.reshape(z.shape[0], -1) if stage is None else found[stage].reshape(-1))
    return torch.stack(rows, 0 if stage is not None else 1)


def stage_matrix(layout: Layout, weights: Tensor, jacobian: Tensor) -> Tensor:
    """Return the matrix 1 - J M of all stages together, [s d, s d]; `weights` are M, [a, s, s], J is [1 or s, d, d]."""
    a, s, _ = weights.shape
    each = layout.as_state(weights.reshape(a, s * s, 1).expand(a, s * s, layout.width).contiguous()).reshape(s, s, -1)
    d = each.shape[-1]
    mixed = torch.einsum("ipq,ijq->ipjq", jacobian.expand(s, d, d), each).reshape(s * d, s * d)
    return torch.eye(s * d, dtype=mixed.dtype, device=mixed.device) - mixed
