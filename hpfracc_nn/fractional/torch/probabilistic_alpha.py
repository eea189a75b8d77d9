"""An order that is random: drawn anew at every training pass, with a law that is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.alpha import first_values
from hpfracc_nn.fractional.distributions import (
    DISTRIBUTIONS,
    Distribution,
    Pair,
    broadcast,
    first_spread,
    first_unconstrained,
    prior_of,
)
from hpfracc_nn.fractional.torch.alpha import Alpha
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.place import read


class ProbabilisticAlpha(Alpha):
    """Orders with a learned law between two bounds: alpha = low + (high - low) u, 0 < u < 1.

    In training every call draws u anew, one number for each order and not for each signal, with a gradient in the law's
    two parameters. In evaluation alpha is the mean. What decides is `training` of the order itself, which `train` and
    `eval` of every layer that holds it set. A stream (`initial_state`) keeps the alpha that it was made with.

    - "normal": u = sigmoid(mu + sigma z), z standard normal;
    - "beta": u has a beta law; the gradient is that of `torch.distributions.Gamma`, and has no second derivative and no
      forward mode;
    - "uniform": u is anywhere between two learned ends alike.

    Args:
        init: The first mean or means, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `init` and `std` are broadcast; None is theirs.
        distribution: "normal", "beta" or "uniform".
        std: The first standard deviation or deviations of alpha; None is a quarter of the way to the nearer bound.
        prior: (mean, standard deviation) of the law, of the same kind and between the same bounds, that `kl` compares
            with; None is those of a uniform law between the bounds.
        owner: Who asks, for messages.
        device: Of the parameters.
        dtype: Of the parameters; alpha itself is float64.

    Raises:
        ValueError: `init` or `prior` is not strictly inside the bounds, or a standard deviation is not positive or
            larger than the law can have between them.

    Source: Kingma & Welling, arXiv 1312.6114; Figurnov, Mohamed & Mnih, arXiv 1805.08498, for the beta law.

    Examples:
        >>> order = ProbabilisticAlpha(0.6, std=0.05)
        >>> layer = FractionalLayer(order, "caputo")
        >>> loss = layer(torch.randn(4, 100)).square().mean() + 1e-3 * order.kl()
    """

    def __init__(
        self,
        init: float | Sequence[float],
        bounds: tuple[float, float] = (0.0, 1.0),
        shape: tuple[int, ...] | None = None,
        *,
        distribution: str = "normal",
        std: float | Sequence[float] | None = None,
        prior: tuple[float, float] | None = None,
        owner: str = "ProbabilisticAlpha",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        means, spread = first_values(owner, read(init)), first_spread(owner, read(std))
        if shape is None:
            shape = broadcast(owner, means, spread)
        super().__init__(means, bounds, shape, owner=owner, device=device, dtype=dtype)
        self.distribution = errors.one_of(owner, "distribution", distribution, DISTRIBUTIONS)
        free = first_unconstrained(owner, distribution, means, spread, self.bounds)
        self.spread = nn.Parameter(torch.empty_like(self.raw))
        self._first = dict(zip(("raw", "spread"), map(np.asarray, free), strict=True))
        self.keep("distribution", distribution, self.raw.device)
        self._begin()
        self._prior_moments, self._prior = prior_of(owner, distribution, prior, self.bounds)

    def forward(self) -> Tensor:
        """Return alpha in real units, float64: a draw in training, the mean in evaluation."""
        return self.sample() if self.training else self.mean

    def sample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Return draws of alpha, float64 [*sample_shape, *shape], differentiable in the law's parameters.

        Args:
            sample_shape: How many.
            generator: Where randomness comes from, on the parameters' device; None is torch's own.
        """
        return self._scaled(
            self._distribution.sample(self._constrained(), _Noise(tuple(sample_shape), generator), TORCH)
        )

    @property
    def mean(self) -> Tensor:
        """The mean of alpha, float64: in closed form, but for the normal law by quadrature, to 1e-12."""
        return self._scaled(self._distribution.moments(*self._constrained(), TORCH)[0])

    @property
    def std(self) -> Tensor:
        """The standard deviation of alpha, float64; computed as the mean is."""
        low, high = self.bounds
        return (high - low) * self._distribution.moments(*self._constrained(), TORCH)[1]

    def kl(self) -> Tensor:
        """Return the Kullback-Leibler divergence of the law from the prior in nats, summed over the orders, float64.

        In closed form: no divergence changes when both numbers go through the same increasing map, so that it is that
        of two normal, two beta or two uniform laws. A uniform law that reaches beyond its prior, by more than its
        parameters are rounded, has an infinite one.
        """
        one, other = (torch.tensor(value, dtype=torch.float64, device=self.raw.device) for value in self._prior)
        return self._distribution.divergence(
            self._constrained(), (one, other), torch.finfo(self.raw.dtype).eps, TORCH
        ).sum()

    @property
    def prior(self) -> tuple[float, float]:
        """Mean and standard deviation of the law that `kl` compares with; may be set."""
        return self._prior_moments

    @prior.setter
    def prior(self, prior: tuple[float, float]) -> None:
        self._prior_moments, self._prior = prior_of(type(self).__name__, self.distribution, prior, self.bounds)

    def stated(self) -> dict[str, Any]:
        """Return the bounds and the law, see `Stated`."""
        return {**super().stated(), "distribution": self.distribution}

    def extra_repr(self) -> str:
        mean, std = self.prior
        return f"{super().extra_repr()}, distribution={self.distribution!r}, prior=({mean:g}, {std:g})"

    @property
    def _distribution(self) -> Distribution:
        return DISTRIBUTIONS[self.distribution]

    def _constrained(self) -> Pair:
        return self._distribution.constrained(self._free(self.raw), self._free(self.spread), TORCH)

    def _scaled(self, u: Tensor) -> Tensor:
        low, high = self.bounds
        return low + (high - low) * u


class _Noise(NamedTuple):
    """Torch's randomness, see `distributions.Noise`."""

    shape: tuple[int, ...]  # how many draws of each number
    generator: torch.Generator | None
    least: float = 1e-100  # draws are 0 and 1 long before

    def normal(self, like: Tensor) -> Tensor:
        return torch.randn(self._of(like), dtype=like.dtype, device=like.device, generator=self.generator)

    def uniform(self, like: Tensor) -> Tensor:
        return 1 - torch.rand(self._of(like), dtype=like.dtype, device=like.device, generator=self.generator)

    def gamma(self, parameter: Tensor) -> Tensor:
        """The gradient is that of `torch.distributions.Gamma.rsample`."""
        return torch._standard_gamma(parameter.expand(self._of(parameter)), generator=self.generator)

    def _of(self, like: Tensor) -> tuple[int, ...]:
        return (*self.shape, *like.shape)
