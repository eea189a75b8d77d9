"""What a fit of a stochastic model has found: estimates, their uncertainty, and whether the model fits at all."""

from __future__ import annotations

from dataclasses import dataclass

from scipy import stats

from hpfracc_nn.layers.estimates import Estimates


@dataclass(frozen=True)
class StochasticFit(Estimates):
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
        """How probable a statistic as large as this is where the model is right; NaN without spare moments."""
        return float(stats.chi2.sf(self.statistic, self.freedom)) if self.freedom else float("nan")

    def summary(self) -> str:
        """Return a table of the estimates, and what to think of them."""
        lines = self.table(self.level)
        lines.append(f"{self.observed} paths observed, {self.simulated} simulated, {self.evaluations} evaluations")
        if not self.converged:
            lines.append("the optimisation has not converged: neither the estimates nor their errors hold")
        lines.append(f"moments left over: {self.statistic:.3g} for {self.freedom} spare ones, p = {self.p_value:.2g}")
        return "\n".join(lines)
