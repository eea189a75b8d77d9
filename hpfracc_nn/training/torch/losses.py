"""Losses for paths [time, batch, state], as solvers return them.

`trajectory_loss` compares path with path. The others compare distributions, and ask for a batch: what a stochastic
model draws and what was observed are different paths even where the model is right. Moments at each time do not see how
rough a path is, the variogram sees little else, and the energy score sees everything, with more noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_MOMENTS = 4


def trajectory_loss(ys: Tensor, observed: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the mean square of the differences from what was observed.

    Args:
        ys: Paths, [time, batch, state].
        observed: At the same times; broadcasts to `ys`. What the mask leaves out may be anything, NaN too.
        mask: True where there is an observation; broadcasts to `ys`. Where it leaves nothing the result is NaN.

    Raises:
        ValueError: Shapes do not fit, or the mask is not boolean.
    """
    owner = "trajectory_loss"
    if not _broadcasts(observed, ys):
        raise ValueError(
            f"{owner}(ys of shape {tuple(ys.shape)}, observed of shape {tuple(observed.shape)}): needs observations "
            "that broadcast to the paths; pass [time, batch, state]."
        )
    if mask is None:
        return (ys - observed).square().mean()
    if mask.dtype != torch.bool or not _broadcasts(mask, ys):
        raise ValueError(
            f"{owner}(mask of {mask.dtype} and shape {tuple(mask.shape)}): needs booleans that broadcast to the paths' "
            f"shape {tuple(ys.shape)}; pass for example observed.isfinite()."
        )
    seen = mask.expand_as(ys)
    difference = torch.where(seen, ys - torch.where(seen, observed, 0.0), 0.0)
    return difference.square().sum() / seen.sum()


def moment_loss(ys: Tensor, observed: Tensor, *, orders: int = 2) -> Tensor:
    """Return the mean square of the differences between moments, at each time and for each entry of the state.

    All are in units of the observed standard deviation s: means by s, deviations by s, and from order 3 on the central
    moments by s**order. Times at which what was observed does not vary, as at the start, count with their mean alone.

    Args:
        ys: Paths, [time, batch, state].
        observed: Others, [time, batch, state], in a batch of any size.
        orders: How many moments, from 1 to 4.

    Raises:
        ValueError: Shapes do not fit, a batch is smaller than two, or `orders` is out of range.
    """
    _check("moment_loss", ys, observed)
    if not 1 <= orders <= _MOMENTS:
        raise ValueError(f"moment_loss(orders={orders}): needs 1 <= orders <= {_MOMENTS}; pass for example 2.")
    varies = observed.var(1) > 0
    unit = torch.where(varies, observed.std(1), 1.0)
    found, wanted = ys.mean(1), observed.mean(1)
    total = ((found - wanted) / unit).square().mean()
    centred, others = ys - found[:, None], observed - wanted[:, None]
    if orders > 1:
        total = total + _squares(_deviation(centred), _deviation(others), unit, varies)
    for order in range(3, orders + 1):
        total = total + _squares(centred.pow(order).mean(1), others.pow(order).mean(1), unit.pow(order), varies)
    return total


def variogram_loss(ys: Tensor, observed: Tensor, *, lags: Sequence[int] = (1, 2, 4, 8)) -> Tensor:
    """Return the mean square of the differences between the logarithms of variograms.

    The variogram is the mean over batch and time of the squared increments over a lag, which grow like
    lag**(2 hurst): the loss sees Hurst index and scale, whatever the units.

    Args:
        ys: Paths at equal times, [time, batch, state].
        observed: Others, [time, batch, state], in a batch of any size.
        lags: In steps, each smaller than the number of times.

    Raises:
        ValueError: Shapes do not fit, or a lag is out of range.
    """
    _check("variogram_loss", ys, observed, least=1)
    if not lags or not all(1 <= lag < ys.shape[0] for lag in lags):
        raise ValueError(
            f"variogram_loss(lags={tuple(lags)}): needs lags from 1 to {ys.shape[0] - 1}, one less than there are "
            "times; pass for example (1, 2)."
        )
    ratios = [_variogram(ys, lag).log() - _variogram(observed, lag).log() for lag in lags]
    return torch.stack(ratios).square().mean()


def energy_score(ys: Tensor, observed: Tensor) -> Tensor:
    """Return E |X - y| - E |X - X'| / 2, averaged over what was observed: a proper score of a distribution of paths.

    X and X' are two paths of `ys`, y an observed one, and the distance is Euclidean over all times and entries,
    divided by the root of their number. Its mean is least for the distribution that the observations come from. Time
    and memory grow like batch times batch.

    Args:
        ys: Paths of the model, [time, batch, state].
        observed: Others, [time, batch, state], in a batch of any size; one path as well.

    Raises:
        ValueError: Shapes do not fit, or there are fewer than two paths of the model.

    Source: Gneiting & Raftery, J. Amer. Stat. Assoc. 102 (2007) 359, section 4.2.
    """
    _check("energy_score", ys, observed, least_observed=1)
    size = (ys.shape[0] * ys.shape[2]) ** 0.5
    paths, others = (each.transpose(0, 1).flatten(1) / size for each in (ys, observed))
    # Not by matrix products, which lose the digits of small distances.
    apart = torch.cdist(paths, others, compute_mode="donot_use_mm_for_euclid_dist").mean()
    return apart - torch.pdist(paths).mean() / 2


def _check(owner: str, ys: Tensor, observed: Tensor, least: int = 2, least_observed: int | None = None) -> None:
    for name, paths in (("ys", ys), ("observed", observed)):
        if paths.ndim != 3:
            raise ValueError(
                f"{owner}({name} of shape {tuple(paths.shape)}): needs axes [time, batch, state]; add those that are "
                "missing, of length 1."
            )
    if (ys.shape[0], ys.shape[2]) != (observed.shape[0], observed.shape[2]):
        raise ValueError(
            f"{owner}(ys of shape {tuple(ys.shape)}, observed of shape {tuple(observed.shape)}): needs the same times "
            "and states; pass both as [time, batch, state], where only the batches may differ."
        )
    for name, paths, count in (("ys", ys, least), ("observed", observed, least_observed or least)):
        if paths.shape[1] < count:
            raise ValueError(
                f"{owner}({name} with {paths.shape[1]} paths): needs {count} or more; draw a larger batch, whose "
                "distribution is compared."
            )


def _broadcasts(some: Tensor, other: Tensor) -> bool:
    """Whether the shape of `some` broadcasts to that of `other`."""
    missing = other.ndim - some.ndim
    return missing >= 0 and all(a in (1, b) for a, b in zip(some.shape, other.shape[missing:], strict=True))


def _deviation(centred: Tensor) -> Tensor:
    """The standard deviation, with a gradient of 0 where nothing varies: that of the root is infinite there."""
    variance = centred.square().sum(1) / (centred.shape[1] - 1)
    varies = variance > 0
    return torch.where(varies, torch.where(varies, variance, 1.0).sqrt(), 0.0)


def _squares(found: Tensor, wanted: Tensor, unit: Tensor, varies: Tensor) -> Tensor:
    return torch.where(varies, (found - wanted) / unit, 0.0).square().mean()


def _variogram(paths: Tensor, lag: int) -> Tensor:
    return (paths[lag:] - paths[:-lag]).square().mean((0, 1))
