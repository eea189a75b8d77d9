"""Power-law attention for Flax: weights that fall like a power of the distance, with a fixed or a learned order.

`params` are a layer's parameters, nested dicts of arrays; a `key` is JAX's, for a random order, None for its mean; and
`owner` is the class or function that messages name. See `core` for the conventions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array, computed_in, of_numpy
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.fractional.streaming import versioned
from hpfracc_nn.layers.flax.functional.attention_ops import Attention, Inputs, attended
from hpfracc_nn.layers.flax.functional.core import (
    BIAS_INIT,
    Alpha,
    Initializer,
    Params,
    WithOrder,
    kernel_init,
    keys,
    serializable,
    settle,
    settle_fields,
)
from hpfracc_nn.layers.order import attention_bounds, attention_orders
from hpfracc_nn.layers.shapes import check_heads, check_is_state
from hpfracc_nn.selection import BackendManager

_OWNER = "FractionalAttention"


@dataclass(frozen=True)
class FractionalAttention(WithOrder):
    """Flax's `MultiHeadAttention` whose weights fall like a power of the distance between query and key.

    The weights of query i are those of a step of a Levy flight of index alpha in `dimension` = D dimensions,

        A_ij = phi(d_ij) exp(b_ij) / sum_m phi(d_im) exp(b_im),
        phi(d) = (1 + d / sqrt(bandwidth))**-(D + alpha)   for 0 < alpha < 2,
        phi(d) = exp(-d**2 / bandwidth)                    for alpha = 2, Brownian motion,

    with b the bias. d is the Euclidean distance of query and key after all keys were lifted to one sphere,

        d_ij**2 = |q_i|**2 + R_i**2 - 2 q_i . k_j,   R_i the greatest |k_j| that query i sees.

    At alpha = 2 the terms that do not depend on j cancel, and with the default bandwidth 2 sqrt(head_dim) it is Flax's
    `dot_product_attention` with the same weights, to rounding. The family jumps at alpha = 2: the power law has the
    exponent D + 2 there. A learned alpha stays below.

    The BackendManager chooses when the call is traced: "dense" has the weights of all queries at once; "blocks" takes
    memory for queries and keys, not for their product, unless the weights are asked for.

    Parameters, as in Flax's layer: `query`, `key` and `value` with a kernel [features, num_heads, head_dim] and a bias
    [num_heads, head_dim], `out` with a kernel [num_heads, head_dim, in_features] and a bias [in_features]; `bias_k` and
    `bias_v`, [num_heads, head_dim], where a key and a value are added; and a learned order as {"order": {"raw": ...}}.

    Attributes:
        in_features: Features of queries and of the result, and of keys and values unless they have their own.
        num_heads: The number of heads, which share the features.
        dropout_rate: The part of the weights that is dropped, where there is randomness for it.
        use_bias: Whether the projections have a bias.
        add_bias_kv: Whether a learned key and value are added to those of each sequence.
        add_zero_attn: Whether a key and value of zeros are added to those of each sequence.
        kdim: Features of keys; None is in_features.
        vdim: Features of values; None is in_features.
        alpha: The order, or one for each head, in (0, 2]; 2 is ordinary attention, for all heads or none. Or an `Alpha`
            of shape [] or [num_heads], which then is the layer's order, with its own bounds.
        learn_alpha: Whether alpha is a parameter, within (0, 2); an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is (0, 2).
        dimension: D; None is head_dim. The smaller it is, the more alpha counts.
        bandwidth: The square of the distance where the power law sets in; None is 2 sqrt(head_dim).
        dim: The time axis.
        dtype: What is computed in; None promotes inputs and parameters. Half precision is averaged in float32.
        kernel_init: Draws all kernels.
        bias_init: Draws the biases.
        manager: Who chooses the kernel; None is the process-wide BackendManager.

    Raises:
        ValueError: An argument is out of range or of the wrong shape.
        TypeError: An argument has the wrong type.

    Source: Qu, Ly & Gong, Fractional neural attention for efficient multiscale sequence processing, arXiv 2511.10208
        (2025): see the layer for PyTorch. The lift is that of Bachrach et al., RecSys (2014) 257.

    Examples:
        >>> core = fjx.functional.FractionalAttention(32, 4, alpha=1.2, learn_alpha=True)
        >>> core(core.init(jax.random.key(0)), jnp.ones((8, 50, 32)), is_causal=True).shape
        (8, 50, 32)
    """

    in_features: int
    num_heads: int
    dropout_rate: float = 0.0
    use_bias: bool = True
    add_bias_kv: bool = False
    add_zero_attn: bool = False
    kdim: int | None = None
    vdim: int | None = None
    _: KW_ONLY
    alpha: float | Sequence[float] | Alpha = 1.5
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    dimension: float | None = None
    bandwidth: float | None = None
    dim: int = -2
    dtype: Any = None
    kernel_init: Initializer = kernel_init
    bias_init: Initializer = BIAS_INIT
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        settle_fields(_OWNER, self)
        features, size = self.in_features, self.head_dim
        check_heads(_OWNER, "in_features", features, self.num_heads)
        bandwidth = 2 * math.sqrt(size) if self.bandwidth is None else self.bandwidth
        settle(
            self,
            kdim=features if self.kdim is None else self.kdim,
            vdim=features if self.vdim is None else self.vdim,
            dimension=errors.real(_OWNER, "dimension", size if self.dimension is None else self.dimension, 0.0),
            bandwidth=errors.real(_OWNER, "bandwidth", bandwidth, 0.0, above=True),
        )
        order = self._read_order()
        settle(self, order=order, learn_alpha=order is not None)

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.in_features // self.num_heads

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return first parameters, drawn as Flax's layer draws them, and those of a learned order."""
        heads, size = self.num_heads, self.head_dim
        *each, of_k, of_v, last = keys(_OWNER, key, 7)
        own_width, kdim, vdim = self._widths
        widths = {"query": own_width, "key": kdim, "value": vdim, "out": own_width}
        made: Params = {}
        for (name, width), own in zip(widths.items(), each, strict=True):
            of_kernel, of_bias = jax.random.split(own)
            flat, shape = (width, heads * size), (width, heads, size)
            if name == "out":
                flat, shape = (heads * size, width), (heads, size, width)
            made[name] = {"kernel": self.kernel_init(of_kernel, flat, param_dtype).reshape(shape)}
            if self.use_bias:
                made[name]["bias"] = self.bias_init(of_bias, (width,) if name == "out" else (heads, size), param_dtype)
        if self.add_bias_kv:
            made["bias_k"] = self.kernel_init(of_k, (heads, size), param_dtype)
            made["bias_v"] = self.kernel_init(of_v, (heads, size), param_dtype)
        return {**made, **self._order_params(last, param_dtype)}

    def __call__(
        self,
        params: Params,
        inputs_q: Array,
        inputs_k: Array | None = None,
        inputs_v: Array | None = None,
        *,
        mask: Array | None = None,
        bias: Array | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        key: Array | None = None,
        dropout_key: Array | None = None,
    ) -> Any:
        """Return the result, or with `need_weights` the pair (result, weights of each head).

        Args:
            params: From `init`.
            inputs_q: [*batch, queries, in_features], time on `dim`.
            inputs_k: [*batch, keys, kdim]; None: the queries.
            inputs_v: [*batch, keys, vdim]; None: the keys.
            mask: Boolean, broadcast to [*batch, num_heads, queries, keys]: False hides a key, as in Flax. A query that
                sees no key gets zeros before the last projection, and weights of zeros.
            bias: Floating, of such a shape: it is added to the logarithms of the weights. A key whose bias lies 1e4 or
                more below the greatest that the query sees is hidden, and has no part in R_i.
            is_causal: Query i sees keys up to i, besides what the mask says.
            need_weights: Whether the weights are returned, [*batch, num_heads, queries, keys].
            key: For a random order; None is its mean.
            dropout_key: For dropout; None is no dropout.
        """
        given = opened(_OWNER, tuple(map(of_numpy, (inputs_q, inputs_k, inputs_v))), self.dim, self._widths)
        dtype = self._dtype(params, given)
        names = ("query", "key", "value")
        q, k, v = (self._projected(params, name, x, dtype) for name, x in zip(names, given.arrays, strict=True))
        merged = merged_bias(_OWNER, mask, bias, (*given.batch, self.num_heads, q.shape[2], k.shape[2]), dtype)
        y, weights = self._averaged(params, (q, k, v), merged, is_causal, need_weights, key, dropout_key)
        y = given.closed(self._out(params, y, dtype))
        if weights is None:
            return y
        return y, weights.reshape(*given.batch, *weights.shape[1:])

    def initial_state(self, params: Params, shape: Sequence[int], *, horizon: int) -> AttentionState:
        """Return the state before the first sample, for `step`: zeros for the keys and values of `horizon` samples.

        A power law of the distance in a space of features has no shorter memory: a step costs O(horizon).

        Args:
            params: From `init`; their dtype is read.
            shape: Of one time slice, [*batch, in_features].
            horizon: The most steps that the state will serve; later results are NaN.
        """
        owner = f"{_OWNER}.initial_state"
        if not self.kdim == self.vdim == self.in_features:
            raise ValueError(
                f"{owner}: needs kdim = vdim = in_features, because each sample is query, key and value; "
                f"kdim={self.kdim}, vdim={self.vdim}, in_features={self.in_features}, call it with is_causal=True."
            )
        shape = tuple(errors.count(owner, "shape", size, least=0) for size in shape)
        if not shape or shape[-1] != self.in_features:
            raise ValueError(
                f"{owner}(shape={shape}): needs [*batch, {self.in_features}], the shape of one time slice; "
                f"pass for example (1, {self.in_features})."
            )
        room = (*shape[:-1], self.num_heads, errors.count(owner, "horizon", horizon), self.head_dim)
        none = jnp.zeros(room, params["out"]["kernel"].dtype if self.dtype is None else self.dtype)
        return AttentionState(none, none, jnp.zeros((), jnp.int32))

    def step(
        self, params: Params, x: Array, state: AttentionState, *, key: Array | None = None
    ) -> tuple[Array, AttentionState]:
        """Return the next sample of causal self-attention, [*batch, in_features], and the state after it.

        Args:
            params: From `init`.
            x: One time slice, [*batch, in_features].
            state: From `initial_state` or the step before.
            key: For a random order, the same at every step of a stream; None is its mean.
        """
        owner, x = f"{_OWNER}.step", of_numpy(x)
        check_is_state(owner, state, AttentionState)
        computed_in(owner, x)
        self._check_slice(owner, "one time slice", x, x.shape[:-1] if x.ndim else (), state)
        given = opened(owner, (x[..., None, :], None, None), -2, self._widths)
        y, state = self._continued(params, given, state, key)
        return y.reshape(x.shape), state

    def run(
        self, params: Params, x: Array, state: AttentionState, *, key: Array | None = None
    ) -> tuple[Array, AttentionState]:
        """Return causal self-attention for the next samples of a series, and the state after them.

        A series in blocks gives the results of the whole series, of at most as many samples as the state's horizon.

        Args:
            params: From `init`.
            x: The next samples, [*batch, n, in_features] with time on `dim`; any n.
            state: From `initial_state`, `step` or the block before.
            key: As in `step`.
        """
        owner, x = f"{_OWNER}.run", of_numpy(x)
        check_is_state(owner, state, AttentionState)
        given = opened(owner, (x, None, None), self.dim, self._widths)
        self._check_slice(owner, "samples", x, given.batch, state)
        if given.arrays[0].shape[1] == 0:
            return x, state
        y, state = self._continued(params, given, state, key)
        return given.closed(y), state

    def _check_slice(self, owner: str, what: str, x: Array, batch: tuple[int, ...], state: AttentionState) -> None:
        """Raise ValueError unless a state was made for this layer and batch, and x has the layer's features.

        Args:
            owner: The public method, for messages.
            what: What x is, for messages.
            x: The method's argument.
            batch: The lengths of the batch axes of x.
            state: The state.
        """
        wanted = (*batch, self.num_heads, state.horizon, self.head_dim)
        if x.ndim == 0 or x.shape[-1] != self.in_features or state.key.shape != wanted:
            raise ValueError(
                f"{owner}(x of shape {x.shape}, state of keys {state.key.shape}): needs {what} "
                f"[*batch, {self.in_features}] and what this layer's initial_state returned for it."
            )

    def _continued(
        self, params: Params, given: Sequences, state: AttentionState, key: Array | None
    ) -> tuple[Array, AttentionState]:
        """Return the results for the next n > 0 samples, [batch, n, in_features], and the state after them."""
        (x, *_), before, dtype = given.arrays, state.count, self._dtype(params, given)
        q, k, v = (self._projected(params, name, x, dtype) for name in ("query", "key", "value"))
        state = state.grown(*(each.reshape(*given.batch, *each.shape[1:]) for each in (k, v)))
        room = (q.shape[0], *state.key.shape[-3:])
        k, v = (each.reshape(room).astype(dtype) for each in (state.key, state.value))
        last = before + jnp.arange(x.shape[1], dtype=before.dtype)[:, None]
        is_seen = jnp.arange(state.horizon, dtype=before.dtype)[None] <= last
        bias = jnp.where(is_seen, 0, -jnp.inf).astype(dtype)[None, None]
        y, _ = self._averaged(params, (q, k, v), bias, False, False, key, None)
        return self._out(params, y, dtype), state

    @property
    def _widths(self) -> tuple[int, int, int]:
        """How many features queries, keys and values have."""
        assert isinstance(self.kdim, int), "it was settled"
        assert isinstance(self.vdim, int), "it was settled"
        return self.in_features, self.kdim, self.vdim

    def _read_order(self) -> Alpha | None:
        """Return the `Alpha` of the learned order, None where it is fixed; store an `alpha` of numbers as floats.

        Raises:
            TypeError: `alpha` is neither numbers nor an `Alpha`.
            ValueError: `alpha` or `bounds` is out of range, or there is not one order for each head.
        """
        if isinstance(self.alpha, Alpha):
            taken = self.alpha.bounds_for(_OWNER, self.bounds, (self.num_heads,) if self.alpha.shape else ())
            attention_bounds(_OWNER, taken)
            return self.alpha
        fixed = attention_orders(_OWNER, self.alpha, self.num_heads)
        settle(self, alpha=fixed)
        if not self.learn_alpha:
            return None
        within = attention_bounds(_OWNER, self.bounds)
        return Alpha(fixed, within, () if isinstance(fixed, float) else (self.num_heads,), owner=_OWNER)

    def _orders(self, params: Params, key: Array | None) -> Array | None:
        """Return alpha as [1] or [heads], None where it is 2; with a `key` a random order is drawn."""
        alpha = self._present(params, key)
        if alpha is not None:
            return alpha.reshape(-1)
        fixed = self.alpha if isinstance(self.alpha, tuple) else (self.alpha,)
        return None if set(fixed) == {2.0} else jnp.asarray(fixed)

    def _dtype(self, params: Params, given: Sequences) -> Any:
        if self.dtype is not None:
            return jnp.dtype(self.dtype)
        return jnp.result_type(params["out"]["kernel"].dtype, *(x.dtype for x in given.arrays))

    def _projected(self, params: Params, name: str, x: Array, dtype: Any) -> Array:
        """Return queries, keys or values of each head, [batch, heads, time, head_dim], as the projection of x.

        Args:
            params: The layer's parameters.
            name: The projection's entry in `params`: "query", "key" or "value".
            x: The layer's input, [batch, time, features].
            dtype: The dtype of the computation.
        """
        part = params[name]
        y = jnp.einsum("bnf,fhd->bhnd", x.astype(dtype), part["kernel"].astype(dtype))
        return y + part["bias"].astype(dtype)[None, :, None] if self.use_bias else y

    def _out(self, params: Params, y: Array, dtype: Any) -> Array:
        """Return the heads' averages y, [batch, heads, time, head_dim], projected to [batch, time, in_features]."""
        part = params["out"]
        y = jnp.einsum("bhnd,hdf->bnf", y.astype(dtype), part["kernel"].astype(dtype))
        return y + part["bias"].astype(dtype)[None, None] if self.use_bias else y

    def _averaged(
        self,
        params: Params,
        projected: tuple[Array, Array, Array],
        bias: Array | None,
        is_causal: bool,
        need_weights: bool,
        key: Array | None,
        dropout_key: Array | None,
    ) -> tuple[Array, Array | None]:
        """Return the averages of the values, [batch, heads, queries, head_dim], and the weights or None.

        The options `add_bias_kv` and `add_zero_attn` append keys, which every query sees.

        Args:
            params: The layer's parameters.
            projected: Queries, keys and values, [batch, heads, time, head_dim] each.
            bias: Added to the logarithms of the weights, broadcasts to [batch, heads, queries, keys]; or None.
            is_causal: Whether a query sees no later keys.
            need_weights: Whether the weights are returned.
            key: Randomness of a random order, or None.
            dropout_key: Randomness of dropout, or None.
        """
        q, k, v = projected
        more = int(self.add_bias_kv) + int(self.add_zero_attn)
        if more and is_causal:
            later = jnp.arange(k.shape[2])[None] > jnp.arange(q.shape[2])[:, None]
            hidden = jnp.where(later, -jnp.inf, 0).astype(q.dtype)[None, None]
            bias, is_causal = hidden if bias is None else bias + hidden, False
        if more and bias is not None:
            bias = jnp.broadcast_to(bias, (*bias.shape[:3], k.shape[2]))
            bias = jnp.pad(bias, ((0, 0), (0, 0), (0, 0), (0, more)))
        if more:
            k, v = self._extended(params, "bias_k", k), self._extended(params, "bias_v", v)
        share = 1 - self.dropout_rate
        attention = Attention(self.dimension, self.bandwidth, is_causal, need_weights, share)  # type: ignore[arg-type]
        orders = self._orders(params, key)
        return attended(attention, Inputs(q, k, v, bias, orders, dropout_key if share < 1 else None), self.manager)

    def _extended(self, params: Params, name: str, x: Array) -> Array:
        """Return keys or values with the learned vector, a zero vector, or both appended along time.

        Args:
            params: The layer's parameters.
            name: The learned vector's entry in `params`: "bias_k" or "bias_v".
            x: The keys or values, [batch, heads, time, head_dim].
        """
        batch, heads, _, size = x.shape
        parts = [x]
        if self.add_bias_kv:
            parts.append(jnp.broadcast_to(params[name].astype(x.dtype)[None, :, None], (batch, heads, 1, size)))
        if self.add_zero_attn:
            parts.append(jnp.zeros((batch, heads, 1, size), x.dtype))
        return unplaced(partial(jnp.concatenate, axis=2), parts)  # type: ignore[no-any-return]


