"""The layers as nnx modules, each a shell around its core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpfracc_nn.fractional.jax.streaming import HORIZON
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.attention import AttentionState
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.functional.recurrent import RecurrentState
from hpfracc_nn.layers.flax.nnx.shell import Dropping, Layer, Randomness


class Streaming(Layer):
    """A layer that takes a series one sample, or one block of samples, at a time, where its core can."""

    def step(self, x: Array, state: Any) -> tuple[Array, Any]:
        """Return the next sample of the result and the state after it; x is one time slice."""
        return self.core.step(self.params(), x, state)  # type: ignore[no-any-return]

    def run(self, x: Array, state: Any = None) -> tuple[Array, Any]:
        """Return the results for the next samples x and the state after them; None begins a series."""
        return self.core.run(self.params(), x, state)  # type: ignore[no-any-return]


class Filter(Streaming):
    """A layer that is called with one array, and can also take its series one sample, or one block, at a time."""

    def __call__(self, x: Array) -> Array:
        """Return the layer's value at x: see the core's call for the shapes."""
        return self._run(x)

    def initial_state(self, shape: Sequence[int], *, horizon: int = HORIZON) -> Any:
        """Return the state before the first sample, for `step`; `shape` is that of one time slice."""
        return self.core.initial_state(self.params(), shape, horizon=horizon)


class FractionalLayer(Filter, core=functional.FractionalLayer):
    """A fractional derivative or integral along `dim`: see `functional.FractionalLayer`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> t = jnp.linspace(0, 1, 101)[:, None]
        >>> # 2 / Gamma(2.5) = 1.5045
        >>> FractionalLayer(0.5, "caputo", dt=0.01)(t**2)[-1].round(2)
        Array([1.5], dtype=float32)
    """


class FractionalLinear(Filter, core=functional.FractionalLinear):
    """A linear layer on the fractional derivative of each feature: see `functional.FractionalLinear`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> layer = FractionalLinear(3, 5, alpha=0.4, learn_alpha=True, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((8, 100, 3))).shape, layer.alpha
        ((8, 100, 5), Array(0.4, dtype=float32))
    """


class FractionalConv1d(Filter, core=functional.FractionalConv1d):
    """A convolution of the fractional derivative of each feature along time: see `functional.FractionalConv1d`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> layer = FractionalConv1d(
        ...     3, 5, 7, padding="CAUSAL", alpha=0.4, learn_alpha=True, rngs=nnx.Rngs(0)
        ... )
        >>> layer(jnp.ones((8, 100, 3))).shape
        (8, 100, 5)
    """


class FractionalConv2d(Layer, core=functional.FractionalConv2d):
    """A convolution of images' fractional derivatives: see `functional.FractionalConv2d`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> layer = FractionalConv2d(3, 5, 3, dims=(-3, -2), alpha=(0.4, 0.8), rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((8, 28, 28, 3))).shape
        (8, 28, 28, 5)
    """

    def __call__(self, x: Array) -> Array:
        """Return the convolution of the derivatives of x, [..., height, width, in_features]."""
        return self._run(x)


class FractionalDifference(Filter, core=functional.FractionalDifference):
    """(1 - z)**alpha with zero history, `orders` of them for every channel: see `functional.FractionalDifference`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> # Grünwald's weights
        >>> FractionalDifference(1, start=0.5)(jnp.eye(4, 1))[:, 0].round(4)
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """


class RoughnessFeatures(Filter, core=functional.RoughnessFeatures):
    """The logarithms of the mean squares of fractional differences: see `functional.RoughnessFeatures`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> # at the highest frequency, where orders weigh by 2**(2 alpha)
        >>> x = jnp.array([1.0, -1.0] * 500)[:, None]
        >>> RoughnessFeatures(1, alpha=(-0.5, 0.0, 0.5), learn_alpha=False)(x).round(2)
        Array([-0.69,  0.  ,  0.69], dtype=float32)
    """


class _Recurrent(Dropping, Streaming):
    """A recurrent layer, LSTM or GRU: a call on a whole series, and a step on one time slice."""

    def __call__(
        self,
        x: Array,
        *,
        initial_carry: Any = None,
        seq_lengths: Array | None = None,
        return_carry: bool = False,
        deterministic: bool | None = None,
        rngs: Randomness | None = None,
    ) -> Any:
        """Return the outputs of the last layer at all steps; with `return_carry` the pair (state, outputs).

        Args:
            x: [..., n, ..., in_features], time on `dim`.
            initial_carry: A state, from which the series goes on exactly, or the start of an ordinary cell: see the
                core.
            seq_lengths: Steps of each series, [*batch]; None: all.
            return_carry: Whether the state after the last step of each series is returned too.
            deterministic: Whether nothing is dropped between layers. None: the mode that `train()` and `eval()` set; in
                linen, whether there is no stream "dropout".
            rngs: Randomness for dropout in place of the module's own: a key, a stream, or streams.
        """
        how = {"initial_carry": initial_carry, "seq_lengths": seq_lengths, "return_carry": return_carry}
        return self._run(x, **how, **self._dropping(deterministic, rngs))

    def initial_state(
        self, shape: Sequence[int], *, initial_carry: Any = None, horizon: int = HORIZON
    ) -> RecurrentState:
        """Return the state before the first sample, for `step` or a call; `shape` is (*batch, in_features)."""
        found: RecurrentState = self.core.initial_state(
            self.params(), shape, initial_carry=initial_carry, horizon=horizon
        )
        return found


class FractionalLSTM(_Recurrent, core=functional.FractionalLSTM):
    """Flax's LSTM whose cells remember by a power law: see `functional.FractionalLSTM`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> layer = FractionalLSTM(3, 16, alpha=0.6, learn_alpha=True, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((8, 100, 3))).shape
        (8, 100, 16)
    """


class FractionalGRU(_Recurrent, core=functional.FractionalGRU):
    """Flax's GRU whose cells remember by a power law: see `functional.FractionalGRU`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> layer = FractionalGRU(3, 16, alpha=0.6, learn_alpha=True, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((8, 100, 3))).shape
        (8, 100, 16)
    """


class FractionalAttention(Dropping, Streaming, core=functional.FractionalAttention):
    """Multi-head attention with power-law weights: see `functional.FractionalAttention`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> layer = FractionalAttention(32, 4, alpha=1.2, learn_alpha=True, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((8, 50, 32)), is_causal=True).shape
        (8, 50, 32)
    """

    def __call__(
        self,
        inputs_q: Array,
        inputs_k: Array | None = None,
        inputs_v: Array | None = None,
        *,
        mask: Array | None = None,
        bias: Array | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
        deterministic: bool | None = None,
        rngs: Randomness | None = None,
    ) -> Any:
        """Return the result, or with `need_weights` the pair (result, weights of each head).

        Args:
            inputs_q: [*batch, queries, in_features], time on `dim`.
            inputs_k: [*batch, keys, kdim]; None: the queries.
            inputs_v: [*batch, keys, vdim]; None: the keys.
            mask: Boolean, broadcast to [*batch, num_heads, queries, keys]: False hides a key, as in Flax.
            bias: Floating, of such a shape: it is added to the logarithms of the weights.
            is_causal: Query i sees keys up to i, besides what the mask says.
            need_weights: Whether the weights are returned, [*batch, num_heads, queries, keys].
            deterministic: Whether no weight is dropped. None: the mode that `train()` and `eval()` set; in linen,
                whether there is no stream "dropout".
            rngs: Randomness for dropout in place of the module's own: a key, a stream, or streams.
        """
        how = {"mask": mask, "bias": bias, "is_causal": is_causal, "need_weights": need_weights}
        return self._run(inputs_q, inputs_k, inputs_v, **how, **self._dropping(deterministic, rngs))

    def initial_state(self, shape: Sequence[int], *, horizon: int) -> AttentionState:
        """Return the state before the first sample, for `step`; `shape` is [*batch, in_features]."""
        found: AttentionState = self.core.initial_state(self.params(), shape, horizon=horizon)
        return found

    def run(self, x: Array, state: AttentionState) -> tuple[Array, AttentionState]:  # type: ignore[override]
        """Return causal self-attention for the next samples x, and the state after them."""
        found: tuple[Array, AttentionState] = self.core.run(self.params(), x, state)
        return found


class SpectralFractional(Layer, core=functional.SpectralFractional):
    """A fractional derivative of a periodic field along `dim`: see `functional.SpectralFractional`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> x = jnp.sin(2 * jnp.pi * jnp.arange(8) / 8)[:, None]
        >>> SpectralFractional(2.0, dt=1 / 8)(x)[2].round(2)  # (2 pi)**2
        Array([39.48], dtype=float32)
    """

    def __call__(self, x: Array) -> Array:
        """Return the operator applied to the field x; same shape and dtype."""
        return self._run(x)
