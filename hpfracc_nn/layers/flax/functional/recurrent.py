"""LSTM and GRU for Flax whose cells remember by a power law: parameters, directions, series in parts, one step.

`params` are a layer's parameters, nested dicts of arrays; a `key` is JAX's, for a random order, None for its mean; and
`owner` is the class or function that messages name. See `core` for the conventions.

h is a cell's output, and c an LSTM's cell state, of which its memory is an average; a GRU's h is its cell state too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.jax.arrays import Array, at_least_single, of_numpy
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.fractional.streaming import HORIZON, versioned
from hpfracc_nn.layers.flax.functional.core import (
    BIAS_INIT,
    Alpha,
    Initializer,
    Ordered,
    Params,
    kernel_init,
    keys,
    serializable,
    settle,
    settle_fields,
)
from hpfracc_nn.layers.flax.functional.recurrence import (
    CELLS,
    Before,
    Cell,
    Lags,
    Past,
    Weights,
    after,
    block_of,
    lags_of,
    one_step,
    recurrence,
)
from hpfracc_nn.layers.order import averaging
from hpfracc_nn.layers.shapes import check_is_state, unit_orders


def orthogonal_init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return a first kernel of the outputs, orthogonal as in Flax; a kernel in half precision is drawn in float32."""
    wide = at_least_single(dtype)
    return jax.nn.initializers.orthogonal()(key, shape, wide).astype(dtype)