class Sequences(NamedTuple):
    """The inputs of a call, query, key and value, with a single batch axis.

    Attributes:
        arrays: Query, key and value, [batch, time, features] each.
        batch: The lengths of the batch axes in the caller's inputs.
        axis: The time axis of the caller's inputs.
    """

    arrays: tuple[Array, Array, Array]
    batch: tuple[int, ...]
    axis: int

    def closed(self, y: Array) -> Array:
        """Return y, [batch, time, features], with the batch and time axes of the caller's inputs."""
        return jnp.moveaxis(y.reshape(*self.batch, *y.shape[1:]), -2, self.axis)


def opened(owner: str, given: Sequence[Any], dim: int, widths: Sequence[Any]) -> Sequences:
    """Return the caller's query, key and value as Sequences.

    Args:
        owner: The layer, for messages.
        given: Query, key and value; None as key is the query, None as value is the key.
        dim: The time axis.
        widths: The number of features of query, key and value.

    Raises:
        TypeError: One is no real floating array.
        ValueError: Numbers of axes, batches, keys and values, or features do not fit, or `dim` is the last axis.
    """
    query, key, value = given
    key = query if key is None else key
    whole = (query, key, key if value is None else value)
    names = ("inputs_q", "inputs_k", "inputs_v")
    for name, x, width in zip(names, whole, widths, strict=True):
        computed_in(owner, x)
        if x.ndim < 2 or x.ndim != query.ndim or x.shape[-1] != width:
            raise ValueError(
                f"{owner}({name} of shape {x.shape}): needs time and {width} features, which are the last axis, and as "
                f"many axes as inputs_q of shape {query.shape}; the layer was made for them."
            )
    axis = errors.axis(owner, dim, query.ndim, array="inputs_q")
    if axis == query.ndim - 1:
        raise ValueError(f"{owner}(dim={dim}): needs a time axis before the features; pass for example dim=-2.")
    moved = [jnp.moveaxis(x, axis, -2) for x in whole]
    batch = moved[0].shape[:-2]
    if any(x.shape[:-2] != batch for x in moved) or moved[1].shape[-2] != moved[2].shape[-2]:
        raise ValueError(
            f"{owner}(inputs_k of shape {whole[1].shape}, inputs_v of shape {whole[2].shape}): needs a value for each "
            f"key, and the batch of the query, {query.shape}."
        )
    q, k, v = (x.reshape(math.prod(batch), *x.shape[-2:]) for x in moved)
    return Sequences((q, k, v), batch, axis)


