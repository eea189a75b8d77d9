"""Laws of a random number u between 0 and 1, each in two free numbers that an optimizer may move anywhere.

A law translates three ways of saying which of its members is meant: a mean and a standard deviation; its own two
parameters, which are those of `torch.distributions`; and the free numbers. All are float64 tensors of one shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


class Law(NamedTuple):
    """How one law is computed.

    Attributes:
        widest: The largest standard deviation that has a member of the law around a mean; a free one is below it.
        member: (mean, standard deviation) -> its own parameters.
        free: Own parameters -> free numbers.
        own: Free numbers -> own parameters.
        sample: (own parameters, shape before theirs, generator) -> u, differentiable in the parameters.
        moments: Own parameters -> mean and standard deviation.
        divergence: (own parameters, another member's, relative rounding of the free numbers) -> Kullback and Leibler's
            divergence from the other, in nats.
    """

    widest: Callable[[Tensor], Tensor]
    member: Callable[[Tensor, Tensor], Pair]
    free: Callable[[Tensor, Tensor], Pair]
    own: Callable[[Tensor, Tensor], Pair]
    sample: Callable[[Pair, Sequence[int], torch.Generator | None], Tensor]
    moments: Callable[[Tensor, Tensor], Pair]
    divergence: Callable[[Pair, Pair, float], Tensor]


# normal: u = sigmoid(mu + sigma z), z standard normal. Free are mu and log(sigma).

_REACH, _NODES = 8.5, 273  # of the trapezoidal rule in z, whose step is 1/16


def _normal_member(mean: Tensor, std: Tensor) -> Pair:
    """Newton's method for the two moments, from those of the linear map; at most a unit step in log(sigma)."""
    mu, log_sigma = torch.logit(mean), torch.log(std / (mean * (1 - mean)))
    for _ in range(60):
        sigma = log_sigma.exp()
        found_mean, found_std, u, z, weight = _quadrature(mu, sigma)
        slope, off = u * (1 - u), (u - found_mean[..., None]) / found_std[..., None] ** 2
        miss_mean, miss_log = found_mean - mean, torch.log(found_std / std)
        a, b = (weight * slope).sum(-1), (weight * slope * z).sum(-1) * sigma
        c, d = (weight * off * slope).sum(-1), (weight * off * slope * z).sum(-1) * sigma
        det = a * d - b * c
        by_mu, by_log = (d * miss_mean - b * miss_log) / det, (a * miss_log - c * miss_mean) / det
        damped = 1 / torch.maximum(by_mu.abs() / (1 + sigma), by_log.abs()).clamp(min=1.0)
        mu, log_sigma = mu - damped * by_mu, log_sigma - damped * by_log
    return mu, log_sigma.exp()


def _normal_sample(own: Pair, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    mu, sigma = own
    z = torch.randn((*shape, *mu.shape), dtype=mu.dtype, device=mu.device, generator=generator)
    return torch.sigmoid(mu + sigma * z)


def _normal_divergence(one: Pair, other: Pair, rounding: float) -> Tensor:
    """That of the normal laws of mu + sigma z, which go through the same increasing map."""
    (mu, sigma), (mu_0, sigma_0) = one, other
    return (sigma_0 / sigma).log() + (sigma.square() + (mu - mu_0).square()) / (2 * sigma_0.square()) - 0.5


def _quadrature(mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return mean and standard deviation of u, and u, z and the weights at the nodes.

    The error falls like exp(-2 pi d / step) with d = pi / sigma the distance of the sigmoid's poles: below 1e-12 for
    sigma up to 11, 1e-7 at 20.
    """
    z = torch.linspace(-_REACH, _REACH, _NODES, dtype=mu.dtype, device=mu.device)
    weight = torch.softmax(-z.square() / 2, dim=0)
    u = torch.sigmoid(mu[..., None] + sigma[..., None] * z)
    mean = (weight * u).sum(-1)
    std = (weight * (u - mean[..., None]).square()).sum(-1).sqrt()
    return mean, std, u, z, weight


# beta: its parameters are mean and total, (a, b) = total (mean, 1 - mean). Free are logit(mean) and log(total).


def _beta_member(mean: Tensor, std: Tensor) -> Pair:
    total = mean * (1 - mean) / std.square() - 1
    return total * mean, total * (1 - mean)


_LEAST = 1e-100  # of a parameter in a draw, so that 1 / a**2 is finite; draws are 0 and 1 long before


def _beta_sample(own: Pair, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """The share g / (g + h) of gamma numbers in logarithms, because those of small parameters underflow.

    A gamma number of parameter a is one of a + 1 times v**(1/a), v uniform (Marsaglia & Tsang, ACM Trans. Math. Softw.
    26 (2000) 363, section 6). The gradient of that of a + 1 is that of `torch.distributions.Gamma.rsample`.
    """
    both = torch.stack(own, dim=-1).clamp(min=_LEAST)
    both = both.expand(*shape, *both.shape)
    gammas = torch._standard_gamma(both + 1, generator=generator)
    v = 1 - torch.rand(both.shape, dtype=both.dtype, device=both.device, generator=generator)  # never 0
    logs = gammas.log() + v.log() / both
    return torch.sigmoid(logs[..., 0] - logs[..., 1])


def _beta_moments(a: Tensor, b: Tensor) -> Pair:
    total = a + b
    mean = a / total
    return mean, (mean * (b / total) / (total + 1)).sqrt()


def _beta_divergence(one: Pair, other: Pair, rounding: float) -> Tensor:
    (a, b), (a_0, b_0) = one, other
    beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
    beta_0 = torch.lgamma(a_0) + torch.lgamma(b_0) - torch.lgamma(a_0 + b_0)
    of_each = (a - a_0) * torch.digamma(a) + (b - b_0) * torch.digamma(b)
    return beta_0 - beta + of_each - (a + b - a_0 - b_0) * torch.digamma(a + b)


# uniform: from low to high. With r = high - low free are logit(r) and logit(low / (1 - r)).


def _uniform_member(mean: Tensor, std: Tensor) -> Pair:
    half = math.sqrt(3) * std
    return (mean - half).clamp(min=0.0), (mean + half).clamp(max=1.0)  # rounding of the widest


def _uniform_own(place: Tensor, width: Tensor) -> Pair:
    r = torch.sigmoid(width)
    low = torch.sigmoid(place) * torch.sigmoid(-width)
    return low, low + r


def _uniform_sample(own: Pair, shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    low, high = own
    return low + (high - low) * torch.rand(
        (*shape, *low.shape), dtype=low.dtype, device=low.device, generator=generator
    )


def _uniform_divergence(one: Pair, other: Pair, rounding: float) -> Tensor:
    """Finite where the law is inside the other, or reaches beyond it by no more than its free numbers' rounding.

    An end moves by |x| s(x) s(-x) <= 0.23 of the relative rounding of each free number x, s the sigmoid.
    """
    (low, high), (low_0, high_0) = one, other
    is_inside = (low >= low_0 - rounding) & (high <= high_0 + rounding)
    width = torch.minimum(high, high_0) - torch.maximum(low, low_0)
    width = torch.where(is_inside, width, 1.0)  # a width below 0 would make the gradient NaN
    return torch.where(is_inside, ((high_0 - low_0) / width).log(), math.inf)


LAWS = {
    "normal": Law(
        widest=lambda mean: 0.9 * (mean * (1 - mean)).sqrt(),  # beyond, nearly all of it lies at 0 and 1
        member=_normal_member,
        free=lambda mu, sigma: (mu, sigma.log()),
        own=lambda mu, log_sigma: (mu, log_sigma.exp()),
        sample=_normal_sample,
        moments=lambda mu, sigma: _quadrature(mu, sigma)[:2],
        divergence=_normal_divergence,
    ),
    "beta": Law(
        widest=lambda mean: (mean * (1 - mean)).sqrt(),
        member=_beta_member,
        free=lambda a, b: ((a / b).log(), (a + b).log()),
        own=lambda place, log_total: (
            log_total.exp() * torch.sigmoid(place),
            log_total.exp() * torch.sigmoid(-place),
        ),
        sample=_beta_sample,
        moments=_beta_moments,
        divergence=_beta_divergence,
    ),
    "uniform": Law(
        widest=lambda mean: torch.minimum(mean, 1 - mean) / math.sqrt(3),
        member=_uniform_member,
        free=lambda low, high: (torch.logit(low / (1 - (high - low))), torch.logit(high - low)),
        own=_uniform_own,
        sample=_uniform_sample,
        moments=lambda low, high: ((low + high) / 2, (high - low) / math.sqrt(12)),
        divergence=_uniform_divergence,
    ),
}
