"""ARFIMA's parameters from a series: conditional least squares with a level, and standard errors from its curvature.

With zeros before the first sample the errors are linear in the level: e(x) - mean c, with c the errors of ones. Least
squares finds the level too, and the sum of squares S that is left depends on how large c is, which biases the other
parameters. The likelihood of what no level changes (Harville, JASA 72 (1977) 320) makes up for that: of n samples the
least of

    Q = S (c'c)**(1 / (n - 1))

is the estimate. It needs no level that exists: above alpha = 1/2, where the sample mean means nothing, the first sample
decides on it; below, all do, and c'c takes most of the bias of S away.

Source: Kilinc & Massmann, J. Econometrics 255 (2026) 106232, for Q; Johansen & Nielsen, Econometric Theory 32 (2016)
1095, for S and its level above 1/2.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.layers.estimates import LeastSquares

Model = Any  # an `ARFIMA`, which imports this file
Criterion = Callable[[Model, Tensor], Tensor]

_STARTS = (
    -0.25,
    0.1,
    0.3,
    0.6,
    0.9,
    1.2,
    1.6,
)  # of alpha: beside lags the sum of squares may have more than one minimum
_DESCENT, _NEWTON = 100, 20  # iterations at most
_AT_BOUND = 1e-4  # of the width of the bounds
_DONE = 1e-14  # of the sum of squares, that a step would still take away


@dataclass(frozen=True)
class ArfimaEstimates(LeastSquares):
    """What `ARFIMA.fit` has found: alpha, the mean, and the lags' coefficients ar1, ar2, ..., as far as they are free.

    Standard errors are NaN where there is no minimum inside the bounds of alpha.
    """

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates, with intervals at `level`."""
        last = f"residual deviation {self.deviation:.4g} over {self.observations} samples"
        return "\n".join([*self.table(level), last])


def fit(model: Model, samples: Tensor) -> ArfimaEstimates:
    """Give `model` the parameters for which the `criterion` of `samples` [n] is least; frozen ones stay.

    It is estimated in float64, and of samples in units of their scatter, whatever the model's dtype.

    Raises:
        ValueError: All samples are the same.
    """
    level, scale = samples.mean(), samples.std()
    if bool(samples.min() == samples.max()):
        raise ValueError(f"ARFIMA.fit(series): needs samples that vary; all are {float(level):.6g}; pass others.")
    scaled = (samples - level) / scale
    candidates = [_descended(model, start, scaled, level, scale) for start in _starts(model)]
    best = min(candidates, key=lambda found: float(criterion(found, scaled).detach()))
    _polish(best, scaled)
    names, covariance = names_of(best), covariance_of(best, scaled, criterion)
    if np.isnan(covariance).any():
        warnings.warn(
            f"ARFIMA.fit: alpha has gone to {torch.as_tensor(best.alpha).item():.4g}, where there is no minimum within "
            "the bounds; there are no standard errors; take fewer lags, or other bounds.",
            UserWarning,
            stacklevel=3,
        )
    deviation = math.sqrt(float(sum_of_squares(best, scaled).detach()) / (len(samples) - len(names))) * float(scale)
    units = np.array([float(scale) if name == "mean" else 1.0 for name in names])
    with torch.no_grad():
        best.mean.mul_(scale).add_(level)
        for own, found in zip(free(model), free(best), strict=True):
            own.copy_(found)
    return ArfimaEstimates(names, _values(best), covariance * np.outer(units, units), deviation, len(samples))


def sum_of_squares(model: Model, samples: Tensor) -> Tensor:
    """Return the sum of the squared errors."""
    return model.errors_of(samples).square().sum()


def criterion(model: Model, samples: Tensor) -> Tensor:
    """Return what `fit` makes least: the sum of squares, times (c'c)**(1 / (n - 1)) where the mean is free."""
    total = sum_of_squares(model, samples)
    if not model.mean.requires_grad:
        return total
    return total * sum_of_squares(model, model.mean + torch.ones_like(samples)) ** (1 / (len(samples) - 1))


def free(model: Model) -> list[Tensor]:
    """Return the parameters that are not frozen: alpha's first, then the mean and the lags' coefficients."""
    order = [model.difference.order.raw] if model.difference.learn_alpha else []
    given = [*order, model.mean, *([] if model.ar is None else [model.ar])]
    return [parameter for parameter in given if parameter.requires_grad]


def names_of(model: Model) -> tuple[str, ...]:
    """Return the names of the numbers in `free`."""
    mean = ["mean"] if model.mean.requires_grad else []
    lags = [f"ar{lag}" for lag in range(1, model.lags + 1) if model.ar.requires_grad]
    return (*(["alpha"] if _has_free_order(model) else []), *mean, *lags)