def merged_bias(owner: str, mask: Any, bias: Any, shape: tuple[int, ...], dtype: Any) -> Array | None:
    """Return mask and bias as one bias on the logarithms of the weights, None where there is neither.

    Its axes are [batch, heads, queries, keys], each of full length or 1, with a single batch axis.

    Args:
        owner: The layer, for messages.
        mask: Boolean, False where a key is hidden; or None.
        bias: Floating, or None.
        shape: (*batch, heads, queries, keys), to which both broadcast.
        dtype: The dtype of the result.

    Raises:
        TypeError: The mask is not boolean, or the bias not floating.
        ValueError: One of them does not broadcast to `shape`.
    """
    for name, given, is_right in (("mask", mask, "bool"), ("bias", bias, "floating")):
        if given is not None:
            kind = jnp.bool_ if is_right == "bool" else jnp.floating
            if not hasattr(given, "dtype") or not jnp.issubdtype(given.dtype, kind):
                found = getattr(given, "dtype", type(given).__name__)
                raise TypeError(f"{owner}({name} of {found}): needs {is_right}; pass {name}.astype({kind.__name__}).")
            if not _fits(given.shape, shape):
                raise ValueError(
                    f"{owner}({name} of shape {given.shape}): needs a shape that broadcasts to {shape}; "
                    "its last axes are those of heads, queries and keys."
                )
    if mask is None and bias is None:
        return None
    found = jnp.zeros((), dtype) if bias is None else bias.astype(dtype)
    if mask is not None:
        found = jnp.where(mask, found, -jnp.inf)
    found = found.reshape((1,) * (len(shape) - found.ndim) + found.shape)
    batch = shape[:-3]
    if any(size > 1 for size in found.shape[:-3]):
        found = jnp.broadcast_to(found, (*batch, *found.shape[-3:]))
    return found.reshape(math.prod(found.shape[:-3]), *found.shape[-3:])


