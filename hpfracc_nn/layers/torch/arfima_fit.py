"""ARFIMA's parameters from a series: conditional least squares, and standard errors from the second derivatives.

The level is the sample mean unless it is estimated too. The sum of squares counts the first errors like the others,
although with zeros before them they vary more, so that it lets a few samples decide on the level, where the sample mean
of a stationary long memory is nearly as good as the best linear estimate (Samarov & Taqqu, J. Time Series Analysis 9
(1988) 191) and costs the other estimates nothing (Cheung & Diebold, J. Econometrics 62 (1994) 301).

Source: Chung & Baillie, Small Sample Bias in Conditional Sum-of-Squares Estimators, Empirical Economics 18 (1993) 791.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.layers.estimates import LeastSquares

Model = Any  # an `ARFIMA`, which imports this file

_STARTS = (-0.25, 0.1, 0.3, 0.6, 0.9)  # of alpha: beside lags the sum of squares may have more than one minimum
_DESCENT, _NEWTON = 100, 20  # iterations at most
_AT_BOUND = 1e-4  # of the width of the bounds
_DONE = 1e-14  # of the sum of squares, that a step would still take away


@dataclass(frozen=True)
class ArfimaEstimates(LeastSquares):
    """What `ARFIMA.fit` has found: alpha, the mean, and the lags' coefficients ar1, ar2, ..., as far as it looked.

    Standard errors are NaN where the sum of squares has no minimum inside the bounds of alpha.
    """

    def summary(self, level: float = 0.95) -> str:
        """Return a table of the estimates, with intervals at `level`."""
        last = f"residual deviation {self.deviation:.4g} over {self.observations} samples"
        return "\n".join([*self.table(level), last])


def fit(model: Model, samples: Tensor, learn_mean: bool) -> ArfimaEstimates:
    """Give `model` the parameters for which the sum of the squared errors of `samples` [n] is least.

    It is estimated in float64, and of samples in units of their scatter, whatever the model's dtype.

    Raises:
        ValueError: All samples are the same.
    """
    level, scale = samples.mean(), samples.std()
    if bool(samples.min() == samples.max()):
        raise ValueError(f"ARFIMA.fit(series): needs samples that vary; all are {float(level):.6g}; pass others.")
    scaled = (samples - level) / scale
    candidates = [_descended(model, start, scaled, learn_mean) for start in _starts(model)]
    best = min(candidates, key=lambda found: float(sum_of_squares(found, scaled).detach()))
    _polish(best, scaled)
    names, covariance = names_of(best), covariance_of(best, scaled)
    if np.isnan(covariance).any():
        warnings.warn(
            f"ARFIMA.fit: alpha has gone to {torch.as_tensor(best.alpha).item():.4g}, where the sum of squares has no "
            "minimum within the bounds; there are no standard errors; take fewer lags, or other bounds.",
            UserWarning,
            stacklevel=3,
        )
    free = len(samples) - len(names) - (not learn_mean)
    deviation = math.sqrt(float(sum_of_squares(best, scaled).detach()) / free) * float(scale)
    units = np.array([float(scale) if name == "mean" else 1.0 for name in names])
    with torch.no_grad():
        best.mean.mul_(scale).add_(level)
        for own, found in zip(model.parameters(), best.parameters(), strict=True):
            own.copy_(found)
    return ArfimaEstimates(names, _values(best), covariance * np.outer(units, units), deviation, len(samples))


def sum_of_squares(model: Model, samples: Tensor) -> Tensor:
    """Return the sum of the squared errors."""
    return model.errors_of(samples).square().sum()


def names_of(model: Model) -> tuple[str, ...]:
    """Return the names of what is estimated: alpha first, then the mean and the lags' coefficients."""
    lags = [f"ar{lag}" for lag in range(1, model.lags + 1)]
    mean = ["mean"] if model.mean.requires_grad else []
    return (*(["alpha"] if model.difference.learn_alpha else []), *mean, *lags)


