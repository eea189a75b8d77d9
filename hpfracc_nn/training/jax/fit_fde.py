"""The orders and the parameters of a fractional model in JAX from observations, with their uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.solvers import Mesh, Scheme
from hpfracc_nn.solvers.jax import fdeint
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.training import equations
from hpfracc_nn.training.equations import Series
from hpfracc_nn.training.fit import Fit

Parameters = Mapping[str, jax.Array]
Start = Any  # an array, or a function of the parameters that returns one
RightHandSide = Callable[[jax.Array, jax.Array, Parameters], jax.Array]


class FitModel:
    """The predictions of one experiment, and their derivatives by orders and parameters, as functions of a point.

    A point holds the values of the orders and the parameters, in real units. One compiled program computes both.

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
        observe: Callable[[jax.Array], jax.Array] | None,
        method: Method,
        n_steps: int,
    ):
        self.series, self.shape, self.names, self.observe = series, shape, names, observe
        self.method, self.n_steps = method, n_steps
        self._has_solved = False

        def twice(point: jax.Array) -> tuple[jax.Array, jax.Array]:
            found = self._predicted(point)
            return found, found

        self._program = jax.jit(jax.jacfwd(twice, has_aux=True))

    def __call__(self, values: np.ndarray) -> tuple[np.ndarray, Callable[[], np.ndarray]]:
        """Return the predictions [observations] at a point, and a function that returns their Jacobian.

        Where the equation has no solution both are not finite.

        Raises:
            RuntimeError: The equation has no solution at the first point.
        """
        jacobian, predicted = (np.asarray(each) for each in self._program(jnp.asarray(values)))
        if not self._has_solved and not (np.isfinite(predicted).all() and np.isfinite(jacobian).all()):
            names = (*equations.order_names(self.shape), *self.names)
            raise equations.unsolved(names, values, "the states or their derivatives are not finite.")
        self._has_solved = True
        return predicted, lambda: jacobian

    def _predicted(self, point: jax.Array) -> jax.Array:
        series, count = self.series, len(equations.order_names(self.shape))
        params = dict(zip(self.names, point[count:], strict=True))
        start, slope = (self._initial(each, params) for each in (series.y0, series.dy0))
        states = fdeint(
            lambda t, y: series.f(t, y, params),
            start,
            series.solved_at,
            point[:count].reshape(self.shape),
            scheme=self.method.scheme,
            history=self.method.history,
            mesh=self.method.mesh,
            n_steps=self.n_steps,
            dy0=slope,
        )
        states = states if series.is_first else states[1:]
        seen = states if self.observe is None else self.observe(states)
        series.check_shape(seen.shape)
        return seen.reshape(-1)

    @staticmethod
    def _initial(given: Start, params: Parameters) -> Any:
        if given is None:
            return None
        return jnp.asarray(given(params) if callable(given) else given, jnp.float64)


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
    observe: Callable[[jax.Array], jax.Array] | None = None,
    weights: Any = None,
    scheme: str | Scheme = "trapezoid",
    mesh: str | Mesh = "graded",
    n_steps: int = 100,
    level: float = 0.95,
    tolerance: float = 1e-8,
    iterations: int = 50,
) -> Fit:
    """Return alpha and the parameters of D^alpha y = f(t, y, params) that fit observations best, in least squares.

    The fit of `hpfracc_nn.training.fit_fde`, with the same arguments, for an f of JAX arrays: several orders, orders
    above 1, several experiments. Everything is computed in float64, whether or not the process has enabled it. The
    solver and its derivatives are compiled for each number of steps and each experiment, which takes seconds; the
    optimisation itself runs in NumPy, so that the function is called outside of `jax.jit`.

    Args:
        f: Called as f(t, y, params) with arrays of no axes by name; JAX must be able to trace it. A list has one
            function for each experiment.
        ts: Times of the observations, increasing, not before t0; [observations]; a list of such for several
            experiments.
        observed: [observations, ...], finite where weights are positive; or a list of such.
        y0: The state at t0, an array, or a function of the parameters that returns it; or a list of such.
        params: First values by name; every parameter must change what is observed, and in a way of its own.
        alpha: First value of the order, or of one for each entry along some of y0's axes: alpha_1, alpha_2 and so on.
        bounds: The least and the largest order, (low, high), or such a pair for each order.
        dy0: The derivative of the state at t0, for orders above 1, or a function of the parameters that returns it.
        t0: The time at which the fractional derivative begins.
        observe: Computes from the states [observations, *state] what is observed; None if the states are observed.
        weights: The weights of the squares, or a mask; an observation of weight 0 is left out, and may be NaN.
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
        ...     lambda t, y, p: -p["rate"] * y, t, y[:, None], jnp.ones(1), {"rate": 0.5}
        ... )
        >>> round(fit.estimates["alpha"], 4), round(fit.standard_errors["alpha"], 4)
        (0.6002, 0.0097)
    """
    equations.check_starts(y0, dy0, lambda each: hasattr(each, "dtype"), "an array", "jnp.asarray")
    orders = equations.orders_of(alpha, bounds, dy0)
    equations.check(params, level, tolerance, orders.names)
    series = equations.series_of(f, ts, observed, y0, dy0, weights, t0, len(orders.names) + len(params))
    method = Method.of("fit_fde", scheme, "auto", mesh)

    def predictor(each: Series, mesh: Mesh, steps: int) -> FitModel:
        return FitModel(each, orders.shape, tuple(params), observe, replace(method, mesh=mesh), steps)

    with jax.enable_x64(True):
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
