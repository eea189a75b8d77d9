"""Functions of few numbers, such as weights of orders, computed in float64 whatever the process has enabled.

64 bit types are enabled around the computation, never for the process. What leaves it is of the caller's dtype, and
each derivative is a computation of its own: a transform of JAX that came to see the float64 operations from outside
would narrow some of them and fail.
"""

from __future__ import annotations

from collections.abc import Callable
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
    return _derivative(make, 0, dtype)(orders)


def _derivative(make: Callable[[Array], Made], order: int, dtype: Any) -> Callable[[Array], Made]:
    """Return the derivative of that order, which knows the next one."""

    @jax.custom_jvp
    def computed(orders: Array) -> Made:
        with jax.enable_x64(True):
            found = _differentiated(make, order)(orders.astype(jnp.float64))
            return jax.tree.map(lambda each: each.astype(dtype), found)

    @computed.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Made, Made]:
        (orders,), (moved,) = primals, tangents
        slopes = _derivative(make, order + 1, dtype)(orders)

        def along(slope: Array) -> Array:
            return slope * moved.astype(dtype).reshape(-1, *(1,) * (slope.ndim - 1))

        return computed(orders), jax.tree.map(along, slopes)

    return computed


def _differentiated(make: Callable[[Array], Made], order: int) -> Callable[[Array], Made]:
    if order == 0:
        return make

    def slope(orders: Array) -> Made:
        return jax.jvp(_differentiated(make, order - 1), (orders,), (jnp.ones_like(orders),))[1]

    return slope
