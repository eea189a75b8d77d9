"""Losses for paths [time, batch, state], as solvers return them.

`trajectory_loss` compares path with path. The others compare distributions, and ask for a batch: what a stochastic
model draws and what was observed are different paths even where the model is right. Moments at each time do not see how
rough a path is, the variogram sees little else, and the energy score sees everything, with more noise. Half precision
is computed in float32, and the loss has the paths' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpfracc_nn.training.path_checks import (
    check_batches,
    check_lags,
    check_mask,
    check_observed,
    check_orders,
    check_real,
)


def trajectory_loss(ys: Tensor, observed: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the mean square of the differences of paths and observations, in the square of their units.

    Args:
        ys: Paths, [time, batch, state].
        observed: Observations at the same times; broadcasts to `ys`. Entries that the mask leaves out may be anything,
            NaN too.
        mask: True for entries that were observed; broadcasts to `ys`. If no entry is, the result is NaN.

    Raises:
        ValueError: Shapes do not fit, or the mask is not boolean.
        TypeError: The paths are complex.

    Examples:
        >>> observed = torch.tensor([1.0, 2.0, torch.nan]).view(3, 1, 1)
        >>> # (1 + 4) / 2
        >>> trajectory_loss(torch.zeros(3, 1, 1), observed, mask=observed.isfinite())
        tensor(2.5000)
    """
    owner = "trajectory_loss"
    check_observed(owner, ys, observed)
    ys, observed, dtype = _wide(owner, ys, observed)
    if mask is None:
        return (ys - observed).square().mean().to(dtype)
    check_mask(owner, ys, mask, mask.dtype == torch.bool)
    seen = mask.expand_as(ys)
    difference = torch.where(seen, ys - torch.where(seen, observed, 0.0), 0.0)
    return (difference.square().sum() / seen.sum()).to(dtype)


def moment_loss(ys: Tensor, observed: Tensor, *, orders: int = 2) -> Tensor:
    """Return the mean square of the differences between moments, at each time and for each entry of the state.

    All are in units of the observed standard deviation s: means and deviations are divided by s, and from order 3 on
    the central moments by s**order. Times at which observed paths do not vary, as at the start, count with their mean
    alone.

    Args:
        ys: Paths, [time, batch, state].
        observed: Observed paths, [time, batch, state], in a batch of any size.
        orders: How many moments are compared, from 1 to 4.

    Raises:
        ValueError: Shapes do not fit, a batch is smaller than two, or `orders` is out of range.
        TypeError: The paths are complex.

    Examples:
        >>> observed = torch.tensor([-1.0, 1.0]).view(1, 2, 1)
        >>> moment_loss(2 * observed, observed)  # one deviation too wide
        tensor(1.)
    """
    check_batches("moment_loss", ys, observed)
    check_orders("moment_loss", orders)
    ys, observed, dtype = _wide("moment_loss", ys, observed)
    found, wanted = ys.mean(1), observed.mean(1)
    centred, others = ys - found[:, None], observed - wanted[:, None]
    varies = (observed != observed[:, :1]).any(1)  # a variance of equal numbers is seldom 0, as the mean is rounded
    unit = torch.where(varies, _deviation(others), 1.0)
    total = ((found - wanted) / unit).square().mean()
    if orders > 1:
        total = total + _squares(_deviation(centred), _deviation(others), unit, varies)
    for order in range(3, orders + 1):
        total = total + _squares(centred.pow(order).mean(1), others.pow(order).mean(1), unit.pow(order), varies)
    return total.to(dtype)


