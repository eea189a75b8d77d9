"""What the recurrent layers for Flax share: parameters, layers and directions, series in parts and one step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import jax
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.jax.arrays import at_least_single, of_numpy
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.fractional.streaming import HORIZON
from hpfracc_nn.layers.flax.functional.core import Array, Initializer, Params, check_fields, hashable, keys, settle
from hpfracc_nn.layers.flax.functional.order import Ordered, started
from hpfracc_nn.layers.flax.functional.recurrent.cells import CELLS, Cell, Weights
from hpfracc_nn.layers.flax.functional.recurrent.memory import Lags, lags_of
from hpfracc_nn.layers.flax.functional.recurrent.run import after, block_of, one_step, recurrence
from hpfracc_nn.layers.flax.functional.recurrent.series import check_features, opened
from hpfracc_nn.layers.flax.functional.recurrent.state import RecurrentState, Start, check_state, read_start, stacked
from hpfracc_nn.layers.recurrence import averaging


def orthogonal_init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return a first kernel of the outputs as Flax draws it, in half precision by a decomposition in single."""
    wide = at_least_single(dtype)
    return jax.nn.initializers.orthogonal()(key, shape, wide).astype(dtype)


class Recurrent(Ordered):
    """The layers' own part; see `FractionalLSTM` and `FractionalGRU`, which have the fields."""

    kind: ClassVar[str]
    in_features: int
    hidden_features: int
    num_layers: int
    use_bias: bool
    dropout_rate: float
    bidirectional: bool
    alpha: Any
    learn_alpha: bool
    bounds: tuple[float, float] | None
    memory: int | None
    dim: int
    dtype: Any
    kernel_init: Initializer
    recurrent_kernel_init: Initializer
    bias_init: Initializer
    proj_size: int = 0

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_fields(owner, self)
        for name in ("in_features", "hidden_features", "num_layers"):
            settle(self, **{name: errors.count(owner, name, getattr(self, name))})
        rate = errors.part(owner, "dropout_rate", self.dropout_rate)
        proj_size = errors.count(owner, "proj_size", self.proj_size, least=0)
        if proj_size >= self.hidden_features:
            raise ValueError(
                f"{owner}(proj_size={proj_size}, hidden_features={self.hidden_features}): needs fewer outputs than "
                "units; pass 0 for none."
            )
        settle(self, alpha=hashable(self.alpha), bounds=hashable(self.bounds), dropout_rate=rate, proj_size=proj_size)
        settle(self, memory=None if self.memory is None else errors.count(owner, "memory", self.memory))
        given = GrunwaldLetnikov(0.5)
        how = {"bounds": self.bounds, "learn_alpha": self.learn_alpha, "shape": self._order_shape}
        definition, order = started(owner, given, self.alpha, **how)  # type: ignore[arg-type]
        settle(self, definition=averaging(owner, definition), order=order, learn_alpha=order is not None)

    @property
    def cell(self) -> Cell:
        """One step of it."""
        return CELLS[self.kind]

    @property
    def out_features(self) -> int:
        """Outputs of one cell."""
        return self.proj_size or self.hidden_features

    @property
    def names(self) -> tuple[str, ...]:
        """Of the cells' parameters: layer by layer, and in each the direction from the end second."""
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return tuple(f"layer_{layer}{direction}" for layer in range(self.num_layers) for direction in directions)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return first parameters, drawn as Flax's cells draw theirs, and those of a learned order.

        Args:
            key: Of the draws.
            param_dtype: Of all of them.
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
            horizon: The longest series that it will serve, where the whole past counts: beyond it the weights of the
                oldest lags lose their accuracy. A step costs in proportion to its logarithm.
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
        if self.bidirectional:
            raise ValueError(
                f"{owner}: needs bidirectional=False one sample at a time, because the other direction begins at the "
                "last sample; use the whole series."
            )
        x = of_numpy(x)
        check_features(owner, x, self.in_features)
        if not isinstance(state, RecurrentState):
            raise TypeError(
                f"{owner}(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
            )
        dtype = self._computed(params, x)
        start = self._start(owner, x.shape[:-1], state, dtype)
        lags = self._lags(state.horizon, dtype)
        taps = lags.taps(self.definition, self._order_now(params, key), 1, dtype)
        out, ends = x.reshape(math.prod(x.shape[:-1]), self.in_features), []
        for number, name in enumerate(self.names):
            weights, projected = self._weights(params[name], out, dtype)
            ends.append(one_step(self.cell, weights, projected, start.cell(number, lags), lags, taps))
            out = ends[-1].h
        out = out.astype(self._returned(params, x)).reshape(*x.shape[:-1], self.out_features)
        return out, stacked(ends, x.shape[:-1], state.horizon)

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
        """Return the outputs of the last layer at all steps; with `return_carry` the pair of the state and these.

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
        taps = lags.taps(self.definition, self._order_now(params, key), block_of(n), dtype)
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

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _order_shape(self, given: tuple[int, ...]) -> tuple[int, ...]:
        if given not in ((), (self.hidden_features,)):
            raise ValueError(
                f"{type(self).__name__}(alpha of shape {given}): needs one order, or a flat list with one for each of "
                f"the hidden_features={self.hidden_features} units."
            )
        return given

    def _order_now(self, params: Params, key: Array | None) -> Array | None:
        """The learned order, or None."""
        return None if self.order is None else self._present(params, key)

    def _lags(self, n: int, dtype: Any) -> Lags:
        return lags_of(self.definition, n, dtype, self.memory, is_learned=self.order is not None)

    def _computed(self, params: Params, x: Array | None) -> Any:
        """The dtype of the computation: half precision is computed in float32."""
        return at_least_single(self._returned(params, x))

    def _returned(self, params: Params, x: Array | None) -> Any:
        """The dtype of the result."""
        if self.dtype is not None:
            return jnp.dtype(self.dtype)
        kernel = params[self.names[0]]["dense_h"]["kernel"].dtype
        return kernel if x is None else jnp.promote_types(kernel, x.dtype)

    def _start(self, owner: str, batch: tuple[int, ...], given: Any, dtype: Any) -> RecurrentState | Start:
        """What a caller gave as the start, in the dtype of the computation."""
        cells = (*batch, len(self.names))
        shapes = (*cells, self.out_features), (*cells, self.hidden_features)
        if not isinstance(given, RecurrentState):
            return read_start(owner, given, shapes, "h" if self.kind == "gru" else "(c, h)", dtype)
        lags = self._lags(given.horizon, dtype)
        rows = ((*cells, count, self.hidden_features) for count in (lags.exact, lags.rates.size))
        check_state(owner, given, (*shapes, *rows))
        return jax.tree.map(lambda each: each.astype(dtype), given)

    def _weights(self, cell: Params, x: Array, dtype: Any) -> tuple[Weights, Array]:
        """What a cell multiplies its outputs with, and the input's part of its gates."""
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
        """First parameters of a cell with so many inputs."""
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
        """The inputs of a layer: the outputs of the one before, some of them zeros."""
        if layer == 0 or key is None or not self.dropout_rate:
            return x
        share = 1 - self.dropout_rate
        kept = jax.random.bernoulli(jax.random.fold_in(key, layer), share, x.shape)
        return jnp.where(kept, x / share if share else x, 0)
