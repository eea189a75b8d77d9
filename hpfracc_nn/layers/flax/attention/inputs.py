"""What attention for Flax is given: sequences with any axes of a batch, masks and biases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.operator import computed_in


class Sequences(NamedTuple):
    """Query, key and value.

    Attributes:
        arrays: Each [batch, time, features].
        batch: The caller's axes of the batch.
        axis: The caller's axis of time.
    """

    arrays: tuple[Array, Array, Array]
    batch: tuple[int, ...]
    axis: int

    def closed(self, y: Array) -> Array:
        """Return [batch, time, features] with the caller's axes."""
        return jnp.moveaxis(y.reshape(*self.batch, *y.shape[1:]), -2, self.axis)


def opened(owner: str, given: Sequence[Any], dim: int, widths: Sequence[Any]) -> Sequences:
    """Return the caller's query, key and value, or raise; None stands for the one before."""
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
    """Return what mask and bias add to the logarithms of the weights, or None.

    Args:
        owner: Who asks, for messages.
        mask: Boolean, False where a key is hidden; or None.
        bias: Floating, or None.
        shape: [*batch, heads, queries, keys], to which both broadcast.
        dtype: Of the result, whose axes are [batch, heads, queries, keys] or 1.
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
