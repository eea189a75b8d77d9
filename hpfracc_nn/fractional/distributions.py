"""Learned orders: checks of their initial values and bounds, and distributions of random ones, for every framework.

A `Distribution` is the law of a random number u between 0 and 1 (the place of an order between its bounds). It has two
parameters, in three parametrisations: mean and standard deviation; the constrained parameters, which are those of
`torch.distributions`; and two unconstrained numbers, which an optimizer may move. Initial values are NumPy arrays; the
unconstrained numbers are arrays of the optimizer's framework, whose namespace is `xp`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace

Bounds = tuple[float, float]
Pair = tuple[Array, Array]


class Noise(Protocol):
    """A framework's source of random numbers; each call draws new ones, one for each entry of its argument."""

    @property
    def least(self) -> float:
        """Smallest parameter of a beta distribution: 1 / least**2 is finite in the framework's dtype."""

    def normal(self, like: Array) -> Array:
        """Return standard normal random numbers, of the shape of `like`."""

    def uniform(self, like: Array) -> Array:
        """Return uniform random numbers above 0 and at most 1, of the shape of `like`."""

    def gamma(self, parameter: Array) -> Array:
        """Return gamma-distributed numbers of scale 1 for these shape parameters, differentiable in them."""


class Distribution(NamedTuple):
    """The functions that compute one distribution of u.

    Attributes:
        largest_std: mean -> the largest standard deviation around it; learned ones are below that.
        from_mean_std: (mean, standard deviation) -> constrained parameters.
        unconstrained: Constrained parameters -> unconstrained numbers.
        constrained: (unconstrained numbers, xp) -> constrained parameters.
        sample: (constrained parameters, noise, xp) -> u, differentiable in the parameters.
        moments: (constrained parameters, xp) -> mean and standard deviation.
        divergence: (constrained parameters, those of another, relative rounding of the unconstrained numbers, xp) ->
            Kullback and Leibler's divergence from the other, in nats.
    """

    largest_std: Callable[[np.ndarray], np.ndarray]
    from_mean_std: Callable[[np.ndarray, np.ndarray], Pair]
    unconstrained: Callable[[np.ndarray, np.ndarray], Pair]
    constrained: Callable[[Array, Array, Namespace], Pair]
    sample: Callable[[Pair, Noise, Namespace], Array]
    moments: Callable[[Array, Array, Namespace], Pair]
    divergence: Callable[[Pair, Pair, float, Namespace], Array]


# normal: u = sigmoid(mu + sigma z), z standard normal. Unconstrained are mu and log(sigma).

_REACH, _NODES = 8.5, 273  # the trapezoidal rule in z goes from -_REACH to _REACH, with step 1/16
_Z = np.linspace(-_REACH, _REACH, _NODES)
_LEAST_STD = 1e-100  # least standard deviation as a part of the distance between the bounds: below, squares are 0
_WEIGHTS = np.exp(-(_Z**2) / 2) / np.exp(-(_Z**2) / 2).sum()


def _normal_from_mean_std(mean: np.ndarray, std: np.ndarray) -> Pair:
    """Return (mu, sigma) of the logit-normal distribution on (0, 1) with these moments, by a damped Newton's method."""
    mu, log_sigma = _logit(mean), np.log(std / (mean * (1 - mean)))
    for _ in range(60):
        sigma = np.exp(log_sigma)
        found_mean, found_std, u = _quadrature(mu, sigma, NUMPY)
        slope, off = u * (1 - u), (u - found_mean[..., None]) / found_std[..., None] ** 2
        miss_mean, miss_log = found_mean - mean, np.log(found_std / std)
        a, b = (_WEIGHTS * slope).sum(-1), (_WEIGHTS * slope * _Z).sum(-1) * sigma
        c, d = (_WEIGHTS * off * slope).sum(-1), (_WEIGHTS * off * slope * _Z).sum(-1) * sigma
        det = a * d - b * c
        by_mu, by_log = (d * miss_mean - b * miss_log) / det, (a * miss_log - c * miss_mean) / det
        damped = 1 / np.maximum(np.maximum(np.abs(by_mu) / (1 + sigma), np.abs(by_log)), 1.0)
        mu, log_sigma = mu - damped * by_mu, log_sigma - damped * by_log
    return mu, np.exp(log_sigma)


def _normal_sample(parameters: Pair, noise: Noise, xp: Namespace) -> Array:
    mu, sigma = parameters
    return xp.expit(mu + sigma * noise.normal(mu))


