"""`FractionalConv1d` as a linen module."""

from __future__ import annotations

from collections.abc import Sequence

from hpfracc_nn.fractional.jax.streaming import HORIZON
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.functional.linear import ConvolutionState
from hpfracc_nn.layers.flax.linen.base import Layer


class FractionalConv1d(Layer, core=functional.FractionalConv1d):
    """A convolution of the fractional derivative of each feature along time: see `functional.FractionalConv1d`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalConv1d(
        ...     3, 5, 7, padding="CAUSAL", alpha=0.4, learn_alpha=True
        ... )
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 5)
    """

    def __call__(self, x: Array) -> Array:
        """Return the convolution of the derivative of x, [..., n, in_features]."""
        return self._run(x)

    def initial_state(self, shape: Sequence[int], *, horizon: int = HORIZON) -> ConvolutionState:
        """Return the state before the first sample, for `step`; `shape` is that of one time slice."""
        return self.core.initial_state(self.params(), shape, horizon=horizon)

    def step(self, x: Array, state: ConvolutionState) -> tuple[Array, ConvolutionState]:
        """Return the next sample of the result and the state after it; x is one time slice."""
        return self.core.step(self.params(), x, state)