@dataclass(frozen=True)
class Recurrent(Ordered):
    """The base class of `FractionalLSTM` and `FractionalGRU`: their fields and calls."""

    in_features: int
    hidden_features: int
    num_layers: int = 1
    use_bias: bool = True
    dropout_rate: float = 0.0
    bidirectional: bool = False
    _: KW_ONLY
    alpha: float | Sequence[float] | Alpha = 0.5
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    memory: int | None = None
    dim: int = -2
    dtype: Any = None
    kernel_init: Initializer = kernel_init
    recurrent_kernel_init: Initializer = orthogonal_init
    bias_init: Initializer = BIAS_INIT

    kind: ClassVar[str]
    proj_size = 0

    def __post_init__(self) -> None:
        owner = type(self).__name__
        settle_fields(owner, self)
        if self.proj_size >= self.hidden_features:
            raise ValueError(
                f"{owner}(proj_size={self.proj_size}, hidden_features={self.hidden_features}): needs fewer outputs "
                "than units; pass 0 for none."
            )
        units = self.hidden_features
        self.settle_order(
            owner, GrunwaldLetnikov(0.5), lambda given: unit_orders(owner, given, "hidden_features", units)
        )
        settle(self, definition=averaging(owner, self.definition))

    @property
    def cell(self) -> Cell:
        """The formulas of one step, of an LSTM or a GRU."""
        return CELLS[self.kind]

    @property
    def out_features(self) -> int:
        """Outputs of one cell."""
        return self.proj_size or self.hidden_features

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cells' parameters, layer by layer; in a layer the reversed direction comes second."""
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return tuple(f"layer_{layer}{direction}" for layer in range(self.num_layers) for direction in directions)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return first parameters, drawn as Flax's cells draw theirs, and those of a learned order.

        Args:
            key: Randomness of the draws.
            param_dtype: The dtype of all parameters.
        """
        *each, last = keys(type(self).__name__, key, len(self.names) + 1)
        width = self.in_features
        made = {}
        for number, (name, own) in enumerate(zip(self.names, each, strict=True)):
            if number >= self._directions:
                width = self.out_features * self._directions
            made[name] = self._cell_params(own, width, param_dtype)
        return {**made, **self._order_params(last, param_dtype)}

    def initial_state(
        self, params: Params, shape: Sequence[int], *, initial_carry: Any = None, horizon: int = HORIZON
    ) -> RecurrentState:
        """Return the state before the first sample, for `step` or as a call's `initial_carry`.

        Args:
            params: From `init`; their dtype is read.
            shape: Of x without its time axis, (*batch, in_features).
            initial_carry: As in a call; None is 0.
            horizon: The longest series that the state will serve, where the whole past counts: beyond the horizon the
                weights of the oldest lags lose their accuracy. A step costs in proportion to the horizon's logarithm.
        """
        owner = f"{type(self).__name__}.initial_state"
        shape = tuple(errors.count(owner, "shape", size, least=0) for size in shape)
        if not shape or shape[-1] != self.in_features:
            raise ValueError(
                f"{owner}(shape={shape}): needs (*batch, {self.in_features}), the shape of x without its time axis."
            )
        horizon, dtype = errors.count(owner, "horizon", horizon), self._computed(params, None)
        start = self._start(owner, shape[:-1], initial_carry, dtype)
        return start if isinstance(start, RecurrentState) else start.state(self._lags(horizon, dtype), horizon)

    def step(
        self, params: Params, x: Array, state: RecurrentState, *, key: Array | None = None
    ) -> tuple[Array, RecurrentState]:
        """Return the outputs of the next step and the state after it.

        Fed one sample after another, the outputs are those of the whole series, to 1e-10 in float64. Time and memory
        of a step do not grow with the number of steps.

        Args:
            params: From `init`.
            x: One time slice, [*batch, in_features].
            state: From `initial_state`, from a call that returned it, or from the step before.
            key: For a random order, the same at every step of a stream; None is its mean.
        """
        owner = f"{type(self).__name__}.step"
        self._check_one_way(owner, "one sample at a time")
        x = of_numpy(x)
        check_features(owner, x, self.in_features)
        check_is_state(owner, state, RecurrentState)
        dtype = self._computed(params, x)
        start = self._start(owner, x.shape[:-1], state, dtype)
        lags = self._lags(state.horizon, dtype)
        taps = lags.taps(self.definition, self._present(params, key), 1, dtype)
        out, ends = x.reshape(math.prod(x.shape[:-1]), self.in_features), []
        for number, name in enumerate(self.names):
            weights, projected = self._weights(params[name], out, dtype)
            ends.append(one_step(self.cell, weights, projected, start.cell(number, lags), lags, taps))
            out = ends[-1].h
        out = out.astype(self._returned(params, x)).reshape(*x.shape[:-1], self.out_features)
        return out, stacked(ends, x.shape[:-1], state.horizon)

    def run(
        self, params: Params, x: Array, state: RecurrentState | None = None, *, key: Array | None = None
    ) -> tuple[Array, RecurrentState]:
        """Return the outputs for the next samples of a series and the state after them; nothing is dropped.

        A run is a call with the state as `initial_carry`, and `return_carry=True`.

        Args:
            params: From `init`.
            x: The next samples, as a call takes them; any number.
            state: From `initial_state`, `step` or the block before; None begins a series.
            key: As in `step`.
        """
        owner, x = f"{type(self).__name__}.run", of_numpy(x)
        self._check_one_way(owner, "in blocks")
        check_features(owner, x, self.in_features)
        axis = errors.axis(owner, self.dim, x.ndim)
        if state is None:
            state = self.initial_state(params, (*x.shape[:axis], *x.shape[axis + 1 :]))
        check_is_state(owner, state, RecurrentState)
        if x.shape[axis] == 0:
            return jnp.zeros((*x.shape[:-1], self.out_features), self._returned(params, x)), state
        state, out = self(params, x, initial_carry=state, return_carry=True, key=key)
        return out, state

    def __call__(
        self,
        params: Params,
        x: Array,
        *,
        initial_carry: Any = None,
        seq_lengths: Array | None = None,
        return_carry: bool = False,
        key: Array | None = None,
        dropout_key: Array | None = None,
    ) -> Any:
        """Return the outputs of the last layer at all steps; with `return_carry` the pair (state, outputs).

        Args:
            params: From `init`.
            x: [..., n, ..., in_features], time on `dim`.
            initial_carry: A `RecurrentState`, from which the series goes on exactly; or the start of an ordinary cell.
            seq_lengths: Steps of each series, [*batch]; None: all. What x holds behind them, which may be NaN, is not
                read: outputs there go on with zeros. Traced ones out of range are clamped to 0 and n, or under
                `jax.experimental.checkify` an error.
            return_carry: Whether the state after the last step of each series is returned too.
            key: For a random order; None is its mean.
            dropout_key: For dropout between layers; None is no dropout.
        """
        owner, x = type(self).__name__, of_numpy(x)
        series = opened(owner, x, self.dim, self.in_features, seq_lengths)
        dtype = self._computed(params, x)
        start = self._start(owner, series.batch, initial_carry, dtype)
        if return_carry and not isinstance(start, RecurrentState):
            start = start.state(self._lags(HORIZON, dtype), HORIZON)
        n = series.x.shape[0]
        lags = self._lags(start.horizon if isinstance(start, RecurrentState) else n, dtype)
        taps = lags.taps(self.definition, self._present(params, key), block_of(n), dtype)
        out, ends = series.x, []
        for layer in range(self.num_layers):
            out = self._dropped(out, dropout_key, layer)
            found = []
            for direction in range(self._directions):
                number = layer * self._directions + direction
                given = series.reversed(out) if direction else out
                weights, projected = self._weights(params[self.names[number]], given, dtype)
                before = start.cell(number, lags)
                made = recurrence(self.cell, weights, projected, before, lags, taps)
                found.append(series.reversed(made.out) if direction else made.out)
                if return_carry:
                    ends.append(after(made, before, lags, series.steps))
            out = unplaced(partial(jnp.concatenate, axis=-1), found)
        result = series.closed(out.astype(self._returned(params, x)))
        if not isinstance(start, RecurrentState) or not return_carry:
            return result
        return stacked(ends, series.batch, start.horizon), result

    def _check_one_way(self, owner: str, how: str) -> None:
        """Raise ValueError if the layer is bidirectional; `how` says in the message how a series was to be computed."""
        if self.bidirectional:
            raise ValueError(
                f"{owner}: needs bidirectional=False {how}, because the other direction begins at the last sample; use "
                "the whole series."
            )

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _lags(self, n: int, dtype: Any) -> Lags:
        return lags_of(self.definition, n, dtype, self.memory, is_learned=self.order is not None)

    def _computed(self, params: Params, x: Array | None) -> Any:
        """Return the dtype of the computation: that of the result for the input x, or float32 for half precision."""
        return at_least_single(self._returned(params, x))

    def _returned(self, params: Params, x: Array | None) -> Any:
        """Return the dtype of the result.

        The dtype is the field `dtype`, or where this field is None the parameters' dtype, promoted with that of x where
        x is not None.
        """
        if self.dtype is not None:
            return jnp.dtype(self.dtype)
        kernel = params[self.names[0]]["dense_h"]["kernel"].dtype
        return kernel if x is None else jnp.promote_types(kernel, x.dtype)

    def _start(self, owner: str, batch: tuple[int, ...], given: Any, dtype: Any) -> RecurrentState | Start:
        """Return a call's `initial_carry` in the dtype of the computation, as a state or a Start.

        Args:
            owner: The class, for messages.
            batch: Batch axes of the input.
            given: The argument: a state, from which a series goes on, or h, or (c, h), or None for zeros.
            dtype: The dtype of the computation.

        Raises:
            TypeError: `given` is none of these.
            ValueError: Its arrays do not have the shapes of this layer and batch.
        """
        cells = (*batch, len(self.names))
        shapes = (*cells, self.out_features), (*cells, self.hidden_features)
        if not isinstance(given, RecurrentState):
            return read_start(owner, given, shapes, "h" if self.kind == "gru" else "(c, h)", dtype)
        lags = self._lags(given.horizon, dtype)
        rows = ((*cells, count, self.hidden_features) for count in (lags.exact, lags.rates.size))
        check_state(owner, given, (*shapes, *rows))
        return jax.tree.map(lambda each: each.astype(dtype), given)

    def _weights(self, cell: Params, x: Array, dtype: Any) -> tuple[Weights, Array]:
        """Return the recurrent weights of a cell, and the input's part of its gates, [..., gates * units].

        Args:
            cell: The cell's parameters.
            x: The cell's inputs, [..., inputs].
            dtype: The dtype of the computation.
        """
        cast = jax.tree.map(lambda each: each.astype(dtype), cell)
        hidden, bias = cast["dense_h"], cast["dense_h"].get("bias")
        projected = x.astype(dtype) @ cast["dense_i"]["kernel"]
        own, axes = cast["dense_i"].get("bias"), tuple(range(projected.ndim - 1))
        if own is not None:
            projected = projected + jnp.expand_dims(own, axes)
        elif bias is not None:  # an LSTM has one bias, that of its outputs' part
            projected, bias = projected + jnp.expand_dims(bias, axes), None
        projection = cast["projection"]["kernel"] if "projection" in cast else None
        return Weights(hidden["kernel"], bias, projection), projected

    def _cell_params(self, key: Array, width: int, dtype: Any) -> Params:
        """Return first parameters of one cell, that of one layer and direction, for inputs of `width` features."""
        gates, units = self.cell.gates, self.hidden_features
        of_input, of_output, of_projection, of_bias = jax.random.split(key, 4)
        dense_i = {"kernel": self.kernel_init(of_input, (width, gates * units), dtype)}
        dense_h = {"kernel": self.recurrent_kernel_init(of_output, (self.out_features, gates * units), dtype)}
        if self.use_bias:
            first, second = jax.random.split(of_bias)
            if self.kind == "gru":
                dense_i["bias"] = self.bias_init(first, (3 * units,), dtype)
                dense_h["bias"] = self.bias_init(second, (units,), dtype)
            else:
                dense_h["bias"] = self.bias_init(first, (4 * units,), dtype)
        made: Params = {"dense_i": dense_i, "dense_h": dense_h}
        if self.proj_size:
            made["projection"] = {"kernel": self.kernel_init(of_projection, (units, self.proj_size), dtype)}
        return made

    def _dropped(self, x: Array, key: Array | None, layer: int) -> Array:
        """Return the input of layer number `layer` after dropout; unchanged for the first layer or without a key."""
        if layer == 0 or key is None or not self.dropout_rate:
            return x
        share = 1 - self.dropout_rate
        kept = jax.random.bernoulli(jax.random.fold_in(key, layer), share, x.shape)
        return jnp.where(kept, x / share if share else x, 0)


@dataclass(frozen=True)
class FractionalLSTM(Recurrent):
    """Flax's LSTM whose forget gate looks at a power-law average of all past cell states, not at the last one.

        c_t = f_t * m_t + i_t * tanh(...),
        m_t = sum over k >= 1 of a_k c_(t-k),    a_k = -w_k(alpha),

    where w_k are Grünwald's weights, `(1 - z)**alpha = sum of w_k z**k`; gates, candidate and output
    `h_t = o_t * tanh(c_t)` are those of `flax.nnx.OptimizedLSTMCell`. For 0 < alpha <= 1 no a_k is negative and they
    add up to 1: m is an average, in which lag k counts about `alpha k**(-1-alpha) / Gamma(1 - alpha)`. At alpha = 1 it
    is c_(t-1), and the layer is Flax's. c_0 is the one state before the series; what would be before it is 0.

    With `memory=None` the whole past counts, in time O(n) and O(1) memory per unit of a state: by exponentials whose
    error is below 1e-7 of a weight in float32 and 1e-11 in float64. With `memory=K` the sum ends at lag K, where it is
    exact. There is one algorithm, a scan over blocks of steps, and nothing to choose for the BackendManager.

    Parameters, for each layer and direction under "layer_0", "layer_0_reverse", "layer_1", ..., with
    gates in the order i, f, g, o:

        dense_i  kernel [inputs, 4 * hidden_features]
        dense_h  kernel [outputs, 4 * hidden_features], bias [4 * hidden_features]
        projection  kernel [hidden_features, proj_size], where there is one

    and a learned order as {"order": {"raw": ...}}. dense_i and dense_h are those of `flax.nnx.OptimizedLSTMCell`.

    Attributes:
        in_features: Inputs.
        hidden_features: Units.
        num_layers: Layers, each on the outputs of the one before.
        use_bias: Whether gates have a bias.
        dropout_rate: Of the outputs of all layers but the last, where there is randomness for it.
        bidirectional: Whether a second set of units reads the series from its end.
        proj_size: Outputs per direction, where they are a projection of the units; 0 is none.
        alpha: The order, one for all units of all layers and directions, or a list with one for each unit; or an
            `Alpha` of shape [] or [hidden_features], which then is the layer's order.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays, within (0, 1), which is the default.
        memory: The largest lag that counts, or None for all.
        dim: The time axis.
        dtype: What is computed in, None for that of inputs and parameters; half precision is computed in float32 and
            cast at the end. Weights of alpha are computed in float64 whatever it is.
        kernel_init: Draws the inputs' kernels.
        recurrent_kernel_init: Draws the outputs' kernels.
        bias_init: Draws the biases.

    Raises:
        ValueError: An argument is out of range, alpha outside 0 < alpha <= 1 among them.
        TypeError: An argument has the wrong type.

    Source: Zhao et al., Do RNN and LSTM have long memory?, ICML 2020, arXiv 2006.03860.

    Examples:
        >>> core = fjx.functional.FractionalLSTM(3, 16, alpha=0.6, learn_alpha=True)
        >>> params = core.init(jax.random.key(0))
        >>> core(params, jnp.ones((8, 100, 3))).shape
        (8, 100, 16)
    """

    proj_size: int = 0

    kind: ClassVar[str] = "lstm"


@dataclass(frozen=True)
class FractionalGRU(Recurrent):
    """Flax's GRU whose update gate mixes in a power-law average of all past outputs, not the last one.

        h_t = (1 - z_t) * n_t + z_t * m_t,
        m_t = sum over k >= 1 of a_k h_(t-k),    a_k = -w_k(alpha),

    with the weights of `FractionalLSTM`; the gates and n_t, which see h_(t-1), are those of `flax.linen.GRUCell`. At
    alpha = 1 it is Flax's layer. The paper has no such cell: it is the same change to a cell that has no state beside
    its output.

    Parameters, for each layer and direction under "layer_0", "layer_0_reverse", "layer_1", ..., with
    gates in the order r, z, n:

        dense_i  kernel [inputs, 3 * hidden_features], bias [3 * hidden_features]
        dense_h  kernel [hidden_features, 3 * hidden_features], bias [hidden_features], of n

    and a learned order as {"order": {"raw": ...}}. `flax.nnx.GRUCell` is the same without the bias of dense_h.

    Attributes:
        in_features: As in `FractionalLSTM`, as are all others.
        hidden_features: As in `FractionalLSTM`.
        num_layers: As in `FractionalLSTM`.
        use_bias: As in `FractionalLSTM`.
        dropout_rate: As in `FractionalLSTM`.
        bidirectional: As in `FractionalLSTM`.
        alpha: As in `FractionalLSTM`.
        learn_alpha: As in `FractionalLSTM`.
        bounds: As in `FractionalLSTM`.
        memory: As in `FractionalLSTM`.
        dim: As in `FractionalLSTM`.
        dtype: As in `FractionalLSTM`.
        kernel_init: As in `FractionalLSTM`.
        recurrent_kernel_init: As in `FractionalLSTM`.
        bias_init: As in `FractionalLSTM`.

    Raises:
        ValueError: An argument is out of range, alpha outside 0 < alpha <= 1 among them.
        TypeError: An argument has the wrong type.

    Source: Zhao et al., Do RNN and LSTM have long memory?, ICML 2020, arXiv 2006.03860.

    Examples:
        >>> core = fjx.functional.FractionalGRU(3, 16, alpha=0.6)
        >>> core(core.init(jax.random.key(0)), jnp.ones((8, 100, 3))).shape
        (8, 100, 16)
    """

    kind: ClassVar[str] = "gru"


class Series(NamedTuple):
    """A batch of series, time first, made of the caller's input.

    Attributes:
        x: The inputs, [n, batch, features], with zeros behind the end of shorter series.
        batch: The lengths of the batch axes in the caller's input.
        axis: The time axis of the caller's input.
        lengths: Steps of each series, [batch], or None where all have n.
    """

    x: Array
    batch: tuple[int, ...]
    axis: int
    lengths: Array | None

    @property
    def steps(self) -> Array:
        """How many steps each series has, [batch]."""
        n, count = self.x.shape[:2]
        return jnp.full(count, n) if self.lengths is None else self.lengths

    def reversed(self, x: Array) -> Array:
        """Return x, [n, batch, ...], with each series reversed in time within its length; padding stays in place."""
        if self.lengths is None:
            return jnp.flip(x, 0)
        step = jnp.arange(x.shape[0])[:, None]
        index = jnp.where(step < self.lengths[None], self.lengths[None] - 1 - step, step)
        return jnp.take_along_axis(x, index[..., None], axis=0)

    def closed(self, out: Array) -> Array:
        """Return outputs, [n, batch, features], with the batch and time axes of the caller's input."""
        return jnp.moveaxis(out.reshape(out.shape[0], *self.batch, out.shape[-1]), 0, self.axis)