def _normal_divergence(one: Pair, other: Pair, rounding: float, xp: Namespace) -> Array:
    """Return KL(one || other) of logit-normal distributions (mu, sigma), which is that of the normal ones.

    `rounding` is not read; the uniform distribution's divergence needs it.
    """
    (mu, sigma), (mu_0, sigma_0) = one, other
    return xp.log(sigma_0 / sigma) + (sigma**2 + (mu - mu_0) ** 2) / (2 * sigma_0**2) - 0.5


def _quadrature(mu: Array, sigma: Array, xp: Namespace) -> tuple[Array, Array, Array]:
    """Return mean and standard deviation of u = sigmoid(mu + sigma z), z standard normal, and u itself at the nodes.

    The nodes are those of the trapezoidal rule in z: mu and sigma are [...], u is [..., nodes]. The error falls like
    exp(-2 pi d / step) with d = pi / sigma the distance of the sigmoid's poles: below 1e-12 for sigma up to 11, 1e-7 at
    20.
    """
    weights = xp.constant(_WEIGHTS, mu)
    u = xp.expit(mu[..., None] + sigma[..., None] * xp.constant(_Z, mu))
    mean = xp.sum(weights * u, axis=-1)
    std = xp.sum(weights * (u - mean[..., None]) ** 2, axis=-1) ** 0.5
    return mean, std, u


# beta: (a, b) = total (mean, 1 - mean). Unconstrained are logit(mean) and log(total).


def _beta_from_mean_std(mean: np.ndarray, std: np.ndarray) -> Pair:
    total = mean * (1 - mean) / std**2 - 1
    return total * mean, total * (1 - mean)


def _beta_sample(parameters: Pair, noise: Noise, xp: Namespace) -> Array:
    """Return a sample of the beta distribution with parameters (a, b), of their shape.

    It is g / (g + h) of gamma-distributed g and h, which are kept as logarithms because they underflow for small a or
    b. A gamma number of parameter a is one of a + 1 times v**(1/a), v uniform (Marsaglia & Tsang, ACM Trans. Math.
    Softw. 26 (2000) 363, section 6).
    """
    first, second = (xp.where(each < noise.least, noise.least, each) for each in parameters)
    logs = [xp.log(noise.gamma(each + 1)) + xp.log(noise.uniform(each)) / each for each in (first, second)]
    return xp.expit(logs[0] - logs[1])


def _beta_moments(a: Array, b: Array, xp: Namespace) -> Pair:
    total = a + b
    mean = a / total
    return mean, (mean * (b / total) / (total + 1)) ** 0.5


def _beta_divergence(one: Pair, other: Pair, rounding: float, xp: Namespace) -> Array:
    (a, b), (a_0, b_0) = one, other
    beta = xp.gammaln(a) + xp.gammaln(b) - xp.gammaln(a + b)
    beta_0 = xp.gammaln(a_0) + xp.gammaln(b_0) - xp.gammaln(a_0 + b_0)
    of_each = (a - a_0) * xp.polygamma(0, a) + (b - b_0) * xp.polygamma(0, b)
    return beta_0 - beta + of_each - (a + b - a_0 - b_0) * xp.polygamma(0, a + b)


# uniform: from low to high. With r = high - low unconstrained are logit(r) and logit(low / (1 - r)).


def _uniform_from_mean_std(mean: np.ndarray, std: np.ndarray) -> Pair:
    half = math.sqrt(3) * std
    return np.maximum(mean - half, 0.0), np.minimum(mean + half, 1.0)  # rounding of the widest


def _uniform_constrained(place: Array, width: Array, xp: Namespace) -> Pair:
    r = xp.expit(width)
    low = xp.expit(place) * xp.expit(-width)
    return low, low + r


def _uniform_sample(parameters: Pair, noise: Noise, xp: Namespace) -> Array:
    low, high = parameters
    return low + (high - low) * noise.uniform(low)


def _uniform_divergence(one: Pair, other: Pair, rounding: float, xp: Namespace) -> Array:
    """Return KL(one || other) of uniform distributions (low, high): infinite unless other's interval contains one's.

    An end may lie outside by `rounding`, the relative rounding of the unconstrained numbers: rounding one of these, x,
    moves an end by |x| s(x) s(-x) <= 0.23 of it, s the sigmoid.
    """
    (low, high), (low_0, high_0) = one, other
    is_inside = (low >= low_0 - rounding) & (high <= high_0 + rounding)
    width = xp.where(high < high_0, high, high_0) - xp.where(low > low_0, low, low_0)
    width = xp.where(is_inside, width, 1.0)  # a width below 0 would make the gradient NaN
    return xp.where(is_inside, xp.log((high_0 - low_0) / width), math.inf)


