"""A demonstration: forecast a series one step ahead with a learned order, beside simple baselines, and draw it.

The layer `ARFIMA` is trained on the whole span at once, by Lightning: the loss is the mean of the squared errors of the
layer's forecasts, the conditional sum of squares.
"""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hpfracc_nn import errors, lazy
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.layers.torch import ARFIMA
from hpfracc_nn.selection import BackendManager, ReportRow
from hpfracc_nn.training import baselines
from hpfracc_nn.training.torch.backend_report import BackendReport

_AT_BOUND = 1e-4  # relative to the width of the bounds: an order so close to one is at the bound


class Training(pl.LightningModule):
    """The training of an `ARFIMA` layer, by LBFGS.

    A training batch is a whole series [n], on which each training step takes up to `STEPS` iterations; a prediction
    batch is one of items of `Pasts`.

    Args:
        model: The layer.
    """

    STEPS = 4

    def __init__(self, model: ARFIMA):
        super().__init__()
        self.model = model

    def forward(self, past: Tensor, last: Tensor) -> Tensor:
        """Return the forecasts of the samples after `last`.

        The unknown samples are replaced by the level: the model's error at the first of them is then the level minus
        the forecast.

        Args:
            past: Series, shape [rows, n]; samples after `last` are not used.
            last: Index of the last known sample of each row, at most n - 2, shape [rows].

        Returns:
            Forecasts, shape [rows].
        """
        last, level = last[:, None], self.model.mean
        known = torch.arange(past.shape[-1], device=past.device) <= last
        return level - self.model(torch.where(known, past, level)).gather(1, last + 1)[:, 0]

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.model(batch).square().mean()
        self.log("loss", loss.detach(), prog_bar=True, batch_size=1)
        self.log("alpha", _number(self.model.alpha), prog_bar=True, batch_size=1)
        return loss

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        past, last = batch
        return self(past, last)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(
            self.parameters(),
            max_iter=self.STEPS,
            tolerance_grad=1e-10,
            tolerance_change=1e-14,
            line_search_fn="strong_wolfe",
        )


def arfima(alpha: float, phi: float = 0.0, mu: float = 0.0, **options: Any) -> ARFIMA:
    """Return the layer ARFIMA(1, alpha, 0) with the values at which learning starts.

    Args:
        alpha: Order of the difference, usually called d; a fixed order stays at this value.
        phi: The coefficient of the day before.
        mu: The level.
        options: Further options of `ARFIMA`.
    """
    model = ARFIMA(1, alpha=alpha, bounds=(0, 1), **options)
    with torch.no_grad():
        for parameter, value in ((model.ar, phi), (model.mean, mu)):
            assert parameter is not None, "it has one lag"
            parameter.fill_(value)
    return model


def standard_error(model: ARFIMA, series: Tensor) -> float | None:
    """Return the standard error of alpha after training on `series` [n].

    The result is None if alpha is fixed or at a bound, or if the sum of squares has no minimum at the learned values.
    """
    if not model.difference.learn_alpha:
        return None
    low, high = model.difference.order.bounds
    alpha = torch.as_tensor(model.alpha, dtype=torch.float64)
    if min(_number(alpha) - low, high - _number(alpha)) < _AT_BOUND * (high - low):
        return None
    assert model.ar is not None, "it has one lag"
    parameters: list[Tensor] = [model.difference.order.raw, model.mean, model.ar]
    total = model(series).square().sum()
    slope = torch.cat(torch.autograd.grad(total, parameters, create_graph=True))
    rows = [torch.cat(torch.autograd.grad(each, parameters, retain_graph=True)) for each in slope]
    factor, fault = torch.linalg.cholesky_ex(torch.stack(rows))
    if fault:
        return None
    (per_raw,) = torch.autograd.grad(alpha, parameters[0])
    variance = 2 * total / (len(series) - len(rows)) * torch.cholesky_inverse(factor)[0, 0] * per_raw.square()
    return math.sqrt(variance.item())


def _number(value: Tensor | float) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else value


