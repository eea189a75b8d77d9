"""Least squares for fits of models, the covariance of estimates, and the results `Fit` and `StochasticFit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from hpfracc_nn.layers.estimates import Estimates, LeastSquares

# Takes a point to predictions [observations] and a function that returns their Jacobian [observations, parameters].
Model = Callable[[np.ndarray], tuple[np.ndarray, Callable[[], np.ndarray]]]

_LEAST, _MOST = 1e-12, 1e12  # bounds of the damping
_POOR = 0.25  # a step that brings less than this part of the decrease that a linear model predicts is damped more
FIRST, NEAR = 1e-3, 1e-9  # damping of the first step: from any point, and from the result of another fit
_SINGULAR = 1e-10  # relative to the largest singular value; derivatives are right to about 1e-13
_PART = 0.05  # relative to the largest entry of a direction that changes nothing: which parameters a message names
_ROUNDING, _FLAT = 1e-8, 1e-3  # residuals that are rounding, relative to the data; a slope of 0, relative to residuals
_EXACT = 1e-13  # relative to the data: residuals with which a fit is exact
_NEAR_ZERO = 1e-2  # relative to a parameter's first value: below, a coordinate is linear


@dataclass(frozen=True)
class Fit(LeastSquares):
    """Estimates of a fractional model.

    Attributes:
        names: The names of the parameters: "alpha", or "alpha_1" and so on, then those of f.
        values: The estimates, [parameters].
        covariance: The covariance of the estimates, [parameters, parameters].
        deviation: Standard deviation of the residuals.
        observations: How many numbers were fitted.
        iterations: The iterations of the optimisation, in all.
        n_steps: The number of the solver's steps at the end.
        shift: By how much alpha moved at most when the number of steps was doubled.
        level: The level of the confidence intervals, such as 0.95.
        notes: Remarks on the estimates, such as that an order is at its bound, or that its interval passes a bound.

    Source: Seber & Wild, Nonlinear Regression (1989), chapters 2 and 5.

    Examples:
        >>> values, covariance = np.array([0.6]), np.array([[1e-4]])
        >>> fit = Fit(("alpha",), values, covariance, 0.02, 41, 5, 200, 1e-6, level=0.95)
        >>> # Student's, of 40 degrees of freedom: 2.02 standard errors
        >>> low, high = fit.intervals["alpha"]
        >>> round(low, 3), round(high, 3)
        (0.58, 0.62)
    """

    iterations: int
    n_steps: int
    shift: float
    level: float
    notes: tuple[str, ...] = ()

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The confidence intervals by name, by Student's distribution; they may pass an order's bounds: see `notes`."""
        return self.intervals_at(self.level)

    def summary(self) -> str:
        """Return a table of the estimates as text, with the residuals' deviation and the remarks below."""
        lines = self.table(self.level)
        lines.append(
            f"residual deviation {self.deviation:.3g} over {self.observations} observations, {self.iterations} "
            "iterations"
        )
        moved = "alpha moved by" if "alpha" in self.names else "the orders moved by at most"
        lines.append(f"{moved} {self.shift:.2g} when the steps were doubled to {self.n_steps}")
        lines += self.notes
        return "\n".join(lines)


@dataclass(frozen=True)
class Minimum:
    """The minimum of a sum of squares.

    Attributes:
        point: The point at which the sum is least, [parameters].
        residuals: The residuals at this point, [observations].
        jacobian: The Jacobian of the model at this point, [observations, parameters].
        iterations: The iterations that were taken.
    """

    point: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray
    iterations: int


class Coordinates:
    """Coordinates u in which the optimisation moves: parameter = s sinh(u), s a hundredth of its first value.

    So u is nearly the logarithm of a parameter of either sign, and linear around 0. A rate in units in which the times
    are not near 1 goes like t**-alpha: in the rate's logarithm and alpha the valley of the sum of squares is straight.
    A parameter that begins at 0 has no size, and is its own coordinate.

    Args:
        first: First values, [parameters].
        is_plain: Which parameters are their own coordinates, booleans [parameters].
    """

    def __init__(self, first: np.ndarray, is_plain: np.ndarray):
        self._size = np.where(is_plain, 0.0, _NEAR_ZERO * np.abs(first))
        self._is_plain = self._size == 0
        self._divisor = np.where(self._is_plain, 1.0, self._size)

    def of(self, values: np.ndarray) -> np.ndarray:
        """Return the coordinates of parameters' values, [parameters]."""
        return np.where(self._is_plain, values, np.arcsinh(values / self._divisor))

    def values(self, point: np.ndarray) -> np.ndarray:
        """Return the parameters' values at a point given by coordinates; a value that overflows is infinite."""
        with np.errstate(over="ignore"):
            return np.where(self._is_plain, point, self._size * np.sinh(np.where(self._is_plain, 0.0, point)))

    def slope(self, values: np.ndarray) -> np.ndarray:
        """Return the derivative of each parameter by its coordinate, at the parameters' values, [parameters]."""
        return np.where(self._is_plain, 1.0, np.hypot(self._size, values))


