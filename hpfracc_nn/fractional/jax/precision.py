"""Functions of few numbers, such as weights of orders, computed in float64 whatever the process has enabled.

64 bit types are enabled around the computation, never for the process. What leaves it is of the caller's dtype, and
each derivative is a computation of its own: a transform of JAX that came to see the float64 operations from outside
would narrow some of them and fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from hpfracc_nn.fractional.jax.namespace import Array

Made = Any  # a pytree of arrays
Counts = tuple[int, ...]  # how often each argument is differentiated in
Family = Callable[[Counts], Callable[..., Made]]  # a function and all its partial derivatives


def in_float64(make: Callable[[Array], Made], orders: Array, dtype: Any) -> Made:
    """Return make(orders), computed in float64 and rounded to `dtype`, differentiable to any order.

    Every transform of JAX follows: its derivatives are made by forward mode, inside, one for each order that is asked
    for. `make` must be elementwise: entry [*c, ...] of each array may depend on orders[*c] only, and on nothing else
    that is traced.

    Args:
        make: A function of a float64 array [*c] that returns arrays [*c, ...].
        orders: [*c], floating.
        dtype: Of the result.
    """
    return jointly_in_float64(make, (orders,), dtype)


def jointly_in_float64(make: Callable[..., Made], arguments: tuple[Array, ...], dtype: Any) -> Made:
    """Return make(*arguments) in the same way; each is [*c], or has no axes."""
    return family_in_float64(lambda counts: _differentiated(make, counts), arguments, dtype)


def family_in_float64(family: Family, arguments: tuple[Array, ...], dtype: Any) -> Made:
    """Return family((0, ...))(*arguments) in the same way, where all partial derivatives are known.

    Args:
        family: Of how often each argument is differentiated in; returns a function of as many float64 or complex128
            arrays, elementwise as in `in_float64`.
        arguments: Floating or complex, each of the shape [*c] with which the results' begins, or without axes.
        dtype: Of the result.
    """
    return _member(family, (0,) * len(arguments), dtype)(*arguments)


def mapped(make: Callable[[Array], Made], axes: int) -> Callable[[Array], Made]:
    """Return `make`, which is written for orders of so many axes, for those that a map has given more before them."""

    def made(orders: Array) -> Made:
        function = make
        for _ in range(orders.ndim - axes):
            function = jax.vmap(function)
        return function(orders)

    return made


def _member(family: Family, counts: Counts, dtype: Any) -> Callable[..., Made]:
    """Return the derivative of those orders, which knows the next ones."""

    @custom_vmap
    def evaluated(*arguments: Array) -> Made:
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # formulas mix real and complex numbers
            found = family(counts)(*map(_widened, arguments))
            return jax.tree.map(lambda each: each.astype(dtype), found)

    @evaluated.def_vmap
    def _(size: int, batched: Sequence[bool], *arguments: Array) -> tuple[Made, Made]:
        """A batch is one more axis of the arguments, computed anew: batched from outside, products would narrow."""
        found = evaluated(*_with_axis(size, batched, arguments))
        return found, jax.tree.map(lambda _: True, found)

    @jax.custom_jvp
    def computed(*arguments: Array) -> Made:
        return evaluated(*arguments)

    def rule(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Made, Made]:
        found = computed(*primals)
        total = jax.tree.map(jnp.zeros_like, found)
        for index, moved in enumerate(tangents):
            if isinstance(moved, SymbolicZero):
                continue
            again = tuple(count + (place == index) for place, count in enumerate(counts))
            slopes = _member(family, again, dtype)(*primals)
            total = jax.tree.map(lambda sum, slope, moved=moved: sum + _along(slope, moved), total, slopes)
        return found, total

    computed.defjvp(rule, symbolic_zeros=True)
    return computed


def _with_axis(size: int, batched: Sequence[bool], arguments: Sequence[Array]) -> list[Array]:
    """Return the arguments with the axis of a batch before the others; one without axes and not batched has none."""
    shapes = [each.shape[is_batched:] for each, is_batched in zip(arguments, batched, strict=True)]
    longest = max(shapes, key=len)
    found = []
    for each, is_batched, shape in zip(arguments, batched, shapes, strict=True):
        if is_batched and shape != longest:
            each = each.reshape(size, *(1,) * len(longest))
        if is_batched or shape:
            each = jnp.broadcast_to(each, (size, *longest))
        found.append(each)
    return found


def _widened(argument: Array) -> Array:
    return argument.astype(jnp.complex128 if jnp.iscomplexobj(argument) else jnp.float64)


def _along(slope: Array, moved: Array) -> Array:
    """Return the change of a result whose first axes are those of the argument that moves."""
    return slope * moved.astype(slope.dtype).reshape(*moved.shape, *(1,) * (slope.ndim - moved.ndim))


def _differentiated(make: Callable[..., Made], counts: Counts) -> Callable[..., Made]:
    for place, count in enumerate(counts):
        for _ in range(count):
            make = _slope(make, place)
    return make


def _slope(make: Callable[..., Made], place: int) -> Callable[..., Made]:
    def slope(*arguments: Array) -> Made:
        def alone(moved: Array) -> Made:
            return make(*arguments[:place], moved, *arguments[place + 1 :])

        return jax.jvp(alone, (arguments[place],), (jnp.ones_like(arguments[place]),))[1]

    return slope
