"""The first job: forecast a series one step ahead with a learned order, beside simple baselines."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.selection import BackendManager, ReportRow
from hpfracc_nn.training import baselines
from hpfracc_nn.training.torch.arfima import Arfima, Pasts
from hpfracc_nn.training.torch.backend_report import BackendReport

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
    """What was forecast, and how well.

    Args:
        series: The samples that were used, in their own unit, shape [n].
        start: Index of the first held-out sample.
        forecasts: One step ahead, of the samples from `start` on, in the series' unit, shape [n - start].
        errors: Mean squared errors over the held-out samples by name, in units of the training
            variance; the model's own comes first.
        alpha: The order.
        standard_error: Its standard error, None where it was fixed or is not determined.
        phi: Coefficient of the day before.
        mu: Level, in the series' unit.
        weights: Memory weights of (1 - z)**alpha, shape [n].
        rows: Which kernel ran.
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
        """The model's mean squared error."""
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

    Each forecast uses the samples before its own only. Scale and level are those of the training span.

    Args:
        series: Samples at equal steps, shape [n], n >= 100.
        alpha: The order: where learning starts (None: drawn from the seed), or what it stays at.
        learn: Whether alpha is learned.
        seed: Of the values that learning starts from.
        quick: Use the last 600 samples only.
        manager: Who chooses the kernel; None is the process-wide BackendManager.
        progress: Whether to show Lightning's progress bar.

    Raises:
        ValueError: The series is too short, not finite or constant, or alpha is outside [0, 1], or not
            given though it is not learned.
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
    samples = torch.from_numpy(scaled)
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
        trainer.fit(model, DataLoader(_Repeated(samples[:start], EPOCHS), batch_size=None))
        batches = trainer.predict(model, DataLoader(Pasts(samples, start), batch_size=ROWS))
    forecasts = torch.cat(batches).numpy()  # type: ignore[arg-type]
    predicted = {
        MODEL: forecasts,
        "random walk": baselines.random_walk(scaled, start),
        "AR(5)": baselines.autoregression(scaled, start, 5),
        "AR(22)": baselines.autoregression(scaled, start, 22),
        "HAR": baselines.har(scaled, start),
    }
    order = float(model.alpha.detach())
    return Forecast(
        series=series,
        start=start,
        forecasts=level + scale * forecasts,
        errors={name: float(np.mean((values - scaled[start:]) ** 2)) for name, values in predicted.items()},
        alpha=order,
        standard_error=model.standard_error(samples[:start]),
        phi=float(model.phi.detach()),
        mu=level + scale * float(model.mu.detach()),
        weights=GrunwaldLetnikov(order).stencil(len(series), 1.0, NUMPY, differences=0).left,
        rows=report.rows(),
    )


class _Repeated(torch.utils.data.Dataset[torch.Tensor]):
    """The whole series, once for each training step: the progress bar then counts the steps."""

    def __init__(self, series: torch.Tensor, times: int):
        self.series = series
        self.times = times

    def __len__(self) -> int:
        return self.times

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.series


def _initial(rng: np.random.Generator, alpha: float | None, learn: bool, manager: BackendManager | None) -> Arfima:
    drawn = rng.uniform(0.2, 0.6)
    phi, mu = rng.uniform(-0.2, 0.2, size=2)
    return Arfima(drawn if alpha is None else alpha, phi, mu, learn_alpha=learn, manager=manager)


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
    """Leave out what Lightning says of devices, of loaders with few items, and of a deprecated name."""
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
