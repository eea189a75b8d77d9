"""Estimates of a model's parameters with their uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from hpfracc_nn import errors


@dataclass(frozen=True)
class Estimates:
    """Estimates that are normally distributed.

    Attributes:
        names: Names of the parameters; "alpha" is one of them where it is estimated.
        values: Estimates of the parameters, [parameters].
        covariance: Covariance of the estimates, [parameters, parameters]; NaN where the data do not determine it.
    """

    names: tuple[str, ...]
    values: np.ndarray
    covariance: np.ndarray

    @property
    def estimates(self) -> dict[str, float]:
        """The estimates by name."""
        return dict(zip(self.names, self.values.tolist(), strict=True))

    @property
    def standard_errors(self) -> dict[str, float]:
        """The standard errors by name."""
        return dict(zip(self.names, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    def half_width(self, level: float) -> float:
        """Return half of an interval's width at `level`, in standard errors."""
        return float(stats.norm.ppf((1 + level) / 2))

    def intervals_at(self, level: float) -> dict[str, tuple[float, float]]:
        """Return the confidence intervals at `level`, between 0 and 1, by name."""
        level = errors.probability(f"{type(self).__name__}", "level", level, example=0.95)
        half = self.half_width(level)
        return {
            name: (value - half * self.standard_errors[name], value + half * self.standard_errors[name])
            for name, value in self.estimates.items()
        }

    def table(self, level: float, intervals: dict[str, tuple[float, float]] | None = None) -> list[str]:
        """Return the lines of a text table: for each parameter its estimate, standard error and confidence interval.

        Args:
            level: Of the intervals, between 0 and 1.
            intervals: The intervals by name; None is those of `intervals_at`.
        """
        level = errors.probability(f"{type(self).__name__}", "level", level, example=0.95)
        width = max(len(name) for name in self.names)
        lines = [f"{'':{width}}  {'estimate':>12}  {'std. error':>12}  {100 * level:g} % interval"]
        for name, (low, high) in (self.intervals_at(level) if intervals is None else intervals).items():
            lines.append(
                f"{name:{width}}  {self.estimates[name]:12.6g}  {self.standard_errors[name]:12.3g}  "
                f"[{low:.6g}, {high:.6g}]"
            )
        return lines


@dataclass(frozen=True)
class LeastSquares(Estimates):
    """Estimates by least squares, whose intervals are by Student's distribution.

    Attributes:
        names: Names of the parameters; "alpha" is one of them where it is estimated.
        values: Estimates of the parameters, [parameters].
        covariance: Covariance of the estimates, [parameters, parameters]; NaN where the data do not determine it.
        deviation: Standard deviation of the residuals.
        observations: How many numbers were fitted.
    """

    deviation: float
    observations: int

    def half_width(self, level: float) -> float:
        """Return half of an interval's width at `level`, in standard errors, by Student's distribution."""
        return float(stats.t.ppf((1 + level) / 2, self.observations - len(self.names)))
