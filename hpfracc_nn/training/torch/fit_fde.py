"""The orders and the parameters of a fractional model from observations, with their uncertainty.

The numbers [k] are the values of the k parameters of f in the order of their names; the a orders alpha are not among
them. States have shape [*shape], and derivatives of a state [a + k, *shape]: by the orders, then by the numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.selection import default_manager
from hpfracc_nn.solvers import Mesh, Scheme
from hpfracc_nn.solvers.checks import NotSolved
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.torch.fde import Call
from hpfracc_nn.solvers.torch.state import Field, forward_product
from hpfracc_nn.training import equations
from hpfracc_nn.training.equations import Series
from hpfracc_nn.training.fit import Fit
from hpfracc_nn.training.torch.sensitivity import tangents

Parameters = Mapping[str, Tensor]
Start = Tensor | Callable[[Parameters], Tensor]
_MOVED = 1e-3  # relative change of a number by which it is seen whether f depends on the number

RightHandSide = Callable[[Tensor, Tensor, Parameters], Tensor]


class FitModel:
    """The predictions of one experiment, and their derivatives by orders and parameters, as functions of a point.

    A point holds the values of the orders and the parameters, in real units.

    Args:
        series: The experiment.
        shape: The shape of alpha.
        names: The names of the parameters.
        observe: Computes the predictions from the states; None if the states themselves are observed.
        method: How the equation is solved, on a mesh that does not depend on the orders.
        n_steps: The number of steps of a solve.
    """

    def __init__(
        self,
        series: Series,
        shape: tuple[int, ...],
        names: Sequence[str],
        observe: Callable[[Tensor], Tensor] | None,
        method: Method,
        n_steps: int,
    ):
        self.series, self.shape, self.names, self.observe = series, shape, names, observe
        self.method, self.n_steps, self.orders = method, n_steps, math.prod(shape)
        self.site = default_manager().shared_site(method.op, "torch", "fit_fde")
        self._has_solved = False

    def __call__(self, values: np.ndarray) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
        """Return the predictions [observations] at a point, and a function that returns their Jacobian.

        Where the equation has no solution all are NaN.

        Raises:
            RuntimeError: The equation has no solution at the first point.
        """
        if not np.isfinite(values).all():
            return self._nothing
        orders, numbers = (torch.from_numpy(part.copy()) for part in np.split(values, [self.orders]))
        try:
            found = self._solved(orders.reshape(self.shape), numbers)
        except (FloatingPointError, NotSolved) as error:
            if self._has_solved:
                return self._nothing
            names = (*equations.order_names(self.shape), *self.names)
            raise equations.unsolved(names, values, str(error)) from error
        self._has_solved = True
        return found

    @property
    def _nothing(self) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
        """Predictions and a Jacobian of NaN, for a point at which the equation has no solution.

        The optimisation then takes a shorter step.
        """
        missing = np.full(self.series.data.size, np.nan)
        return missing, lambda: missing[:, None]

    def _solved(self, orders: Tensor, numbers: Tensor) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
        series = self.series
        start, moved = self._initial("y0", series.y0, numbers)
        dy0, turned = (None, None) if series.dy0 is None else self._initial("dy0", series.dy0, numbers)
        right = partial(self._right, numbers=numbers)
        call = Call(right, start, series.solved_at, orders, self.method, self.n_steps, dy0)
        problem = call.problem(self.site)
        is_above = (orders > 1).double()
        slope = None if dy0 is None else dy0 * is_above
        if not self._has_solved:
            self._check_same(problem.field, start)
        states = problem.solve(problem.pick(False), start, slope)
        if not self._has_solved:
            self._check_differentiable(problem.field.times[-1], states[-1], numbers)
        first = 0 if series.is_first else 1
        predicted, along = self._observed(call.at_outputs(states, slope)[first:])

        def jacobian() -> np.ndarray:
            turning = None if turned is None else turned * is_above
            found = tangents(problem, states, self._right, numbers, moved, slope, turning)
            columns = [along(each).reshape(-1) for each in call.at_outputs(found, turning)[first:].unbind(1)]
            return torch.stack(columns, -1).detach().numpy()

        return predicted, jacobian

    def _right(self, t: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        return self.series.f(t, y, self._named(numbers))

    def _check_same(self, field: Field, start: Tensor) -> None:
        """Raise ValueError if f, evaluated again at the same time and state, returns something else."""
        if _differ(field(0, start), field(0, start)):
            raise ValueError(
                f"fit_fde(f): needs the same value for the same t, y and params; at t={float(field.times[0]):g} it "
                "returns something else when it is evaluated again; draw random numbers before the fit, and call "
                "eval() on a module."
            )

    def _check_differentiable(self, t: Tensor, y: Tensor, numbers: Tensor) -> None:
        """Raise ValueError if f, at time t and state y, depends on one of the `numbers` and has no derivative by it."""
        with torch.enable_grad():
            leaves = [number.detach().requires_grad_() for number in numbers.unbind()]
            value = self.series.f(t, y, dict(zip(self.names, leaves, strict=True)))
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

    def _initial(self, argument: str, given: Start, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the state or its slope at the start, [*shape], and the derivatives of this tensor, [a + k, *shape].

        Args:
            argument: "y0" or "dy0", for messages.
            given: A tensor, or a function of the parameters that returns one.
            numbers: The values of the parameters, [k].
        """
        if isinstance(given, Tensor):
            start = given.detach().double()
            return start, start.new_zeros(self.orders + numbers.numel(), *start.shape)
        with torch.enable_grad():
            leaf = numbers.detach().requires_grad_()
            start = given(self._named(leaf))
            if not isinstance(start, Tensor):
                raise TypeError(
                    f"fit_fde({argument}): needs a function that returns a tensor; it returned {type(start).__name__}; "
                    "make it of the parameters by torch.stack."
                )
            start = start.double()
            along = forward_product(leaf, start)
        each = [along(unit) for unit in torch.eye(numbers.numel(), dtype=torch.float64)]
        return start.detach(), torch.stack([*[torch.zeros_like(start)] * self.orders, *each]).detach()

    def _observed(self, ys: Tensor) -> tuple[np.ndarray, Callable[[Tensor], Tensor]]:
        """Return the predictions of all observations, flat, and a function that takes tangents of the states to theirs.

        Args:
            ys: The states at the times of the observations, [times, *shape].
        """
        with torch.enable_grad():
            leaf = ys.detach().requires_grad_()
            seen = leaf if self.observe is None else self.observe(leaf)
            along = forward_product(leaf, seen)
        self.series.check_shape(seen.shape)
        return seen.detach().reshape(-1).numpy(), along


