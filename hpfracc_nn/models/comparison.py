"""Models compared on the same experiments: by information criteria, and by what they predict of hidden decades."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpfracc_nn.models.estimation import ModelFit, fit
from hpfracc_nn.models.experiments import Experiment, MissingPart
from hpfracc_nn.models.model import Model

_OWNER = "compare"


class Row(NamedTuple):
    """A model in a comparison.

    Attributes:
        model: Name of the model.
        parameters: How many parameters are estimated.
        deviation: Standard deviation of the residuals.
        aic: Akaike's information criterion less the least one of all models.
        bic: The Bayesian information criterion less the least one of all models.
        weight: exp(-bic / 2) over its sum for all models: how probable the model is, if all were equally probable
            before.
        extrapolation: Root mean square residual over the hidden decades; NaN where the data before them are too few.
        failure: Why the model could not be fitted, in which case all numbers but `parameters` are NaN; else empty.

    Examples:
        >>> row = Row("SpringPot", 2, 0.03, aic=0.0, bic=0.0, weight=0.9, extrapolation=0.04)
        >>> row.model, row.failure
        ('SpringPot', '')
    """

    model: str
    parameters: int
    deviation: float
    aic: float
    bic: float
    weight: float
    extrapolation: float
    failure: str = ""


@dataclass(frozen=True)
class Comparison:
    """Models fitted to the same experiments, the model with the least BIC first.

    Attributes:
        fits: Fits of the models that could be fitted.
        rows: One row for each fit, then one for each model that could not be fitted.
        decades: How many decades were hidden for the extrapolation.

    Examples:
        >>> from hpfracc_nn.models.rheology import Maxwell, SpringPot
        >>> t = np.geomspace(0.01, 100, 20)
        >>> noise = np.exp(0.02 * np.random.default_rng(0).standard_normal(20))
        >>> found = compare([Maxwell, SpringPot], Experiment.relaxation(t, 2 * t**-0.3 * noise))
        >>> print(found.table())  # the least BIC first
        model      parameters  deviation    dAIC    dBIC  weight  last decade
        SpringPot           2  ...
        Maxwell             2  ...
        >>> found.best.fitted.label
        'SpringPot'
    """

    fits: tuple[ModelFit, ...]
    rows: tuple[Row, ...]
    decades: float

    @classmethod
    def of(
        cls, fits: Sequence[ModelFit], decades: float = 1.0, failures: Sequence[tuple[Model, str]] = ()
    ) -> Comparison:
        """Return a comparison of fits to the same experiments; see `compare`.

        `failures` are pairs of a model that could not be fitted and the reason.
        """
        best = sorted(fits, key=lambda each: each.bic)
        aic, bic = min(each.aic for each in best), best[0].bic
        weights = np.exp(-0.5 * np.array([each.bic - bic for each in best]))
        rows = [
            Row(
                each.fitted.label,
                len(each.names),
                each.deviation,
                each.aic - aic,
                each.bic - bic,
                float(weight),
                _extrapolated(each, decades),
            )
            for each, weight in zip(best, weights / weights.sum(), strict=True)
        ]
        nothing = float("nan")
        for model, failure in failures:
            numbers = nothing, nothing, nothing, nothing, nothing
            rows.append(Row(model.label, len(model.roles), *numbers, failure))
        return cls(tuple(best), tuple(rows), decades)

    @property
    def best(self) -> ModelFit:
        """The fit of the least BIC."""
        return self.fits[0]

    def table(self) -> str:
        """Return the rows as a table in text."""
        width = max(len("model"), *(len(row.model) for row in self.rows))
        hidden = f"last {self.decades:g} decades" if self.decades != 1 else "last decade"
        lines = [f"{'model':{width}}  parameters  deviation    dAIC    dBIC  weight  {hidden}"]
        for row in self.rows:
            if row.failure:
                lines.append(f"{row.model:{width}}  {row.parameters:10d}  {row.failure}")
                continue
            lines.append(
                f"{row.model:{width}}  {row.parameters:10d}  {row.deviation:9.3g}  {row.aic:6.1f}  {row.bic:6.1f}  "
                f"{row.weight:6.3f}  {row.extrapolation:{len(hidden)}.3g}"
            )
        return "\n".join(lines)

    def plot(self) -> Any:
        """Return a matplotlib figure: the data, every model, and their residuals.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        from hpfracc_nn.models.figures import draw_fits

        return draw_fits(self.fits)


def compare(
    models: Iterable[Model | type[Model]],
    data: Experiment | Sequence[Experiment],
    *,
    decades: float = 1.0,
    **options: Any,
) -> Comparison:
    """Return fits of several models to the same experiments, as a table and a figure.

    A model of which no first point has finite predictions, such as a spring of a loss modulus, has a row that says so.

    Args:
        models: Models or their classes, as in `fit`.
        data: As in `fit`.
        decades: How many decades are hidden for `ModelFit.extrapolation`.
        options: As in `fit`.

    Raises:
        ValueError: There is no model, or as in `fit`.
        TypeError: As in `fit`.
        RuntimeError: No model could be fitted.

    Source: Burnham & Anderson, Model Selection (2002), section 6.4, for the weights.

    Examples:
        >>> from hpfracc_nn.models.rheology import FractionalMaxwell, Maxwell
        >>> t = np.geomspace(0.01, 100, 40)
        >>> noise = np.exp(0.02 * np.random.default_rng(0).standard_normal(40))
        >>> gel = FractionalMaxwell(V=10, alpha=0.8, G=5, beta=0.2)
        >>> step = Experiment.relaxation(t, gel.relaxation(t) * noise)
        >>> compare([Maxwell, FractionalMaxwell], step).rows[0].model
        'FractionalMaxwell'
    """
    if isinstance(models, type | Model):
        raise TypeError(f"{_OWNER}(models={models!r}): needs a list of models; pass [{models!r}] and its rivals.")
    if not models:
        raise ValueError(f"{_OWNER}(models={models!r}): needs at least one model; pass a list of models.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a wrong model's residuals have a trend; each fit keeps its notes
        fits, failures = [], []
        for each in models:
            try:
                fits.append(fit(each, data, **options))
            except (RuntimeError, MissingPart) as failure:
                failures.append((each() if isinstance(each, type) else each, str(failure)))
        if not fits:
            reasons = "\n".join(reason for _, reason in failures)
            raise RuntimeError(f"{_OWNER}: no model could be fitted; compare others, or see why:\n{reasons}")
        return Comparison.of(fits, decades, failures)


def _extrapolated(found: ModelFit, decades: float) -> float:
    try:
        return found.extrapolation(decades)
    except (ValueError, RuntimeError):  # too little is left, or it leads nowhere
        return float("nan")
