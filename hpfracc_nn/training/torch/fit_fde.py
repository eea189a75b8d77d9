"""The order and the parameters of a fractional model from observations, with their uncertainty."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.solvers import Mesh, Scheme
from hpfracc_nn.solvers.torch import fdeint
from hpfracc_nn.solvers.torch.solving import NotSolved
from hpfracc_nn.training.fit import Fit, Minimum, least_squares, names_of

Parameters = Mapping[str, Tensor]
RightHandSide = Callable[[Tensor, Tensor, Parameters], Tensor]

_SHIFT = 0.25  # of alpha's standard error
_DIFFERENCE = 6e-6  # of a parameter: a central difference is then right to 1e-10


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

    The model is solved twice: with n_steps, and from there with twice as many, whose estimates are returned. Where
    alpha moves by more than a quarter of its standard error a warning says so: the solver's error is in the estimate
    then.
    Standard errors are those of independent errors of equal variance. An order that is estimated beside a network is a
    hyper-parameter and no measurement, since the network makes up for a wrong one: a model with parameters of its own
    gives a warning.

    Args:
        f: Called as f(t, y, params) with tensors of no axes by name.
        ts: Times of the observations, increasing, not before t0; [observations].
        observed: [observations, ...].
        y0: The state at t0, or a function of the parameters that returns it.
        params: First values by name.
        alpha: First value of the order.
        bounds: Where it stays, in (0, 1].
        t0: Where the derivative begins.
        observe: Makes what is observed of the states [observations, *state]; None: the states are.
        scheme: As in `fdeint`.
        mesh: As in `fdeint`.
        n_steps: Of the first solve.
        level: Of the confidence intervals.
        tolerance: Of the optimisation.
        iterations: At most, for each number of steps.

    Raises:
        ValueError: An argument is out of range.
        RuntimeError: The optimisation does not end.

    Source: Seber & Wild, Nonlinear Regression (1989), chapters 2 and 5.

    Example:
        >>> t = np.linspace(0.1, 4, 40)
        >>> y = hpfracc_nn.data.relaxation(t, 0.6, noise=0.02, rng=np.random.default_rng(0))
        >>> fit = fit_fde(lambda t, y, p: -p["rate"] * y, t, y[:, None], torch.ones(1).double(), {"rate": 0.5})
        >>> print(fit.summary())
    """
    _check(f, params, alpha, bounds, level)
    times = np.asarray(ts, dtype=np.float64)
    data = np.asarray(observed, dtype=np.float64)
    if data.shape[:1] != times.shape:
        raise ValueError(
            f"fit_fde(ts of shape {times.shape}, observed of shape {data.shape}): needs an observation for each time; "
            "pass observed with time as its first axis."
        )
    names = names_of(tuple(params))
    if data.size <= len(names):
        raise ValueError(
            f"fit_fde(observed of {data.size} numbers): needs more than the {len(names)} parameters; observe more."
        )
    problem = _Problem(f, times, y0, tuple(params), bounds, t0, observe, scheme, mesh)
    start = np.array([alpha, *params.values()], dtype=np.float64)
    count = errors.count("fit_fde", "n_steps", n_steps)
    first = problem.fitted(data, start, count, tolerance, iterations)
    last = problem.fitted(data, problem.natural(first.point), 2 * count, tolerance, iterations)
    values = problem.natural(last.point)
    jacobian = last.jacobian / problem.stretch(last.point)
    freedom = data.size - len(names)
    variance = float(last.residuals @ last.residuals) / freedom
    covariance = variance * np.linalg.inv(jacobian.T @ jacobian)
    shift = abs(values[0] - problem.natural(first.point)[0])
    if shift > _SHIFT * np.sqrt(covariance[0, 0]):
        warnings.warn(
            f"fit_fde: alpha moved by {shift:.2g} when the steps were doubled to {2 * count}, and its standard error "
            f"is {np.sqrt(covariance[0, 0]):.2g}; raise n_steps.",
            UserWarning,
            stacklevel=2,
        )
    total = first.iterations + last.iterations
    return Fit(names, values, covariance, float(np.sqrt(variance)), data.size, total, 2 * count, shift, level)


