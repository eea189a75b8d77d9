"""Learned orders as linen modules."""

from __future__ import annotations

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.shell import Shell


class Alpha(Shell, core=functional.Alpha):
    """Orders that stay between two bounds, a module: see `functional.Alpha`.

    Arguments and errors are the core's; `param_dtype` comes besides, by name.

    A layer of the same parent that is given one as `alpha` has it as its order, so that several layers may share it.

    Examples:
        >>> class Net(linen.Module):
        ...     def setup(self):
        ...         self.order = fjx.linen.Alpha(0.4, (0, 1))
        ...         self.first = fjx.linen.FractionalLayer(self.order)
        ...         self.second = fjx.linen.FractionalLayer(self.order)
        ...
        ...     def __call__(self, x):
        ...         return self.second(self.first(x))
        >>> jax.tree.map(jnp.shape, Net().init(jax.random.key(0), jnp.ones((10, 1))))
        {'params': {'order': {'raw': ()}}}
    """

    def __call__(self) -> Array:
        """Return alpha in real units; of a random one a draw, where there is a stream `alpha` of randomness."""
        key = self.make_rng("alpha") if self.core.is_random and self.has_rng("alpha") else None
        return self.core(self.params(), key=key)

    def mean(self) -> Array:
        """Return alpha in real units; of a random one its mean, which is never drawn."""
        return self.core.mean(self.params())


class ProbabilisticAlpha(Alpha, core=functional.ProbabilisticAlpha):
    """Orders with a learned law between two bounds, a module: see `functional.ProbabilisticAlpha`.

    Arguments and errors are the core's; `param_dtype` comes besides, by name.

    They are drawn where `apply` is given `rngs={"alpha": key}`, else they are their means.

    Examples:
        >>> order = fjx.linen.ProbabilisticAlpha(0.6, std=0.05)
        >>> variables = order.init(jax.random.key(0))
        >>> order.apply(variables).round(4)
        Array(0.6, dtype=float32)
        >>> draw = order.apply(variables, rngs={"alpha": jax.random.key(1)})
    """

    def kl(self) -> Array:
        """Return the Kullback-Leibler divergence of the law from the prior in nats, summed over the orders."""
        return self.core.kl(self.params())