def _fits(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if len(given) > len(shape):
        return False
    return all(size in (1, whole) for size, whole in zip(reversed(given), reversed(shape), strict=False))


@versioned
@dataclass(frozen=True)
class AttentionState:
    """The keys and values of all samples so far, and zeros in place of later ones; a pytree, which `lax.scan` carries.

    Attributes:
        key: The keys of each head, [*batch, heads, horizon, head_dim]; zeros for samples to come.
        value: The values of each head, of the same shape.
        count: How many samples the state has seen, an array [] of int32.
    """

    key: Array
    value: Array
    count: Array

    @property
    def horizon(self) -> int:
        """The most samples that the state can hold."""
        return self.key.shape[-2]

    @property
    def nbytes(self) -> int:
        """Bytes of the state's arrays, the same at every step."""
        return sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(self))

    def grown(self, key: Array, value: Array) -> AttentionState:
        """Return the state after n more keys and values, [*batch, heads, n, head_dim] each.

        All keys and values turn into NaN if there are more samples than the horizon in all, a number that only the
        compiled program knows.

        Raises:
            ValueError: n alone exceeds the horizon.
        """
        n = key.shape[-2]
        if n > self.horizon:
            raise ValueError(
                f"{_OWNER}.run(x of {n} samples): needs at most horizon={self.horizon} samples, for which the state "
                "was made; make it with a larger horizon."
            )
        is_full = self.count + n > self.horizon

        def put(all_of: Array, new: Array) -> Array:
            found = lax.dynamic_update_slice_in_dim(all_of, new.astype(all_of.dtype), self.count, axis=-2)
            return jnp.where(is_full, jnp.nan, found)

        return AttentionState(put(self.key, key), put(self.value, value), self.count + n)


jax.tree_util.register_dataclass(AttentionState, data_fields=["key", "value", "count"], meta_fields=[])
serializable(AttentionState, "key", "value", "count")