def _logit(share: Any) -> Any:
    return np.log(share) - np.log1p(-share)


DISTRIBUTIONS = {
    "normal": Distribution(
        largest_std=lambda mean: 0.9 * (mean * (1 - mean)) ** 0.5,  # beyond, nearly all of it lies at 0 and 1
        from_mean_std=_normal_from_mean_std,
        unconstrained=lambda mu, sigma: (mu, np.log(sigma)),
        constrained=lambda mu, log_sigma, xp: (mu, xp.exp(log_sigma)),
        sample=_normal_sample,
        moments=lambda mu, sigma, xp: _quadrature(mu, sigma, xp)[:2],
        divergence=_normal_divergence,
    ),
    "beta": Distribution(
        largest_std=lambda mean: (mean * (1 - mean)) ** 0.5,
        from_mean_std=_beta_from_mean_std,
        unconstrained=lambda a, b: (np.log(a / b), np.log(a + b)),
        constrained=lambda place, log_total, xp: (
            xp.exp(log_total) * xp.expit(place),
            xp.exp(log_total) * xp.expit(-place),
        ),
        sample=_beta_sample,
        moments=_beta_moments,
        divergence=_beta_divergence,
    ),
    "uniform": Distribution(
        largest_std=lambda mean: np.minimum(mean, 1 - mean) / math.sqrt(3),
        from_mean_std=_uniform_from_mean_std,
        unconstrained=lambda low, high: (_logit(low / (1 - (high - low))), _logit(high - low)),
        constrained=_uniform_constrained,
        sample=_uniform_sample,
        moments=lambda low, high, xp: ((low + high) / 2, (high - low) / math.sqrt(12)),
        divergence=_uniform_divergence,
    ),
}


def first_spread(owner: str, std: Any) -> np.ndarray | None:
    """Return initial standard deviations in float64, None for None; raise TypeError unless they are real numbers."""
    if std is None:
        return None
    values = errors.as_numbers(std)
    if values is None:
        raise TypeError(f"{owner}(std={std!r}): needs real numbers; pass for example 0.1, or one for each order.")
    return values


def broadcast(owner: str, init: np.ndarray, std: np.ndarray | None) -> tuple[int, ...]:
    """Return the shape to which initial means and standard deviations broadcast; raise ValueError if they do not."""
    if std is None:
        return init.shape
    try:
        return np.broadcast_shapes(init.shape, std.shape)
    except ValueError:
        raise ValueError(
            f"{owner}(means of shape {init.shape}, std of shape {std.shape}): needs as many; pass one std, or one for "
            "each order."
        ) from None


def first_unconstrained(owner: str, distribution: str, init: Any, std: Any, bounds: tuple[float, float]) -> Pair:
    """Return the unconstrained numbers of the distribution with this mean and standard deviation between the bounds.

    Raise ValueError if the distribution cannot have them.

    Args:
        owner: The public class, for messages.
        distribution: One of `DISTRIBUTIONS`.
        init: The mean or means, inside the bounds.
        std: The standard deviation or deviations; None is a quarter of the distance from the mean to the nearer bound.
        bounds: (low, high).
    """
    low, high = bounds
    mean = (np.asarray(init, dtype=np.float64) - low) / (high - low)
    spread = np.minimum(mean, 1 - mean) / 4 if std is None else np.asarray(std, dtype=np.float64) / (high - low)
    return DISTRIBUTIONS[distribution].unconstrained(*_constrained(owner, distribution, "std", mean, spread, bounds))