def opened(owner: str, x: Any, dim: int, features: int, lengths: Any) -> Series:
    """Return the caller's input as a Series.

    Args:
        owner: The layer, for messages.
        x: The input, [..., n, ..., features].
        dim: The time axis of x.
        features: The number of features that the layer takes.
        lengths: Steps of each series, integers of the shape of the batch; None: all.

    Raises:
        TypeError: x is no real floating array.
        ValueError: x has another number of features, time on its last axis, or no step; or lengths are wrong.
    """
    check_features(owner, x, features)
    axis = errors.axis(owner, dim, x.ndim)
    if axis == x.ndim - 1:
        raise ValueError(
            f"{owner}(dim={dim}, x of shape {x.shape}): needs a time axis before that of the features, the last; "
            "pass for example dim=-2."
        )
    first = jnp.moveaxis(x, axis, 0)
    n, batch = first.shape[0], first.shape[1:-1]
    if n == 0:
        raise ValueError(f"{owner}(x of shape {x.shape}): needs at least one step; pass a longer series.")
    if lengths is not None:
        given, lengths = lengths, jnp.asarray(lengths)
        if lengths.shape != batch or not jnp.issubdtype(lengths.dtype, jnp.integer):
            raise ValueError(
                f"{owner}(seq_lengths of shape {lengths.shape}, {lengths.dtype}): needs whole numbers, one for each "
                f"series, of shape {batch}; pass how many steps each has."
            )
        lengths = jnp.clip(_checked_lengths(owner, given, n).reshape(-1).astype(int), 0, n)
    first = first.reshape(n, math.prod(batch), features)
    if lengths is not None:
        # The padding of a series may be anything: NaN times a gradient of 0 would be NaN.
        first = jnp.where((jnp.arange(n)[:, None] < lengths[None])[..., None], first, 0)
    return Series(first, batch, axis, lengths)