def least_squares(
    model: Model,
    observed: np.ndarray,
    start: np.ndarray,
    *,
    tolerance: float,
    iterations: int,
    damping: float = FIRST,
    bounds: tuple[np.ndarray, np.ndarray] | None = None,
    owner: str = "fit_fde",
    is_search: bool = False,
) -> Minimum:
    """Return the minimum of the sum of squared residuals, by Gauss-Newton steps with damping where the sum would grow.

    Steps do not depend on the units of the parameters, which are scaled by how much they change the predictions.

    Args:
        model: Called with a point; returns the predictions [observations], and a function that returns their Jacobian,
            which is called only for points that steps lead to. A step to predictions or a Jacobian that are not finite
            is not taken.
        observed: The data, [observations].
        start: First point, where predictions are finite, [parameters].
        tolerance: A step is the last one if the sum of squares changes by at most this part, and if the step without
            damping would move each parameter by at most about sqrt(tolerance) standard errors.
        iterations: The greatest number of iterations.
        damping: The damping of the first step; small if the start is near the minimum.
        bounds: Least and largest values, [parameters] each; None is none. A parameter whose bounds are equal stays.
        owner: The name of the public function, for messages.
        is_search: Whether to return the point that was reached if the iterations were not enough.

    Raises:
        RuntimeError: The iterations were not enough, or no step makes the sum less although the gradient is not small.

    Source: Marquardt, J. SIAM 11 (1963) 431.
    """
    low, high = bounds or (np.full(start.shape, -np.inf), np.full(start.shape, np.inf))
    point = start
    predicted, differentiated = model(point)
    residuals, jacobian = observed - predicted, differentiated()
    exact = _EXACT**2 * (observed @ observed)
    for iteration in range(1, iterations + 1):
        slope = jacobian.T @ residuals
        is_free = ~(((point <= low) & (slope < 0)) | ((point >= high) & (slope > 0)))
        scale = scale_of(jacobian)
        last, was = residuals @ residuals, damping
        deviation = np.sqrt(max(last, np.finfo(float).tiny) / observed.size)
        # By the step without damping it is judged how far the minimum is: a damped step may be short far from it.
        step = _steps(jacobian / scale, residuals, is_free)
        is_near = np.abs(step(0.0)).max() <= np.sqrt(tolerance) * deviation
        while True:
            following = (point + step(damping) / scale).clip(low, high)
            predicted, differentiated = model(following)
            found = observed - predicted
            reached = found @ found
            is_last = is_near and abs(reached - last) <= tolerance * last
            if is_last or reached <= last:  # a sum that is not finite is neither
                slopes = differentiated()
                if np.isfinite(slopes).all():
                    break
            damping *= 10
            if damping > _MOST:
                if is_search:
                    return Minimum(point, residuals, jacobian, iteration)
                _check_gradient(owner, jacobian[:, is_free] / scale[is_free], residuals, observed)
                return Minimum(point, residuals, jacobian, iteration)
        # A step that brings little of what was expected has gone too far: undamped ones would swing about the minimum.
        left_over = residuals - jacobian @ (following - point)
        is_poor = last - reached < _POOR * (last - left_over @ left_over)
        point, residuals, jacobian = following, found, slopes
        if is_poor:
            damping = min(10 * damping, _MOST)
        elif damping == was:  # a damping that was just raised, because it was too little, is not lowered at once
            damping = max(damping / 10, _LEAST)
        if is_last or residuals @ residuals <= exact or (is_search and iteration == iterations):
            return Minimum(point, residuals, jacobian, iteration)
    raise RuntimeError(
        f"{owner}: the sum of squares was still going down after {iterations} iterations; begin nearer to the minimum, "
        "or allow more by iterations=..."
    )


def scale_of(jacobian: np.ndarray) -> np.ndarray:
    """Return the length of each column of a Jacobian [predictions, parameters], [parameters]; 1 in place of 0.

    The length says how much the parameter changes the predictions.
    """
    found = np.sqrt((jacobian * jacobian).sum(axis=0))
    return np.where(found > 0, found, 1.0)


def covariance_of(
    jacobian: np.ndarray,
    variance: float,
    names: Sequence[str],
    values: np.ndarray,
    owner: str = "fit_fde",
    what: str = "observations",
) -> np.ndarray:
    """Return the covariance of least-squares estimates, variance * (J' J)**-1, [parameters, parameters].

    Args:
        jacobian: The Jacobian J of the predictions, [predictions, parameters].
        variance: The variance of the error of each prediction; the errors are independent.
        names: The names of the parameters, for messages.
        values: The estimates, [parameters], for messages.
        owner: The name of the public function, for messages.
        what: What is predicted, in the plural, for messages.

    Raises:
        ValueError: The predictions do not determine all parameters; the message names those that are not determined.
    """
    scale = scale_of(jacobian)
    _, sizes, directions = np.linalg.svd(jacobian / scale, full_matrices=False)
    if sizes[-1] <= _SINGULAR * sizes[0]:
        loose = np.abs(directions[-1])
        places = np.flatnonzero(loose > _PART * loose.max()).tolist()
        unknown = [repr(names[place]) for place in places]
        reached = named_values([names[place] for place in places], values[places])
        if len(unknown) == 1:
            missing = f"tell nothing of {unknown[0]}"
        else:
            missing = f"do not tell {', '.join(unknown[:-1])} and {unknown[-1]} from one another"
        raise ValueError(
            f"{owner}(params): the {what} {missing} at {reached}, where the search ended; fix "
            f"{'it' if len(unknown) == 1 else 'all but one'}, observe what depends on it, or begin with other first "
            "values."
        )
    half = directions.T / sizes / scale[:, None]
    return variance * half @ half.T


