"""Streams of JAX arrays: the state of `fractional/streaming.py`'s recurrence, which `lax.scan` carries.

    y[t] = sum_(lag < first) w[lag] d[t-lag] + sum_q c_q S_q[t] + analytic[t] x(0) + start[t] d[1],
    S_q[t] = exp(-s_q) S_q[t-1] + d[t-first]

with d the differenced samples and S_q the states of Q exponentials. A time slice of the samples has the shape [*shape],
and the orders have axes [*c] that broadcast to it. `Rules` are the static facts of a stream.

The number of a step is traced. The boundary columns are memory functions as the weights are, and so they are the same
sums of exponentials, fitted at the same lags; but that of x(0) of an integral above order 1 grows, and is divided by
the number of its row first.

A block of n steps is n steps at once: a product in each chunk of L samples, and the states of the exponentials from
chunk to chunk, as in `linear.py`'s `StateSpace`, whose states are those of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.jax.arrays import JAX, Array, computed_in, of_numpy, widest
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.definitions import checked_alpha
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.jax.sharding import is_placed, lies_along, placed_like
from hpfracc_nn.fractional.layout import Layout, layout_of
from hpfracc_nn.fractional.linear import multiplied, states_before
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.streaming import (
    HORIZON,
    Past,
    Rules,
    StreamSource,
    advanced,
    begun,
    check_block,
    check_horizon,
    check_state,
    check_step,
    differenced,
    rows_first,
    sums,
    versioned,
)

_LENGTH = 112  # samples of a chunk, which with the exact lags before it are 128


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StreamWeights:
    """The weights of a stream, for its orders; all but the rates are [rows, *c], c fitting the time slice.

    Attributes:
        taps: The exact weights, then the coefficients of the exponentials, [first + Q, *c].
        rates: s, [Q].
        analytic: The first rows of the column on x(0), then coefficients of exponentials for later rows; None without
            one.
        start: The same for the column on d[1].
    """

    taps: Array
    rates: Array
    analytic: Array | None
    start: Array | None


@jax.tree_util.register_dataclass
@versioned
@dataclass(frozen=True)
class StreamState:
    """What a fractional operator remembers between two steps; see `initial_state`.

    A pytree of float64 arrays where 64 bit types are enabled, else float32. It holds the weights of its own alpha,
    computed when it was made, and takes as much memory after a million steps as at the first.

    Attributes:
        step: How many samples it has seen, an integer array.
        weights: The weights of its orders.
        memory: The last samples of d, then the states of the exponentials, [first + Q, *shape].
        before: What differencing needs: x and its difference one step ago, or the sum so far, [2, *shape].
        held: x(0) and d[1], [2, *shape].
        rules: The static facts of the stream.
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
        """How many steps the state serves."""
        return self.rules.horizon

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of the state, the weights included; the same at every step."""
        return sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(self))

    def renew(self, weights: StreamState) -> StreamState:
        """Return this state's past, without its gradient, with the weights of another state of equal shape and horizon.

        Renewing begins a stretch of truncated backpropagation: after an optimizer's step a new `initial_state` has the
        new alpha, and the past, which does not depend on alpha, goes on.
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
        owner: Name of the public function, for messages.
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
        owner: Name of the public function, for messages.
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
    for rows, held in zip(_boundary_rows(weights, rules, t, 1), past.held, strict=True):
        if rows is not None:
            y = y + rows[0] * held
    return y.astype(x.dtype), StreamState(t + 1, weights, *past, rules)


def run(
    owner: str, x: Array, state: StreamState, dim: int, source: StreamSource | None = None
) -> tuple[Array, StreamState]:
    """Return the operator's next samples, of the shape and dtype of `x`, and the state after them.

    A pure function, compiled once for each shape.

    Args:
        owner: Name of the public function, for messages.
        x: Samples along `dim`, any number; without that axis they have the state's shape.
        state: From `initial_state`, or from the step or block before.
        dim: The time axis.
        source: As in `step`.

    Raises:
        TypeError: As in `step`.
        ValueError: As in `step`.
    """
    x = of_numpy(x)
    check_state(owner, state, StreamState)
    computed_in(owner, x)
    axis, rules = errors.axis(owner, dim, x.ndim), state.rules
    check_block(owner, x.shape, axis, rules)
    check_step(owner, rules.shape, rules, source)
    n, over = x.shape[axis], lies_along(x, axis)
    if over is not None and is_placed(x):
        raise ValueError(
            f"{owner}(x with time over the mesh axis {over.spec[axis]!r}): needs a block on one device, because "
            "blocks follow one another; call the layer or operator on the whole series: all slices at once."
        )
    if x.size == 0:  # no samples, or none of a batch, whose memory is empty too
        return x, replace(state, step=state.step + n)
    return _run(_within(owner, x, state, n), state, axis)