class Pasts(Dataset[tuple[Tensor, Tensor]]):
    """A data set of pasts, one for each day from `start` on: the series before that day, and the last known day.

    The day itself and all later ones are 0: rows have one length, and a forecast takes the same arithmetic for all.

    Args:
        series: Samples, shape [n].
        start: The first day to forecast, at least 1.
    """

    def __init__(self, series: Tensor, start: int):
        self.series = series
        self.start = errors.count("Pasts", "start", start)

    def __len__(self) -> int:
        return len(self.series) - self.start

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        day = self.start + index
        row = torch.zeros_like(self.series)
        row[:day] = self.series[:day]
        return row, torch.tensor(day - 1)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self[index] for index in range(len(self)))


def draw_forecast(
    path: Path,
    days: Sequence[Any] | np.ndarray,
    truth: np.ndarray,
    forecasts: np.ndarray,
    weights: np.ndarray,
    *,
    alpha: float,
    title: str,
) -> None:
    """Write a figure of forecasts and memory weights to `path`, in the format that its suffix names.

    Args:
        path: The file to write; its folder must exist.
        days: Dates or numbers of the held-out days, shape [days].
        truth: The observed values, shape [days].
        forecasts: The forecasts, shape [days].
        weights: Memory weights by lag, shape [n]; their absolute values are drawn from lag 1 on, doubly logarithmic.
        alpha: The order that the weights belong to.
        title: The title of the upper half.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    figures = lazy.required("matplotlib.figure", "draw_forecast(): needs")  # no pyplot: no state, no window
    figure = figures.Figure(figsize=(9, 7), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    above.plot(days, truth, color="0.6", linewidth=0.8, label="observed")
    above.plot(days, forecasts, color="C0", linewidth=1.2, label="forecast one step ahead")
    above.set_title(title)
    above.legend()
    lags = np.arange(1, len(weights))
    below.loglog(lags, np.abs(weights[1:]), ".", markersize=3, color="C0")
    below.set_title(f"Memory: weights of (1 - z)^{alpha:.3f}")
    below.set_xlabel("lag")
    below.set_ylabel("absolute weight")
    figure.savefig(path, dpi=150)


LEAST = 100  # samples, so that AR(22) is determined by the first 70
HELD_OUT = 0.3
QUICK = 600  # samples
ROWS = 100  # forecasts at once
EPOCHS = 15

MODEL = "ARFIMA(1, d, 0)"
ADVICE = (
    ".*does not have many workers",
    "The number of training batches",
    "GPU available but not used",
    ".isinstance.treespec, LeafSpec.. is deprecated",
)


@dataclass(frozen=True, eq=False)
class Forecast:
    """The result of `forecast`: forecasts of the held-out samples, their errors, and the fitted model.

    Args:
        series: The samples that were used, in their own unit, shape [n].
        start: Index of the first held-out sample.
        forecasts: One-step forecasts of the samples from `start` on, in the series' unit, shape [n - start].
        errors: Mean squared errors over the held-out samples by name, in units of the training
            variance; the model's own comes first.
        alpha: The order.
        standard_error: The standard error of alpha, None if alpha was fixed or is not determined.
        phi: Coefficient of the day before.
        mu: Level, in the series' unit.
        weights: Memory weights of (1 - z)**alpha, shape [n].
        rows: The rows of the report which kernels ran.
    """

    series: np.ndarray
    start: int
    forecasts: np.ndarray
    errors: dict[str, float]
    alpha: float
    standard_error: float | None
    phi: float
    mu: float
    weights: np.ndarray
    rows: list[ReportRow]

    @property
    def error(self) -> float:
        """The mean squared error of the model's forecasts, in units of the training variance."""
        return self.errors[MODEL]


