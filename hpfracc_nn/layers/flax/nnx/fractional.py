"""`FractionalLayer` as an nnx module."""

from __future__ import annotations

from collections.abc import Sequence

from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer


class FractionalLayer(Layer, core=functional.FractionalLayer):
    """A fractional derivative or integral along `dim`: see `functional.FractionalLayer`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> t = jnp.linspace(0, 1, 101)[:, None]
        >>> # 2 / Gamma(2.5) = 1.5045
        >>> FractionalLayer(0.5, "caputo", dt=0.01)(t**2)[-1].round(2)
        Array([1.5], dtype=float32)
    """

    def __call__(self, x: Array) -> Array:
        """Return the operator applied to x, [..., n, ...]; same shape and dtype."""
        return self._run(x)

    def initial_state(self, shape: Sequence[int], *, horizon: int = HORIZON) -> StreamState:
        """Return the state before the first sample, for `step`; `shape` is that of one time slice."""
        return self.core.initial_state(self.params(), shape, horizon=horizon)

    def step(self, x: Array, state: StreamState) -> tuple[Array, StreamState]:
        """Return the next sample of the result and the state after it; x is one time slice."""
        return self.core.step(self.params(), x, state)
