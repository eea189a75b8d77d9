"""The arguments of `fdeint`: what is solved, checked and laid out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpfracc_nn.fractional.torch.tracing import is_traced
from hpfracc_nn.selection import Site
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.mesh import Uniform, interpolation
from hpfracc_nn.solvers.method import Method, laid_out
from hpfracc_nn.solvers.torch import kernels, plain  # noqa: F401  kernels are registered on import
from hpfracc_nn.solvers.torch.adjoint import recorded
from hpfracc_nn.solvers.torch.arguments import checked_state, orders_of, resolution, times_of
from hpfracc_nn.solvers.torch.casts import Casts
from hpfracc_nn.solvers.torch.field import Field, RightHandSide
from hpfracc_nn.solvers.torch.packing import State, packing_of
from hpfracc_nn.solvers.torch.parameters import discovered
from hpfracc_nn.solvers.torch.problem import Problem, Progress


class Call:
    """The arguments of one call, checked and laid out; those of `fdeint`.

    Raises:
        ValueError: One is out of range.
        TypeError: One has the wrong type.
    """

    def __init__(
        self,
        f: RightHandSide,
        y0: State,
        ts: Any,
        alpha: float | Tensor,
        method: Method,
        n_steps: int | None = None,
        dy0: State | None = None,
    ):
        if not callable(f):
            raise TypeError(f"fdeint(f of type {type(f).__name__}): needs a function f(t, y); pass one.")
        self.method = method
        self.casts: Casts | None = None  # f's autocast
        self.f, self.y0 = f, checked_state("fdeint", "y0", y0)
        self.like = self.y0[0] if isinstance(self.y0, tuple) else self.y0
        self.alpha = alpha if isinstance(alpha, Tensor) else None
        self.orders = orders_of("fdeint", alpha)
        self.packing = packing_of(self.y0, torch.Size(()) if self.alpha is None else self.alpha.shape)
        checks.orders("fdeint", self.orders, dy0 is not None, self.alpha is not None)
        self.dy0 = None if dy0 is None else _like(self.y0, checked_state("fdeint", "dy0", dy0))
        outputs = checks.increasing("fdeint", times_of("fdeint", ts))
        self.first, self.outputs = float(outputs[0]), outputs - outputs[0]
        self.elapsed, self.index = laid_out(method.mesh, outputs, resolution(ts), n_steps, float(self.orders.min()))

    def solved(self, site: Site, adjoint: bool, params: Iterable[Tensor] | None, progress: Progress | None) -> State:
        """Return the states at the output times."""
        problem = self.problem(site, progress)
        z0 = self.packing.joined(self.y0)
        dz0 = None if self.dy0 is None else self._slope(self.dy0)
        alpha = None if self.alpha is None else self.alpha.to(z0.device, torch.float64).reshape(-1)
        is_seen = is_traced(z0, ()) or forward_ad._current_level >= 0
        if not is_seen and not torch.is_grad_enabled():
            states = problem.solve(problem.pick(False), z0, dz0)
        elif is_seen or not adjoint:
            given = torch.as_tensor(self.orders, device=z0.device) if alpha is None else alpha
            states = plain.solve(problem, z0, dz0, given, is_seen)
        else:
            states = self._recorded(problem, z0, dz0, alpha, params)
        return self.packing.parted(self.at_outputs(states, dz0))

    def problem(self, site: Site, progress: Progress | None = None) -> Problem:
        """Return what is solved, beside the tensors that gradients are wanted of."""
        field, method = Field(self.f, self.packing, self.first + self.elapsed, self.like, self.casts), self.method
        is_uniform = isinstance(method.mesh, Uniform)
        is_fixed = self.alpha is None or not self.alpha.requires_grad
        return Problem(
            field, method.scheme, method.history, site, self.orders, self.elapsed, is_uniform, is_fixed, progress
        )

    def _recorded(
        self,
        problem: Problem,
        z0: Tensor,
        dz0: Tensor | None,
        alpha: Tensor | None,
        params: Iterable[Tensor] | None,
    ) -> Tensor:
        parameters, read = discovered(problem.field, z0, params)
        tensors = [z0, dz0, alpha, *parameters]
        if not any(each is not None and each.requires_grad for each in tensors):
            return problem.solve(problem.pick(False), z0, dz0)
        return recorded(problem, problem.pick(True), z0, dz0, alpha, parameters, read)

    def _slope(self, dy0: State) -> Tensor:
        """Return the derivative at the start, 0 for the orders that have no such condition."""
        slope = self.packing.joined(dy0)
        return slope * self.packing.spread(torch.as_tensor(self.orders > 1)).to(slope)

    def at_outputs(self, states: Tensor, dz0: Tensor | None = None) -> Tensor:
        """Return the states at the output times, [times, *shape].

        Args:
            states: At all steps, [n_steps + 1, *shape].
            dz0: The derivative at the start: a line is no smooth function of j, and is not interpolated.
        """
        whole = np.round(self.index).astype(np.int64)
        if (whole == self.index).all():
            if np.array_equal(whole, np.arange(states.shape[0])):
                return states
            return states[torch.as_tensor(whole, device=states.device)]
        at, weights = interpolation(self.index, states.shape[0] - 1)
        placed = torch.as_tensor(weights).to(states)
        points = states[torch.as_tensor(at, device=states.device)]
        found = torch.einsum("ti,ti...->t...", placed, points)
        if dz0 is None:
            return found
        missed = self.outputs - (weights * self.elapsed[at]).sum(-1)
        return found + torch.as_tensor(missed).to(states).view(-1, *[1] * dz0.ndim) * dz0


def _like(y0: State, dy0: State) -> State:
    shapes = [tuple(part.shape) for part in (y0 if isinstance(y0, tuple) else (y0,))]
    given = [tuple(part.shape) for part in (dy0 if isinstance(dy0, tuple) else (dy0,))]
    if shapes != given or isinstance(y0, tuple) != isinstance(dy0, tuple):
        raise ValueError(
            f"fdeint(dy0 of shape {given}): needs the shape of y0, {shapes}; pass a derivative for each entry."
        )
    return dy0
