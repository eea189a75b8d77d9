"""What the data see before the product, and the boundary values. Arrays are [batch, channels, n, width].

Differencing first keeps float32 right (see `stencil.py`). Where 64 bit types are not enabled, x'(0) is estimated from
differences and not from samples: it is subtracted n times, and so no digit of it may be lost.
"""

from __future__ import annotations

import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.namespace import Array, widest
from hpfracc_nn.fractional.stencil import Stencil, slope_row


def difference(x: Array, stencil: Stencil) -> Array:
    """Return d, the differenced data."""
    m, n = stencil.differences, x.shape[2]
    if m <= 0:
        u = x - x[:, :, :1] if stencil.subtract else x
        if two_terms(stencil):
            u = (u - _ramp(n) * slope(x)).astype(x.dtype)
        return u if m == 0 else jnp.cumsum(u, axis=2, dtype=widest()).astype(x.dtype)
    first = jnp.zeros_like(x[:, :, :1]) if stencil.subtract else x[:, :, :1]
    d = jnp.concatenate([first, x[:, :, 1:] - x[:, :, :-1]], axis=2)
    if m == 1:
        if two_terms(stencil):
            d = jnp.concatenate([first, (d[:, :, 1:] - slope(x)).astype(x.dtype)], axis=2)
        return d
    d = jnp.concatenate([first, d[:, :, 1:] - d[:, :, :-1]], axis=2)
    if two_terms(stencil) and n > 1:
        d = jnp.concatenate([first, _second_sample(d[:, :, 2:4]), d[:, :, 2:]], axis=2)
    return d


def boundary_values(x: Array, d: Array, stencil: Stencil) -> list[Array]:
    """Return what the boundary columns multiply, [batch, channels, 1, width]: d[start_index], x(0), dt x'(0)."""
    values = []
    if stencil.starts:
        values.append(d[:, :, stencil.start_index : stencil.start_index + 1])
    if stencil.terms:
        values.append(x[:, :, :1])
        if stencil.terms == 2:
            values.append(slope(x).astype(x.dtype))
    return values


def slope(x: Array) -> Array:
    """Return S = dt x'(0) from the first samples, [batch, channels, 1, width]."""
    n = x.shape[2]
    if n < 2:
        return jnp.zeros_like(x[:, :, :1])
    row = slope_row(n)[:4]
    steps = jnp.diff(x[:, :, :4].astype(widest()), axis=2)
    # The weights of differences: those of samples, which sum to zero, added up from the last one on.
    return (steps * _placed(np.cumsum(row[::-1])[::-1][1:])).sum(axis=2, keepdims=True)


def two_terms(stencil: Stencil) -> bool:
    """Whether the slope at the first sample is subtracted too."""
    return stencil.subtract and stencil.taylor == 2


def _second_sample(following: Array) -> Array:
    """d[1] from d[2] and d[3]: x'(0) is subtracted, but the difference is taken where no digits are lost."""
    weights = {0: [], 1: [1 / 2], 2: [5 / 6, -1 / 3]}[following.shape[2]]
    return (following * _placed(np.array(weights)).astype(following.dtype)).sum(axis=2, keepdims=True)


def _ramp(n: int) -> Array:
    return _placed(np.arange(n, dtype=np.float64))


def _placed(row: np.ndarray) -> Array:
    return jnp.asarray(row, widest()).reshape(1, 1, -1, 1)
