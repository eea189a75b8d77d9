"""The inverse operators on JAX arrays: differentiable in y, in alpha and in what is given at the start.

The columns are made in float64. The data are of the widest dtype that the process has enabled: see `fractional.solve`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition, family
from hpfracc_nn.fractional.inverse import check_given, inverse_of
from hpfracc_nn.fractional.jax import operator
from hpfracc_nn.fractional.jax.arrays import JAX, Array, computed_in, widest
from hpfracc_nn.fractional.jax.definitions import alpha_shape, checked_alpha
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.fractional.numpy.inverse import columns_of
from hpfracc_nn.fractional.stencil import Columns, columns, solved
from hpfracc_nn.fractional.weights import fixed_stencil
from hpfracc_nn.selection import BackendManager


def solve(
    owner: str,
    y: Array,
    definition: Definition,
    dt: float,
    dim: int,
    start: tuple[Any, Any],
    manager: BackendManager | None,
) -> Array:
    """Return x with `definition`(x) = y; same shape and dtype. See `numpy.inverse.solve`."""
    computed_in(owner, y, definition)
    alpha = None if definition.is_fixed else checked_alpha(owner, definition)
    dt, axis = errors.positive_step(owner, dt), errors.axis(owner, dim, y.ndim)
    inverse = inverse_of(owner, definition)
    layout_of(owner, tuple(y.shape), axis, alpha_shape(definition))
    if y.size == 0:
        return y if alpha is None else y + 0 * alpha.sum().astype(y.dtype)
    data = jnp.moveaxis(y, axis, -1).astype(widest())
    first, slope = (_given(owner, name, value, data) for name, value in zip(("x0", "dx0"), start, strict=True))
    found = _columns(definition, alpha, data.shape[-1], dt)
    slope = None if slope is None else slope * dt
    with jax.numpy_rank_promotion("allow"):  # a formula of NumPy's too
        x = solved(found, data, lambda z: operator.apply(owner, z, inverse, dt, -1, manager), first, slope, JAX)
    return jnp.moveaxis(x, -1, axis).astype(y.dtype)


def _given(owner: str, name: str, value: Any, data: Array) -> Array | None:
    if value is None:
        return None
    found = jnp.asarray(value).astype(data.dtype)
    check_given(owner, name, found.shape, data.shape[:-1])
    return found[..., None]


def _columns(definition: Definition, alpha: Array | None, n: int, dt: float) -> Columns:
    """Return the columns of the inverse, of the shape of alpha and one more axis."""
    if alpha is None:
        kept = columns_of(definition, n, dt)
        stencil, parts = kept.stencil, (kept.known, kept.start, kept.head)
        known, start, head = jax.tree.map(lambda column: jnp.asarray(column, widest()), parts)
        return Columns(stencil, known, start, head)

    parts = _traced_columns(alpha.reshape(-1), family(definition), n, dt)
    known, start, head = jax.tree.map(lambda column: column.reshape(*alpha.shape, column.shape[-1]), parts)
    return Columns(fixed_stencil(family(definition), n, dt), known, start, head)


@partial(jax.jit, static_argnames=("of", "n", "dt"))
def _traced_columns(alpha: Array, of: Definition, n: int, dt: float) -> tuple[Any, ...]:
    """Return the columns `known`, `start` and `head` of orders [channels], each [channels, k]."""

    def made(orders: Array) -> tuple[Any, ...]:
        found = columns(of.stencil_at(orders, n, dt, JAX), JAX)
        return found.known, found.start, found.head

    return in_float64(made, alpha, widest())  # type: ignore[no-any-return]
