"""`FractionalAttention` as a linen module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.attention import AttentionState
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.dropout import Dropping


class FractionalAttention(Dropping, core=functional.FractionalAttention):
    """Multi-head attention with power-law weights: see `functional.FractionalAttention`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalAttention(32, 4, alpha=1.2, learn_alpha=True)
        >>> x = jnp.ones((8, 50, 32))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
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
    ) -> Any:
        """Return the result, or with `need_weights` the pair of it and the weights of each head.

        Args:
            inputs_q: [*batch, queries, in_features], time on `dim`.
            inputs_k: [*batch, keys, kdim]; None: the queries.
            inputs_v: [*batch, keys, vdim]; None: the keys.
            mask: Boolean, broadcast to [*batch, num_heads, queries, keys]: False hides a key, as in Flax.
            bias: Floating, of such a shape: it is added to the logarithms of the weights.
            is_causal: Query i sees keys up to i, besides what the mask says.
            need_weights: Whether the weights are returned, [*batch, num_heads, queries, keys].
            deterministic: Whether no weight is dropped. None: dropout where there is a stream "dropout".
        """
        how = {"mask": mask, "bias": bias, "is_causal": is_causal, "need_weights": need_weights}
        return self._run(inputs_q, inputs_k, inputs_v, **how, **self._dropping(deterministic))

    def initial_state(self, shape: Sequence[int], *, horizon: int) -> AttentionState:
        """Return the state before the first sample, for `step`; `shape` is [*batch, in_features]."""
        found: AttentionState = self.core.initial_state(self.params(), shape, horizon=horizon)
        return found

    def step(self, x: Array, state: AttentionState) -> tuple[Array, AttentionState]:
        """Return the next sample of causal self-attention, and the state after it; x is [*batch, in_features]."""
        found: tuple[Array, AttentionState] = self.core.step(self.params(), x, state)
        return found
