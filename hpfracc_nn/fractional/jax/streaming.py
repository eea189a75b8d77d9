"""Streams of JAX arrays: the state of `fractional/streaming.py`'s recurrence, which `lax.scan` carries.

    y[t] = sum_(lag < first) w[lag] d[t-lag] + sum_q c_q S_q[t] + analytic[t] x(0) + start[t] d[1],
    S_q[t] = exp(-s_q) S_q[t-1] + d[t-first]

with d the differenced samples and Q exponentials. A time slice of the samples has the shape [*shape], and the orders
have axes [*c] that broadcast to it. `Rules` are the static facts of a stream.

The number of a step is traced. The analytic column is a memory function as the weights are, and so it is the same sum
of exponentials, fitted at the same lags. The starting column is none: it is a table, exact in the first rows and then
interpolated in log(t + 1), where t times the column hardly changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.jax.arrays import JAX, Array, computed_in, of_numpy, widest
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.definitions import checked_alpha
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.fractional.streaming import (
    HORIZON,
    Past,
    Rules,
    StreamSource,
    advanced,
    begun,
    check_horizon,
    check_state,
    check_step,
    rows_first,
    sums,
)

_EXACT_ROWS, _KNOTS = 128, 512  # of the starting column's table: every row, then geometrically further apart


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StreamWeights:
    """The weights of a stream, for its orders; all but the rates are [rows, *c], c fitting the time slice.

    Attributes:
        taps: Exact weights, then coefficients of the exponentials.
        rates: s, [Q].
        analytic: The same for the column on x(0), or None.
        start: The table of the column on d[1], or None.
    """

    taps: Array
    rates: Array
    analytic: Array | None
    start: Array | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StreamState:
    """What a fractional operator remembers between two steps; see `initial_state`.

    A pytree of float64 arrays where 64 bit types are enabled, else float32. It holds the weights of its own alpha,
    computed when it was made, and takes as much memory after a million steps as at the first.

    Attributes:
        step: How many samples it has seen, an integer array.
        weights: Of its orders.
        memory: The last samples of d, then the exponentials, [first + Q, *shape].
        before: What differencing needs: x and its difference one step ago, or the sum so far, [2, *shape].
        held: x(0) and d[1], [2, *shape].
        rules: What is static.
    """

    step: Array
    weights: StreamWeights
    memory: Array
    before: Array
    held: Array
    rules: Rules = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time slice."""
        return self.rules.shape

    @property
    def horizon(self) -> int:
        """How many steps it serves."""
        return self.rules.horizon

    def renew(self, weights: StreamState) -> StreamState:
        """Return this past, without its gradient, with the weights of another state of the same shape and horizon.

        This is one stretch of truncated backpropagation after another: after an optimizer's step a new
        `initial_state` has the new alpha, and the past, which does not depend on alpha, goes on.
        """
        self.rules.check_renewal(weights.rules)
        past = lax.stop_gradient(self)
        return replace(past, weights=weights.weights, rules=weights.rules)


def initial_state(
    owner: str,
    definition: Definition,
    shape: Sequence[int],
    *,
    dt: float = 1.0,
    horizon: int = HORIZON,
    source: StreamSource | None = None,
) -> StreamState:
    """Return the state before the first sample.

    Args:
        owner: Who asks, for messages.
        definition: Which operator, with its alpha, which may be traced; alpha broadcasts over `shape`.
        shape: Of one time slice: of the samples without their time axis.
        dt: Spacing of the samples, in the caller's time unit; positive.
        horizon: The longest series it will serve. The exponentials are fitted to the weights up to it; a step costs
            in proportion to its logarithm.
        source: Who makes it; `step` then takes it from no other.

    Raises:
        ValueError: The definition reads samples ahead, its orders lie so far apart that weights grow with the lag, or
            an argument is out of range.
        TypeError: An argument has the wrong type.
    """
    rules, nodes, alpha = begun(owner, definition, shape, dt, horizon, source, checked_alpha)
    weights = _weights(rules, alpha, nodes)
    zeros = jnp.zeros((weights.taps.shape[0], *rules.shape), widest())
    return StreamState(jnp.zeros((), jnp.int32), weights, zeros, zeros[:2], zeros[:2], rules)


def step(owner: str, x: Array, state: StreamState, source: StreamSource | None = None) -> tuple[Array, StreamState]:
    """Return the operator's next sample, in the dtype of `x`, and the state after it.

    Args:
        owner: Who asks, for messages.
        x: One time slice, of the state's shape.
        state: From `initial_state` or the step before.
        source: Who must have made the state: `initial_state` was given the same.

    Raises:
        TypeError: `x` is no real floating array, or `state` is none.
        ValueError: `x` has another shape than the state, the state has another source, or it has reached its horizon,
            where it is not traced; where it is, `jax.experimental.checkify` raises.
    """
    x = _checked(owner, of_numpy(x), state, source)
    rules, t, weights = state.rules, state.step, state.weights
    decay = jnp.exp(-weights.rates).reshape(-1, *(1,) * x.ndim)
    past = Past(state.memory, state.before, state.held)
    y, past = advanced(x.astype(past.memory.dtype), t, past, weights.taps, decay, rules, JAX)
    if weights.analytic is not None:
        y = y + _analytic_row(weights, rules.first, t) * past.held[0]
    if weights.start is not None:
        y = y + _start_row(weights.start, rules.horizon, t) * past.held[1]
    return y.astype(x.dtype), StreamState(t + 1, weights, *past, rules)