def _differ(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors differ by more than rounding explains; False if a value is NaN."""
    return bool((one - other).abs().max() > torch.finfo(one.dtype).eps ** 0.5 * one.abs().max())


def fit_fde(
    f: RightHandSide | Sequence[RightHandSide],
    ts: Any,
    observed: Any,
    y0: Start | Sequence[Start],
    params: Mapping[str, float],
    *,
    alpha: Any = 0.5,
    bounds: Any = None,
    dy0: Start | Sequence[Start] | None = None,
    t0: Any = 0.0,
    observe: Callable[[Tensor], Tensor] | None = None,
    weights: Any = None,
    scheme: str | Scheme = "trapezoid",
    mesh: str | Mesh = "graded",
    n_steps: int = 100,
    level: float = 0.95,
    tolerance: float = 1e-8,
    iterations: int = 50,
) -> Fit:
    """Return alpha and the parameters of D^alpha y = f(t, y, params) that fit observations best, in least squares.

    The model is fitted twice: with n_steps, and from there with twice as many, whose estimates are returned. A warning
    says if an order moves by more than a quarter of its standard error: the solver's error is in the estimate then.
    Another warning says if an order is at a bound. Intervals are those of a normal approximation without bounds, and a
    line of the summary says if an order's passes one. Derivatives are exact, and parameters may be of any size.
    Standard errors are those of independent errors, of equal variance unless there are weights. An order that is
    estimated beside a network is a hyper-parameter and no measurement, since the network makes up for a wrong order: a
    model with parameters of its own gives a warning.

    Several experiments are fitted jointly if `ts` and `observed` are lists, of times and of observations. Then `f`,
    `y0`, `dy0`, `t0` and `weights` are lists too, or one value for all.

    Args:
        f: Called as f(t, y, params) with params a dict of tensors of no axes by name; differentiable in y and params.
            Once the states are known, f may be called for many times at once under `torch.func.vmap`. A list has one
            function for each experiment, such as one with the experiment's force.
        ts: Times of the observations, increasing, not before t0; [observations].
        observed: [observations, ...], finite where weights are positive.
        y0: The state at t0, or a function of the parameters that returns it.
        params: First values by name; every parameter must change what is observed, and in a way of its own.
        alpha: First value of the order; an array where there are several, one for each entry along some of y0's axes
            (a shape that broadcasts to y0's). They are called alpha_1, alpha_2 and so on.
        bounds: The least and the largest order, (low, high), or such a pair for each order; above 1 with `dy0` only,
            and below 2. None is (0.02, 1), with a dy0 of zeros (0.02, 1.98), with another dy0 (1.02, 1.98), because the
            solution jumps where such an order passes 1.
        dy0: The derivative of the state at t0, for orders above 1, or a function of the parameters that returns it.
            Entries of orders up to 1 are ignored.
        t0: The time at which the fractional derivative begins.
        observe: Computes from the states [observations, *state] what is observed; None if the states are observed.
        weights: The weights of the squares, such as one over variances; broadcasts to `observed`. Only their ratios
            count. An observation of weight 0 is left out, and may be NaN. A mask of booleans says which are used.
        scheme: As in `fdeint`.
        mesh: As in `fdeint`.
        n_steps: The number of steps of the first fit, in each experiment from t0 to its last time.
        level: The level of the confidence intervals.
        tolerance: The tolerance of the optimisation.
        iterations: The greatest number of iterations for each number of steps.

    Raises:
        ValueError: An argument is out of range, or the observations do not determine a parameter.
        TypeError: An argument has the wrong type.
        RuntimeError: The equation has no solution at the first values, or the optimisation does not end.

    Source: Seber & Wild, Nonlinear Regression (1989), chapters 2 and 5.

    Examples:
        >>> from hpfracc_nn import data
        >>> t = np.linspace(0.1, 4, 40)
        >>> y = data.relaxation(t, 0.6, noise=0.02, rng=np.random.default_rng(0))
        >>> fit = fit_fde(
        ...     lambda t, y, p: -p["rate"] * y,
        ...     t,
        ...     y[:, None],
        ...     torch.ones(1).double(),
        ...     {"rate": 0.5},
        ... )
        >>> print(fit.summary())
                   estimate    std. error  95 % interval
        alpha      0.600173       0.00966  [0.580623, 0.619723]
        rate        1.00621        0.0143  [0.97724, 1.03519]
        residual deviation 0.0161 over 40 observations, 9 iterations
        alpha moved by ... when the steps were doubled to 200
    """
    _check_framework(f if isinstance(f, list | tuple) else [f], y0, dy0)
    orders = equations.orders_of(alpha, bounds, dy0)
    equations.check(params, level, tolerance, orders.names)
    series = equations.series_of(f, ts, observed, y0, dy0, weights, t0, len(orders.names) + len(params))
    method = Method.of("fit_fde", scheme, "auto", mesh)

    def predictor(each: Series, mesh: Mesh, steps: int) -> FitModel:
        return FitModel(each, orders.shape, tuple(params), observe, replace(method, mesh=mesh), steps)

    return equations.fitted(
        predictor,
        series,
        orders,
        params,
        method,
        n_steps=errors.count("fit_fde", "n_steps", n_steps),
        level=level,
        tolerance=tolerance,
        iterations=errors.count("fit_fde", "iterations", iterations),
    )


def _check_framework(fs: Any, y0: Any, dy0: Any) -> None:
    """Raise TypeError for a y0 or dy0 that is neither a tensor nor a function; warn of an f with learned parameters."""
    equations.check_starts(y0, dy0, lambda each: isinstance(each, Tensor), "a tensor", "torch.as_tensor")
    if any(isinstance(f, nn.Module) and any(each.requires_grad for each in f.parameters()) for f in fs):
        warnings.warn(
            "fit_fde(f with parameters of its own): alpha beside a network is a hyper-parameter and no measurement, "
            "since the network makes up for a wrong one; its parameters stay as they are here.",
            UserWarning,
            stacklevel=3,
        )
