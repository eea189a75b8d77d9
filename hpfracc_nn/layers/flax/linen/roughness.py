"""`RoughnessFeatures` as a linen module."""

from __future__ import annotations

from collections.abc import Sequence

from hpfracc_nn.fractional.jax.streaming import HORIZON
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.functional.difference import RoughnessState
from hpfracc_nn.layers.flax.linen.base import Layer


class RoughnessFeatures(Layer, core=functional.RoughnessFeatures):
    """The logarithms of the mean squares of fractional differences: see `functional.RoughnessFeatures`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.RoughnessFeatures(2, orders=3)
        >>> x = jnp.ones((4, 100, 2))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (4, 6)
    """

    def __call__(self, x: Array) -> Array:
        """Return the features of every channel of x, [..., n, channels]: [..., channels * orders]."""
        return self._run(x)

    def initial_state(self, shape: Sequence[int], *, horizon: int = HORIZON) -> RoughnessState:
        """Return the state before the first sample, for `step`; `shape` is that of one time slice."""
        return self.core.initial_state(self.params(), shape, horizon=horizon)

    def step(self, x: Array, state: RoughnessState) -> tuple[Array, RoughnessState]:
        """Return the features of all samples so far, and the state after this one; x is one time slice."""
        return self.core.step(self.params(), x, state)