def named_values(names: Sequence[str], values: np.ndarray) -> str:
    """Return values with their names as text for a message, such as "alpha=0.5, rate=1"."""
    return ", ".join(f"{name}={value:g}" for name, value in zip(names, values, strict=True))


def _steps(jacobian: np.ndarray, residuals: np.ndarray, is_free: np.ndarray) -> Callable[[float], np.ndarray]:
    """Return a function of the damping: the step of damped least squares, 0 for parameters that may not move.

    The damping is added to the diagonal of the normal equations (Levenberg-Marquardt).

    Args:
        jacobian: The Jacobian of the model, [residuals, parameters], with columns of length 1.
        residuals: The residuals that the step is to make small, [residuals].
        is_free: Which parameters may move, booleans [parameters].
    """
    left, sizes, right = np.linalg.svd(jacobian[:, is_free], full_matrices=False)
    squares, parts = sizes * sizes, sizes * (residuals @ left)

    def step(damping: float) -> np.ndarray:
        damped = squares + damping
        is_seen = damped > _SINGULAR**2 * damped[:1]  # the largest is the first
        found = np.zeros(is_free.size)
        found[is_free] = np.divide(parts, damped, out=np.zeros(parts.shape), where=is_seen) @ right
        return found

    return step


def _check_gradient(owner: str, columns: np.ndarray, residuals: np.ndarray, observed: np.ndarray) -> None:
    """Raise RuntimeError unless the gradient is 0, relative to the residuals; for a search that found no better step.

    Residuals of the size of rounding do not raise an error: no step makes them less.

    Args:
        owner: The name of the public function, for messages.
        columns: The Jacobian [residuals, parameters], with columns of length 1.
        residuals: The residuals at the point that the search has reached.
        observed: The data, relative to which rounding is measured.
    """
    left = float(np.linalg.norm(residuals))
    steepness = float(np.abs(columns.T @ residuals).max(initial=0.0))
    if left > _ROUNDING * np.linalg.norm(observed) and steepness > _FLAT * left:
        raise RuntimeError(
            f"{owner}: no step makes the sum of squares less, although a residual of {left:.3g} has a part of "
            f"{steepness:.3g} that a parameter could take away; the equation has no solution nearby, or f is no smooth "
            "function of the parameters; begin elsewhere, or take more steps."
        )


@dataclass(frozen=True)
class StochasticFit(Estimates):
    """Estimates by simulated moments.

    Attributes:
        names: The names of the parameters.
        values: The estimates, [parameters].
        covariance: The covariance of the estimates, [parameters, parameters].
        statistic: The square of the difference between observed and simulated moments, weighted by the inverse of its
            covariance.
        freedom: Number of moments less number of parameters: the mean of `statistic` where the model is right.
        observed: How many paths were observed.
        simulated: How many paths were simulated.
        evaluations: How often the objective and its gradient were evaluated.
        level: The level of the confidence intervals, such as 0.95.
        converged: Whether the last round of the optimisation converged; if not, neither estimates nor errors hold.

    Source: McFadden, Econometrica 57 (1989) 995; Duffie & Singleton, Econometrica 61 (1993) 929.

    Examples:
        >>> values, covariance = np.array([1.0]), np.array([[0.01]])
        >>> fit = StochasticFit(
        ...     ("rate",), values, covariance, 3.84, 1, 100, 512, 20, 0.95, True
        ... )
        >>> round(fit.p_value, 2), [round(end, 2) for end in fit.intervals["rate"]]
        (0.05, [0.8, 1.2])
    """

    statistic: float
    freedom: int
    observed: int
    simulated: int
    evaluations: int
    level: float
    converged: bool

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The confidence intervals by name, by the normal distribution."""
        return self.intervals_at(self.level)

    @property
    def p_value(self) -> float:
        """The probability of a statistic at least as large if the model is right; NaN without spare moments."""
        return float(stats.chi2.sf(self.statistic, self.freedom)) if self.freedom else float("nan")

    def summary(self) -> str:
        """Return a table of the estimates as text, with the numbers of paths and the test of the model below."""
        lines = self.table(self.level)
        lines.append(f"{self.observed} paths observed, {self.simulated} simulated, {self.evaluations} evaluations")
        if not self.converged:
            lines.append("the optimisation has not converged: neither the estimates nor their errors hold")
        lines.append(f"moments left over: {self.statistic:.3g} for {self.freedom} spare ones, p = {self.p_value:.2g}")
        return "\n".join(lines)
