"""Fits of fractional differential equations, without a framework: checks of the data, and the fit at two step counts.

A framework brings the solver, which computes predictions and their derivatives at a point. A point is a vector
[orders + numbers]: the a orders alpha, and the k numbers, which are the parameters of f in the order of their names.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.solvers import Graded, Mesh, checks
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.training.fit import (
    FIRST,
    NEAR,
    Coordinates,
    Fit,
    Minimum,
    Model,
    covariance_of,
    least_squares,
    named_values,
)

_SHIFT = 0.25  # relative to an order's standard error: a larger shift between both numbers of steps gives a warning
_ROUGH, _FEW = 1e-3, 20  # tolerance and least number of steps of a first fit that only chooses the mesh
_LOW, _HIGH = 0.02, 0.02  # bounds of an order, away from 0 or 1, and from 2


@dataclass(frozen=True, eq=False)
class Series:
    """One experiment of a fit: its observations, its equation and its start.

    Attributes:
        f: The right-hand side.
        y0: The state at the start, or a function of the parameters that returns this state.
        dy0: The derivative at the start, or a function of the parameters; None where all orders are at most 1.
        t0: The time of the start, at which the fractional derivative begins.
        times: The times of the observations, [observations].
        data: The observations, [observations, ...]; 0 where the weight is 0.
        roots: The square roots of the weights, flat.
    """

    f: Callable[..., Any]
    y0: Any
    dy0: Any
    t0: float
    times: np.ndarray
    data: np.ndarray
    roots: np.ndarray

    @property
    def is_first(self) -> bool:
        """Whether the first observation is at the time of the start."""
        return bool(self.times[0] == self.t0)

    @property
    def solved_at(self) -> np.ndarray:
        """The times at which the equation is solved: the start, then the observations; a time at both counts once."""
        return self.times if self.is_first else np.concatenate([[self.t0], self.times])

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise ValueError unless predictions of this shape fit the data; axes of length 1 are ignored."""
        if [size for size in shape if size != 1] != [size for size in self.data.shape if size != 1]:
            raise ValueError(
                f"fit_fde(observed of shape {self.data.shape}): needs the shape of what is predicted; the model "
                f"predicts {tuple(shape)}, time first; pass observe=, which makes of the states what is observed."
            )


@dataclass(frozen=True, eq=False)
class Orders:
    """The orders alpha that a fit estimates.

    Attributes:
        first: The first values, [a].
        shape: The shape of the user's alpha.
        bounds: Least and largest values, [2, a].
    """

    first: np.ndarray
    shape: tuple[int, ...]
    bounds: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the orders: "alpha", or "alpha_1" and so on."""
        return order_names(self.shape)


def order_names(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names of orders alpha of a shape: "alpha" for one number, else "alpha_1", "alpha_2" and so on."""
    return tuple(f"alpha_{k + 1}" for k in range(math.prod(shape))) if shape else ("alpha",)


