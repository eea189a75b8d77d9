"""Learned orders as nnx modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flax import nnx
from jax import numpy as jnp

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.shell import Shell


class Alpha(Shell, core=functional.Alpha):
    """Orders that stay between two bounds, a module: see `functional.Alpha`.

    Arguments and errors are the core's; `param_dtype` and `rngs` come besides, by name.

    A layer that is given one as `alpha` has it as its `order`, so that several layers may share it.

    Examples:
        >>> order = Alpha(0.4, (0, 1))
        >>> layers = nnx.List([FractionalLayer(order), FractionalLayer(order)])
        >>> layers[0].order is layers[1].order, order().round(4)
        (True, Array(0.4, dtype=float32))
    """

    def __call__(self) -> Array:
        """Return alpha in real units; of a random one a draw, see `ProbabilisticAlpha`."""
        return self.core(self.params(), key=self.next_key())

    @property
    def mean(self) -> Array:
        """Alpha in real units; of a random one its mean, which is never drawn."""
        return self.core.mean(self.params())

    def next_key(self) -> Array | None:
        """Return the key of the next draw, or None where nothing is drawn."""
        return None


class ProbabilisticAlpha(Alpha, core=functional.ProbabilisticAlpha):
    """Orders with a learned law between two bounds, a module: see `functional.ProbabilisticAlpha`.

    Arguments and errors are the core's; `param_dtype` and `rngs` come besides, by name.

    Every call draws, with the stream `alpha` of `rngs`, until `eval()` sets `deterministic`; `train()` takes it back.

    Examples:
        >>> layer = FractionalLayer(ProbabilisticAlpha(0.6, std=0.05, rngs=nnx.Rngs(0)))
        >>> loss = (layer(jnp.ones((4, 100, 1))) ** 2).mean() + 1e-3 * layer.order.kl()
        >>> layer.order.std.round(3)
        Array(0.05, dtype=float32)
    """

    def __init__(
        self, *arguments: Any, param_dtype: Any = jnp.float32, rngs: nnx.Rngs | None = None, **hyperparameters: Any
    ):
        super().__init__(*arguments, param_dtype=param_dtype, rngs=rngs, **hyperparameters)
        self.deterministic = False
        self.rngs = nnx.data(None) if rngs is None else rngs["alpha"].fork()

    def sample(self, key: Array, sample_shape: Sequence[int] = ()) -> Array:
        """Return draws of alpha, [*sample_shape, *shape], differentiable in the law's parameters."""
        return self.core.sample(self.params(), key, sample_shape)

    @property
    def std(self) -> Array:
        """The standard deviation of alpha."""
        return self.core.std_of(self.params())

    def kl(self) -> Array:
        """Return the Kullback-Leibler divergence of the law from the prior in nats, summed over the orders."""
        return self.core.kl(self.params())

    def next_key(self) -> Array | None:
        """Return the key of the next draw, or None in evaluation."""
        if self.deterministic:
            return None
        if self.rngs is None:
            raise ValueError(
                "ProbabilisticAlpha(rngs=None): needs randomness to draw from; make it with rngs=nnx.Rngs(0), or call "
                "eval() for its mean."
            )
        return self.rngs()


def module_of(core: functional.Alpha, param_dtype: Any, rngs: nnx.Rngs | None) -> Alpha:
    """Return the module of an order."""
    kind = ProbabilisticAlpha if core.is_random else Alpha
    return kind(core, param_dtype=param_dtype, rngs=rngs)