def prior_of(
    owner: str, distribution: str, prior: Any, bounds: tuple[float, float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return a prior's (mean, standard deviation), and the constrained parameters of its distribution of u.

    A `prior` of None has the moments of the uniform distribution between the bounds. Raise TypeError for a prior that
    is no pair of numbers, ValueError for a mean outside the bounds or a standard deviation that is not possible.
    """
    low, high = bounds
    mean, std = moments = _pair(owner, ((low + high) / 2, (high - low) / math.sqrt(12)) if prior is None else prior)
    if not low < mean < high:
        raise ValueError(
            f"{owner}(prior={moments}): needs a mean inside the bounds ({low:g}, {high:g}); pass for example "
            f"({(low + high) / 2:g}, {(high - low) / 8:g})."
        )
    width = high - low
    share, spread = np.asarray((mean - low) / width), np.asarray(std / width)
    parameters = _constrained(owner, distribution, "prior", share, spread, bounds, widest=True)
    return moments, (float(parameters[0]), float(parameters[1]))


def _constrained(
    owner: str,
    distribution: str,
    argument: str,
    mean: np.ndarray,
    std: np.ndarray,
    bounds: tuple[float, float],
    *,
    widest: bool = False,
) -> Pair:
    """Return the constrained parameters for a mean and standard deviation, or raise ValueError if there are none.

    Args:
        owner: The public function, for messages.
        distribution: "normal", "beta" or "uniform".
        argument: The name of the owner's argument that has the standard deviation, for messages.
        mean: As a part of the way from the lower to the upper bound.
        std: As a part of the distance between the bounds.
        bounds: (low, high), for messages.
        widest: Whether the standard deviation may be as large as `Distribution.largest_std` itself.
    """
    (low, high), chosen = bounds, DISTRIBUTIONS[distribution]
    limit, width = chosen.largest_std(mean), high - low
    if not ((std > _LEAST_STD) & ((std < limit) | (widest & (std <= limit * (1 + 1e-12))))).all():
        least = _LEAST_STD if (std > 0).all() and (std < limit).all() else 0.0
        raise ValueError(
            f"{owner}({argument}={(std * width).tolist()}): needs {least * width:g} < standard deviation < "
            f"{(limit * width).min():g} for a {distribution} law around {(low + width * mean).tolist()} "
            f"within ({low:g}, {high:g}); pass for example {(limit * width).min() / 4:.2g}."
        )
    return chosen.from_mean_std(*np.broadcast_arrays(mean, std))


def _pair(owner: str, prior: Any) -> tuple[float, float]:
    pair = errors.as_pair(prior)
    if pair is None:
        raise TypeError(
            f"{owner}(prior={prior!r}): needs a mean and a standard deviation; pass a pair such as (0.5, 0.1)."
        )
    return pair


def finite_bounds(owner: str, bounds: Any) -> Bounds:
    """Return the bounds as two floats; raise unless they are a pair of finite numbers, the lower one first."""
    low, high = errors.pair(owner, "bounds", bounds)
    if not (math.isfinite(high - low) and low < high):
        raise ValueError(f"{owner}(bounds={bounds!r}): needs finite low < high; pass a pair such as (0, 1).")
    return low, high


def first_values(owner: str, init: Any) -> np.ndarray:
    """Return initial values of orders in float64; raise TypeError unless they are real numbers."""
    values = errors.as_numbers(init)
    if values is None:
        raise TypeError(
            f"{owner}(alpha={init!r}): needs real numbers to begin with; pass for example 0.5, or one for each order."
        )
    return values


def order_shape(owner: str, shape: Any, values: np.ndarray) -> tuple[int, ...]:
    """Return the shape of learned orders: `shape`, to which the initial values must broadcast, or theirs for None."""
    if shape is None:
        return values.shape
    wanted = errors.lengths(owner, "shape", shape)
    axes = zip(reversed(values.shape), reversed(wanted), strict=False)
    if values.ndim > len(wanted) or any(own not in (1, size) for own, size in axes):
        raise ValueError(
            f"{owner}(shape={wanted}): needs a shape that first values of shape {values.shape} broadcast to; leave it "
            "out, or pass one first value."
        )
    return wanted


def check_inside(owner: str, given: Any, values: np.ndarray, bounds: Bounds) -> None:
    """Raise ValueError unless all initial values lie strictly inside the bounds; `given` is named in the message."""
    low, high = bounds
    outside = values[~((values > low) & (values < high))]
    if outside.size:
        margin = 0.01 * (high - low)
        near = np.clip(np.nan_to_num(outside[0], nan=(low + high) / 2), low + margin, high - margin)
        raise ValueError(
            f"{owner}(alpha={given}): needs low < alpha < high to be learned within bounds ({low:g}, {high:g}); "
            f"start inside, for example at {near:g}."
        )


def check_order_fits(
    owner: str, kind: str, own: Bounds, own_shape: tuple[int, ...], bounds: Any, shape: tuple[int, ...]
) -> None:
    """Raise unless a layer accepts the order module passed as its alpha.

    Args:
        owner: Name of the layer, for messages.
        kind: Name of the order module's class.
        own: The order's bounds.
        own_shape: The order's shape.
        bounds: The layer's own argument `bounds`, which must be None.
        shape: The shape that the layer needs.
    """
    if bounds is not None:
        raise ValueError(
            f"{owner}(alpha of type {kind}, bounds={bounds}): needs the order's own bounds, which "
            f"are ({own[0]:g}, {own[1]:g}); leave them out, or make the order with others."
        )
    if own_shape != shape:
        raise ValueError(
            f"{owner}(alpha: {kind} of shape {own_shape}): needs an order of shape {shape}; make it with shape={shape}."
        )