def _weights(rules: Rules, alpha: Array | None, nodes: Nodes) -> StreamWeights:
    """Return the weights of a stream, w, c, s, and the columns: of orders alpha [*c], or of the definition's for None.

    `nodes` are the exponentials, with their rates s.
    """

    def made(orders: Array | None, xp: Namespace) -> dict[str, Any]:
        stencil = rules.stencil(orders, xp)
        found = {"taps": sums(stencil.column, nodes, xp)}
        analytic, start = stencil.analytic_columns, stencil.start_column
        if analytic is not None:
            found["analytic"] = sums(lambda rows: analytic(rows)[..., 0, :], nodes, xp)
        if start is not None:
            found["start"] = start(_knots(rules.horizon))
        return found

    if alpha is None:
        columns = {name: jnp.asarray(each, widest()) for name, each in made(None, NUMPY).items()}
    else:
        flat = in_float64(lambda orders: made(orders, JAX), alpha.reshape(-1), widest())
        columns = {name: each.reshape(*alpha.shape, -1) for name, each in flat.items()}
    rows = {name: rows_first(each, len(rules.shape), JAX) for name, each in columns.items()}
    return StreamWeights(rows["taps"], jnp.asarray(nodes.rates, widest()), rows.get("analytic"), rows.get("start"))


def _analytic_row(weights: StreamWeights, first: int, t: Array) -> Array:
    """Return row t of the analytic column, [*c], which multiplies x(0) in step t.

    It is exact for t below `first`, and a sum of exponentials from there on.
    """
    assert weights.analytic is not None
    column = weights.analytic
    exact = lax.dynamic_index_in_dim(column, jnp.minimum(t, first - 1), keepdims=False)
    lag = jnp.maximum(t - first, 0).astype(column.dtype)
    powers = jnp.exp(-weights.rates * lag).reshape(-1, *(1,) * (column.ndim - 1))
    return jnp.where(t < first, exact, (column[first:] * powers).sum(axis=0))


@lru_cache(maxsize=64)
def _knots(horizon: int) -> np.ndarray:
    """Return the sorted steps at which the starting column is tabulated: all small ones, then geometric ones."""
    near = np.arange(max(4, min(_EXACT_ROWS, horizon)))
    far = np.geomspace(_EXACT_ROWS, max(horizon, 2 * _EXACT_ROWS), _KNOTS).round().astype(np.int64)
    return np.unique(np.concatenate([near, far]))


def _start_row(table: Array, horizon: int, t: Array) -> Array:
    """Return row t of the starting column, [*c], which multiplies d[1] in step t.

    It is interpolated in log(t + 1), by cubics, from `table` [knots, *c], its rows in the steps `_knots(horizon)`.
    """
    knots = _knots(horizon)
    begin = jnp.clip(jnp.searchsorted(jnp.asarray(knots, t.dtype), t, side="right") - 2, 0, knots.size - 4)
    near = lax.dynamic_slice_in_dim(jnp.asarray(knots + 1.0, table.dtype), begin, 4)
    values = lax.dynamic_slice_in_dim(table, begin, 4)
    u, at = jnp.log(near), jnp.log(t.astype(table.dtype) + 1)
    others = ~np.eye(4, dtype=bool)
    factors = jnp.where(others, (at - u[None, :]) / jnp.where(others, u[:, None] - u[None, :], 1), 1)
    share = factors.prod(axis=1) * near / (t.astype(table.dtype) + 1)
    return (share.reshape(-1, *(1,) * (values.ndim - 1)) * values).sum(axis=0)


def _checked(owner: str, x: Any, state: Any, source: StreamSource | None) -> Array:
    """Return the samples x of one step, or raise where x or the state does not fit, or the horizon is reached.

    `owner` is the name of the public function, for messages; `source` is the layer that must have made the state. Where
    the step is traced the horizon is checked under `jax.experimental.checkify`.
    """
    check_state(owner, state, StreamState)
    computed_in(owner, x)  # raises where it is no array, or of a dtype that is none of ours
    check_step(owner, x.shape, state.rules, source)
    if isinstance(state.step, jax.core.Tracer):
        horizon = state.horizon
        message = f"{owner}: needs at most horizon={horizon} steps; make the state with a larger one."
        return checked(x, state.step < horizon, message)
    check_horizon(owner, int(state.step), state.horizon)
    return x