@partial(jax.jit, static_argnames="axis")
def _run(x: Array, state: StreamState, axis: int) -> tuple[Array, StreamState]:
    """Return the results for a block of n > 0 samples with time on `axis`, and the state after it."""
    rules, weights, n = state.rules, state.weights, x.shape[axis]
    layout = layout_of("run", (*rules.shape[:axis], n, *rules.shape[axis:]), axis, weights.taps.shape[1:])

    def computed(samples: Array, t: Array, weights: StreamWeights, *past: Array) -> tuple[Array, ...]:
        before = Past(*past)
        block = differenced(samples.astype(before.memory.dtype), t, before, rules, JAX)
        chunks = chunked(canonical(block.d, layout), canonical_weights(weights.taps, layout), weights.rates)
        start = canonical(before.memory[rules.first :], layout)
        y = restored(chunks.results(start), layout)
        for rows, held in zip(_boundary_rows(weights, rules, t, n), block.held, strict=True):
            if rows is not None:
                y = y + rows * held[None]
        newest = jnp.flip(block.d[-rules.first :], axis=0)
        memory = jnp.concatenate([newest, restored(chunks.carry(start), layout)])
        return y.astype(x.dtype), memory, block.before, block.held

    samples = jnp.moveaxis(x, axis, 0)
    y, memory, before, held = placed_like(
        samples, computed, samples, state.step, weights, state.memory, state.before, state.held
    )
    return jnp.moveaxis(y, 0, axis), StreamState(state.step + n, weights, memory, before, held, rules)


def canonical(values: Array, layout: Layout) -> Array:
    """Return values [k, *shape], with any k, as [batch, channels, k, width]."""
    k = values.shape[0]
    values = jnp.moveaxis(values, 0, layout.axis)
    if layout.order is not None:
        values = values.transpose(layout.order)
    return values.reshape(layout.batch, layout.channels, k, layout.width)


def restored(values: Array, layout: Layout) -> Array:
    """Return values [batch, channels, k, width] as [k, *shape]."""
    shape, k = list(layout.permuted), values.shape[2]
    shape[layout.axis if layout.order is None else -1] = k
    values = values.reshape(shape)
    if layout.inverse is not None:
        values = values.transpose(layout.inverse)
    return jnp.moveaxis(values, layout.axis, 0)


def canonical_weights(weights: Array, layout: Layout) -> Array:
    """Return weights [k, *c] as [channels, k]."""
    varying = [size for size in weights.shape[1:] if size > 1]
    assert layout.channels == int(np.prod(varying)), "the layout is that of the orders"
    return weights.reshape(weights.shape[0], -1).T


class Chunked(NamedTuple):
    """The product of weights with a block of n samples, without what the states before the block add.

    The states are those of the exponentials. Shapes as in `linear.py`: there are m chunks of L samples and Q
    exponentials.

    Attributes:
        near: What a chunk's samples and the `first` ones before them add, [batch, channels, m, L, width].
        before: The states before each chunk, if they were 0 before the block, [batch, channels, m, Q, width].
        carry_alone: The states after the block, if they were 0 before it, [batch, channels, Q, width].
        out: The matrix from the states before a chunk to its results, [channels, Q, L].
        rates: s, [Q].
        n: How many samples.
    """

    near: Array
    before: Array
    carry_alone: Array
    out: Array
    rates: Array
    n: int

    def results(self, start: Array) -> Array:
        """Return the whole product, [batch, channels, n, width]: with what the states before the block add.

        `start` are those states, [batch, channels, Q, width].
        """
        batch, channels, m, length, width = self.near.shape
        decay = fading(self.rates, length * np.arange(m))[None, None, :, :, None]
        y = self.near + multiplied(self.before + decay * start[:, :, None], self.out)
        return y.reshape(batch, channels, m * length, width)[:, :, : self.n]

    def carry(self, start: Array) -> Array:
        """Return the states after the block, [batch, channels, Q, width], where those before it are `start`."""
        return fading(self.rates, self.n)[None, None, :, None] * start + self.carry_alone


