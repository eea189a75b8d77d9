"""Functions of few numbers, such as weights of orders, computed in float64 whatever the process has enabled.

64 bit types are enabled around the computation, never for the process. Its results are of the caller's dtype, and each
derivative is a computation of its own: a transform of JAX that came to see the float64 operations from outside would
narrow some of them and fail.

A family is a function with all its partial derivatives: family(counts) is the function differentiated counts[i] times
in its argument number i. Arguments are [*c] or scalars, results [*c, ...], elementwise over [*c]. One JAX primitive
calls such members; the private functions at the end of the file are its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import is_placed, placed_like

Made = Any  # a pytree of arrays
Counts = tuple[int, ...]  # how often each argument is differentiated in
Family = Callable[[Counts], Callable[..., Made]]  # a function and all its partial derivatives


def in_float64(make: Callable[[Array], Made], orders: Array, dtype: Any) -> Made:
    """Return make(orders), computed in float64 and rounded to `dtype`, differentiable to any order.

    Every transform of JAX follows: derivatives are taken by forward mode inside the float64 computation, each as often
    as it is asked for. `make` must be elementwise: entry [*c, ...] of each array may depend on orders[*c] only, and on
    nothing else that is traced.

    Args:
        make: A function of a float64 array [*c] that returns arrays [*c, ...].
        orders: [*c], floating.
        dtype: Of the result.
    """
    return jointly_in_float64(make, (orders,), dtype)


def jointly_in_float64(make: Callable[..., Made], arguments: tuple[Array, ...], dtype: Any) -> Made:
    """Return make(*arguments) as `in_float64` does; each argument is [*c] or has no axes."""
    return family_in_float64(lambda counts: _differentiated(make, counts), arguments, dtype)


def family_in_float64(family: Family, arguments: tuple[Array, ...], dtype: Any) -> Made:
    """Return the function family((0, ...)) of the arguments, as `in_float64` does; its derivatives are the family's.

    Args:
        family: Takes how often each argument is differentiated in; returns a function of as many float64 or complex128
            arrays, elementwise as in `in_float64`.
        arguments: Floating or complex, each of the shape [*c] with which the results' begins, or without axes.
        dtype: Of the result.
    """
    return _evaluated(_Member(family, (0,) * len(arguments), jnp.dtype(dtype)), *arguments)


def mapped(make: Callable[[Array], Made], axes: int) -> Callable[[Array], Made]:
    """Return `make`, a function of orders with `axes` axes, for orders with further leading axes, as under vmap."""

    def made(orders: Array) -> Made:
        function = make
        for _ in range(orders.ndim - axes):
            function = jax.vmap(function)
        return function(orders)

    return made


@dataclass(frozen=True, eq=False)
class _Member:
    """One function of a family, called in float64 with results rounded to `dtype`.

    It is hashable, so that JAX caches its traces.
    """

    family: Family
    counts: Counts
    dtype: Any

    def __call__(self, *arguments: Array) -> Made:
        # Formulas are NumPy's too: they mix real and complex numbers, and arrays of different numbers of axes.
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            found = self.family(self.counts)(*map(_widened, arguments))
            return jax.tree.map(lambda each: each.astype(self.dtype), found)

    def next(self, argument: int) -> _Member:
        """Return this member, differentiated once more in argument number `argument`."""
        counts = tuple(count + (index == argument) for index, count in enumerate(self.counts))
        return _Member(self.family, counts, self.dtype)


def _evaluated(member: _Member, *arguments: Any) -> Made:
    """Return member(*arguments), as the result of one primitive.

    No transform of JAX sees the float64 operations inside of it.
    """
    given = tuple(map(jnp.asarray, arguments))
    structure = jax.tree.structure(jax.eval_shape(member, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in given)))
    return jax.tree.unflatten(structure, _MEMBER.bind(*given, member=member))


# A primitive, because its rules stay with it: partial evaluation, as of a loop that is differentiated twice, leaves of
# `custom_jvp` and `custom_vmap` what they hold, whose float64 operations then meet the rules of JAX.
_MEMBER = Primitive("in_float64")
_MEMBER.multiple_results = True


def _leaves(*arguments: Array, member: _Member) -> list[Array]:
    def leaves(*arguments: Array) -> list[Array]:
        return jax.tree.leaves(member(*arguments))

    longest = max(arguments, key=jnp.ndim)
    return placed_like(longest, leaves, *arguments) if is_placed(longest) else leaves(*arguments)


def _types(*types: Any, member: _Member) -> list[Any]:
    """Abstract evaluation rule: return the types of the results, with shapes, dtypes and shardings.

    `types` are those of the member's arguments.
    """
    return list(jax.make_jaxpr(partial(_leaves, member=member))(*types).out_avals)


def _moved(primals: Sequence[Array], tangents: Sequence[Any], *, member: _Member) -> tuple[list[Array], list[Any]]:
    """JVP rule: return the results and their tangents.

    A tangent is the sum over the arguments of the partial derivative times the argument's tangent.
    """
    found = _MEMBER.bind(*primals, member=member)
    total = [ad.Zero(jax.typeof(each).to_tangent_aval()) for each in found]
    for place, moved in enumerate(tangents):
        if isinstance(moved, ad.Zero):
            continue
        slopes = _MEMBER.bind(*primals, member=member.next(place))
        total = [ad.add_tangents(sum, _along(slope, moved)) for sum, slope in zip(total, slopes, strict=True)]
    return found, total


def _batched(
    arguments: Sequence[Array], axes: Sequence[int | None], *, member: _Member
) -> tuple[list[Array], list[int]]:
    """Batching rule: return the results with a batch axis, which is their first, and the indices of those axes, all 0.

    `axes` are the batch axes of the arguments, None where there is none. To batch the rounded results would lose
    precision.
    """
    batched = [axis is not None for axis in axes]
    first = [each if axis is None else jnp.moveaxis(each, axis, 0) for each, axis in zip(arguments, axes, strict=True)]
    size = next(each.shape[0] for each, is_batched in zip(first, batched, strict=True) if is_batched)
    found = _MEMBER.bind(*_with_axis(size, batched, first), member=member)
    return found, [0] * len(found)


_MEMBER.def_impl(_leaves)
_MEMBER.def_abstract_eval(_types)
mlir.register_lowering(_MEMBER, mlir.lower_fun(_leaves, multiple_results=True))
ad.primitive_jvps[_MEMBER] = _moved
batching.primitive_batchers[_MEMBER] = _batched


def _with_axis(size: int, batched: Sequence[bool], arguments: Sequence[Array]) -> list[Array]:
    """Return the arguments [*c] as [size, *c], the batch axis first; scalars without a batch stay scalars.

    `batched` says which of the arguments have the batch axis already, as their first.
    """
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
    """Return a partial derivative, `slope` [*c, ...], times the tangent of the argument, `moved` [*c] or a scalar."""
    moved = jnp.asarray(moved)  # a tangent of jax.jvp may be a Python number
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
