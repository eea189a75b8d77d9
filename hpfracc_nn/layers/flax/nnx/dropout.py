"""What nnx modules with dropout share: Flax's conventions for it."""

from __future__ import annotations

from typing import Any

from flax import nnx
from jax import numpy as jnp

from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer

Randomness = nnx.Rngs | nnx.RngStream | Array


class Dropping(Layer):
    """A layer that drops something in training: until `eval()`, which sets `deterministic`.

    Its randomness is a fork of the stream `dropout` of the constructor's `rngs`, or what the call is given.
    """

    def __init__(
        self, *arguments: Any, param_dtype: Any = jnp.float32, rngs: nnx.Rngs | None = None, **hyperparameters: Any
    ):
        super().__init__(*arguments, param_dtype=param_dtype, rngs=rngs, **hyperparameters)
        self.deterministic = False
        drops = self.core.dropout_rate > 0 and rngs is not None
        self.dropout_stream = rngs["dropout"].fork() if drops else nnx.data(None)  # type: ignore[index]

    def _dropping(self, deterministic: bool | None, rngs: Randomness | None) -> dict[str, Array]:
        """What a core takes besides where it drops."""
        is_off = self.deterministic if deterministic is None else deterministic
        if is_off or not self.core.dropout_rate:
            return {}
        given = self.dropout_stream if rngs is None else rngs
        if given is None:
            raise ValueError(
                f"{type(self).__name__}(dropout_rate={self.core.dropout_rate:g}): needs randomness in training; pass "
                "rngs=nnx.Rngs(0) to the constructor or the call, or call eval()."
            )
        stream = given["dropout"] if isinstance(given, nnx.Rngs) else given
        return {"dropout_key": stream() if isinstance(stream, nnx.RngStream) else stream}