def check_features(owner: str, x: Any, features: int) -> None:
    """Raise unless x is a floating JAX array whose last axis has length `features`."""
    if not isinstance(x, jax.Array) or not jnp.issubdtype(x.dtype, jnp.floating):
        given = f"dtype {x.dtype}" if hasattr(x, "dtype") else f"type {type(x).__name__}"
        raise TypeError(f"{owner}(x of {given}): needs a real floating array of JAX; pass jnp.asarray(x, jnp.float32).")
    if x.ndim == 0 or x.shape[-1] != features:
        raise ValueError(
            f"{owner}(in_features={features}): needs {features} inputs on the last axis; x has shape {x.shape}, "
            f"pass in_features={x.shape[-1] if x.ndim else 1}."
        )


def _checked_lengths(owner: str, lengths: Any, n: int) -> Array:
    """Return the lengths of series as an array; raise ValueError unless 0 <= length <= n, the number of steps.

    Traced lengths are checked under `checkify` only.
    """
    rule = f"needs 0 <= length <= {n}, the steps of x"
    if isinstance(lengths, jax.core.Tracer):
        return checked(lengths, ((lengths >= 0) & (lengths <= n)).all(), f"{owner}(seq_lengths): {rule}.")
    known = np.asarray(lengths)
    if ((known < 0) | (known > n)).any():
        raise ValueError(f"{owner}(seq_lengths={known.tolist()}): {rule}; pass how many steps each series has.")
    return jnp.asarray(lengths)


