"""`ARFIMA` as an nnx module."""

from __future__ import annotations

from typing import Any

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.modules import Filter
from hpfracc_nn.series.results import ArfimaResults


class ARFIMA(Filter, core=functional.ARFIMA):
    """What a long memory and a few lags cannot foresee of a series: see `functional.ARFIMA`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> ARFIMA(ar=0, alpha=0.5)(jnp.eye(4, 1))[:, 0]  # Grünwald's weights
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """

    ar: Any = None  # the coefficients of the lags, a parameter; None where there are none
    ma: Any = None  # the coefficients of past errors, likewise
    results: ArfimaResults | None = None  # of the last `fit`

    def fit(self, series: Any, exog: Any = None, *, likelihood: str = "conditional") -> ARFIMA:
        """Estimate the parameters from a series, and return the module itself, with `results`: see `functional.ARFIMA`.

        Unlike PyTorch's, `results` stay as they are when the parameters change afterwards.
        """
        params, self.results = self.core.fit(series, exog, likelihood=likelihood, param_dtype=self.param_dtype)
        for name in ("mean", "ar", "ma"):
            if name in params:
                getattr(self, name).set_value(params[name])
        if "order" in params:
            self.order.raw.set_value(params["order"]["raw"])
        return self

    def nll(self, series: Array, *, level: bool = True, deviation: Array | float | None = None) -> Array:
        """Return the negative logarithm of the likelihood of series [..., n], time last: see `functional.ARFIMA`."""
        return self.core.nll(self.params(), series, level=level, deviation=deviation)

    def forecast(self, series: Array, steps: int) -> Array:
        """Return the expected next `steps` samples after series [..., n], time last: [..., steps]."""
        return self.core.forecast(self.params(), series, steps)
