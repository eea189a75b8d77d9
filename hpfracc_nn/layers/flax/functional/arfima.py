"""ARFIMA(p, alpha, q), a long memory and a few lags, as a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.jax.arrays import Array, computed_in, of_numpy, widest
from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState
from hpfracc_nn.layers.flax.functional.arfima_formula import continued, filtered, likelihood
from hpfracc_nn.layers.flax.functional.core import Params, check_fields, settle
from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer
from hpfracc_nn.layers.flax.functional.order import Alpha, Ordered
from hpfracc_nn.layers.order import start_in
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.series.arfima import fitted
from hpfracc_nn.series.results import ArfimaResults

_OWNER = "ARFIMA"


class ArfimaState(NamedTuple):
    """What a filter remembers between two samples; a pytree.

    Attributes:
        stream: Of the difference.
        past: Its last p values and the last q errors, the newest first of each, [p + q, *shape].
    """

    stream: StreamState
    past: Array


class _Made(Ordered):
    """What follows from the fields.

    Attributes:
        difference: The operator without lags and mean.
    """

    difference: FractionalLayer


@dataclass(frozen=True)
class ARFIMA(_Made):
    """What ARFIMA(p, alpha, q) cannot foresee of a series: its one-step errors e.

        u = (1 - z)**alpha (x - mean),
        e[t] = u[t] - sum_i ar[i] u[t - i] - sum_j ma[j] e[t - j],

    for i = 1, ..., p and j = 1, ..., q, with zeros before the first sample, so that the series is at its mean there.
    `x[t] - e[t]` is the forecast of x[t] from the samples before it. At alpha = 0 it is ARMA(p, q), at alpha = 1 that
    of the differences.

    As a layer it whitens signals. `nll` is the likelihood of a series, a function that optax makes least and NumPyro
    samples from, and `forecast` goes on with one. `fit` estimates all from one series, with standard errors.

    Attributes:
        ar: p, the number of lags.
        ma: q, the number of errors before.
        alpha: The order of the difference, usually called d; where learning starts. Or an `Alpha` of shape []. None is
            0.3, or the middle of bounds that leave it out.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value. A series is stationary
            below 1/2 and invertible above -1/2.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.

    Shape:
        Input and output: [..., n, ...], time on `dim`; floating.

    Raises:
        ValueError: alpha or the bounds are out of range, or `ar` or `ma` is negative.
        TypeError: An argument has the wrong type.

    Source: Granger & Joyeux, J. Time Series Analysis 1 (1980) 15; Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> core = fjx.functional.ARFIMA(ar=1)
        >>> core(core.init(), jnp.ones((8, 256, 3))).shape
        (8, 256, 3)
    """

    ar: int = 1
    ma: int = 0
    _: KW_ONLY
    alpha: float | Alpha | None = None
    learn_alpha: bool = True
    bounds: tuple[float, float] | None = None
    dim: int = -2
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        check_fields("ARFIMA", self)
        difference = FractionalLayer(
            start_in(self.bounds) if self.alpha is None else self.alpha,
            "grunwald_letnikov",
            learn_alpha=self.learn_alpha,
            bounds=self.bounds,
            dim=self.dim,
            manager=self.manager,
        )
        if difference.channels is not None:
            raise ValueError(f"{_OWNER}(alpha={self.alpha}): needs one order; make a model for each series.")
        settle(self, ar=errors.count(_OWNER, "ar", self.ar, 0), ma=errors.count(_OWNER, "ma", self.ma, 0))
        settle(self, alpha=difference.alpha, bounds=difference.bounds)
        settle(
            self,
            difference=difference,
            order=difference.order,
            definition=difference.definition,
            learn_alpha=difference.learn_alpha,
        )

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"mean": []}, {"ar": [p], "ma": [q]} where there are any, and a learned order; all is 0."""
        lags = {name: jnp.zeros(count, param_dtype) for name, count in (("ar", self.ar), ("ma", self.ma)) if count}
        return {"mean": jnp.zeros((), param_dtype), **lags, **self._order_params(key, param_dtype)}

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the one-step errors of `x`; same shape and dtype.

        Args:
            params: From `init`.
            x: Signals.
            key: For an order that is random.
        """
        return self._errors(params, x, self.dim, key)

    def initial_state(self, params: Params, shape: Sequence[int], *, horizon: int = HORIZON) -> ArfimaState:
        """Return the state before the first sample, for `step`.

        Args:
            params: From `init`.
            shape: Of one time slice, x without its time axis.
            horizon: As in `FractionalLayer.initial_state`.

        Raises:
            ValueError: An argument is out of range, or alpha is learned in bounds with a whole number inside.
            TypeError: An argument has the wrong type.
        """
        stream = self.difference.initial_state(params, shape, horizon=horizon)
        return ArfimaState(stream, jnp.zeros((self.ar + self.ma, *shape), widest()))

    def step(self, params: Params, x: Array, state: ArfimaState) -> tuple[Array, ArfimaState]:
        """Return the error of the next sample, and the state after it.

        Args:
            params: From `init`.
            x: One time slice, of the state's shape.
            state: From `initial_state` or the step before.

        Raises:
            ValueError: As in `FractionalLayer.step`.
            TypeError: As in `FractionalLayer.step`; or `state` is none.
        """
        if not isinstance(state, ArfimaState):
            raise TypeError(
                f"{_OWNER}.step(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
            )
        x = of_numpy(x)
        wide = x.astype(computed_in(f"{_OWNER}.step", x))
        u, stream = self.difference.step(params, wide - params["mean"].astype(wide.dtype), state.stream)
        past, found = state.past, u
        values, before = past[: self.ar], past[self.ar :]
        for name, each in (("ar", values), ("ma", before)):
            if name in params:
                found = found - jnp.tensordot(params[name].astype(past.dtype), each, axes=1).astype(u.dtype)
        values = jnp.concatenate([u.astype(past.dtype)[None], values])[: self.ar]
        before = jnp.concatenate([found.astype(past.dtype)[None], before])[: self.ma]
        return found.astype(x.dtype), ArfimaState(stream, jnp.concatenate([values, before]))

    def nll(
        self, params: Params, series: Array, *, level: bool = True, deviation: Array | float | None = None
    ) -> Array:
        """Return the negative logarithm of the likelihood of series [..., n], time last: [...]; see `arfima_nll`.

        Args:
            params: From `init`.
            series: One or more, whatever `dim` is.
            level: Whether the mean is integrated out, in place of that of the parameters.
            deviation: Of the errors; None is the best.
        """
        return likelihood(lambda x: self._errors(params, x, -1), params["mean"], series, level, deviation)

    def forecast(self, params: Params, series: Array, steps: int) -> Array:
        """Return what is expected of the next `steps` samples after series [..., n], time last: [..., steps]."""
        definition = self._operator(params, None)
        ar, ma = (params.get(name, ()) for name in ("ar", "ma"))
        return continued(series, definition, ar, ma, params["mean"], steps, self.manager)

    def fit(
        self, series: Any, exog: Any = None, *, likelihood: str = "conditional", param_dtype: Any = jnp.float32
    ) -> tuple[Params, ArfimaResults]:
        """Return the parameters that a series gives, and the results with errors, intervals and forecasts.

        In NumPy and float64, as PyTorch's `ARFIMA.fit`; see `series.fit_arfima`. The coefficients of regressors are in
        the results alone. An order that is not learned stays.

        Args:
            series: [n]; JAX, NumPy or pandas. NaN are gaps, but for the conditional likelihood.
            exog: Regressors, [n, k].
            likelihood: "conditional", "exact" or "restricted".
            param_dtype: Of the parameters.

        Raises:
            ValueError: As `series.fit_arfima`; or the order is random.
            TypeError: The samples are no real numbers.
        """
        if self.order is not None and not isinstance(self.order, Alpha):
            raise ValueError(f"{_OWNER}.fit: needs an order that is a number, and alpha is random; pass an Alpha.")
        found = fitted(
            f"{_OWNER}.fit",
            [series],
            [exog],
            None,
            ar=self.ar,
            ma=self.ma,
            alpha=None if self.order is not None else float(np.asarray(self.definition.alpha)),
            mean=None,
            bounds=(0.0, 1.0) if self.order is None else self.order.bounds,
            likelihood=likelihood,
        )[0]
        params = self.init(None, param_dtype)
        params |= {"mean": jnp.asarray(found.level, param_dtype)}
        lags = {"ar": found.ar, "ma": found.ma}
        params |= {name: jnp.asarray(values, param_dtype) for name, values in lags.items() if len(values)}
        if self.order is not None:
            low, high = self.order.bounds
            share = np.clip((found.alpha - low) / (high - low), 1e-9, 1 - 1e-9)
            params["order"] = {"raw": jnp.asarray(np.log(share / (1 - share)), params["order"]["raw"].dtype)}
        return params, found

    def _errors(self, params: Params, x: Array, dim: int, key: Array | None = None) -> Array:
        definition = self._operator(params, key)
        ar, ma = (params.get(name, ()) for name in ("ar", "ma"))
        return filtered(x, definition, ar, ma, params["mean"], dim, self.manager)

    def _operator(self, params: Params, key: Array | None) -> GrunwaldLetnikov:
        return self.definition if self.order is None else replace(self.definition, alpha=self._present(params, key))
