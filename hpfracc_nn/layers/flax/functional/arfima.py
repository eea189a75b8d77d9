"""ARFIMA(p, alpha, 0), a long memory and a few lags: its one-step errors, its likelihood and its forecasts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional import operator
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.jax.namespace import Array, widest
from hpfracc_nn.fractional.jax.operator import computed_in
from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState
from hpfracc_nn.layers.arfima_start import start_in
from hpfracc_nn.layers.flax.functional.core import Params, settle
from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer
from hpfracc_nn.layers.flax.functional.order import Alpha, Ordered
from hpfracc_nn.selection import BackendManager

_OWNER = "ARFIMA"


class ArfimaState(NamedTuple):
    """What a filter remembers between two samples; a pytree.

    Attributes:
        stream: Of the difference.
        past: Its last p values, the newest first, [p, *shape].
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
    """What ARFIMA(p, alpha, 0) cannot foresee of a series: its one-step errors e.

        u = (1 - z)**alpha (x - mean),    e[t] = u[t] - sum over i = 1, ..., p of ar[i] u[t - i],

    with zeros before the first sample, so that the series is at its mean there. `x[t] - e[t]` is the forecast of x[t]
    from the samples before it. At alpha = 0 it is an autoregression of order p, at alpha = 1 one of the differences.

    As a layer it whitens signals. `nll` is the likelihood of a series, a function that optax makes least and NumPyro
    samples from, and `forecast` goes on with one. PyTorch's class of this name estimates all from one series, with
    standard errors.

    Attributes:
        ar: p, the number of lags.
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
        ValueError: alpha or the bounds are out of range, or `ar` is negative.
        TypeError: An argument has the wrong type.

    Source: Granger & Joyeux, J. Time Series Analysis 1 (1980) 15; Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> core = fjx.functional.ARFIMA(ar=1)
        >>> core(core.init(), jnp.ones((8, 256, 3))).shape
        (8, 256, 3)
    """

    ar: int = 1
    _: KW_ONLY
    alpha: float | Alpha | None = None
    learn_alpha: bool = True
    bounds: tuple[float, float] | None = None
    dim: int = -2
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
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
        settle(self, ar=errors.count(_OWNER, "ar", self.ar, 0), alpha=difference.alpha, bounds=difference.bounds)
        settle(
            self,
            difference=difference,
            order=difference.order,
            definition=difference.definition,
            learn_alpha=difference.learn_alpha,
        )

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"mean": []}, {"ar": [p]} where there are lags, and a learned order; nothing is drawn, all is 0."""
        lags = {"ar": jnp.zeros(self.ar, param_dtype)} if self.ar else {}
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
        return ArfimaState(stream, jnp.zeros((self.ar, *shape), widest()))

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
        wide = x.astype(computed_in(f"{_OWNER}.step", x))
        u, stream = self.difference.step(params, wide - params["mean"].astype(wide.dtype), state.stream)
        past = state.past
        if self.ar:
            found = u - jnp.tensordot(params["ar"].astype(past.dtype), past, axes=1).astype(u.dtype)
            return found.astype(x.dtype), ArfimaState(stream, jnp.concatenate([u.astype(past.dtype)[None], past[:-1]]))
        return u.astype(x.dtype), ArfimaState(stream, past)

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
        return _likelihood(lambda x: self._errors(params, x, -1), params["mean"], series, level, deviation)

    def forecast(self, params: Params, series: Array, steps: int) -> Array:
        """Return what is expected of the next `steps` samples after series [..., n], time last: [..., steps]."""
        definition = self._operator(params, None)
        return _continued(series, definition, params.get("ar", ()), params["mean"], steps, self.manager)

    def _errors(self, params: Params, x: Array, dim: int, key: Array | None = None) -> Array:
        definition = self._operator(params, key)
        return _filtered(x, definition, params.get("ar", ()), params["mean"], dim, self.manager)

    def _operator(self, params: Params, key: Array | None) -> GrunwaldLetnikov:
        return self.definition if self.order is None else replace(self.definition, alpha=self._present(params, key))


def arfima_errors(
    series: Array,
    alpha: float | Array,
    ar: Sequence[float] | Array = (),
    mean: float | Array = 0.0,
    *,
    bounds: tuple[float, float] | None = None,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Array:
    """Return the one-step errors of ARFIMA(p, alpha, 0), see `ARFIMA`; same shape and dtype as the series.

    Args:
        series: [..., n, ...], floating.
        alpha: The order, a number or an array of no axes, which may be traced.
        ar: The lags' coefficients, [p].
        mean: The level.
        bounds: Where a traced alpha lies, to which it is clamped; None is (0, 1).
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.

    Raises:
        ValueError: alpha is out of its bounds, or there is no such axis.
        TypeError: The series is not real and floating.

    Source: Granger & Joyeux, J. Time Series Analysis 1 (1980) 15; Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> arfima_errors(jnp.array([1.0, 0.0, 0.0, 0.0]), 0.5)  # Grünwald's weights
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """
    return _filtered(series, GrunwaldLetnikov(alpha, bounds=bounds), ar, mean, dim, manager)


def arfima_nll(
    series: Array,
    alpha: float | Array,
    ar: Sequence[float] | Array = (),
    mean: float | Array | None = None,
    *,
    deviation: float | Array | None = None,
    bounds: tuple[float, float] | None = None,
    manager: BackendManager | None = None,
) -> Array:
    """Return the negative logarithm of the likelihood of ARFIMA(p, alpha, 0) with normal errors: [...].

    It is that of the errors e with zeros before the first sample: of S, the sum of their n squares,

        n / 2 log(2 pi deviation**2) + S / (2 deviation**2),

    and with the best deviation, S = n deviation**2, where none is given. Where no mean is given it is integrated out
    under a flat prior (Harville's restricted likelihood): S is that of the best mean, n - 1 stands for n, and
    log(c'c) / 2 is added, with c the errors of a series of ones. Then its least alpha and ar are those that
    PyTorch's `ARFIMA.fit` finds, without the bias that an estimated mean brings. It is differentiable in all arguments,
    to any order.

    Args:
        series: [..., n], floating, time last.
        alpha: As in `arfima_errors`.
        ar: As there.
        mean: The level; None integrates it out.
        deviation: Of the errors; None is the best.
        bounds: As there.
        manager: As there.

    Raises:
        ValueError: alpha is out of its bounds, or the series has too few samples.
        TypeError: The series is not real and floating.

    Source: Kilinc & Massmann, J. Econometrics 255 (2026) 106232; Harville, JASA 72 (1977) 320.

    Examples:
        >>> arfima_nll(jnp.zeros(4), 0.3, mean=0.0, deviation=1.0).round(4)  # 4 / 2 log(2 pi)
        Array(3.6758, dtype=float32)
        >>> series = jax.random.normal(jax.random.key(0), (500,))
        >>> slope = jax.grad(lambda alpha: arfima_nll(series, alpha, [0.2]))(0.3)
    """
    definition = GrunwaldLetnikov(alpha, bounds=bounds)

    def filtered(x: Array) -> Array:
        return _filtered(x, definition, ar, 0.0 if mean is None else mean, -1, manager)

    return _likelihood(filtered, 0.0 if mean is None else mean, series, mean is None, deviation)


def arfima_forecast(
    series: Array,
    steps: int,
    alpha: float | Array,
    ar: Sequence[float] | Array = (),
    mean: float | Array = 0.0,
    *,
    bounds: tuple[float, float] | None = None,
    manager: BackendManager | None = None,
) -> Array:
    """Return what is expected of the next `steps` samples after series [..., n], time last: [..., steps].

    Args:
        series: The past.
        steps: How many.
        alpha: As in `arfima_errors`.
        ar: As there.
        mean: As there.
        bounds: As there.
        manager: As there.

    Raises:
        ValueError: alpha is out of its bounds, or `steps` is not positive.
        TypeError: The series is not real and floating.

    Source: Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> arfima_forecast(jnp.array([1.0, 3.0, 2.0]), 2, 1.0)  # of a random walk: where it is
        Array([2., 2.], dtype=float32)
    """
    return _continued(series, GrunwaldLetnikov(alpha, bounds=bounds), ar, mean, steps, manager)


def _differenced(x: Array, definition: GrunwaldLetnikov, mean: Any, dim: int, manager: BackendManager | None) -> Array:
    """Return (1 - z)**alpha (x - mean), in the dtype that x is computed in."""
    wide = x.astype(computed_in(_OWNER, x))
    return operator.apply(_OWNER, wide - jnp.asarray(mean).astype(wide.dtype), definition, 1.0, dim, manager)


def _filtered(
    x: Array, definition: GrunwaldLetnikov, ar: Any, mean: Any, dim: int, manager: BackendManager | None
) -> Array:
    computed_in(_OWNER, x)
    axis = errors.axis(_OWNER, dim, x.ndim)
    u = jnp.moveaxis(_differenced(x, definition, mean, axis, manager), axis, -1)
    found, n = u, u.shape[-1]
    for lag, weight in enumerate(jnp.asarray(ar, u.dtype), 1):
        found = found - weight * jnp.pad(u, [*[(0, 0)] * (u.ndim - 1), (lag, 0)])[..., :n]
    return jnp.moveaxis(found, -1, axis).astype(x.dtype)


def _likelihood(filtered: Any, mean: Any, series: Array, level: bool, deviation: Any) -> Array:
    """Return the likelihood of what `filtered` makes of series, which is linear in their distance to `mean`."""
    e = filtered(series)
    n, adjusted = series.shape[-1], jnp.zeros((), e.dtype)
    if n < 2:
        raise ValueError(f"arfima_nll(series of shape {series.shape}): needs two samples or more on the last axis.")
    if level:
        of_ones = filtered(jnp.ones(n, series.dtype) + jnp.asarray(mean).astype(series.dtype))
        size = of_ones @ of_ones
        e = e - (e @ of_ones / size)[..., None] * of_ones
        n, adjusted = n - 1, jnp.log(size) / 2
    total = (e * e).sum(-1)
    variance = total / n if deviation is None else jnp.square(jnp.asarray(deviation, e.dtype))
    return n / 2 * jnp.log(2 * math.pi * variance) + total / (2 * variance) + adjusted


def _continued(
    series: Array, definition: GrunwaldLetnikov, ar: Any, mean: Any, steps: int, manager: BackendManager | None
) -> Array:
    """Return the forecasts: the differences go on as the lags say, without errors, and are summed up again."""
    steps = errors.count(f"{_OWNER}.forecast", "steps", steps)
    u = _differenced(series, definition, mean, -1, manager)
    weights, level = jnp.asarray(ar, u.dtype), jnp.asarray(mean).astype(u.dtype)
    p = weights.shape[0]
    last = jnp.pad(u, [*[(0, 0)] * (u.ndim - 1), (p, 0)])[..., u.shape[-1] :]

    def onwards(last: Array, _: None) -> tuple[Array, Array]:
        following = last[..., ::-1] @ weights
        return jnp.concatenate([last, following[..., None]], -1)[..., 1:], following

    if p:
        ahead = jnp.moveaxis(jax.lax.scan(onwards, last, None, length=steps)[1], 0, -1)
    else:
        ahead = jnp.zeros((*u.shape[:-1], steps), u.dtype)
    found = _summed(jnp.concatenate([u, ahead], -1), definition, manager)
    return (found[..., u.shape[-1] :] + level).astype(series.dtype)


def _summed(u: Array, definition: GrunwaldLetnikov, manager: BackendManager | None) -> Array:
    """Undo a difference: whole sums down to an order of at most 1, and the rest."""
    alpha: Any = definition.alpha
    low, high = definition.interval
    whole = max(0, math.ceil(high) - 1)
    for _ in range(whole):
        u = jnp.cumsum(u, -1)
    within = None if definition.is_fixed else (whole - high, whole - low)
    return operator.apply(_OWNER, u, replace(definition, alpha=whole - alpha, bounds=within), 1.0, -1, manager)
