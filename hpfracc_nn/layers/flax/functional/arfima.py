"""ARFIMA(p, alpha, q), a long memory and a few lags, as a layer.

z is the backshift, `(z u)[t] = u[t - 1]`, and `ma(z) = 1 + ma[0] z + ... + ma[q - 1] z**q`. Series are [..., n], time
last, unless an argument `axis` says where it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional import dispatch
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.jax.arrays import JAX, Array, computed_in, of_numpy, widest
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState
from hpfracc_nn.layers.flax.functional.core import Alpha, Ordered, Params, settle, settle_fields
from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer, without
from hpfracc_nn.layers.lags import Lags, advanced, without_lags
from hpfracc_nn.layers.order import start_in
from hpfracc_nn.layers.shapes import check_is_state
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.series.arfima import fitted
from hpfracc_nn.series.results import ArfimaResults

_OWNER = "ARFIMA"


class ArfimaState(NamedTuple):
    """The state of `ARFIMA` between two samples; a pytree.

    Attributes:
        stream: The state of the fractional difference.
        past: The last p samples of the differenced series and the last q errors, each newest first, [p + q, *shape].
    """

    stream: StreamState
    past: Array


class _Derived(Ordered):
    """The attributes of `ARFIMA` that its `__post_init__` computes from the fields.

    Attributes:
        difference: The layer that computes `(1 - z)**alpha`.
    """

    difference: FractionalLayer


@dataclass(frozen=True)
class ARFIMA(_Derived):
    """What ARFIMA(p, alpha, q) cannot foresee of a series: its one-step errors e.

        u = (1 - z)**alpha (x - mean),
        e[t] = u[t] - sum_i ar[i] u[t - i] - sum_j ma[j] e[t - j],

    for i = 1, ..., p and j = 1, ..., q, with zeros before the first sample, so that the series is at its mean there.
    `x[t] - e[t]` is the forecast of x[t] from the samples before it. At alpha = 0 it is ARMA(p, q), at alpha = 1 that
    of the differences.

    As a layer it whitens signals. `nll` is the negative log likelihood of a series, a function that optax minimises and
    NumPyro samples by, and `forecast` continues a series. `fit` estimates all parameters from one series, with standard
    errors.

    Attributes:
        ar: p, the number of lags; one by default, where `series.fit_arfima` has none.
        ma: q, the number of past errors.
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
        settle_fields(_OWNER, self)
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
        named = ("alpha", "bounds", "order", "definition", "learn_alpha")
        settle(self, difference=difference, **{name: getattr(difference, name) for name in named})

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
            TypeError: As in `FractionalLayer.step`; or `state` is no ArfimaState.
        """
        check_is_state(f"{_OWNER}.step", state, ArfimaState)
        x = of_numpy(x)
        wide = x.astype(computed_in(f"{_OWNER}.step", x))
        u, stream = self.difference.step(params, wide - params["mean"].astype(wide.dtype), state.stream)
        found, past = advanced(u[None], state.past, self._coefficients(params, state.past.dtype), JAX)
        return found[0].astype(x.dtype), ArfimaState(stream, past)

    def run(self, params: Params, x: Array, state: ArfimaState | None = None) -> tuple[Array, ArfimaState]:
        """Return the errors of the next samples of a series and the state after them; see `FractionalLayer.run`.

        Args:
            params: From `init`.
            x: The next samples, any number along `dim`.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            ValueError: As in `FractionalLayer.run`.
            TypeError: As in `FractionalLayer.run`.
        """
        owner, x = f"{_OWNER}.run", of_numpy(x)
        if state is None:
            state = self.initial_state(params, without(owner, x, self.dim))
        check_is_state(owner, state, ArfimaState)
        computed_in(owner, x)
        axis, dtype = errors.axis(owner, self.dim, x.ndim), state.past.dtype
        u, stream = self.difference.run(params, x.astype(dtype) - params["mean"].astype(dtype), state.stream)
        found, past = advanced(jnp.moveaxis(u, axis, 0), state.past, self._coefficients(params, dtype), JAX)
        return jnp.moveaxis(found, 0, axis).astype(x.dtype), ArfimaState(stream, past)

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
        """Return the expected next `steps` samples after series [..., n], time last: [..., steps]."""
        definition = self._operator(params, None)
        ar, ma = (params.get(name, ()) for name in ("ar", "ma"))
        return continued(series, definition, ar, ma, params["mean"], steps, self.manager)

    def fit(
        self, series: Any, exog: Any = None, *, likelihood: str = "conditional", param_dtype: Any = jnp.float32
    ) -> tuple[Params, ArfimaResults]:
        """Return parameters estimated from a series, and the results with standard errors, intervals and forecasts.

        The estimate is made in NumPy and float64, as by PyTorch's `ARFIMA.fit`; see `series.fit_arfima`. The
        coefficients of regressors are in the results alone. An order that is not learned stays.

        Args:
            series: [n]; JAX, NumPy or pandas. NaN are gaps, but for the conditional likelihood.
            exog: Regressors, [n, k].
            likelihood: "conditional", "exact" or "restricted".
            param_dtype: Of the parameters.

        Raises:
            ValueError: As `series.fit_arfima`; or the order is random.
            TypeError: The samples are no real numbers.
        """
        if self.order is not None and self.order.is_random:
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

    def _coefficients(self, params: Params, dtype: Any) -> Lags:
        return _lags(params.get("ar", ()), params.get("ma", ()), dtype)

    def _operator(self, params: Params, key: Array | None) -> GrunwaldLetnikov:
        alpha = self._present(params, key)
        return self.definition if alpha is None else replace(self.definition, alpha=alpha)


def arfima_errors(
    series: Array,
    alpha: float | Array,
    ar: Sequence[float] | Array = (),
    mean: float | Array = 0.0,
    *,
    ma: Sequence[float] | Array = (),
    bounds: tuple[float, float] | None = None,
    dim: int = -1,
    manager: BackendManager | None = None,
) -> Array:
    """Return the one-step errors of ARFIMA(p, alpha, q), see `ARFIMA`; same shape and dtype as the series.

    Args:
        series: [..., n, ...], floating.
        alpha: The order, a number or an array of no axes, which may be traced.
        ar: The lags' coefficients, [p].
        mean: The level; a number, or an array that broadcasts to the series, with a time axis of length 1.
        ma: Coefficients of past errors, [q].
        bounds: Where a traced alpha lies, beyond which it is NaN; None is (0, 1).
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.

    Raises:
        ValueError: alpha is out of its bounds, there is no such axis, or an array has another shape.
        TypeError: The series is not real and floating.

    Source: Granger & Joyeux, J. Time Series Analysis 1 (1980) 15; Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> arfima_errors(jnp.array([1.0, 0.0, 0.0, 0.0]), 0.5)  # Grünwald's weights
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """
    return filtered(series, _difference("arfima_errors", alpha, bounds), ar, ma, mean, dim, manager)


def arfima_nll(
    series: Array,
    alpha: float | Array,
    ar: Sequence[float] | Array = (),
    mean: float | Array | None = None,
    *,
    ma: Sequence[float] | Array = (),
    deviation: float | Array | None = None,
    bounds: tuple[float, float] | None = None,
    manager: BackendManager | None = None,
) -> Array:
    """Return the negative logarithm of the likelihood of ARFIMA(p, alpha, q) with normal errors: [...].

    The likelihood is that of the errors e with zeros before the first sample: with S, the sum of their n squares, it is

        n / 2 log(2 pi deviation**2) + S / (2 deviation**2),

    with the best deviation, S = n deviation**2, where none is given. A mean that is not given is integrated out under a
    flat prior (Harville's restricted likelihood): S is that of the best mean, n - 1 stands for n, and log(c'c) / 2 is
    added, with c the errors of a series of ones. The alpha and ar that minimise the result then are those that
    PyTorch's `ARFIMA.fit` finds, without the bias that an estimated mean brings. The result is differentiable in all
    arguments, to any order.

    Args:
        series: [..., n], floating, time last.
        alpha: As in `arfima_errors`.
        ar: As in `arfima_errors`.
        mean: As in `arfima_errors`; None integrates it out.
        ma: As in `arfima_errors`.
        deviation: Of the errors, positive; None is the best.
        bounds: As in `arfima_errors`.
        manager: As in `arfima_errors`.

    Raises:
        ValueError: alpha is out of its bounds, an array has another shape, a deviation that is known is not positive,
            or the series has too few samples.
        TypeError: The series is not real and floating.

    Source: Kilinc & Massmann, J. Econometrics 255 (2026) 106232; Harville, JASA 72 (1977) 320.

    Examples:
        >>> arfima_nll(jnp.zeros(4), 0.3, mean=0.0, deviation=1.0).round(4)  # 4 / 2 log(2 pi)
        Array(3.6758, dtype=float32)
        >>> series = jax.random.normal(jax.random.key(0), (500,))
        >>> slope = jax.grad(lambda alpha: arfima_nll(series, alpha, [0.2]))(0.3)
    """
    definition = _difference("arfima_nll", alpha, bounds)
    level = 0.0 if mean is None else mean

    def errors_of(x: Array) -> Array:
        return filtered(x, definition, ar, ma, level, -1, manager)

    return likelihood(errors_of, level, series, mean is None, deviation)


def arfima_forecast(
    series: Array,
    steps: int,
    alpha: float | Array,
    ar: Sequence[float] | Array = (),
    mean: float | Array = 0.0,
    *,
    ma: Sequence[float] | Array = (),
    bounds: tuple[float, float] | None = None,
    manager: BackendManager | None = None,
) -> Array:
    """Return the expected next `steps` samples after series [..., n], time last: [..., steps].

    Args:
        series: The past.
        steps: How many samples are forecast.
        alpha: As in `arfima_errors`.
        ar: As in `arfima_errors`.
        mean: As in `arfima_errors`.
        ma: As in `arfima_errors`.
        bounds: As in `arfima_errors`.
        manager: As in `arfima_errors`.

    Raises:
        ValueError: alpha is out of its bounds, an array has another shape, or `steps` is not positive.
        TypeError: The series is not real and floating.

    Source: Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> arfima_forecast(jnp.array([1.0, 3.0, 2.0]), 2, 1.0)  # of a random walk: where it is
        Array([2., 2.], dtype=float32)
    """
    return continued(series, _difference("arfima_forecast", alpha, bounds), ar, ma, mean, steps, manager)


def filtered(
    x: Array, definition: GrunwaldLetnikov, ar: Any, ma: Any, mean: Any, dim: int, manager: BackendManager | None
) -> Array:
    """Return the one-step errors of an ARFIMA process along `dim`, in the shape and dtype of the samples x.

    Args:
        x: The series, [..., n, ...].
        definition: The difference `(1 - z)**alpha`, with its alpha.
        ar: Coefficients of the lags, [p].
        ma: Coefficients of past errors, [q].
        mean: The level, see `_differenced`.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
    """
    x = of_numpy(x)
    computed_in(_OWNER, x)
    axis = errors.axis(_OWNER, dim, x.ndim)
    u = _differenced(x, definition, mean, axis, manager)
    return without_lags(u, _lags(ar, ma, u.dtype), axis, JAX).astype(x.dtype)


def likelihood(errors_of: Callable[[Array], Array], mean: Any, series: Array, level: bool, deviation: Any) -> Array:
    """Return the negative logarithm of the likelihood of each series, [...].

    Args:
        errors_of: Maps series to their one-step errors, linearly in series - `mean`.
        mean: The level that `errors_of` subtracts.
        series: One or more, [..., n].
        level: Whether the level is integrated out.
        deviation: Standard deviation of the errors; None is the best.

    Raises:
        ValueError: There are fewer than two samples, or a deviation that is known is not positive.
    """
    series = of_numpy(series)
    e = errors_of(series)
    n, adjusted = series.shape[-1], jnp.zeros((), e.dtype)
    if n < 2:
        raise ValueError(f"arfima_nll(series of shape {series.shape}): needs two samples or more on the last axis.")
    if level:
        of_ones = errors_of(jnp.ones(n, series.dtype) + jnp.asarray(mean).astype(series.dtype))
        size = of_ones @ of_ones
        e = e - (e @ of_ones / size)[..., None] * _of_rank(of_ones, e.ndim)
        n, adjusted = n - 1, jnp.log(size) / 2
    total = (e * e).sum(-1)
    variance = total / n if deviation is None else jnp.square(_positive(deviation, e.dtype))
    return n / 2 * jnp.log(2 * math.pi * variance) + total / (2 * variance) + adjusted


def continued(
    series: Array, definition: GrunwaldLetnikov, ar: Any, ma: Any, mean: Any, steps: int, manager: BackendManager | None
) -> Array:
    """Return the forecasts of an ARFIMA process for the next `steps` samples, [..., steps].

    The differenced series is continued by its lags, without further errors, and the difference is undone.

    Args:
        series: The past, [..., n].
        definition: The difference `(1 - z)**alpha`, with its alpha.
        ar: Coefficients of the lags, [p].
        ma: Coefficients of past errors, [q].
        mean: The level, see `_differenced`.
        steps: How many samples are forecast.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
    """
    series, steps = of_numpy(series), errors.count(f"{_OWNER}.forecast", "steps", steps)
    u = _differenced(series, definition, mean, series.ndim - 1, manager)
    lags, level = _lags(ar, ma, u.dtype), _level(mean, u)
    p, q = map(len, lags)
    ahead = jnp.zeros((*u.shape[:-1], steps), u.dtype)
    if p or q:
        e = without_lags(u, lags, -1, JAX) if q else u
        ahead = _ahead(_last(u, p), _last(e, q), *(jnp.asarray(each, u.dtype) for each in lags), steps)
    found = _summed(jnp.concatenate([u, ahead], -1), definition, manager)
    return (found[..., u.shape[-1] :] + level).astype(series.dtype)


def _last(u: Array, count: int) -> Array:
    """Return the last `count` samples of u, [..., n], preceded by zeros where u has fewer."""
    return jnp.pad(u, [*[(0, 0)] * (u.ndim - 1), (count, 0)])[..., u.shape[-1] :]


def _difference(owner: str, alpha: Any, bounds: tuple[float, float] | None) -> GrunwaldLetnikov:
    """Return the operator `(1 - z)**alpha`.

    Args:
        owner: The public function, for messages.
        alpha: One order, a number or an array without axes, which may be traced.
        bounds: The bounds of a traced alpha; None is (0, 1).

    Raises:
        ValueError: alpha has axes, or is out of range.
    """
    if np.ndim(alpha):
        raise ValueError(f"{owner}(alpha of shape {np.shape(alpha)}): needs one order; map over several with jax.vmap.")
    return GrunwaldLetnikov(alpha, bounds=bounds)


def _differenced(x: Array, definition: GrunwaldLetnikov, mean: Any, axis: int, manager: BackendManager | None) -> Array:
    """Return `(1 - z)**alpha (x - mean)`, in float32 where x has half precision.

    Args:
        x: The series, time on `axis`.
        definition: The operator, with its alpha.
        mean: One level, or an array that broadcasts to x, with a time axis of length 1.
        axis: The time axis.
        manager: Who chooses the kernel; None is the process-wide one.
    """
    wide = x.astype(computed_in(_OWNER, x))
    _check_level(np.shape(mean), x.shape, axis)
    return dispatch.apply(_OWNER, wide - _level(mean, wide), definition, 1.0, axis, manager)


def _level(mean: Any, like: Array) -> Array:
    return _of_rank(jnp.asarray(mean).astype(like.dtype), like.ndim)


def _of_rank(array: Array, ndim: int) -> Array:
    """Return an array with leading axes of length 1 added until it has `ndim` axes."""
    return jnp.expand_dims(array, tuple(range(ndim - array.ndim)))


def _check_level(found: tuple[int, ...], wanted: tuple[int, ...], axis: int) -> None:
    """Raise ValueError unless a level is constant in time: its shape broadcasts to the series', time of length 1.

    A level of shape [series] would else broadcast along time where the numbers happen to agree.

    Args:
        found: The level's shape.
        wanted: The series' shape.
        axis: The series' time axis.
    """
    once = (*wanted[:axis], 1, *wanted[axis + 1 :])
    missing = len(once) - len(found)
    if missing < 0 or any(a not in (1, b) for a, b in zip(found, once[missing:], strict=True)):
        raise ValueError(
            f"{_OWNER}(mean of shape {found}, series of shape {wanted}): needs one level, or one for each series "
            f"that broadcasts to {once}; pass for example series.mean({axis}, keepdims=True)."
        )


def _lags(ar: Any, ma: Any, dtype: Any) -> Lags:
    """Return `ar` and `ma` as lists of arrays without axes; raise ValueError unless each is a flat sequence."""
    found = []
    for name, given in (("ar", ar), ("ma", ma)):
        each = jnp.asarray(given, dtype)
        if each.ndim != 1:
            raise ValueError(
                f"{_OWNER}({name} of shape {each.shape}): needs one axis, a number for each lag; pass a flat list."
            )
        found.append(list(each))
    return found[0], found[1]


def _positive(deviation: Any, dtype: Any) -> Array:
    """Return standard deviations as an array of `dtype`; raise ValueError unless they are positive.

    Traced values are checked under `checkify` only.
    """
    if not isinstance(deviation, jax.core.Tracer) and not (np.asarray(deviation) > 0).all():
        raise ValueError(f"arfima_nll(deviation={deviation}): needs deviation > 0; pass None for the best.")
    found = jnp.asarray(deviation, dtype)
    message = "arfima_nll(deviation={deviation}): needs deviation > 0."
    return checked(found, (found > 0).all(), message, deviation=found)


@partial(jax.jit, static_argnames="steps")
def _ahead(last: Array, before: Array, ar: Array, ma: Array, steps: int) -> Array:
    """Return the forecast of an ARMA process, [..., steps]; compiled once for each shape.

    Args:
        last: The last p values of the process, [..., p].
        before: The last q errors of the process, [..., q].
        ar: Coefficients of the lagged values, [p].
        ma: Coefficients of the lagged errors, [q].
        steps: How many values are forecast.
    """

    def onwards(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        last, before = state
        following = last[..., ::-1] @ ar + before[..., ::-1] @ ma
        last = jnp.concatenate([last, following[..., None]], -1)[..., 1:]
        return (last, jnp.pad(before, [*[(0, 0)] * (before.ndim - 1), (0, 1)])[..., 1:]), following

    return jnp.moveaxis(jax.lax.scan(onwards, (last, before), None, length=steps)[1], 0, -1)


def _summed(u: Array, definition: GrunwaldLetnikov, manager: BackendManager | None) -> Array:
    """Return `(1 - z)**-alpha u`, [..., n], the series whose fractional differences are u.

    An order above 1 is split: cumulative sums undo its whole part, the operator the rest.

    Args:
        u: The differences.
        definition: The operator that made them, with its alpha.
        manager: Who chooses the kernel; None is the process-wide one.
    """
    alpha: Any = definition.alpha
    low, high = definition.interval
    whole = max(0, math.ceil(high) - 1)
    for _ in range(whole):
        u = jnp.cumsum(u, -1)
    within = None if definition.is_fixed else (whole - high, whole - low)
    return dispatch.apply(_OWNER, u, replace(definition, alpha=whole - alpha, bounds=within), 1.0, -1, manager)
