"""The parameters of a stochastic model from observed paths, by simulated moments, with their uncertainty.

The optimisation moves a point: coordinates without bounds, one for each parameter. The coordinate of a parameter within
two bounds is the logit of its relative position, with one bound the logarithm of its distance, else the parameter
itself.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.solvers import Brownian, Noise, StochasticEquation
from hpfracc_nn.solvers.torch import fsdeint
from hpfracc_nn.training.fit import StochasticFit, covariance_of

Parameters = Mapping[str, Tensor]
Moments = Callable[[Tensor], Tensor]

_LAGS = (1, 2, 4, 8, 16)
_ROUNDS = 3  # how often moments are weighted anew and the parameters estimated
_RIDGE = 1e-6  # added to the diagonal of the moments' correlations
_SAME = 1e3  # times eps: by how much sums over time of the same numbers may differ
_UNIT = 0.01  # relative to a moment's size: the deviation that counts as 1 in the first round


def fit_fsde(
    sde: Callable[[Parameters], StochasticEquation],
    ts: Any,
    observed: Any,
    y0: Tensor,
    params: Mapping[str, float],
    *,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    noise: Noise | Callable[[Parameters], Noise] = Brownian(),  # noqa: B008  a frozen value
    alpha: float | Callable[[Parameters], Tensor] = 1.0,
    moments: Moments | None = None,
    paths: int = 512,
    substeps: int = 1,
    seed: int = 0,
    level: float = 0.95,
    tolerance: float = 1e-6,
    iterations: int = 200,
    **options: Any,
) -> StochasticFit:
    """Return the parameters whose simulated paths have the moments of the observed ones.

    The distance of the moments is relative at first, then weighted by the inverse of the covariance that the moments of
    simulated paths have at the previous estimate. Random numbers stay the same throughout (common random numbers), so
    that the objective is smooth, and its gradient is that of the solver's adjoint. Standard errors count the observed
    and the simulated paths. The error of the solver's steps is part of the model: more `substeps` make this error
    small.

    Args:
        sde: Called with the parameters, tensors of no axes by name; returns the equation.
        ts: Times of the observations, equally spaced, the first where `y0` is given; [times].
        observed: Paths at these times, [times, paths, *state]: several, or a single long one.
        y0: The state at the start, [*state].
        params: First values by name.
        bounds: The bounds (low, high) of parameters by name, either of which may be infinite; others have none.
        noise: The noise that drives the equation, or a function of the parameters that returns it.
        alpha: The order, or a function of the parameters that returns it.
        moments: Takes paths [times, paths, *state] to numbers for each path, [paths, moments], whose means are
            compared; None is `default_moments`.
        paths: How many paths are simulated.
        substeps: Steps of the solver between two observations.
        seed: The seed of the random numbers.
        level: The level of the confidence intervals.
        tolerance: The tolerance of the optimisation, `ftol` of L-BFGS-B.
        iterations: The greatest number of iterations in each of three rounds; a last round that does not converge
            warns.
        options: Options of `fsdeint`, such as scheme and interpretation.

    Raises:
        TypeError: `y0` is no tensor.
        ValueError: An argument is out of range, there are fewer moments than parameters, a moment is the same for all
            paths, or the moments do not tell the parameters apart.
        FloatingPointError: The solution at the first values is not finite or explodes; if a solution at later values
            does, the optimisation takes shorter steps.

    Source: McFadden, Econometrica 57 (1989) 995; Duffie & Singleton, Econometrica 61 (1993) 929.

    Examples:
        >>> ts = np.linspace(0, 2, 41)
        >>> observed = 0.5 * paths(FractionalBrownian(0.3), 40, (200,), dt=0.05)
        >>> fit = fit_fsde(
        ...     lambda p: SDE(
        ...         lambda t, y: -p["rate"] * y,
        ...         lambda t, y: p["sigma"].expand_as(y),
        ...         "additive",
        ...     ),
        ...     ts,
        ...     observed,
        ...     torch.zeros(()).double(),
        ...     {"rate": 1.0, "sigma": 1.0, "hurst": 0.5},
        ...     bounds={"hurst": (0.02, 0.98)},
        ...     noise=lambda p: FractionalBrownian(p["hurst"], bounds=(0.02, 0.98)),
        ... )
        >>> all(
        ...     low < true < high
        ...     for (low, high), true in zip(fit.intervals.values(), (0.0, 0.5, 0.3))
        ... )
        True
    """
    times, data = _checked(ts, observed, y0, params, bounds or {}, level)
    errors.count("fit_fsde", "paths", paths, 2)
    errors.count("fit_fsde", "substeps", substeps)
    found = default_moments if moments is None else moments
    within = {name: (bounds or {}).get(name, (-math.inf, math.inf)) for name in params}
    start = y0.detach().double().expand(paths, *y0.shape)
    dt = float(times[-1] - times[0]) / ((times.size - 1) * substeps)
    simulated = _Simulated(sde, start, times, within, noise, alpha, dt, seed, options)
    wanted = _finite("observed", found(data))
    if wanted.shape[1] < len(params):
        raise ValueError(
            f"fit_fsde(moments): needs as many moments as there are parameters, {len(params)}; there are "
            f"{wanted.shape[1]}; pass more by moments=."
        )
    target, count = wanted.mean(0), data.shape[1]
    point, evaluations = simulated.point(np.array(list(params.values()), dtype=np.float64)), 0
    for n in range(_ROUNDS):
        with torch.no_grad():
            each = _finite("simulated", found(simulated.paths(simulated.natural(torch.from_numpy(point)))))
            weight = _weight(each, count, paths) if n else _relative(wanted)

        seen: list[float] = []

        def objective(x: np.ndarray, weight: Tensor = weight, seen: list[float] = seen) -> tuple[float, np.ndarray]:
            leaf = torch.from_numpy(x.copy()).requires_grad_()
            try:
                left = found(simulated.paths(simulated.natural(leaf))).mean(0) - target
            except FloatingPointError:
                if not seen:  # at the first values there is nothing to go back to
                    raise
                return 2 * max(seen), np.zeros_like(x)  # the optimisation takes a shorter step
            value = left @ weight @ left
            (slope,) = torch.autograd.grad(value, leaf)
            seen.append(value.item())
            return seen[-1], slope.numpy()

        ended = minimize(
            objective, point, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "ftol": tolerance}
        )
        point, evaluations = ended.x, evaluations + ended.nfev
    if not ended.success:
        warnings.warn(
            f"fit_fsde: the optimisation stopped before it converged ({ended.message}), so that the estimates and "
            f"their errors may be off; raise iterations={iterations}, begin nearer, or change tolerance={tolerance:g}.",
            UserWarning,
            stacklevel=2,
        )
    values = simulated.natural(torch.from_numpy(point)).numpy()
    covariance = _covariance(simulated, found, values, weight)
    freedom, converged = len(target) - len(params), bool(ended.success)
    return StochasticFit(
        tuple(params), values, covariance, float(ended.fun), freedom, count, paths, evaluations, level, converged
    )


def default_moments(paths: Tensor) -> Tensor:
    """Return moments of each path [times, paths, *state], as [paths, moments].

    These are the means over time of the state, its square, and its squared increments over 1, 2, 4, 8 and 16
    observations, as far as the path is long enough.
    """
    flat = paths.reshape(*paths.shape[:2], -1)
    found = [flat.mean(0), flat.square().mean(0)]
    found += [(flat[lag:] - flat[:-lag]).square().mean(0) for lag in _LAGS if lag < flat.shape[0]]
    return torch.cat(found, -1)


@dataclass(frozen=True)
class _Simulated:
    """Simulated paths as a function of the parameters, drawn from the same random numbers at every call.

    Args:
        sde: Called with the parameters by name; returns the equation.
        start: The initial states of all paths, [paths, *state].
        times: The times at which the paths are returned, [times].
        bounds: The bounds of the parameters by name, in the order of a point's coordinates.
        noise: The driving noise, or a function of the parameters that returns it.
        alpha: The order, or a function of the parameters that returns it.
        dt: The solver's step.
        seed: The seed of the random numbers.
        options: Options of `fsdeint`.
    """

    sde: Callable[[Parameters], StochasticEquation]
    start: Tensor
    times: np.ndarray
    bounds: Mapping[str, tuple[float, float]]
    noise: Noise | Callable[[Parameters], Noise]
    alpha: float | Callable[[Parameters], Tensor]
    dt: float
    seed: int
    options: Mapping[str, Any]

    def natural(self, point: Tensor) -> Tensor:
        """Return the parameters in real units at a point, [parameters]: the inverse of `point`."""
        return torch.stack([_within(x, *each) for x, each in zip(point.unbind(), self.bounds.values(), strict=True)])

    def point(self, values: np.ndarray) -> np.ndarray:
        """Return the point, coordinates without bounds, that belongs to parameters in real units, [parameters]."""
        return np.array([_place(value, *each) for value, each in zip(values, self.bounds.values(), strict=True)])

    def paths(self, values: Tensor) -> Tensor:
        """Return the paths for parameters in real units, [times, paths, *state]; random numbers stay the same."""
        p = dict(zip(self.bounds, values.unbind(), strict=True))
        noise = self.noise if isinstance(self.noise, Noise) else self.noise(p)
        alpha = self.alpha(p) if callable(self.alpha) else self.alpha
        generator = torch.Generator().manual_seed(self.seed)
        found: Tensor = fsdeint(
            self.sde(p),
            self.start,
            self.times,
            alpha=alpha,
            noise=noise,
            dt=self.dt,
            generator=generator,
            params=[each for each in p.values() if each.requires_grad],
            **self.options,
        )
        return found


def _within(x: Tensor, low: float, high: float) -> Tensor:
    """Return the parameter between two bounds, either of which may be infinite, that has the coordinate x."""
    if math.isfinite(low) and math.isfinite(high):
        return low + (high - low) * torch.sigmoid(x)
    if math.isfinite(low):
        return low + x.exp()
    return high - x.exp() if math.isfinite(high) else x


def _place(value: float, low: float, high: float) -> float:
    """Return the coordinate of a parameter between two bounds: the inverse of `_within`."""
    if math.isfinite(low) and math.isfinite(high):
        return math.log((value - low) / (high - value))
    if math.isfinite(low):
        return math.log(value - low)
    return math.log(high - value) if math.isfinite(high) else value


def _relative(wanted: Tensor) -> Tensor:
    """Return the weights of the first round, a diagonal matrix [moments, moments].

    A difference of a hundredth of a moment's size counts as 1. The covariance of moments simulated at the first values
    would mislead.

    Args:
        wanted: The moments of the observed paths, [paths, moments].
    """
    size = wanted.square().mean(0).sqrt().clamp_min(torch.finfo(wanted.dtype).tiny ** 0.25)
    return torch.diag((_UNIT * size) ** -2)


def _weight(each: Tensor, observed: int, simulated: int) -> Tensor:
    """Return the inverse of the covariance of the difference of observed and simulated mean moments.

    The result is [moments, moments].

    Args:
        each: The moments of each simulated path, [paths, moments].
        observed: The number of observed paths.
        simulated: The number of simulated paths.

    Raises:
        ValueError: A moment is the same for all simulated paths.
    """
    low, high = each.min(0).values, each.max(0).values
    is_same = high - low <= _SAME * torch.finfo(each.dtype).eps * each.abs().max(0).values
    if bool(is_same.any()):
        k = int(is_same.nonzero()[0])
        raise ValueError(
            f"fit_fsde(moments): needs moments that differ from path to path; column {k} of {each.shape[1]} is "
            f"{float(each[0, k]):g} for all simulated paths; pass moments= without it."
        )
    correlation = torch.corrcoef(each.T) if each.shape[1] > 1 else torch.ones(1, 1, dtype=each.dtype)
    correlation = correlation + _RIDGE * torch.eye(each.shape[1], dtype=each.dtype)
    spread = each.std(0)
    inverse = torch.linalg.inv(correlation) / torch.outer(spread, spread)
    return inverse / (1 / observed + 1 / simulated)


def _covariance(simulated: _Simulated, moments: Moments, values: np.ndarray, weight: Tensor) -> np.ndarray:
    """Return the covariance of the estimates: the inverse of J' W J, with J the Jacobian of the mean simulated moments.

    Args:
        simulated: Simulates the paths.
        moments: Takes paths to their moments, [paths, moments].
        values: The estimates, [parameters].
        weight: The matrix W, from `_weight`.

    Raises:
        ValueError: A derivative is not finite, or the moments do not determine all parameters.
    """
    leaf = torch.from_numpy(values.copy()).requires_grad_()
    means = moments(simulated.paths(leaf)).mean(0)
    rows = [torch.autograd.grad(mean, leaf, retain_graph=True)[0] for mean in means]
    jacobian = _finite("simulated", torch.stack(rows), "derivatives")
    whitened = torch.linalg.cholesky(weight).T @ jacobian
    return covariance_of(whitened.numpy(), 1.0, tuple(simulated.bounds), values, "fit_fsde", "moments")


def _finite(whose: str, each: Tensor, what: str = "numbers") -> Tensor:
    if not bool(torch.isfinite(each).all()):
        raise ValueError(
            f"fit_fsde(moments): needs finite {what}, and those of {whose} paths are not; begin nearer, or keep the "
            "parameters within bounds."
        )
    return each


def _checked(
    ts: Any,
    observed: Any,
    y0: Tensor,
    params: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
    level: float,
) -> tuple[np.ndarray, Tensor]:
    if not isinstance(y0, Tensor):
        raise TypeError(
            f"fit_fsde(y0 of type {type(y0).__name__}): needs a tensor of a state's shape; pass torch.tensor(y0)."
        )
    times, data = (_numbers(each) for each in (ts, observed))
    if data.ndim != 2 + y0.ndim or data.shape[0] != times.size or data.shape[2:] != y0.shape:
        raise ValueError(
            f"fit_fsde(ts of shape {times.shape}, observed of shape {tuple(data.shape)}, y0 of shape "
            f"{tuple(y0.shape)}): needs paths [times, paths, *state]; pass a single path as observed[:, None]."
        )
    if not params:
        raise ValueError("fit_fsde(params={}): needs parameters; pass their first values by name.")
    for name, (low, high) in bounds.items():
        if name not in params or not low < params[name] < high:
            raise ValueError(
                f"fit_fsde(bounds of {name!r}={(low, high)}): needs bounds around the first value of a parameter; "
                f"the first values are {dict(params)}."
            )
    if not 0 < level < 1:
        raise ValueError(f"fit_fsde(level={level}): needs 0 < level < 1; pass for example 0.95.")
    return times, torch.from_numpy(data)


def _numbers(x: Any) -> np.ndarray:
    """Return data as a float64 array; a tensor may require a gradient or be on another device."""
    return x.detach().cpu().double().numpy() if isinstance(x, Tensor) else np.array(x, dtype=np.float64)