def fitted(
    predictor: Callable[[Series, Mesh, int], Model],
    series: Sequence[Series],
    orders: Orders,
    params: Mapping[str, float],
    method: Method,
    *,
    n_steps: int,
    level: float,
    tolerance: float,
    iterations: int,
) -> Fit:
    """Return the fit of the orders and the parameters, with `n_steps` and then with twice as many.

    Args:
        predictor: Called as predictor(experiment, mesh, number of steps); returns the experiment's predictions as a
            function of a point in real units.
        series: The experiments.
        orders: The orders, with first values and bounds.
        params: The first values of the parameters by name.
        method: How the equation is solved.
        n_steps: The number of steps of the first fit.
        level: The level of the confidence intervals.
        tolerance: The tolerance of the optimisation; see `least_squares`.
        iterations: The greatest number of iterations for each number of steps.
    """
    names, a = (*orders.names, *params), orders.first.size
    limits = np.full((2, len(names)), [[-np.inf], [np.inf]])
    limits[:, :a] = orders.bounds  # the orders are coordinates of their own
    used = np.concatenate([each.roots > 0 for each in series])
    roots = np.concatenate([each.roots for each in series])[used]
    observed = np.concatenate([each.data.ravel() for each in series])[used] * roots

    def minimum(values: np.ndarray, steps: int, tolerance: float = tolerance, damping: float = FIRST) -> Minimum:
        mesh = fixed_mesh(method.mesh, values[:a].min())
        models = [predictor(each, mesh, steps) for each in series]
        coordinates = Coordinates(values, np.arange(len(names)) < a)

        def predicted(point: np.ndarray) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
            at = coordinates.values(point)
            try:
                found, jacobians = zip(*(model(at) for model in models), strict=True)
            except TypeError as error:
                for each in series:
                    errors.note_arguments(error, "fit_fde(f)", each.f, "t, y, params")
                raise
            slope = roots[:, None] * coordinates.slope(at)
            return (
                np.concatenate(found)[used] * roots,
                lambda: np.concatenate([each() for each in jacobians])[used] * slope,
            )

        best = least_squares(
            predicted,
            observed,
            coordinates.of(values),
            tolerance=tolerance,
            iterations=iterations,
            damping=damping,
            bounds=(limits[0], limits[1]),
        )
        found = coordinates.values(best.point)
        return replace(best, point=found, jacobian=best.jacobian / coordinates.slope(found))

    start, total = np.array([*orders.first, *params.values()], dtype=np.float64), 0
    if fixed_mesh(method.mesh, orders.first.min()) != method.mesh:  # the mesh depends on alpha, which a rough fit finds
        rough = minimum(start, max(n_steps // 2, min(n_steps, _FEW)), max(tolerance, _ROUGH))
        start, total = rough.point, rough.iterations
    first = minimum(start, n_steps, damping=NEAR if total else FIRST)
    last = minimum(first.point, 2 * n_steps, damping=NEAR)
    variance = float(last.residuals @ last.residuals) / (roots.size - len(names))
    covariance = covariance_of(last.jacobian, variance, names, last.point)
    moved, spread = np.abs(last.point - first.point)[:a], np.sqrt(np.diag(covariance))[:a]
    notes = _notes(orders, last.point[:a])
    for place in np.flatnonzero(moved > _SHIFT * spread)[:1]:
        warnings.warn(
            f"fit_fde: {names[place]} moved by {moved[place]:.2g} when the steps were doubled to {2 * n_steps}, and "
            f"its standard error is {spread[place]:.2g}; raise n_steps.",
            UserWarning,
            stacklevel=3,
        )
    for note in notes:
        warnings.warn(f"fit_fde: {note}", UserWarning, stacklevel=3)
    total += first.iterations + last.iterations
    deviation, shift = float(np.sqrt(variance)), float(moved.max())
    fit = Fit(names, last.point, covariance, deviation, roots.size, total, 2 * n_steps, shift, level, notes)
    return replace(fit, notes=(*notes, *_beyond(orders, fit)))


def fixed_mesh(mesh: Mesh, alpha: float) -> Mesh:
    """Return a mesh that does not change with the orders: for a graded mesh, the one for the smallest order `alpha`.

    Predictions on a fixed mesh are smooth in the orders.
    """
    return Graded(mesh.of(float(alpha))) if isinstance(mesh, Graded) else mesh


def _notes(orders: Orders, found: np.ndarray) -> tuple[str, ...]:
    is_at = (found == orders.bounds).any(axis=0)
    return tuple(
        f"{name} is at its bound {value:g}: its standard error and interval are those of a model without bounds."
        for name, value, at in zip(orders.names, found, is_at, strict=True)
        if at
    )


def _beyond(orders: Orders, fit: Fit) -> tuple[str, ...]:
    """Return remarks on orders between their bounds whose intervals pass a bound."""
    intervals, estimates = fit.intervals, fit.estimates
    return tuple(
        f"the interval of {name} passes its bound {bound:g}: it is that of a normal approximation without bounds, of "
        "which only the part within them counts; a profile of the sum of squares along the order gives a better one."
        for name, bounds in zip(orders.names, orders.bounds.T, strict=True)
        for bound in bounds
        if intervals[name][0] < bound < intervals[name][1] and estimates[name] not in bounds
    )


def unsolved(names: Sequence[str], values: np.ndarray, reason: str) -> RuntimeError:
    """Return the error for an equation that has no solution at the first values; `reason` is a sentence."""
    return RuntimeError(
        f"fit_fde: the equation has no solution at the first values {named_values(names, values)}: {reason} Else begin "
        "with others."
    )


def series_of(
    f: Any, ts: Any, observed: Any, y0: Any, dy0: Any, weights: Any, t0: Any, count: int
) -> tuple[Series, ...]:
    """Return the experiments; raise ValueError for data that no fit can use.

    For several experiments `ts` and `observed` are lists; the other arguments are then lists of as many, or one value
    for all. The returned weights have a mean of 1 over the observations that are used.

    Args:
        f: The right-hand side.
        ts: The times of the observations.
        observed: The observations, time first.
        y0: The state at the start.
        dy0: The derivative at the start, or None.
        weights: The weights of the observations, or None.
        t0: The time at which the fractional derivative begins.
        count: The number of orders and parameters of the fit.
    """
    is_several = isinstance(ts, list | tuple) and len(ts) > 0 and all(np.ndim(each) == 1 for each in ts)
    if is_several and not (isinstance(observed, list | tuple) and len(observed) == len(ts)):
        size = len(observed) if isinstance(observed, list | tuple) else 1
        raise ValueError(
            f"fit_fde(ts of {len(ts)} experiments, observed of {size}): needs data for each; pass lists of as many."
        )
    experiments = len(ts) if is_several else 1

    def each(name: str, value: Any) -> Sequence[Any]:
        if not (is_several and isinstance(value, list | tuple)):
            return [value] * experiments
        if len(value) != experiments:
            raise ValueError(
                f"fit_fde({name} of {len(value)}): needs one for each of the {experiments} experiments, or one for "
                "all; pass such a list."
            )
        return value

    starts = [errors.real("fit_fde", "t0", one, -math.inf) for one in each("t0", t0)]
    parts = zip(*(each("ts", ts), each("observed", observed), each("weights", weights), starts), strict=True)
    found = (
        [_observations(*part) for part in parts] if is_several else [_observations(ts, observed, weights, starts[0])]
    )
    used = np.concatenate([one[2].ravel() for one in found])
    used = used[used > 0]
    if used.size <= count:
        kind = "numbers" if weights is None else "numbers with positive weights"
        raise ValueError(
            f"fit_fde(observed of {used.size} {kind}): needs more than the {count} parameters; observe more."
        )
    others = zip(each("f", f), each("y0", y0), each("dy0", dy0), starts, strict=True)
    return tuple(
        Series(*other, at, data, np.sqrt(weight / used.mean()).ravel())
        for other, (at, data, weight) in zip(others, found, strict=True)
    )


def _observations(ts: Any, observed: Any, weights: Any, t0: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times, data and weights of one experiment as float64 arrays; raise ValueError for data of no use."""
    times, values = np.asarray(ts, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    if times.ndim != 1 or values.shape[:1] != times.shape:
        raise ValueError(
            f"fit_fde(ts of shape {times.shape}, observed of shape {values.shape}): needs an observation for each "
            "time; pass observed with time as its first axis."
        )
    each = _weights(weights, values.shape)
    missing = ~np.isfinite(values) & (each > 0)
    if missing.any():
        place = np.argwhere(missing)[0].tolist()
        raise ValueError(
            f"fit_fde(observed): needs finite numbers; observed{place}={values[tuple(place)]}; leave that time out, or "
            "pass weights that are 0 there."
        )
    if not (times.size == 1 and t0 < times[0] < math.inf):  # one time makes two with t0
        times = checks.increasing("fit_fde", times)
    if not t0 <= times[0]:
        raise ValueError(
            f"fit_fde(t0={t0:g}): needs t0 <= ts[0], where the derivative begins; ts[0]={times[0]:g}; pass t0=ts[0], "
            "or leave out what is before."
        )
    return times, np.where(each > 0, values, 0.0), each


def _weights(weights: Any, shape: tuple[int, ...]) -> np.ndarray:
    if weights is None:
        return np.ones(shape)
    is_mask = str(getattr(weights, "dtype", "")).endswith("bool")  # NumPy's, torch's and JAX's
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


def orders_of(alpha: Any, bounds: Any, dy0: Any) -> Orders:
    """Return the orders of a fit; raise an error for first values or bounds that are out of range or no numbers.

    Args:
        alpha: The first value of the order, or several.
        bounds: The least and the largest order, or such a pair for each order, or None for the default.
        dy0: The derivative at the start, or None; the default bounds depend on whether it is given and 0.
    """
    first = errors.as_numbers(alpha)
    if first is None or first.size == 0:
        raise TypeError(
            f"fit_fde(alpha={alpha!r}): needs one number, the first value of the order, or one for each entry along "
            "y0's axes; pass for example 0.5 or [0.5, 0.7]."
        )
    is_flat = dy0 is None or all(_is_zero(each) for each in (dy0 if isinstance(dy0, list | tuple) else [dy0]))
    low = _LOW if is_flat else 1 + _LOW
    pairs = [(low, 1.0 if dy0 is None else 2 - _HIGH)] if bounds is None else bounds
    limits = errors.as_numbers(pairs)
    if limits is None or limits.shape not in ((2,), (1, 2), (first.size, 2)):
        raise TypeError(
            f"fit_fde(bounds={bounds!r}): needs two numbers, the least and the largest order, or such a pair for each "
            "order; pass for example (0.02, 1)."
        )
    limits = np.broadcast_to(limits.reshape(-1, 2), (first.size, 2)).T
    most = 1 if dy0 is None else 2
    if not np.all((limits[0] > 0) & (limits[0] < limits[1]) & ((limits[1] < 2) | (most == 1)) & (limits[1] <= most)):
        rule = "0 < low < high <= 1" if dy0 is None else "0 < low < high < 2"
        way = "; above 1 pass dy0=, the derivative at t0" if dy0 is None and limits[1].max() > 1 else ""
        raise ValueError(f"fit_fde(bounds={bounds}): needs {rule}; pass for example (0.02, {most - _HIGH:g}){way}.")
    if not is_flat and ((limits[0] <= 1) & (limits[1] > 1)).any():
        raise ValueError(
            f"fit_fde(bounds={bounds}): needs bounds on one side of 1, because the solution jumps there by (t - t0) "
            f"dy0; pass for example ({1 + _LOW:g}, {2 - _HIGH:g}), or a dy0 of zeros where that is the start."
        )
    if not np.all((limits[0] <= first.ravel()) & (first.ravel() <= limits[1])):
        raise ValueError(
            f"fit_fde(alpha={alpha}): needs a first value between the bounds {limits.T.tolist()}; pass one inside"
            + (", and above 1 dy0=, the derivative at t0." if dy0 is None and first.max() > 1 else ".")
        )
    return Orders(first.astype(float).ravel(), first.shape, limits)


def _is_zero(dy0: Any) -> bool:
    found = None if callable(dy0) else errors.as_numbers(dy0)
    return found is not None and not found.any()


def check_starts(y0: Any, dy0: Any, is_array: Callable[[Any], bool], kind: str, made_by: str) -> None:
    """Raise TypeError unless states at the start, and slopes if given, are arrays of the framework or functions.

    Args:
        y0: The argument `y0` of `fit_fde`, or a list for several experiments.
        dy0: The argument `dy0` of `fit_fde`, or a list for several experiments.
        is_array: Called with a value; returns whether the value is an array of the framework.
        kind: The framework's word for an array, such as "a tensor", for messages.
        made_by: The framework's function that makes an array of numbers, for messages.
    """
    for argument, given in (("y0", y0), ("dy0", dy0)):
        for each in given if isinstance(given, list | tuple) else [given]:
            if not (is_array(each) or callable(each) or (argument == "dy0" and each is None)):
                raise TypeError(
                    f"fit_fde({argument} of type {type(given).__name__}): needs {kind}, or a function of the "
                    f"parameters that returns one; pass {made_by}({argument}), of several experiments a list of such."
                )


def check(params: Any, level: Any, tolerance: Any, names: Sequence[str]) -> None:
    """Raise an error for a wrong argument of `fit_fde`: parameters, `level` or `tolerance`.

    Parameters need a name that no order has (the orders' names are `names`) and a finite first value.
    """
    if not 0 < errors.real("fit_fde", "level", level, 0.0, above=True) < 1:
        raise ValueError(f"fit_fde(level={level}): needs 0 < level < 1; pass for example 0.95.")
    if not 0 < errors.real("fit_fde", "tolerance", tolerance, 0.0, above=True) < 1:
        raise ValueError(f"fit_fde(tolerance={tolerance}): needs 0 < tolerance < 1; pass for example 1e-8.")
    if not isinstance(params, Mapping):
        raise TypeError(
            f"fit_fde(params of type {type(params).__name__}): needs first values by their names; pass a dict such as "
            '{"rate": 1.0}, or {} where there is only the order.'
        )
    for name in (name for name in names if name in params):
        raise ValueError(
            f"fit_fde(params with {name!r}): {name} is a parameter already; pass its first value as alpha=."
        )
    for name, value in params.items():
        if not isinstance(value, Real):
            raise TypeError(
                f"fit_fde(params[{name!r}] of type {type(value).__name__}): needs a number; pass its first value as a "
                "float, and a parameter for each of several."
            )
        if not math.isfinite(value):
            raise ValueError(f"fit_fde(params[{name!r}]={value}): needs a finite first value; pass for example 1.0.")
