"""ARFIMA(1, d, 0) as a Lightning module: three parameters, trained on the whole span at once.

(1 - phi z) (1 - z)**alpha (x - mu) = noise, with zero history before the first sample. The loss is the
conditional sum of squares of the noise, by its mean.

Source: Hosking, Fractional Differencing, Biometrika 68 (1981); Chung & Baillie, Small Sample Bias in
Conditional Sum-of-Squares Estimators, Empirical Economics 18 (1993).
"""

import math
from collections.abc import Iterator

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hpfracc_nn import errors
from hpfracc_nn.layers.torch import FractionalDifference
from hpfracc_nn.selection import BackendManager


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
        self.difference = FractionalDifference(
            1, bounds=bounds, init=alpha, learn_alpha=learn_alpha, manager=manager, dtype=torch.float64
        )
        self.phi = nn.Parameter(torch.tensor(phi, dtype=torch.float64))
        self.mu = nn.Parameter(torch.tensor(mu, dtype=torch.float64))

    @property
    def alpha(self) -> Tensor:
        return self.difference.alpha[0]

    def residuals(self, series: Tensor) -> Tensor:
        """Return the one-step errors of `series` [n], the first ones with less history than the others."""
        differenced = self.difference((series - self.mu)[None, None])[0, 0]
        return differenced - self.phi * nn.functional.pad(differenced, (1, 0))[:-1]

    def forward(self, past: Tensor, last: Tensor) -> Tensor:
        """Return the forecasts of the samples after `last`.

        The unknown sample stands as zero: its difference is then what the past contributes to it.

        Args:
            past: Series that end at `last`, shape [rows, n]; what follows is not used.
            last: Index of the last known sample of each row, at most n - 2, shape [rows].

        Returns:
            Forecasts, shape [rows].
        """
        last = last[:, None]
        known = torch.arange(past.shape[-1], device=past.device) <= last
        centred = torch.where(known, past - self.mu, 0)
        differenced = self.difference(centred[:, None])[:, 0]
        forecast = self.mu - differenced.gather(1, last + 1) + self.phi * differenced.gather(1, last)
        return forecast[:, 0]

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

        From the Hessian H of the sum of squares S at its minimum: the covariance is 2 sigma**2 H**-1 with
        sigma**2 = S / (n - parameters). None where alpha is fixed, or H is not positive, as at a bound.
        """
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if not self.alpha.requires_grad:
            return None
        total = self.residuals(series).square().sum()
        slopes = torch.autograd.grad(total, learned, create_graph=True)
        rows = [torch.autograd.grad(slope, learned, retain_graph=True) for slope in _flat(slopes)]
        hessian = torch.stack([_flat(row) for row in rows])
        factor, fault = torch.linalg.cholesky_ex((hessian + hessian.mT) / 2)
        if fault:
            return None
        variance = 2 * total.detach() / (len(series) - len(hessian)) * torch.cholesky_inverse(factor)
        # Parameters to alpha: the layer keeps alpha in its bounds by a transform.
        slope = _flat(torch.autograd.grad(self.alpha, learned, materialize_grads=True))
        return math.sqrt(slope @ variance @ slope)


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


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
