"""The order and the parameters of a fractional model from observations, with their uncertainty.

The k numbers [k] are the parameters of f in the order of their names; alpha is not among them. States have shape
[*shape], and derivatives of a state [1 + k, *shape]: by alpha, then by the numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.selection import default_manager
from hpfracc_nn.solvers import Graded, Mesh, Scheme, checks
from hpfracc_nn.solvers.checks import NotSolved
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.torch.fde import Call
from hpfracc_nn.solvers.torch.state import Field, forward_product
from hpfracc_nn.training.fit import FIRST, NEAR, Coordinates, Fit, Minimum, covariance_of, least_squares, names_of
from hpfracc_nn.training.torch.sensitivity import tangents

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

    def __call__(self, values: np.ndarray) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
        """Return predictions [observations], and what computes their Jacobian; NaN where there is no solution.

        Raises:
            RuntimeError: There is none at the first point.
        """
        if not np.isfinite(values).all():
            return self._nothing
        try:
            found = self._solved(float(values[0]), torch.from_numpy(values[1:].copy()))
        except (FloatingPointError, NotSolved) as error:
            if self._has_solved:
                return self._nothing
            named = ", ".join(f"{name}={value:g}" for name, value in zip(names_of(self.names), values, strict=True))
            raise RuntimeError(
                f"fit_fde: the equation has no solution at the first values {named}: {error} Else begin with others."
            ) from error
        self._has_solved = True
        return found

    @property
    def _nothing(self) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
        """Predictions where there is no solution, from which the optimisation takes a shorter step."""
        return np.full(math.prod(self.shape), np.nan), lambda: np.full((math.prod(self.shape), 1), np.nan)

    def _solved(self, alpha: float, numbers: Tensor) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
        start, slopes = self._start(numbers)
        call = Call(partial(self._right, numbers=numbers), start, self.ts, alpha, self.method, self.n_steps)
        problem = call.problem(self.site)
        if not self._has_solved:
            self._check_same(problem.field, start)
        states = problem.solve(problem.pick(False), start, None)
        if not self._has_solved:
            self._check_differentiable(problem.field.times[-1], states[-1], numbers)
        first = 0 if self.is_first else 1
        predicted, along = self._observed(call.at_outputs(states)[first:])

        def jacobian() -> np.ndarray:
            moved = call.at_outputs(tangents(problem, states, self._right, numbers, slopes))[first:]
            columns = [along(each).reshape(-1) for each in moved.unbind(1)]
            return torch.stack(columns, -1).detach().numpy()

        return predicted, jacobian

    def _right(self, t: Tensor, y: Tensor, numbers: Tensor) -> Tensor:
        return self.f(t, y, self._named(numbers))

    def _check_same(self, field: Field, start: Tensor) -> None:
        """Raise ValueError if f, evaluated again at the same time and state, returns something else."""
        if _differ(field(0, start), field(0, start)):
            raise ValueError(
                f"fit_fde(f): needs the same value for the same t, y and params; at t={float(field.times[0]):g} it "
                "returns something else when it is evaluated again; draw random numbers before the fit, and call "
                "eval() on a module."
            )

    def _check_differentiable(self, t: Tensor, y: Tensor, numbers: Tensor) -> None:
        """Raise ValueError if f depends on a number and has no derivative by it."""
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
        """Return the state at the start, [*shape], and its derivatives, [1 + k, *shape]."""
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

    def _observed(self, ys: Tensor) -> tuple[np.ndarray, Callable[[Tensor], Tensor]]:
        """Return the predictions of all observations, flat, and their derivatives along those of the states.

        Args:
            ys: States at the times of the observations, [times, *shape].
        """
        with torch.enable_grad():
            leaf = ys.detach().requires_grad_()
            seen = leaf if self.observe is None else self.observe(leaf)
            along = forward_product(leaf, seen)
        if _squeezed(seen.shape) != _squeezed(self.shape):
            raise ValueError(
                f"fit_fde(observed of shape {self.shape}): needs the shape of what is predicted; the model predicts "
                f"{tuple(seen.shape)}, time first; pass observe=, which makes of the states what is observed."
            )
        return seen.detach().reshape(-1).numpy(), along


def _differ(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors differ by more than rounding may; False where values are not finite."""
    return bool((one - other).abs().max() > torch.finfo(one.dtype).eps ** 0.5 * one.abs().max())


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


_SHIFT = 0.25  # of alpha's standard error
_ROUGH, _FEW = 1e-3, 20  # tolerance and least number of steps where a fit only looks for the mesh