def variogram_loss(ys: Tensor, observed: Tensor, *, lags: Sequence[int] = (1, 2, 4, 8)) -> Tensor:
    """Return the mean square of the differences between the logarithms of variograms.

    The variogram is the mean over batch and time of the squared increments over a lag, which grow like
    lag**(2 hurst): the loss sees Hurst index and scale, whatever the units.

    Args:
        ys: Paths at equally spaced times, [time, batch, state].
        observed: Observed paths at these times, [time, batch, state], in a batch of any size.
        lags: The lags in steps, each smaller than the number of times.

    Raises:
        ValueError: Shapes do not fit, or a lag is out of range.
        TypeError: The paths are complex.

    Source: Gatheral, Jaisson & Rosenbaum, Quant. Finance 18 (2018) 933, section 2.1, for the growth.

    Examples:
        >>> x = torch.arange(10.0).view(10, 1, 1)
        >>> variogram_loss(2 * x, x)  # log(4)**2
        tensor(1.9218)
    """
    check_batches("variogram_loss", ys, observed, least=1)
    check_lags("variogram_loss", lags, ys)
    ys, observed, dtype = _wide("variogram_loss", ys, observed)
    ratios = [_variogram(ys, lag).log() - _variogram(observed, lag).log() for lag in lags]
    return torch.stack(ratios).square().mean().to(dtype)


def energy_score(ys: Tensor, observed: Tensor) -> Tensor:
    """Return E |X - y| - E |X - X'| / 2, averaged over observed paths y: a proper score of a distribution of paths.

    X and X' are two paths of `ys`, and the distance is Euclidean over all times and entries, divided by the root of
    their number. The score's mean is least for the distribution that the observations come from. Time and memory grow
    like batch times batch.

    Args:
        ys: Paths of the model, [time, batch, state].
        observed: Observed paths, [time, batch, state], in a batch of any size, even 1.

    Raises:
        ValueError: Shapes do not fit, or there are fewer than two paths of the model.
        TypeError: The paths are complex.

    Source: Gneiting & Raftery, J. Amer. Stat. Assoc. 102 (2007) 359, section 4.2.

    Examples:
        >>> # 5 / 3 - 2 / 2
        >>> energy_score(
        ...     torch.tensor([0.0, 1.0, 3.0]).view(1, 3, 1), torch.full((1, 1, 1), 3.0)
        ... )
        tensor(0.6667)
    """
    check_batches("energy_score", ys, observed, least_observed=1)
    ys, observed, dtype = _wide("energy_score", ys, observed)
    size = (ys.shape[0] * ys.shape[2]) ** 0.5
    paths, others = (each.transpose(0, 1).flatten(1) / size for each in (ys, observed))
    # Not by matrix products, which lose the digits of small distances.
    apart = torch.cdist(paths, others, compute_mode="donot_use_mm_for_euclid_dist").mean()
    return (apart - torch.pdist(paths).mean() / 2).to(dtype)


def _wide(owner: str, ys: Tensor, observed: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """Return both tensors of paths in the dtype to compute in, at least single precision, and the dtype of the loss.

    Complex paths raise TypeError, with the name of the public function `owner`.
    """
    for name, paths in (("ys", ys), ("observed", observed)):
        check_real(owner, name, paths.dtype, not paths.is_complex())
    dtype = torch.result_type(ys, observed)
    if dtype.itemsize < 4 and dtype.is_floating_point:
        return ys.float(), observed.float(), dtype
    return ys, observed, dtype


def _deviation(centred: Tensor) -> Tensor:
    """Return the standard deviation over axis 1 of values whose mean over this axis was subtracted.

    Where nothing varies the gradient of the deviation is 0, not infinite.
    """
    variance = centred.square().sum(1) / (centred.shape[1] - 1)
    varies = variance > 0
    return torch.where(varies, torch.where(varies, variance, 1.0).sqrt(), 0.0)


def _squares(found: Tensor, wanted: Tensor, unit: Tensor, varies: Tensor) -> Tensor:
    return torch.where(varies, (found - wanted) / unit, 0.0).square().mean()


def _variogram(paths: Tensor, lag: int) -> Tensor:
    return (paths[lag:] - paths[:-lag]).square().mean((0, 1))
