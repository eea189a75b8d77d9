"""`ARFIMA` as a linen module."""

from __future__ import annotations

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.base import Layer


class ARFIMA(Layer, core=functional.ARFIMA):
    """What a long memory and a few lags cannot foresee of a series: see `functional.ARFIMA`."""

    def __call__(self, x: Array) -> Array:
        """Return the one-step errors of x, [..., n, ...]; same shape and dtype."""
        return self._run(x)

    def nll(self, series: Array, *, level: bool = True, deviation: Array | float | None = None) -> Array:
        """Return the negative logarithm of the likelihood of series [..., n], time last: see `functional.ARFIMA`."""
        return self.core.nll(self.params(), series, level=level, deviation=deviation)

    def forecast(self, series: Array, steps: int) -> Array:
        """Return what is expected of the next `steps` samples after series [..., n], time last."""
        return self.core.forecast(self.params(), series, steps)
