"""`ARFIMA` as a linen module."""

from __future__ import annotations

from collections.abc import Sequence

from hpfracc_nn.fractional.jax.streaming import HORIZON
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.arfima import ArfimaState
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.base import Layer


class ARFIMA(Layer, core=functional.ARFIMA):
    """What a long memory and a few lags cannot foresee of a series: see `functional.ARFIMA`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.ARFIMA(ar=0, alpha=0.5)
        >>> x = jnp.eye(4, 1)
        >>> # Grünwald's weights
        >>> layer.apply(layer.init(jax.random.key(0), x), x)[:, 0].round(4)
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """

    def __call__(self, x: Array) -> Array:
        """Return the one-step errors of x, [..., n, ...]; same shape and dtype."""
        return self._run(x)

    def initial_state(self, shape: Sequence[int], *, horizon: int = HORIZON) -> ArfimaState:
        """Return the state before the first sample, for `step`; `shape` is that of one time slice."""
        return self.core.initial_state(self.params(), shape, horizon=horizon)

    def step(self, x: Array, state: ArfimaState) -> tuple[Array, ArfimaState]:
        """Return the error of the next sample, and the state after it; x is one time slice."""
        return self.core.step(self.params(), x, state)

    def nll(self, series: Array, *, level: bool = True, deviation: Array | float | None = None) -> Array:
        """Return the negative logarithm of the likelihood of series [..., n], time last: see `functional.ARFIMA`."""
        return self.core.nll(self.params(), series, level=level, deviation=deviation)

    def forecast(self, series: Array, steps: int) -> Array:
        """Return what is expected of the next `steps` samples after series [..., n], time last."""
        return self.core.forecast(self.params(), series, steps)