def fit_fde(
    f: RightHandSide,
    ts: Any,
    observed: Any,
    y0: Tensor | Callable[[Parameters], Tensor],
    params: Mapping[str, float],
    *,
    alpha: float = 0.5,
    bounds: tuple[float, float] = (0.02, 1.0),
    t0: float = 0.0,
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

    The model is fitted twice: with n_steps, and from there with twice as many, whose estimates are returned. Where
    alpha moves by more than a quarter of its standard error a warning says so: the solver's error is in the estimate
    then. Another says that alpha is at a bound. Derivatives are exact, and parameters may be of any size.
    Standard errors are those of independent errors, of equal variance unless there are weights. An order that is
    estimated beside a network is a hyper-parameter and no measurement, since the network makes up for a wrong one: a
    model with parameters of its own gives a warning.

    Args:
        f: Called as f(t, y, params) with tensors of no axes by name; differentiable in y and in them. Once the states
            are known it may be called for many times at once under `torch.func.vmap`.
        ts: Times of the observations, increasing, not before t0; [observations].
        observed: [observations, ...], finite where weights are positive.
        y0: The state at t0, or a function of the parameters that returns it.
        params: First values by name; every parameter must change what is observed, and in a way of its own.
        alpha: First value of the order.
        bounds: Where it stays, in (0, 1]; the bounds themselves are allowed.
        t0: Where the derivative begins.
        observe: Makes what is observed of the states [observations, *state]; None: the states are.
        weights: Of the squares, such as one over variances; broadcasts to `observed`. Only their ratios count. An
            observation of weight 0 is left out, and may be NaN. A mask of booleans says which are used.
        scheme: As in `fdeint`.
        mesh: As in `fdeint`.
        n_steps: Of the first solve.
        level: Of the confidence intervals.
        tolerance: Of the optimisation.
        iterations: At most, for each number of steps.

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
    _check(f, y0, params, alpha, bounds, level, tolerance)
    names = names_of(tuple(params))
    times, data, roots = _observations(ts, observed, weights, t0, len(names))
    is_used = roots > 0
    counted = int(is_used.sum())
    count = errors.count("fit_fde", "n_steps", n_steps)
    most = errors.count("fit_fde", "iterations", iterations)
    chosen = Method.of("fit_fde", scheme, "auto", mesh)
    limits = np.full((2, len(names)), [[-np.inf], [np.inf]])
    limits[:, 0] = bounds  # alpha is a coordinate of its own

    def fitted(values: np.ndarray, steps: int, tolerance: float = tolerance, damping: float = FIRST) -> Minimum:
        method = replace(chosen, mesh=_held(chosen.mesh, values[0]))
        model = FitModel(f, times, data.shape, y0, tuple(params), t0, observe, method, steps)
        coordinates = Coordinates(values, np.array(names) == "alpha")

        def predicted(point: np.ndarray) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
            at = coordinates.values(point)
            found, jacobian = model(at)
            slope = roots[is_used, None] * coordinates.slope(at)
            return found[is_used] * roots[is_used], lambda: jacobian()[is_used] * slope

        best = least_squares(
            predicted,
            data.ravel()[is_used] * roots[is_used],
            coordinates.of(values),
            tolerance=tolerance,
            iterations=most,
            damping=damping,
            bounds=(limits[0], limits[1]),
        )
        found = coordinates.values(best.point)
        return replace(best, point=found, jacobian=best.jacobian / coordinates.slope(found))

    start, total = np.array([alpha, *params.values()], dtype=np.float64), 0
    if _held(chosen.mesh, alpha) != chosen.mesh:  # a mesh that suits alpha: where about is it?
        rough = fitted(start, max(count // 2, min(count, _FEW)), max(tolerance, _ROUGH))
        start, total = rough.point, rough.iterations
    first = fitted(start, count, damping=NEAR if total else FIRST)
    last = fitted(first.point, 2 * count, damping=NEAR)
    variance = float(last.residuals @ last.residuals) / (counted - len(names))
    covariance = covariance_of(last.jacobian, variance, names)
    shift = float(abs(last.point[0] - first.point[0]))
    notes = _notes(float(last.point[0]), bounds)
    if shift > _SHIFT * np.sqrt(covariance[0, 0]):
        warnings.warn(
            f"fit_fde: alpha moved by {shift:.2g} when the steps were doubled to {2 * count}, and its standard error "
            f"is {np.sqrt(covariance[0, 0]):.2g}; raise n_steps.",
            UserWarning,
            stacklevel=2,
        )
    for note in notes:
        warnings.warn(f"fit_fde: {note}", UserWarning, stacklevel=2)
    total += first.iterations + last.iterations
    return Fit(names, last.point, covariance, np.sqrt(variance), counted, total, 2 * count, shift, level, notes)


def _held(mesh: Mesh, alpha: float) -> Mesh:
    """Return a mesh that does not change with the order: for a graded mesh, that which suits `alpha`.

    Predictions on a fixed mesh are smooth in the order.
    """
    return Graded(mesh.of(float(alpha))) if isinstance(mesh, Graded) else mesh


def _notes(alpha: float, bounds: tuple[float, float]) -> tuple[str, ...]:
    if alpha not in bounds:
        return ()
    return (f"alpha is at its bound {alpha:g}: its standard error and interval are those of a model without bounds.",)


def _observations(
    ts: Any, observed: Any, weights: Any, t0: float, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times, data and the roots of flat weights as float64 arrays, or raise for data that no fit can use.

    The weights have a mean of 1 over what is used.

    Args:
        ts: Times.
        observed: Data, time first.
        weights: Of the data, or None.
        t0: Where the derivative begins.
        count: Number of parameters of the fit.
    """
    times, data = np.asarray(ts, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    if times.ndim != 1 or data.shape[:1] != times.shape:
        raise ValueError(
            f"fit_fde(ts of shape {times.shape}, observed of shape {data.shape}): needs an observation for each time; "
            "pass observed with time as its first axis."
        )
    each = _weights(weights, data.shape)
    if np.count_nonzero(each) <= count:
        used = "numbers" if weights is None else "numbers with positive weights"
        raise ValueError(
            f"fit_fde(observed of {np.count_nonzero(each)} {used}): needs more than the {count} parameters; observe "
            "more."
        )
    missing = ~np.isfinite(data) & (each > 0)
    if missing.any():
        place = np.argwhere(missing)[0].tolist()
        raise ValueError(
            f"fit_fde(observed): needs finite numbers; observed{place}={data[tuple(place)]}; leave that time out, or "
            "pass weights that are 0 there."
        )
    if not (times.size == 1 and t0 < times[0] < math.inf):  # one time makes two with t0
        times = checks.increasing("fit_fde", times)
    if not t0 <= times[0]:
        raise ValueError(
            f"fit_fde(t0={t0:g}): needs t0 <= ts[0], where the derivative begins; ts[0]={times[0]:g}; pass t0=ts[0], "
            "or leave out what is before."
        )
    return times, np.where(each > 0, data, 0.0), np.sqrt(each / each[each > 0].mean()).ravel()


def _weights(weights: Any, shape: tuple[int, ...]) -> np.ndarray:
    if weights is None:
        return np.ones(shape)
    is_mask = getattr(weights, "dtype", None) in (np.bool_, torch.bool)
    found = np.asarray(weights, dtype=np.float64) if is_mask else errors.as_numbers(weights)
    if found is None or not np.all(np.isfinite(found) & (found >= 0)):
        raise ValueError("fit_fde(weights): needs finite numbers >= 0; pass one over the variances, 0 to leave out.")
    try:
        return np.broadcast_to(found, shape)
    except ValueError:
        raise ValueError(
            f"fit_fde(weights of shape {found.shape}): needs a shape that broadcasts to that of observed, {shape}; "
            "pass one for each observation."
        ) from None


def _check(
    f: Any,
    y0: Any,
    params: Mapping[str, float],
    alpha: float,
    bounds: tuple[float, float],
    level: float,
    tolerance: float,
) -> None:
    low, high = errors.pair("fit_fde", "bounds", bounds)
    order = errors.as_numbers(alpha)
    if order is None or order.shape:
        raise TypeError(
            f"fit_fde(alpha={alpha!r}): needs one number, the first value of the order that all equations share; pass "
            "for example 0.5, or train a NeuralFDE(f, [0.5, 0.7], learn_alpha=True), which has an order for each entry."
        )
    if not 0 < low < high <= 1:
        raise ValueError(f"fit_fde(bounds={bounds}): needs 0 < low < high <= 1; pass for example (0.02, 1).")
    if not low <= alpha <= high:
        raise ValueError(f"fit_fde(alpha={alpha}): needs a first value between the bounds {bounds}; pass one inside.")
    if not 0 < errors.real("fit_fde", "level", level, 0.0, above=True) < 1:
        raise ValueError(f"fit_fde(level={level}): needs 0 < level < 1; pass for example 0.95.")
    if not 0 < errors.real("fit_fde", "tolerance", tolerance, 0.0, above=True) < 1:
        raise ValueError(f"fit_fde(tolerance={tolerance}): needs 0 < tolerance < 1; pass for example 1e-8.")
    if not isinstance(params, Mapping):
        raise TypeError(
            f"fit_fde(params of type {type(params).__name__}): needs first values by their names; pass a dict such as "
            '{"rate": 1.0}, or {} where there is only the order.'
        )
    if "alpha" in params:
        raise ValueError("fit_fde(params with 'alpha'): alpha is a parameter already; pass its first value as alpha=.")
    for name, value in params.items():
        if not isinstance(value, Real):
            raise TypeError(
                f"fit_fde(params[{name!r}] of type {type(value).__name__}): needs a number; pass its first value as a "
                "float, and a parameter for each of several."
            )
        if not math.isfinite(value):
            raise ValueError(f"fit_fde(params[{name!r}]={value}): needs a finite first value; pass for example 1.0.")
    if not (isinstance(y0, Tensor) or callable(y0)):
        raise TypeError(
            f"fit_fde(y0 of type {type(y0).__name__}): needs a tensor, or a function of the parameters that returns "
            "one; pass torch.as_tensor(y0)."
        )
    if isinstance(f, nn.Module) and any(each.requires_grad for each in f.parameters()):
        warnings.warn(
            "fit_fde(f with parameters of its own): alpha beside a network is a hyper-parameter and no measurement, "
            "since the network makes up for a wrong one; its parameters stay as they are here.",
            UserWarning,
            stacklevel=3,
        )