class _Problem:
    """The model as a function of a point: alpha as the logit of its place between the bounds, the others as they "
    "are.
    """

    def __init__(
        self,
        f: RightHandSide,
        times: np.ndarray,
        y0: Tensor | Callable[[Parameters], Tensor],
        names: Sequence[str],
        bounds: tuple[float, float],
        t0: float,
        observe: Callable[[Tensor], Tensor] | None,
        scheme: str | Scheme,
        mesh: str | Mesh,
    ):
        self.f, self.y0, self.names, self.observe = f, y0, names, observe
        self.low, self.high = bounds
        self.options: dict[str, Any] = {"scheme": scheme, "mesh": mesh}
        self._is_first = bool(times.size) and times[0] == t0  # the first observation is of the start
        self.ts = times if self._is_first else np.concatenate([[t0], times])

    def natural(self, point: np.ndarray) -> np.ndarray:
        """Return a point in real units."""
        return np.concatenate([[self.low + (self.high - self.low) / (1 + np.exp(-point[0]))], point[1:]])

    def stretch(self, point: np.ndarray) -> np.ndarray:
        """Return the derivative of each parameter in real units by its coordinate."""
        alpha = self.natural(point)[0]
        found = np.ones_like(point)
        found[0] = (alpha - self.low) * (self.high - alpha) / (self.high - self.low)
        return found

    def fitted(self, data: np.ndarray, values: np.ndarray, n_steps: int, tolerance: float, iterations: int) -> Minimum:
        """Return the best point, from values in real units on."""
        part = (values[0] - self.low) / (self.high - self.low)
        start = np.concatenate([[np.log(part / (1 - part))], values[1:]])
        return least_squares(
            lambda point: self._model(point, n_steps), data.ravel(), start, tolerance=tolerance, iterations=iterations
        )

    def _model(self, point: np.ndarray, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions and their Jacobian, by central differences that are solved side by side."""
        steps = _DIFFERENCE * np.maximum(np.abs(point), 0.1)
        offsets = np.concatenate([np.zeros((1, point.size)), np.diag(steps), -np.diag(steps)])
        try:
            found = self._predictions(np.stack([self.natural(point + offset) for offset in offsets]), n_steps)
        except (FloatingPointError, NotSolved):  # no solution there: the optimisation takes a shorter step
            return np.array([np.nan]), np.empty((1, point.size))
        ahead, behind = found[1 : 1 + point.size], found[1 + point.size :]
        return found[0], ((ahead - behind) / (2 * steps)[:, None]).T

    def _predictions(self, values: np.ndarray, n_steps: int) -> np.ndarray:
        """Return what is predicted for each row of values, [rows, observations]."""
        each = [dict(zip(self.names, torch.from_numpy(row[1:].copy()).unbind(), strict=True)) for row in values]
        start = torch.stack([self.y0(p) if callable(self.y0) else self.y0 for p in each]).double()
        alpha = torch.from_numpy(values[:, 0].copy()).view(-1, *[1] * (start.ndim - 1))

        def right(t: Tensor, y: Tensor) -> Tensor:
            return torch.stack([self.f(t, row, p) for row, p in zip(y.unbind(), each, strict=True)])

        with torch.no_grad():
            ys = fdeint(right, start, self.ts, alpha, n_steps=n_steps, **self.options)
        kept = ys if self._is_first else ys[1:]
        seen = [row if self.observe is None else self.observe(row) for row in kept.unbind(1)]
        return torch.stack(seen).reshape(values.shape[0], -1).numpy()


def _check(f: Any, params: Mapping[str, float], alpha: float, bounds: tuple[float, float], level: float) -> None:
    low, high = bounds
    if not 0 < low < high <= 1:
        raise ValueError(f"fit_fde(bounds={bounds}): needs 0 < low < high <= 1; pass for example (0.02, 1).")
    if not low < alpha < high:
        raise ValueError(f"fit_fde(alpha={alpha}): needs a first value between the bounds {bounds}; pass one inside.")
    if not 0 < level < 1:
        raise ValueError(f"fit_fde(level={level}): needs 0 < level < 1; pass for example 0.95.")
    if "alpha" in params:
        raise ValueError("fit_fde(params with 'alpha'): alpha is a parameter already; pass its first value as alpha=.")
    if isinstance(f, nn.Module) and any(each.requires_grad for each in f.parameters()):
        warnings.warn(
            "fit_fde(f with parameters of its own): alpha beside a network is a hyper-parameter and no measurement, "
            "since the network makes up for a wrong one; its parameters stay as they are here.",
            UserWarning,
            stacklevel=3,
        )
