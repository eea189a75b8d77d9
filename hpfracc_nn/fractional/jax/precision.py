"""Functions of few numbers, such as weights of orders, computed in float64 whatever the process has enabled.

64 bit types are enabled around the computation, never for the process. What leaves it is of the caller's dtype, and
each derivative is a computation of its own: a transform of JAX that came to see the float64 operations from outside
would narrow some of them and fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.namespace import Array

Made = Any  # a pytree of arrays


def in_float64(make: Callable[[Array], Made], orders: Array, dtype: Any) -> Made:
    """Return make(orders), computed in float64 and rounded to `dtype`, differentiable to any order.

    Every transform of JAX follows: its derivatives are made by forward mode, inside, one for each order that is asked
    for. `make` must be elementwise: entry [c, ...] of each array may depend on orders[c] only, and on nothing else that
    is traced.

    Args:
        make: A function of a float64 array [channels] that returns arrays [channels, ...].
        orders: [channels], floating.
        dtype: Of the result.
    """
    return jointly_in_float64(make, (orders,), dtype)


def jointly_in_float64(make: Callable[..., Made], parameters: tuple[Array, ...], dtype: Any) -> Made:
    """Return make(*parameters), as `in_float64` does for one of them.

    Args:
        make: A function of float64 arrays [channels], elementwise as there, that returns arrays [channels, ...].
        parameters: Each [channels], floating.
        dtype: Of the result.
    """
    return _derivative(make, (), dtype)(*parameters)


def _derivative(make: Callable[..., Made], by: tuple[int, ...], dtype: Any) -> Callable[..., Made]:
    """Return the derivative by parameters of these numbers, which knows the next ones."""

    @jax.custom_jvp
    def computed(*parameters: Array) -> Made:
        with jax.enable_x64(True):
            found = _differentiated(make, by)(*(each.astype(jnp.float64) for each in parameters))
            return jax.tree.map(lambda each: each.astype(dtype), found)

    @computed.defjvp
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Made, Made]:
        def along(moved: Array, slope: Array) -> Array:
            return slope * moved.astype(dtype).reshape(-1, *(1,) * (slope.ndim - 1))

        parts = []
        for i, moved in enumerate(tangents):
            slopes = _derivative(make, (*by, i), dtype)(*primals)
            parts.append(jax.tree.map(partial(along, moved), slopes))
        return computed(*primals), jax.tree.map(lambda *each: sum(each), *parts)

    return computed


def _differentiated(make: Callable[..., Made], by: tuple[int, ...]) -> Callable[..., Made]:
    if not by:
        return make
    *before, last = by

    def slope(*parameters: Array) -> Made:
        def alone(moved: Array) -> Made:
            return _differentiated(make, tuple(before))(*parameters[:last], moved, *parameters[last + 1 :])

        return jax.jvp(alone, (parameters[last],), (jnp.ones_like(parameters[last]),))[1]

    return slope