def covariance_of(model: Model, samples: Tensor) -> np.ndarray:
    """Return the covariance of the estimates at a minimum of the sum of squares S, in the order of `names_of`.

    It is 2 sigma**2 H**-1 with the second derivatives H of S and sigma**2 = S / (n - parameters); NaN where H is not
    positive, or where alpha is at a bound.
    """
    total, _, hessian = _derivatives(model, samples)
    factor, fault = torch.linalg.cholesky_ex(hessian)
    if fault or _is_at_bound(model):
        return np.full(hessian.shape, np.nan)
    variance = total / (len(samples) - len(hessian))
    slopes = hessian.new_ones(len(hessian))
    if model.difference.learn_alpha:  # the layer keeps alpha in its bounds by a transform
        (slopes[0],) = torch.autograd.grad(model.alpha, model.difference.order.raw)
    found = 2 * variance * torch.cholesky_inverse(factor) * torch.outer(slopes, slopes)
    return found.cpu().numpy()


def _is_at_bound(model: Model) -> bool:
    if not model.difference.learn_alpha:
        return False
    low, high = model.difference.order.bounds
    alpha = float(model.alpha.detach())
    return min(alpha - low, high - alpha) < _AT_BOUND * (high - low)


def _starts(model: Model) -> list[float | None]:
    if not model.difference.learn_alpha:
        return [None]
    low, high = model.difference.order.bounds
    inside: list[float | None] = [start for start in _STARTS if low < start < high]
    return inside or [(low + high) / 2]


def _descended(model: Model, start: float | None, samples: Tensor, learn_mean: bool) -> Model:
    """Return a copy of the model that has gone down from alpha = `start`, white noise of mean 0 otherwise."""
    found = copy.deepcopy(model).to(torch.float64)
    found.mean.requires_grad_(learn_mean)
    with torch.no_grad():
        found.mean.zero_()
        if found.ar is not None:
            found.ar.zero_()
        if start is not None:
            low, high = found.difference.order.bounds
            found.difference.order.raw.fill_(math.log((start - low) / (high - start)))
    optimizer = torch.optim.LBFGS(
        _parameters(found),
        max_iter=_DESCENT,
        tolerance_grad=1e-9,
        tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        mean = sum_of_squares(found, samples) / len(samples)
        mean.backward()
        return mean

    optimizer.step(loss)  # type: ignore[arg-type]  # a tensor serves where a float is asked for
    optimizer.zero_grad()
    return found


def _polish(model: Model, samples: Tensor) -> None:
    """Take Newton's steps as long as they go down, which ends at the minimum's last digits."""
    for _ in range(_NEWTON):
        total, slope, hessian = _derivatives(model, samples)
        factor, fault = torch.linalg.cholesky_ex(hessian)
        if fault:
            return
        step = torch.cholesky_solve(slope[:, None], factor)[:, 0]
        if float(slope @ step) <= _DONE * float(total):
            return
        kept = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            for parameter, part in zip(_parameters(model), step.split(_sizes(model)), strict=True):
                parameter.sub_(part.reshape(parameter.shape))
            reached = sum_of_squares(model, samples)
        if not bool(reached <= total):
            model.load_state_dict(kept)
            return


def _derivatives(model: Model, samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of squares, and its first and second derivatives in the parameters, in the order of `names_of`."""
    parameters = _parameters(model)
    total = sum_of_squares(model, samples)
    slope = _flat(torch.autograd.grad(total, parameters, create_graph=True))
    rows = [_flat(torch.autograd.grad(each, parameters, retain_graph=True)) for each in slope]
    hessian = torch.stack(rows)
    return total.detach(), slope.detach(), (hessian + hessian.mT) / 2


def _parameters(model: Model) -> list[Tensor]:
    order = [model.difference.order.raw] if model.difference.learn_alpha else []
    mean = [model.mean] if model.mean.requires_grad else []
    return [*order, *mean, *([] if model.ar is None else [model.ar])]


def _sizes(model: Model) -> list[int]:
    return [parameter.numel() for parameter in _parameters(model)]


def _values(model: Model) -> np.ndarray:
    order = [model.alpha] if model.difference.learn_alpha else []
    mean = [model.mean] if model.mean.requires_grad else []
    found = [*order, *mean, *([] if model.ar is None else [model.ar])]
    return torch.cat([each.detach().reshape(-1) for each in found]).cpu().numpy()


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
