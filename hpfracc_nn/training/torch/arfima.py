"""ARFIMA(1, d, 0) as a Lightning module: three parameters, trained on the whole span at once.

The model is the layer `ARFIMA`; the loss is the conditional sum of squares of its errors, by their mean.
"""

import math
from collections.abc import Iterator

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hpfracc_nn import errors
from hpfracc_nn.layers.torch import ARFIMA
from hpfracc_nn.selection import BackendManager

_AT_BOUND = 1e-4  # of the width of the bounds


class Arfima(pl.LightningModule):
    """ARFIMA(1, alpha, 0), in float64.

    A training batch is a series [n]; a prediction batch is what `Pasts` holds. It is trained by LBFGS, so
    that each training step is up to `STEPS` iterations on its batch.

    Args:
        alpha: Order of the difference, usually called d; where learning starts, or the value itself.
        phi: Coefficient of the day before, where learning starts.
        mu: Level, where learning starts.
        learn_alpha: Whether alpha is learned.
        bounds: The interval that alpha stays in.
        manager: Who chooses the kernel; None is the process-wide BackendManager.
    """

    STEPS = 4

    def __init__(
        self,
        alpha: float = 0.3,
        phi: float = 0.0,
        mu: float = 0.0,
        *,
        learn_alpha: bool = True,
        bounds: tuple[float, float] = (0, 1),
        manager: BackendManager | None = None,
    ):
        super().__init__()
        self.model = ARFIMA(1, alpha=alpha, learn_alpha=learn_alpha, bounds=bounds, manager=manager)
        with torch.no_grad():
            self.phi.fill_(phi)
            self.mu.fill_(mu)

    @property
    def alpha(self) -> Tensor:
        return torch.as_tensor(self.model.alpha, dtype=torch.float64)

    @property
    def phi(self) -> Tensor:
        """The coefficient of the day before, [1]."""
        assert self.model.ar is not None, "it has one lag"
        return self.model.ar

    @property
    def mu(self) -> Tensor:
        """The level."""
        return self.model.mean

    def residuals(self, series: Tensor) -> Tensor:
        """Return the one-step errors of `series` [n], the first ones with less history than the others."""
        return self.model(series)

    def forward(self, past: Tensor, last: Tensor) -> Tensor:
        """Return the forecasts of the samples after `last`.

        The unknown sample stands at the level: its error is then what the past makes of it, with the other sign.

        Args:
            past: Series that end at `last`, shape [rows, n]; what follows is not used.
            last: Index of the last known sample of each row, at most n - 2, shape [rows].

        Returns:
            Forecasts, shape [rows].
        """
        last = last[:, None]
        known = torch.arange(past.shape[-1], device=past.device) <= last
        return self.mu - self.model(torch.where(known, past, self.mu)).gather(1, last + 1)[:, 0]

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.residuals(batch).square().mean()
        self.log("loss", loss.detach(), prog_bar=True, batch_size=1)
        self.log("alpha", self.alpha.detach(), prog_bar=True, batch_size=1)
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

    def standard_error(self, series: Tensor) -> float | None:
        """Return the standard error of alpha after training on `series` [n]; None if it is not determined.

        None where alpha is fixed or at a bound, or the sum of squares has no minimum there.
        """
        if not self.model.difference.learn_alpha:
            return None
        low, high = self.model.difference.order.bounds
        alpha = float(self.alpha.detach())
        if min(alpha - low, high - alpha) < _AT_BOUND * (high - low):
            return None
        parameters = [self.model.difference.order.raw, self.mu, self.phi]
        total = self.residuals(series).square().sum()
        slope = torch.cat(torch.autograd.grad(total, parameters, create_graph=True))
        rows = [torch.cat(torch.autograd.grad(each, parameters, retain_graph=True)) for each in slope]
        factor, fault = torch.linalg.cholesky_ex(torch.stack(rows))
        if fault:
            return None
        (per_raw,) = torch.autograd.grad(self.alpha, parameters[0])
        variance = 2 * total / (len(series) - len(rows)) * torch.cholesky_inverse(factor)[0, 0] * per_raw.square()
        return math.sqrt(variance.item())


class Pasts(Dataset[tuple[Tensor, Tensor]]):
    """For each day from `start` on: the series before it with a blank future, and the last known day.

    The blank future makes all rows one length, so that a forecast takes the same arithmetic whatever follows.

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