def forecast(
    series: np.ndarray,
    *,
    alpha: float | None = None,
    learn: bool = True,
    seed: int = 0,
    quick: bool = False,
    manager: BackendManager | None = None,
    progress: bool = True,
) -> Forecast:
    """Fit ARFIMA(1, alpha, 0) to the first 70 % of `series`, and forecast the rest one step ahead.

    Each forecast uses only samples before the one that is forecast. Scale and level are those of the training span.

    Args:
        series: Samples at equal steps, shape [n], n >= 100.
        alpha: The order at which learning starts (None: drawn by the seed), or the fixed order.
        learn: Whether alpha is learned.
        seed: The seed of the values at which learning starts.
        quick: Whether only the last 600 samples are used.
        manager: The manager that chooses the kernel; None is the process-wide BackendManager.
        progress: Whether to show Lightning's progress bar.

    Raises:
        ValueError: The series is too short, not finite or constant, or alpha is outside (0, 1), or None though it is
            not learned.
    """
    series = _checked(series, alpha, learn)
    if quick:
        series = series[-QUICK:]
    start = len(series) - int(HELD_OUT * len(series))
    level, scale = series[:start].mean(), series[:start].std()
    if not scale > 0:
        raise ValueError(f"forecast(series): needs samples that vary; the first {start} are all {level:.6g}.")
    scaled = (series - level) / scale
    report = BackendReport(table=None)
    model = _initial(np.random.default_rng(seed), alpha, learn, manager)
    samples, training = torch.from_numpy(scaled), Training(model)
    with _quiet():
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=1,
            callbacks=[report],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=progress,
        )
        # An item, the whole series, for each training step, so that the progress bar counts the steps.
        trainer.fit(training, DataLoader([samples[:start]] * EPOCHS, batch_size=None))  # type: ignore[arg-type]
        batches = trainer.predict(training, DataLoader(Pasts(samples, start), batch_size=ROWS))
    forecasts = torch.cat(batches).numpy()  # type: ignore[arg-type]
    predicted = {
        MODEL: forecasts,
        "random walk": baselines.random_walk(scaled, start),
        "AR(5)": baselines.autoregression(scaled, start, 5),
        "AR(22)": baselines.autoregression(scaled, start, 22),
        "HAR": baselines.har(scaled, start),
    }
    order = _number(model.alpha)
    assert model.ar is not None, "it has one lag"
    return Forecast(
        series=series,
        start=start,
        forecasts=level + scale * forecasts,
        errors={name: float(np.mean((values - scaled[start:]) ** 2)) for name, values in predicted.items()},
        alpha=order,
        standard_error=standard_error(model, samples[:start]),
        phi=_number(model.ar),
        mu=level + scale * _number(model.mean),
        weights=GrunwaldLetnikov(order).stencil(len(series), 1.0, NUMPY, differences=0).weights,
        rows=report.rows(),
    )


def _initial(rng: np.random.Generator, alpha: float | None, learn: bool, manager: BackendManager | None) -> ARFIMA:
    drawn = rng.uniform(0.2, 0.6)
    phi, mu = rng.uniform(-0.2, 0.2, size=2)
    return arfima(drawn if alpha is None else alpha, phi, mu, learn_alpha=learn, manager=manager)


def _checked(series: np.ndarray, alpha: float | None, learn: bool) -> np.ndarray:
    series = np.asarray(series, np.float64)
    if series.ndim != 1 or len(series) < LEAST:
        raise ValueError(f"forecast(series): needs at least {LEAST} samples on one axis; it has shape {series.shape}.")
    wrong = np.flatnonzero(~np.isfinite(series))
    if wrong.size:
        raise ValueError(
            f"forecast(series): needs finite samples; number {wrong[0]} is {series[wrong[0]]}; fill the gaps."
        )
    if alpha is None and not learn:
        raise ValueError("forecast(alpha=None, learn=False): needs an alpha to stay at; pass one, such as 0.4.")
    if alpha is not None and not 0 < alpha < 1:
        raise ValueError(f"forecast(alpha={alpha}): needs 0 < alpha < 1; difference or sum the series once first.")
    return series


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A context without Lightning's messages on devices and the warnings in `ADVICE`."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for message in ADVICE:
                warnings.filterwarnings("ignore", message)
            yield
    finally:
        logger.setLevel(level)
