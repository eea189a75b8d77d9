"""One-step forecasts of series with long memory, and of one without, by ARFIMA and by untuned baselines.

Every model is fitted once on the first 70 % of a series, and forecasts each later sample from all samples before it.
Errors are in units of the variance of the training span.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hpfracc_nn import ARFIMA, data
from hpfracc_nn.training import baselines

TRAINED = 0.7
SEEDS = (5, 6, 7)
ORDER, LENGTH = 0.4, 2000
DAYS = 2000

# Bars on ARFIMA(1, d, 0): an error, and whether it must not be above HAR's.
VOLATILITY, NILE, ORDER_ERROR = 0.685, 0.41, 0.07

Record = dict[str, Any]
Forecaster = Callable[[np.ndarray, int], np.ndarray]


def sarimax(series: np.ndarray, start: int) -> np.ndarray:
    """Return the one-step forecasts of statsmodels' ARMA(1, 1) with a level, by its exact likelihood."""
    model = importlib.import_module("statsmodels.tsa.statespace.sarimax").SARIMAX
    found = model(series[:start], order=(1, 0, 1), trend="c").fit(disp=0)
    return np.asarray(found.append(series[start:]).predict(start, len(series) - 1))


BASELINES: dict[str, tuple[Forecaster, int]] = {
    "random walk": (baselines.random_walk, 0),
    "AR(5)": (lambda series, start: baselines.autoregression(series, start, 5), 6),
    "AR(22)": (lambda series, start: baselines.autoregression(series, start, 22), 23),
    "HAR": (baselines.har, 4),
    "SARIMAX(1, 0, 1)": (sarimax, 4),
}


def rows(quick: bool) -> list[Record]:
    """Return the records of all series; the quick form simulates one seed only."""
    return [
        *_of_series("S&P 500, log range", [data.sp500_volatility(DAYS)[1]], VOLATILITY, below_har=True),
        *_of_series("NASDAQ, log range", [nasdaq_volatility()], None, below_har=True),
        *_of_simulated(SEEDS[:1] if quick else SEEDS),
        *_of_series("Nile", [shipped("nile", "volume")], NILE),
        *_of_sunspots(),
    ]


def nasdaq_volatility() -> np.ndarray:
    """Return the last log Parkinson ranges of the NASDAQ, from the prices that `arch` ships."""
    prices = importlib.import_module("arch.data.nasdaq").load().iloc[-DAYS:]
    return data.log_parkinson(prices["High"].to_numpy(), prices["Low"].to_numpy())


def shipped(name: str, column: str) -> np.ndarray:
    """Return a series that `statsmodels` ships."""
    found = importlib.import_module(f"statsmodels.datasets.{name}").load_pandas().data[column]
    return found.to_numpy(dtype=np.float64)


def split(series: np.ndarray) -> int:
    """Return the first sample that is held out."""
    return round(TRAINED * len(series))


def fitted(
    series: np.ndarray,
    lags: int,
    *,
    errors_before: int = 0,
    at_sample_mean: bool = False,
    likelihood: str = "conditional",
) -> ARFIMA:
    """Return ARFIMA(lags, d, errors_before) of the training span, whose mean is estimated or that of the span."""
    trained = series[: split(series)]
    model = ARFIMA(lags, errors_before)
    if at_sample_mean:
        model.mean.requires_grad_(False).fill_(trained.mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of an order at its bound, which a note says
        return model.fit(trained, likelihood=likelihood)


def _error(series: np.ndarray, model: ARFIMA) -> float:
    start = split(series)
    return model.forecast_mse(series, start) / series[:start].var()


def _baseline_errors(series: np.ndarray) -> dict[str, float]:
    start = split(series)
    variance = series[:start].var()
    return {
        name: float(np.mean((forecast(series, start) - series[start:]) ** 2) / variance)
        for name, (forecast, _) in BASELINES.items()
    }


def _of_series(task: str, many: list[np.ndarray], bar: float | None, *, below_har: bool = False) -> Iterator[Record]:
    """Yield the errors of the baselines and of ARFIMA(1, d, 0), on one series or on one for each seed."""
    errors = [_baseline_errors(series) for series in many]
    for name, (_, parameters) in BASELINES.items():
        yield _record(task, name, parameters, [each[name] for each in errors])
    har = float(np.mean([each["HAR"] for each in errors]))
    wanted = [value for value in (bar, har if below_har else None) if value is not None]
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("ARFIMA(1, d, 0)", {}),
        ("ARFIMA(1, d, 0) at the sample mean", {"at_sample_mean": True}),
        ("ARFIMA(1, d, 1)", {"errors_before": 1}),
        ("ARFIMA(1, d, 0), exact likelihood", {"likelihood": "exact"}),
    )
    for name, options in kinds:
        models = [fitted(series, 1, **options) for series in many]
        found = [_error(series, model) for series, model in zip(many, models, strict=True)]
        judged = None if options else min(wanted, default=None)  # the bar is for what `fit` does by itself
        yield _record(
            task,
            name,
            3 + models[0].error_lags,
            found,
            judged,
            note="d = " + ", ".join(_order(model) for model in models),
        )


def _of_simulated(seeds: tuple[int, ...]) -> Iterator[Record]:
    """Yield the errors on simulated series, and how far the estimated order is from the true one."""
    many = [data.arfima(LENGTH, ORDER, np.random.default_rng(seed)) for seed in seeds]
    task = f"ARFIMA(0, {ORDER}, 0), {LENGTH} samples, seeds {', '.join(map(str, seeds))}"
    yield from _of_series(task, many, None)
    for lags in (0, 1):
        found = [abs(fitted(series, lags).estimates.estimates["alpha"] - ORDER) for series in many]
        row = _record(task, f"ARFIMA({lags}, d, 0)", 2 + lags, found, ORDER_ERROR, metric=f"abs(d - {ORDER})")
        yield {**row, "each": True}


def _of_sunspots() -> Iterator[Record]:
    """Yield the errors on the sunspots, which have a period and no long memory."""
    series = np.sqrt(shipped("sunspots", "SUNACTIVITY"))
    task = "sunspots, square root"
    yield from _of_series(task, [series], None)
    model = fitted(series, 2)
    lost = "a cycle is no long memory: the long autoregression wins"
    yield _record(task, "ARFIMA(2, d, 0)", 4, [_error(series, model)], note=f"d = {_order(model)}; {lost}")


def _order(model: ARFIMA) -> str:
    found = model.estimates
    error = found.standard_errors["alpha"]
    return f"{found.estimates['alpha']:.3f} ({'at its bound' if math.isnan(error) else f'{error:.3f}'})"


def _record(
    task: str,
    model: str,
    parameters: int,
    values: list[float],
    bar: float | None = None,
    *,
    metric: str = "MSE / variance",
    note: str = "",
) -> Record:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {
        "task": task,
        "model": model,
        "parameters": parameters,
        "metric": metric,
        "values": values,
        "mean": float(np.mean(values)),
        "spread": spread,
        "bar": bar,
        "higher_is_better": False,
        "note": note,
    }
