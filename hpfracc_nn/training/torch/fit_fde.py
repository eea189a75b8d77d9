"""The order and the parameters of a fractional model from observations, with their uncertainty."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.solvers import Graded, Mesh, Scheme, checks
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.training.fit import FIRST, NEAR, Coordinates, Fit, Minimum, covariance_of, least_squares, names_of
from hpfracc_nn.training.torch.fit_model import FitModel, Parameters, RightHandSide

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
    Standard errors are those of independent errors of equal variance. An order that is estimated beside a network is a
    hyper-parameter and no measurement, since the network makes up for a wrong one: a model with parameters of its own
    gives a warning.

    Args:
        f: Called as f(t, y, params) with tensors of no axes by name; differentiable in y and in them. Once the states
            are known it may be called for many times at once under `torch.func.vmap`.
        ts: Times of the observations, increasing, not before t0; [observations].
        observed: [observations, ...], finite.
        y0: The state at t0, or a function of the parameters that returns it.
        params: First values by name; every parameter must change what is observed, and in a way of its own.
        alpha: First value of the order.
        bounds: Where it stays, in (0, 1]; the bounds themselves are allowed.
        t0: Where the derivative begins.
        observe: Makes what is observed of the states [observations, *state]; None: the states are.
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
    times, data = _observations(ts, observed, t0, len(names))
    count = errors.count("fit_fde", "n_steps", n_steps)
    most = errors.count("fit_fde", "iterations", iterations)
    chosen = Method.of("fit_fde", scheme, "auto", mesh)
    limits = np.full((2, len(names)), [[-np.inf], [np.inf]])
    limits[:, 0] = bounds  # alpha is a coordinate of its own

    def fitted(values: np.ndarray, steps: int, tolerance: float = tolerance, damping: float = FIRST) -> Minimum:
        method = replace(chosen, mesh=_held(chosen.mesh, values[0]))
        model = FitModel(f, times, data.shape, y0, tuple(params), t0, observe, method, steps)
        coordinates = Coordinates(values, np.array(names) == "alpha")

        def predicted(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            at = coordinates.values(point)
            found, jacobian = model(at)
            return found, jacobian * coordinates.slope(at)

        best = least_squares(
            predicted,
            data.ravel(),
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
    variance = float(last.residuals @ last.residuals) / (data.size - len(names))
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
    return Fit(names, last.point, covariance, np.sqrt(variance), data.size, total, 2 * count, shift, level, notes)


def _held(mesh: Mesh, alpha: float) -> Mesh:
    """Return the mesh that suits an order, which does not change with it: predictions are then smooth in alpha."""
    return Graded(mesh.of(float(alpha))) if isinstance(mesh, Graded) else mesh


def _notes(alpha: float, bounds: tuple[float, float]) -> tuple[str, ...]:
    if alpha not in bounds:
        return ()
    return (f"alpha is at its bound {alpha:g}: its standard error and interval are those of a model without bounds.",)


def _observations(ts: Any, observed: Any, t0: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return times and data as float64."""
    times, data = np.asarray(ts, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    if times.ndim != 1 or data.shape[:1] != times.shape:
        raise ValueError(
            f"fit_fde(ts of shape {times.shape}, observed of shape {data.shape}): needs an observation for each time; "
            "pass observed with time as its first axis."
        )
    if data.size <= count:
        raise ValueError(
            f"fit_fde(observed of {data.size} numbers): needs more than the {count} parameters; observe more."
        )
    if not np.isfinite(data).all():
        place = np.argwhere(~np.isfinite(data))[0].tolist()
        raise ValueError(
            f"fit_fde(observed): needs finite numbers; observed{place}={data[tuple(place)]}; leave that time out."
        )
    if not (times.size == 1 and t0 < times[0] < math.inf):  # one time makes two with t0
        times = checks.increasing("fit_fde", times)
    if not t0 <= times[0]:
        raise ValueError(
            f"fit_fde(t0={t0:g}): needs t0 <= ts[0], where the derivative begins; ts[0]={times[0]:g}; pass t0=ts[0], "
            "or leave out what is before."
        )
    return times, data


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
