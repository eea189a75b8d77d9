"""What a least-squares fit has found: estimates, their uncertainty, and the table that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

Model = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

_LEAST, _FIRST, _MOST = 1e-12, 1e-3, 1e12  # of the damping


@dataclass(frozen=True)
class Fit:
    """Estimates of a fractional model.

    Attributes:
        names: Of the parameters; "alpha" is one of them.
        values: Their estimates, [parameters].
        covariance: Of the estimates, [parameters, parameters].
        deviation: Standard deviation of the residuals.
        observations: How many numbers were fitted.
        iterations: Of the optimisation, at both numbers of steps.
        n_steps: Of the solver, at the end.
        shift: By how much alpha moved when the number of steps was doubled.
        level: Of the confidence intervals.
    """

    names: tuple[str, ...]
    values: np.ndarray
    covariance: np.ndarray
    deviation: float
    observations: int
    iterations: int
    n_steps: int
    shift: float
    level: float

    @property
    def estimates(self) -> dict[str, float]:
        """The estimates by name."""
        return dict(zip(self.names, self.values.tolist(), strict=True))

    @property
    def standard_errors(self) -> dict[str, float]:
        """The standard errors by name."""
        return dict(zip(self.names, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The confidence intervals by name, by Student's distribution."""
        half = stats.t.ppf((1 + self.level) / 2, self.observations - len(self.names))
        return {
            name: (value - half * self.standard_errors[name], value + half * self.standard_errors[name])
            for name, value in self.estimates.items()
        }

    def summary(self) -> str:
        """Return a table of the estimates, and what to think of them."""
        width = max(len(name) for name in self.names)
        lines = [f"{'':{width}}  {'estimate':>12}  {'std. error':>12}  {100 * self.level:g} % interval"]
        for name, value in self.estimates.items():
            low, high = self.intervals[name]
            lines.append(f"{name:{width}}  {value:12.6g}  {self.standard_errors[name]:12.3g}  [{low:.6g}, {high:.6g}]")
        lines.append(
            f"residual deviation {self.deviation:.3g} over {self.observations} observations, {self.iterations} "
            "iterations"
        )
        lines.append(f"alpha moved by {self.shift:.2g} when the steps were doubled to {self.n_steps}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Minimum:
    """Where a sum of squares is least.

    Attributes:
        point: There, [parameters].
        residuals: There, [observations].
        jacobian: Of the model there, [observations, parameters].
        iterations: It took.
    """

    point: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray
    iterations: int


def least_squares(
    model: Model, observed: np.ndarray, start: np.ndarray, *, tolerance: float, iterations: int
) -> Minimum:
    """Return the minimum of the sum of squares by Gauss-Newton steps, damped where they do not go down.

    Args:
        model: Point to predictions [observations] and their Jacobian; predictions that are not finite are no way down.
        observed: What is predicted.
        start: First point.
        tolerance: A step is the last one where it changes the sum of squares, relatively, and every parameter, in units
            of its standard error, by less.
        iterations: At most.

    Raises:
        RuntimeError: They were not enough, or nothing goes down from a point where the gradient is not small.

    Source: Marquardt, J. SIAM 11 (1963) 431.
    """
    point, damping = start, _FIRST
    predicted, jacobian = model(point)
    residuals = observed - predicted
    for iteration in range(1, iterations + 1):
        normal, slope = jacobian.T @ jacobian, jacobian.T @ residuals
        scale = np.diag(np.diag(normal))
        while True:
            step = np.linalg.solve(normal + damping * scale, slope)
            predicted, following = model(point + step)
            found = observed - predicted
            if np.isfinite(found).all() and found @ found <= residuals @ residuals:
                break
            damping *= 10
            if damping > _MOST:
                return Minimum(point, residuals, jacobian, iteration)  # rounding: nothing is left to gain
        gained = residuals @ residuals - found @ found
        deviation = np.sqrt(max(found @ found, np.finfo(float).tiny) / observed.size)
        moved = np.abs(step) * np.sqrt(np.diag(normal)) / deviation
        last = residuals @ residuals
        point, residuals, jacobian, damping = point + step, found, following, max(damping / 10, _LEAST)
        if gained <= tolerance * last and moved.max() <= max(np.sqrt(tolerance), tolerance):
            return Minimum(point, residuals, jacobian, iteration)
    raise RuntimeError(
        f"fit_fde: the sum of squares was still going down after {iterations} iterations; begin nearer to the minimum, "
        "or allow more by iterations=..."
    )


def names_of(parameters: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the parameters, alpha first."""
    return ("alpha", *parameters)
