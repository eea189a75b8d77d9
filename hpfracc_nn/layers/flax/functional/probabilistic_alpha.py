"""An order that is random: drawn anew for every key, with a law that is learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

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
from hpfracc_nn.fractional.jax.arrays import JAX, Array, widest
from hpfracc_nn.layers.flax.functional.core import Params, hashable, settle
from hpfracc_nn.layers.flax.functional.order import Alpha


@dataclass(frozen=True)
class ProbabilisticAlpha(Alpha):
    """Orders with a learned law between two bounds: alpha = low + (high - low) u, 0 < u < 1.

    With a key, u is drawn, one number for each order and not for each signal, with a gradient in the law's two
    parameters, `{"raw": [*shape], "spread": [*shape]}`. Without one alpha is the mean. A stream (`initial_state`) has
    the mean.

    - "normal": u = sigmoid(mu + sigma z), z standard normal;
    - "beta": u has a beta law; the gradient is that of `jax.random.gamma`;
    - "uniform": u is anywhere between two learned ends alike.

    Attributes:
        start: The first mean or means, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `start` and `std` are broadcast; None is theirs.
        distribution: "normal", "beta" or "uniform".
        std: The first standard deviation or deviations of alpha; None is a quarter of the way to the nearer bound.
        prior: (mean, standard deviation) of the law, of the same kind and between the same bounds, that `kl` compares
            with; None is those of a uniform law between the bounds.
        owner: Who asks, for messages.

    Raises:
        ValueError: `start` or `prior` is not strictly inside the bounds, or a standard deviation is not positive or
            larger than the law can have between them.

    Source: Kingma & Welling, arXiv 1312.6114; Figurnov, Mohamed & Mnih, arXiv 1805.08498, for the beta law.

    Examples:
        >>> order = fjx.functional.ProbabilisticAlpha(0.6, std=0.05)
        >>> core = fjx.functional.FractionalLayer(order, "caputo")
        >>> params = core.init()
        >>> y = core(params, jnp.ones((4, 100, 1)), key=jax.random.key(0))
        >>> loss = (y**2).mean() + 1e-3 * order.kl(params["order"])
    """

    bounds: tuple[float, float] = (0.0, 1.0)
    shape: Any = None
    _: KW_ONLY
    distribution: str = "normal"
    std: float | Sequence[float] | None = None
    prior: tuple[float, float] | None = None

    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.owner == "Alpha":
            settle(self, owner="ProbabilisticAlpha")
        start, std = first_values(self.owner, self.start), first_spread(self.owner, self.std)
        shape = broadcast(self.owner, start, std) if self.shape is None else self.shape
        settle(self, shape=shape, std=None if std is None else hashable(std.tolist()))
        super().__post_init__()
        errors.one_of(self.owner, "distribution", self.distribution, DISTRIBUTIONS)
        self._first()  # raises where the law has no such member
        settle(self, prior=prior_of(self.owner, self.distribution, self.prior, self.bounds)[0])

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return `{"raw": [*shape], "spread": [*shape]}`, of the first moments; nothing is drawn."""
        found = (jnp.asarray(np.broadcast_to(each, self.shape), param_dtype) for each in self._first())
        return dict(zip(("raw", "spread"), found, strict=True))

    def __call__(self, params: Params, *, key: Array | None = None) -> Array:
        """Return alpha in real units, [*shape]: a draw where there is a key, else the mean."""
        return self.mean(params) if key is None else self.sample(params, key)

    def sample(self, params: Params, key: Array, sample_shape: Sequence[int] = ()) -> Array:
        """Return draws of alpha, [*sample_shape, *shape], differentiable in the law's parameters."""
        with jax.numpy_rank_promotion("allow"):  # formulas of NumPy's too, here and below
            noise = _Noise.of(key, tuple(sample_shape))
            return self._scaled(self._distribution.sample(self._constrained(params), noise, JAX))

    def mean(self, params: Params) -> Array:
        """Return the mean of alpha: in closed form, but for the normal law by quadrature, to 1e-12 in float64."""
        with jax.numpy_rank_promotion("allow"):
            return self._scaled(self._distribution.moments(*self._constrained(params), JAX)[0])

    def std_of(self, params: Params) -> Array:
        """Return the standard deviation of alpha; computed as the mean is."""
        low, high = self.bounds
        with jax.numpy_rank_promotion("allow"):
            return (high - low) * self._distribution.moments(*self._constrained(params), JAX)[1]

    def kl(self, params: Params) -> Array:
        """Return the Kullback-Leibler divergence of the law from the prior in nats, summed over the orders.

        In closed form: no divergence changes when both numbers go through the same increasing map, so that it is that
        of two normal, two beta or two uniform laws. A uniform law that reaches beyond its prior, by more than its
        parameters are rounded, has an infinite one.
        """
        parameters = self._constrained(params)
        _, prior = prior_of(self.owner, self.distribution, self.prior, self.bounds)
        one, other = (jnp.asarray(value, parameters[0].dtype) for value in prior)
        with jax.numpy_rank_promotion("allow"):
            rounding = float(jnp.finfo(params["raw"].dtype).eps)
            return self._distribution.divergence(parameters, (one, other), rounding, JAX).sum()

    @property
    def _distribution(self) -> Distribution:
        return DISTRIBUTIONS[self.distribution]

    def _first(self) -> Pair:
        return first_unconstrained(self.owner, self.distribution, self.start, self.std, self.bounds)

    def _constrained(self, params: Params) -> Pair:
        return self._distribution.constrained(params["raw"].astype(widest()), params["spread"].astype(widest()), JAX)


class _Noise(NamedTuple):
    """JAX's randomness, see `distributions.Noise`: each call takes the next of four keys."""

    keys: list[Array]
    shape: tuple[int, ...]  # how many draws of each number
    least: float

    @classmethod
    def of(cls, key: Array, shape: tuple[int, ...]) -> _Noise:
        return cls(list(jax.random.split(key, 4)), shape, 1e-100 if widest() == jnp.float64 else 1e-15)

    def normal(self, like: Array) -> Array:
        return jax.random.normal(self.keys.pop(), (*self.shape, *like.shape), like.dtype)

    def uniform(self, like: Array) -> Array:
        return 1 - jax.random.uniform(self.keys.pop(), (*self.shape, *like.shape), like.dtype)

    def gamma(self, parameter: Array) -> Array:
        return jax.random.gamma(self.keys.pop(), parameter, (*self.shape, *parameter.shape), parameter.dtype)