def chunked(d: Array, taps: Array, rates: Array) -> Chunked:
    """Return the product of weights with a block, as a Chunked, which adds the states before the block.

    Args:
        d: The last `first` samples before the block, then its own n, [batch, channels, first + n, width]; the states
            before the block stand for all older ones.
        taps: The exact weights at lags below `first`, then coefficients of the exponentials, [channels, first + Q].
        rates: s, [Q].
    """
    first = taps.shape[1] - rates.size
    batch, channels, size, width = d.shape
    n = size - first
    length = min(n, _LENGTH)
    m = -(-n // length)
    exact, far = taps[:, :first], taps[:, first:]
    later = fading(rates, np.arange(length))  # [L, Q]
    column = jnp.concatenate([exact, JAX.matmul(far, later.T)], axis=1)  # at lags below first + L
    matrix = JAX.toeplitz(column, first + length)[:, :, first:]  # [channels, first + L, L]
    out = far[:, :, None] * fading(rates, 1 + np.arange(length)).T[None]
    if m == 1:
        near = multiplied(d[:, :, None], matrix)
        none = jnp.zeros_like(d, shape=(batch, channels, rates.size, width)) + 0 * d[:, :, :1]
        before, rest = none[:, :, None], d[:, :, :n]
    else:
        padded = JAX.pad(d, 0, (m + 1) * length - size, axis=2).reshape(batch, channels, m + 1, length, width)
        near = multiplied(padded[:, :, :m], matrix[:, :length])
        near = near + multiplied(padded[:, :, 1:, :first], matrix[:, length:])
        added = multiplied(padded[:, :, :m], jnp.flip(later, axis=0)[None])
        doublings = range(max(1, (m - 1).bit_length()))
        before = states_before(added, [fading(rates, length << k) for k in doublings], JAX)
        rest = padded[:, :, m - 1, : n - (m - 1) * length]
    entered = multiplied(rest[:, :, None], jnp.flip(later[: rest.shape[2]], axis=0)[None])[:, :, 0]
    carry = fading(rates, rest.shape[2])[None, None, :, None] * before[:, :, -1] + entered
    return Chunked(near, before, carry, out, rates, n)


def fading(rates: Array, steps: Any) -> Array:
    """Return exp(-s k) for rates s [Q] and numbers of steps k [*k], [*k, Q]."""
    k = jnp.asarray(steps, rates.dtype)
    return jnp.exp(-k[..., None] * rates.reshape((1,) * k.ndim + (-1,)))


def _boundary_rows(weights: StreamWeights, rules: Rules, t: Array, n: int) -> tuple[Array | None, Array | None]:
    """Return n rows from step t on of the columns on x(0) and on d[1], [n, *c] each; None for an absent column."""
    analytic, start = (
        None if each is None else column_rows(each, weights.rates, t, n) for each in (weights.analytic, weights.start)
    )
    if analytic is not None and _grows(rules):
        analytic = analytic * row_numbers(t, n, analytic)
    return analytic, start


def column_rows(column: Array, rates: Array, t: Array, n: int) -> Array:
    """Return n rows from row t on of a boundary column, [n, *c].

    Args:
        column: Its first rows, then coefficients of exponentials for those from row `first` on, [first + Q, *c].
        rates: s, [Q].
        t: The number of the first row.
        n: How many rows.
    """
    first = column.shape[0] - rates.size
    flat = column.reshape(column.shape[0], -1)
    count = min(n, _LENGTH)
    rows = t + jnp.arange(count, dtype=t.dtype)
    exact = flat[:first][jnp.minimum(rows, first - 1)]
    found = JAX.matmul(fading(rates, jnp.maximum(rows - first, 0)), flat[first:])
    found = jnp.where((rows < first)[:, None], exact, found)
    if n > count:
        starts = t + jnp.arange(count - first, n - first, _LENGTH, dtype=t.dtype)
        between = fading(rates, starts)[:, :, None] * flat[first:][None]  # [pieces, Q, c]
        later = jnp.einsum("kq,pqc->pkc", fading(rates, np.arange(_LENGTH)), between, precision=lax.Precision.HIGHEST)
        found = jnp.concatenate([found, later.reshape(-1, flat.shape[1])])[:n]
    return found.reshape(n, *column.shape[1:])


def column_sums(stencil: Stencil, nodes: Nodes, number: int, *, grows: bool, xp: Namespace) -> Array:
    """Return an analytic column's first rows and coefficients of exponentials, [*c, first + Q], for `column_rows`.

    Args:
        stencil: The operator.
        nodes: The exponentials.
        number: The index of the column among the analytic ones.
        grows: Whether its entries are divided by the numbers of their rows, plus 1.
        xp: The namespace of the stencil.
    """
    columns = stencil.analytic_columns
    assert columns is not None, "only a column that is there is asked for"

    def column(rows: np.ndarray) -> Array:
        found = columns(rows)[..., number, :]
        return found / xp.constant(rows + 1.0, found) if grows else found

    return sums(column, nodes, xp)


def row_numbers(t: Array, n: int, like: Array) -> Array:
    """Return t + 1, ..., t + n in the dtype and with the axes of rows [n, *c]."""
    return (t + 1 + jnp.arange(n, dtype=t.dtype)).astype(like.dtype).reshape(n, *(1,) * (like.ndim - 1))


def _grows(rules: Rules) -> bool:
    """Whether the column on x(0) grows: where samples are summed up before the product."""
    return rules.differences < 0


def _weights(rules: Rules, alpha: Array | None, nodes: Nodes) -> StreamWeights:
    """Return the StreamWeights of orders alpha [*c], or for None of the definition's own order.

    `nodes` are the exponentials, with their rates s.
    """

    def made(orders: Array | None, xp: Namespace) -> dict[str, Any]:
        stencil = rules.stencil(orders, xp)
        found = {"taps": sums(stencil.column, nodes, xp)}
        if stencil.analytic_columns is not None:
            found["analytic"] = column_sums(stencil, nodes, 0, grows=_grows(rules), xp=xp)
        if stencil.start_column is not None:
            found["start"] = sums(stencil.start_column, nodes, xp)
        return found

    rows = {name: rows_first(each, len(rules.shape), JAX) for name, each in of_orders(made, alpha).items()}
    return StreamWeights(rows["taps"], jnp.asarray(nodes.rates, widest()), rows.get("analytic"), rows.get("start"))


def of_orders(made: Any, alpha: Array | None) -> Any:
    """Return made(alpha, xp), a pytree of arrays [*c, ...], computed in float64 and rounded to the widest dtype.

    `alpha` are orders [*c] in an array, or None: then NumPy computes.
    """
    if alpha is None:
        return jax.tree.map(lambda each: jnp.asarray(each, widest()), made(None, NUMPY))
    found = in_float64(lambda orders: made(orders, JAX), alpha.reshape(-1), widest())
    return jax.tree.map(lambda each: each.reshape(*alpha.shape, *each.shape[1:]), found)


def _checked(owner: str, x: Any, state: Any, source: StreamSource | None) -> Array:
    """Return the samples x of one step; raise TypeError or ValueError where x or the state does not fit.

    `owner` is the name of the public function, for messages; `source` is the layer that must have made the state.
    """
    check_state(owner, state, StreamState)
    computed_in(owner, x)  # raises where it is no array, or of a dtype that is none of ours
    check_step(owner, x.shape, state.rules, source)
    return _within(owner, x, state, 1)


def _within(owner: str, x: Array, state: StreamState, n: int) -> Array:
    """Return the samples x of n steps; raise ValueError where they go beyond the horizon.

    Where the state is traced the error is raised under `jax.experimental.checkify` only.
    """
    if isinstance(state.step, jax.core.Tracer):
        horizon = state.horizon
        message = f"{owner}: needs at most horizon={horizon} steps; make the state with a larger one."
        return checked(x, state.step + (n - 1) < horizon, message)
    check_horizon(owner, int(state.step) + n - 1, state.horizon)
    return x
