"""`FractionalDifference` as an nnx module."""

from __future__ import annotations

from collections.abc import Sequence

from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer


class FractionalDifference(Layer, core=functional.FractionalDifference):
    """(1 - z)**alpha with zero history, `orders` of them for every channel: see `functional.FractionalDifference`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> # Grünwald's weights
        >>> FractionalDifference(1, start=0.5)(jnp.eye(4, 1))[:, 0].round(4)
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """

    def __call__(self, x: Array) -> Array:
        """Return every channel's fractional differences of x, [..., n, channels]."""
        return self._run(x)

    def initial_state(self, shape: Sequence[int], *, horizon: int = HORIZON) -> tuple[StreamState, ...]:
        """Return the state before the first sample, for `step`; `shape` is that of one time slice."""
        return self.core.initial_state(self.params(), shape, horizon=horizon)

    def step(self, x: Array, state: tuple[StreamState, ...]) -> tuple[Array, tuple[StreamState, ...]]:
        """Return the next sample of the result and the state after it; x is one time slice."""
        return self.core.step(self.params(), x, state)