@versioned
@dataclass(frozen=True)
class RecurrentState:
    """The state of a recurrent layer between two steps, or two parts of a series: all of its past.

    A state is made by `initial_state`, returned by a call with `return_carry=True`, and is a pytree of arrays with the
    batch first, which `lax.scan` carries. It takes as much memory after a million steps as at the first, and does not
    depend on alpha: a series that goes on with other parameters weighs the whole past by the new order.

    Attributes:
        h: The last output of each cell, [*batch, cells, outputs]; cells are layers times directions.
        value: The last state of each cell, [*batch, cells, units]: c of an LSTM, h of a GRU.
        near: The last K cell states, newest first, [*batch, cells, K, units].
        far: Sums over the older cell states, by exponential, [*batch, cells, Q, units].
        horizon: The longest series that the exponentials are fitted for.
    """

    h: Array
    value: Array
    near: Array
    far: Array
    horizon: int

    @property
    def nbytes(self) -> int:
        """Bytes of the state's arrays, the same at every step."""
        return sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(self))

    def cell(self, number: int, lags: Lags) -> Before:
        """Return cell `number`'s part of the state as a carry, with a single batch axis; `lags` is not needed here."""
        h, value = (_joined(each[..., number, :], 1) for each in (self.h, self.value))
        near, far = (_joined(each[..., number, :, :], 2) for each in (self.near, self.far))
        return Before(h, value, Past(near, far))