def covariance_of(model: Model, samples: Tensor, minimised: Criterion = sum_of_squares) -> np.ndarray:
    """Return the covariance of the estimates at a minimum of the sum of squares or of `criterion`, as in `names_of`.

    It is 2 Q H**-1 / (n - parameters), with H the second derivatives of what is least there, Q; NaN where H is not
    positive, or where alpha is at a bound.
    """
    total, _, hessian = _derivatives(model, samples, minimised)
    factor, fault = torch.linalg.cholesky_ex(hessian)
    if fault or _is_at_bound(model):
        return np.full(hessian.shape, np.nan)
    variance = total / (len(samples) - len(hessian))
    slopes = hessian.new_ones(len(hessian))
    if _has_free_order(model):  # the layer keeps alpha in its bounds by a transform
        (slopes[0],) = torch.autograd.grad(model.alpha, model.difference.order.raw)
    found = 2 * variance * torch.cholesky_inverse(factor) * torch.outer(slopes, slopes)
    return found.cpu().numpy()


def _has_free_order(model: Model) -> bool:
    return model.difference.learn_alpha and model.difference.order.raw.requires_grad


def _is_at_bound(model: Model) -> bool:
    if not _has_free_order(model):
        return False
    low, high = model.difference.order.bounds
    alpha = float(model.alpha.detach())
    return min(alpha - low, high - alpha) < _AT_BOUND * (high - low)


def _starts(model: Model) -> list[float | None]:
    if not _has_free_order(model):
        return [None]
    low, high = model.difference.order.bounds
    inside: list[float | None] = [start for start in _STARTS if low < start < high]
    return inside or [(low + high) / 2]


def _descended(model: Model, start: float | None, samples: Tensor, level: Tensor, scale: Tensor) -> Model:
    """Return a copy of the model that has gone down from alpha = `start` and no lags; `samples` are scaled."""
    found = copy.deepcopy(model).to(torch.float64)
    with torch.no_grad():
        found.mean.sub_(level).div_(scale)
        if found.ar is not None and found.ar.requires_grad:
            found.ar.zero_()
        if start is not None:
            low, high = found.difference.order.bounds
            found.difference.order.raw.fill_(math.log((start - low) / (high - start)))
        if found.mean.requires_grad:
            found.mean.copy_(_best_mean(found, samples))
    optimizer = torch.optim.LBFGS(
        free(found),
        max_iter=_DESCENT,
        tolerance_grad=1e-9,
        tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        mean = criterion(found, samples) / len(samples)
        mean.backward()
        return mean

    optimizer.step(loss)  # type: ignore[arg-type]  # a tensor serves where a float is asked for
    optimizer.zero_grad()
    return found


def _best_mean(model: Model, samples: Tensor) -> Tensor:
    """The level of least squares at the model's other parameters."""
    of_ones = model.errors_of(model.mean + torch.ones_like(samples))
    return model.mean + (of_ones @ model.errors_of(samples)) / of_ones.square().sum()


def _polish(model: Model, samples: Tensor) -> None:
    """Take Newton's steps as long as they go down, which ends at the minimum's last digits."""
    for _ in range(_NEWTON):
        total, slope, hessian = _derivatives(model, samples, criterion)
        factor, fault = torch.linalg.cholesky_ex(hessian)
        if fault:
            return
        step = torch.cholesky_solve(slope[:, None], factor)[:, 0]
        if float(slope @ step) <= _DONE * float(total):
            return
        kept = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            sizes = [parameter.numel() for parameter in free(model)]
            for parameter, part in zip(free(model), step.split(sizes), strict=True):
                parameter.sub_(part.reshape(parameter.shape))
            reached = criterion(model, samples)
        if not bool(reached <= total):
            model.load_state_dict(kept)
            return


def _derivatives(model: Model, samples: Tensor, minimised: Criterion) -> tuple[Tensor, Tensor, Tensor]:
    """Return what is minimised, and its first and second derivatives in the parameters, in the order of `names_of`."""
    parameters = free(model)
    total = minimised(model, samples)
    slope = _flat(torch.autograd.grad(total, parameters, create_graph=True))
    rows = [_flat(torch.autograd.grad(each, parameters, retain_graph=True)) for each in slope]
    hessian = torch.stack(rows)
    return total.detach(), slope.detach(), (hessian + hessian.mT) / 2


def _values(model: Model) -> np.ndarray:
    found = [model.alpha, *free(model)[1:]] if _has_free_order(model) else free(model)
    return torch.cat([each.detach().reshape(-1) for each in found]).cpu().numpy()


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
