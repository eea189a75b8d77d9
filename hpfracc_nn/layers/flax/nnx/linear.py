"""`FractionalLinear` as an nnx module."""

from __future__ import annotations

from collections.abc import Sequence

from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer


class FractionalLinear(Layer, core=functional.FractionalLinear):
    """A linear layer on the fractional derivative of each feature: see `functional.FractionalLinear`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> layer = FractionalLinear(3, 5, alpha=0.4, learn_alpha=True, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((8, 100, 3))).shape, layer.alpha
        ((8, 100, 5), Array(0.4, dtype=float32))
    """

    def __call__(self, x: Array) -> Array:
        """Return the layer's value at x, [..., n, in_features]."""
        return self._run(x)

    def initial_state(self, shape: Sequence[int], *, horizon: int = HORIZON) -> StreamState:
        """Return the state before the first sample, for `step`; `shape` is that of one time slice."""
        return self.core.initial_state(self.params(), shape, horizon=horizon)

    def step(self, x: Array, state: StreamState) -> tuple[Array, StreamState]:
        """Return the next sample of the result and the state after it; x is one time slice."""
        return self.core.step(self.params(), x, state)