jax.tree_util.register_dataclass(RecurrentState, data_fields=["h", "value", "near", "far"], meta_fields=["horizon"])
serializable(RecurrentState, "h", "value", "near", "far", "horizon")


class Start(NamedTuple):
    """An initial state as ordinary cells have it: an output and one cell state; all earlier cell states are 0.

    Attributes:
        h: The output of each cell, [*batch, cells, outputs].
        value: The state of each cell, [*batch, cells, units].
    """

    h: Array
    value: Array

    def cell(self, number: int, lags: Lags) -> Before:
        """Return cell `number`'s part as a carry, with a single batch axis; `lags` says how its past is kept."""
        h, value = (_joined(each[..., number, :], 1) for each in self)
        return Before(h, value, lags.begun(value))

    def state(self, lags: Lags, horizon: int) -> RecurrentState:
        """Return the initial state as a RecurrentState, whose past is kept as `lags` says."""
        batch = self.value.shape[:-1]
        near, far = (each.reshape(*batch, *each.shape[1:]) for each in lags.begun(_joined(self.value, 1)))
        return RecurrentState(self.h, self.value, near, far, horizon)


def stacked(befores: Sequence[Before], batch: tuple[int, ...], horizon: int) -> RecurrentState:
    """Return the RecurrentState of all cells from the carry of each, whose single batch axis becomes `batch`."""
    flat = [(h, value, *past) for h, value, past in befores]
    parts = (unplaced(partial(jnp.stack, axis=1), each) for each in zip(*flat, strict=True))
    h, value, near, far = (each.reshape(*batch, *each.shape[1:]) for each in parts)
    return RecurrentState(h, value, near, far, horizon)


