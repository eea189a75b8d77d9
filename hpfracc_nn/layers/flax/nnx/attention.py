"""`FractionalAttention` as an nnx module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.attention.state import AttentionState
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.dropout import Dropping, Randomness


class FractionalAttention(Dropping, core=functional.FractionalAttention):
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
        """Return the result, or with `need_weights` the pair of it and the weights of each head.

        Args:
            inputs_q: [*batch, queries, in_features], time on `dim`.
            inputs_k: [*batch, keys, kdim]; None: the queries.
            inputs_v: [*batch, keys, vdim]; None: the keys.
            mask: Boolean, broadcast to [*batch, num_heads, queries, keys]: False hides a key, as in Flax.
            bias: Floating, of such a shape: it is added to the logarithms of the weights.
            is_causal: Query i sees keys up to i, besides what the mask says.
            need_weights: Whether the weights are returned, [*batch, num_heads, queries, keys].
            deterministic: Whether no weight is dropped. None: what `train()` and `eval()` say.
            rngs: Randomness for dropout in place of the module's own: a key, a stream, or streams.
        """
        how = {"mask": mask, "bias": bias, "is_causal": is_causal, "need_weights": need_weights}
        return self._run(inputs_q, inputs_k, inputs_v, **how, **self._dropping(deterministic, rngs))

    def initial_state(self, shape: Sequence[int], *, horizon: int) -> AttentionState:
        """Return the state before the first sample, for `step`; `shape` is [*batch, in_features]."""
        found: AttentionState = self.core.initial_state(self.params(), shape, horizon=horizon)
        return found

    def step(self, x: Array, state: AttentionState) -> tuple[Array, AttentionState]:
        """Return the next sample of causal self-attention, and the state after it; x is [*batch, in_features]."""
        found: tuple[Array, AttentionState] = self.core.step(self.params(), x, state)
        return found
