"""What a fit of a stochastic model has found: estimates, their uncertainty, and whether the model fits at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class StochasticFit:
    """Estimates by simulated moments.

    Attributes:
        names: Of the parameters.
        values: Their estimates, [parameters].
        covariance: Of the estimates, [parameters, parameters].
        statistic: n times the weighted square of what is left between observed and simulated moments.
        freedom: Moments less parameters: what `statistic` is expected to be where the model is right.
        observed: How many paths were observed.
        simulated: How many were simulated.
        evaluations: Of the objective and its gradient.
        level: Of the confidence intervals.
        converged: Whether the optimisation did, in its last round; where not, neither estimates nor errors hold.
    """

    names: tuple[str, ...]
    values: np.ndarray
    covariance: np.ndarray
    statistic: float
    freedom: int
    observed: int
    simulated: int
    evaluations: int
    level: float
    converged: bool

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
        """The confidence intervals by name, by the normal distribution."""
        half = float(stats.norm.ppf((1 + self.level) / 2))
        return {
            name: (value - half * self.standard_errors[name], value + half * self.standard_errors[name])
            for name, value in self.estimates.items()
        }

    @property
    def p_value(self) -> float:
        """How probable a statistic as large as this is where the model is right; NaN without spare moments."""
        return float(stats.chi2.sf(self.statistic, self.freedom)) if self.freedom else float("nan")

    def summary(self) -> str:
        """Return a table of the estimates, and what to think of them."""
        width = max(len(name) for name in self.names)
        lines = [f"{'':{width}}  {'estimate':>12}  {'std. error':>12}  {100 * self.level:g} % interval"]
        for name, value in self.estimates.items():
            low, high = self.intervals[name]
            lines.append(f"{name:{width}}  {value:12.6g}  {self.standard_errors[name]:12.3g}  [{low:.6g}, {high:.6g}]")
        lines.append(f"{self.observed} paths observed, {self.simulated} simulated, {self.evaluations} evaluations")
        if not self.converged:
            lines.append("the optimisation has not converged: neither the estimates nor their errors hold")
        lines.append(f"moments left over: {self.statistic:.3g} for {self.freedom} spare ones, p = {self.p_value:.2g}")
        return "\n".join(lines)
