"""A batch of series as the recurrent layers for Flax compute it: time first, one axis for the batch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked


class Series(NamedTuple):
    """A batch of series.

    Attributes:
        x: [n, batch, features].
        batch: The caller's axes of the batch.
        axis: The caller's axis of time.
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
        """Return each series from its own end; what is behind that stays."""
        if self.lengths is None:
            return jnp.flip(x, 0)
        step = jnp.arange(x.shape[0])[:, None]
        index = jnp.where(step < self.lengths[None], self.lengths[None] - 1 - step, step)
        return jnp.take_along_axis(x, index[..., None], axis=0)

    def closed(self, out: Array) -> Array:
        """Return outputs [n, batch, features] with the caller's axes."""
        return jnp.moveaxis(out.reshape(out.shape[0], *self.batch, out.shape[-1]), 0, self.axis)


def opened(owner: str, x: Any, dim: int, features: int, lengths: Any) -> Series:
    """Return the caller's inputs, or raise where they are none."""
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
        # What pads a series may be anything: NaN times a gradient of 0 would be NaN.
        first = jnp.where((jnp.arange(n)[:, None] < lengths[None])[..., None], first, 0)
    return Series(first, batch, axis, lengths)


def check_features(owner: str, x: Any, features: int) -> None:
    """Raise unless x is a floating array with so many features on its last axis."""
    if not isinstance(x, jax.Array) or not jnp.issubdtype(x.dtype, jnp.floating):
        given = f"dtype {x.dtype}" if hasattr(x, "dtype") else f"type {type(x).__name__}"
        raise TypeError(f"{owner}(x of {given}): needs a real floating array of JAX; pass jnp.asarray(x, jnp.float32).")
    if x.ndim == 0 or x.shape[-1] != features:
        raise ValueError(
            f"{owner}(in_features={features}): needs {features} inputs on the last axis; x has shape {x.shape}, "
            f"pass in_features={x.shape[-1] if x.ndim else 1}."
        )


def _checked_lengths(owner: str, lengths: Any, n: int) -> Array:
    """Return lengths, or raise unless 0 <= length <= n; what is traced is looked at under `checkify` only."""
    rule = f"needs 0 <= length <= {n}, the steps of x"
    if isinstance(lengths, jax.core.Tracer):
        return checked(lengths, ((lengths >= 0) & (lengths <= n)).all(), f"{owner}(seq_lengths): {rule}.")
    known = np.asarray(lengths)
    if ((known < 0) | (known > n)).any():
        raise ValueError(f"{owner}(seq_lengths={known.tolist()}): {rule}; pass how many steps each series has.")
    return jnp.asarray(lengths)
