"""The model of a fit: predictions of observations, and their derivatives by alpha and the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.selection import default_manager
from hpfracc_nn.solvers.faults import NotSolved
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.torch.call import Call
from hpfracc_nn.solvers.torch.field import Field, forward_product
from hpfracc_nn.solvers.torch.tangents import tangents
from hpfracc_nn.training.fit import names_of

Parameters = Mapping[str, Tensor]
_MOVED = 1e-3  # of a number, to see whether f depends on it

RightHandSide = Callable[[Tensor, Tensor, Parameters], Tensor]


class FitModel:
    """The predictions and their derivatives by alpha and the parameters, at a point in real units.

    Args:
        f: The right-hand side.
        times: Of the observations.
        shape: Of the observations.
        y0: The state at the start, or a function of the parameters.
        names: Of the parameters.
        t0: Where the derivative begins.
        observe: Makes what is observed of the states, or None.
        method: How the equation is solved.
        n_steps: By how many steps.
    """

    def __init__(
        self,
        f: RightHandSide,
        times: np.ndarray,
        shape: tuple[int, ...],
        y0: Tensor | Callable[[Parameters], Tensor],
        names: Sequence[str],
        t0: float,
        observe: Callable[[Tensor], Tensor] | None,
        method: Method,
        n_steps: int,
    ):
        self.f, self.shape, self.y0, self.names, self.observe = f, shape, y0, names, observe
        self.method, self.n_steps = method, n_steps
        self.is_first = times[0] == t0  # the first observation is of the start
        self.ts = times if self.is_first else np.concatenate([[t0], times])
        self.site = default_manager().shared_site(method.op, "torch", "fit_fde")
        self._has_solved = False

    def __call__(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions [observations] and their Jacobian; NaN where there is no solution.

        Raises:
            RuntimeError: There is none at the first point.
        """
        nothing = np.array([np.nan]), np.empty((1, values.size))  # the optimisation takes a shorter step
        if not np.isfinite(values).all():
            return nothing
        try:
            found = self._solved(float(values[0]), torch.from_numpy(values[1:].copy()))
        except (FloatingPointError, NotSolved) as error:
            if self._has_solved:
                return nothing
            named = ", ".join(f"{name}={value:g}" for name, value in zip(names_of(self.names), values, strict=True))
            raise RuntimeError(
                f"fit_fde: the equation has no solution at the first values {named}: {error} Else begin with others."
            ) from error
        self._has_solved = True
        return found

    def _solved(self, alpha: float, numbers: Tensor) -> tuple[np.ndarray, np.ndarray]:
        start, slopes = self._start(numbers)
        call = Call(partial(self._right, numbers=numbers), start, self.ts, alpha, self.method, self.n_steps)
        problem = call.problem(self.site)
        if not self._has_solved:
            self._check_same(problem.field, start)
        states = problem.solve(problem.pick(False), start, None)
        if not self._has_solved:
            self._check_differentiable(problem.field.times[-1], states[-1], numbers)
        moved = tangents(problem, states, self._right, numbers, slopes)
        first = 0 if self.is_first else 1
        return self._observed(call.at_outputs(states)[first:], call.at_outputs(moved)[first:])

    def _right(self, t: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        return self.f(t, y, self._named(numbers))

    def _check_same(self, field: Field, start: Tensor) -> None:
        """Raise where f returns something else when it is evaluated again."""
        if _differ(field(0, start), field(0, start)):
            raise ValueError(
                f"fit_fde(f): needs the same value for the same t, y and params; at t={float(field.times[0]):g} it "
                "returns something else when it is evaluated again; draw random numbers before the fit, and call "
                "eval() on a module."
            )

    def _check_differentiable(self, t: Tensor, y: Tensor, numbers: Tensor) -> None:
        """Raise where f depends on a number and has no derivative by it."""
        with torch.enable_grad():
            leaves = [number.detach().requires_grad_() for number in numbers.unbind()]
            value = self.f(t, y, dict(zip(self.names, leaves, strict=True)))
        reached: Sequence[Tensor | None] = [None] * len(leaves)
        if value.requires_grad:
            reached = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
        for k in (k for k, gradient in enumerate(reached) if gradient is None):
            moved = numbers.clone()
            moved[k] += _MOVED * max(1.0, abs(float(moved[k])))
            if _differ(value.detach(), self._right(t, y, moved)):
                raise ValueError(
                    f"fit_fde(f): needs to be differentiable in params[{self.names[k]!r}]; its value depends on it and "
                    "has no derivative by it; compute with the tensor itself, by functions of torch, and not with a "
                    "number that is read out of it, as by float()."
                )

    def _named(self, numbers: Tensor) -> Parameters:
        return dict(zip(self.names, numbers.unbind(), strict=True))

    def _start(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state at the start and its derivatives, [1 + parameters, *shape]."""
        if isinstance(self.y0, Tensor):
            start = self.y0.detach().double()
            return start, start.new_zeros(1 + numbers.numel(), *start.shape)
        with torch.enable_grad():
            leaf = numbers.detach().requires_grad_()
            start = self.y0(self._named(leaf))
            if not isinstance(start, Tensor):
                raise TypeError(
                    f"fit_fde(y0): needs a function that returns a tensor; it returned {type(start).__name__}; make it "
                    "of the parameters by torch.stack."
                )
            start = start.double()
            along = forward_product(leaf, start)
        each = [along(unit) for unit in torch.eye(numbers.numel(), dtype=torch.float64)]
        return start.detach(), torch.stack([torch.zeros_like(start), *each]).detach()

    def _observed(self, ys: Tensor, moved: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return what is seen of states [times, *shape] and of their derivatives [times, 1 + parameters, *shape]."""
        with torch.enable_grad():
            leaf = ys.detach().requires_grad_()
            seen = leaf if self.observe is None else self.observe(leaf)
            along = forward_product(leaf, seen)
        if _squeezed(seen.shape) != _squeezed(self.shape):
            raise ValueError(
                f"fit_fde(observed of shape {self.shape}): needs the shape of what is predicted; the model predicts "
                f"{tuple(seen.shape)}, time first; pass observe=, which makes of the states what is observed."
            )
        columns = [along(each).reshape(-1) for each in moved.unbind(1)]
        return seen.detach().reshape(-1).numpy(), torch.stack(columns, -1).detach().numpy()


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether values differ by more than rounding may; not where one is not finite."""
    return bool((one - other).abs().max() > torch.finfo(one.dtype).eps ** 0.5 * one.abs().max())


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]