def read_start(owner: str, given: Any, shapes: Sequence[tuple[int, ...]], names: str, dtype: Any) -> Start:
    """Return the argument `initial_carry` of a call, if it is no RecurrentState, as a Start.

    Args:
        owner: The layer, for messages.
        given: None for zeros, c and h of an LSTM in Flax's order, (c, h), or h of a GRU; each of the shape in `shapes`,
            or without the axis of the cells where there is one cell.
        shapes: The shapes of h and of the cell state, (*batch, cells, ...) each.
        names: "(c, h)" for an LSTM, "h" for a GRU.
        dtype: The dtype of the result.

    Raises:
        TypeError: `given` is none of these.
        ValueError: An array has another shape.
    """
    if given is None:
        return Start(*(jnp.zeros(shape, dtype) for shape in shapes))
    parts = (given, given) if names == "h" else given
    if not isinstance(parts, tuple | list) or len(parts) != 2 or not all(hasattr(each, "shape") for each in parts):
        raise TypeError(
            f"{owner}(initial_carry of type {type(given).__name__}): needs a state, or {names}; "
            "pass what initial_state returned, or None for zeros."
        )
    found = []
    for each, shape in zip(reversed(parts), shapes, strict=True):
        whole = each[..., None, :] if shape[-2] == 1 and each.ndim == len(shape) - 1 else each
        if whole.shape != shape:
            raise ValueError(
                f"{owner}(initial_carry of shape {each.shape}): needs {shape}, the batch first, then one row for each "
                "layer and direction; pass None for zeros."
            )
        found.append(whole.astype(dtype))
    return Start(*found)


def check_state(owner: str, state: RecurrentState, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError unless the arrays h, value, near and far of a state have these shapes, in this order."""
    for name, wanted in zip(("h", "value", "near", "far"), shapes, strict=True):
        found = getattr(state, name).shape
        if found != wanted:
            raise ValueError(
                f"{owner}(state with {name} of shape {found}): needs {wanted}; pass what the layer's own initial_state "
                "returned for such a batch."
            )


def _joined(x: Array, kept: int) -> Array:
    """Return x with all axes but the last `kept` flattened into one."""
    rest = x.ndim - kept
    return x.reshape(math.prod(x.shape[:rest]), *x.shape[rest:])
