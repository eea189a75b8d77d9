"""The sums over the steps that are over, as one operation of JAX.

How many steps there are is known when the program runs: a sum is a loop over as many blocks of steps as there are. JAX
does not differentiate such a loop in reverse. The sum is linear in the right-hand sides, and its weights depend on
alpha: a primitive knows its transpose, another such loop, and its derivatives in alpha, which are the same sum with
other weights. Derivatives therefore exist in both modes, to any order.

Weights are computed in float64, whether or not the process has enabled 64 bit types.

Shapes: a orders alpha, r numbers of a state for each, s stages, N steps that there may be, rows of times that look
back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.solvers.collocation import FAR, after, after_far

_BLOCK, _CLOSE = 32, 8  # steps of a block: of those far away, and of others
_AXES = (0, None, None, None, 0)  # of the arguments that are batched


@dataclass(frozen=True)
class _Sum:
    """Which sum it is.

    Attributes:
        stages: Of a step.
        in_time: 1 for the derivative in time.
        in_alpha: How often the weights are differentiated in alpha.
        is_transposed: Whether it takes what is summed from what the sum is.
        batches: For each batch, the outermost first, whether each of the five arguments has it, as its first axis.
    """

    stages: int
    in_time: int = 0
    in_alpha: int = 0
    is_transposed: bool = False
    batches: tuple[tuple[bool, ...], ...] = ()


def sums(
    stages: int, alpha: Array, lengths: Array, n: Array, rows: Array, values: Array, in_time: int = 0, in_alpha: int = 0
) -> Array:
    """Return the integrals over the first n steps at times after their end, [rows, a, r].

    A derivative is taken in alpha and the values; steps are constants.

    Args:
        stages: Of a step.
        alpha: [a].
        lengths: Of the steps, [N]; from n on they play no part.
        n: How many steps are over.
        rows: Increasing times after their end, [rows].
        values: Of f at their stages, [N, s, a, r].
        in_time: 1 for the derivative in time.
        in_alpha: How often it is differentiated in alpha.
    """
    return _SUMS.bind(alpha, lengths, n, rows, values, kind=_Sum(stages, in_time, in_alpha))  # type: ignore[no-any-return]


_SUMS = Primitive("sums_over_steps")


def _found(alpha: Array, lengths: Array, n: Array, rows: Array, x: Array, *, kind: _Sum) -> Array:
    """Return the value of the primitive."""
    function: Callable[..., Array] = partial(_one, kind)
    for each in reversed(kind.batches):
        function = jax.vmap(function, in_axes=tuple(0 if is_batched else None for is_batched in each))
    return function(alpha, lengths, n, rows, x)


def _one(kind: _Sum, alpha: Array, lengths: Array, n: Array, rows: Array, x: Array) -> Array:
    """Return the sum, or its transpose, without batches."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        alpha, rows = alpha.astype(jnp.float64), rows.astype(jnp.float64)
        count, orders = lengths.size, alpha.size
        is_past = jnp.arange(count) < n
        h = jnp.where(is_past, lengths.astype(jnp.float64), 0.0)
        since = jnp.append(jnp.cumsum(h[::-1])[::-1][1:], 0.0)  # of differences of times, digits would be lost
        h = jnp.where(is_past, h, 1.0)
        is_close = is_past & (since + rows[0] <= FAR * h)
        shape = (count, kind.stages, orders, x.shape[-1]) if kind.is_transposed else (rows.size, orders, x.shape[-1])

        def add(weights_of: Callable[..., Array], index: Array, counts: Array, total: Array) -> Array:
            gap = since[index] + rows[:, None]
            pairs = gap.reshape(-1), jnp.broadcast_to(h[index], gap.shape).reshape(-1)

            def weights(alpha: Array) -> Array:
                return weights_of(kind.stages, alpha, *pairs, JAX, kind.in_time)

            for _ in range(kind.in_alpha):
                weights = partial(_slope, weights)
            found = weights(alpha).reshape(orders, rows.size, index.size, kind.stages)
            found = jnp.where(counts[:, None], found, 0.0).astype(x.dtype)
            if kind.is_transposed:
                part = jnp.einsum("akms,kar->msar", found, x, precision=lax.Precision.HIGHEST)
                return total.at[index].add(part)
            return total + jnp.einsum("akms,msar->kar", found, x[index], precision=lax.Precision.HIGHEST)

        def far(block: Array, total: Array) -> Array:
            index = jnp.minimum(block * size + jnp.arange(size), count - 1)
            counts = is_past[index] & ~is_close[index] & (block * size + jnp.arange(size) < count)
            return add(after_far, index, counts, total)

        def close(block: Array, total: Array) -> Array:
            place = block * few + jnp.arange(few)
            return add(after, order[jnp.minimum(place, count - 1)], place < is_close.sum(), total)

        size, few = min(_BLOCK, count), min(_CLOSE, count)
        order = jnp.argsort(~is_close, stable=True)
        total = lax.fori_loop(0, -(-jnp.minimum(n, count) // size), far, jnp.zeros(shape, x.dtype))
        return lax.fori_loop(0, -(-is_close.sum() // few), close, total)


def _slope(function: Callable[[Array], Array], alpha: Array) -> Array:
    """Return the derivative of a function of each order."""
    return jax.jvp(function, (alpha,), (jnp.ones_like(alpha),))[1]


def _type(alpha: Any, lengths: Any, n: Any, rows: Any, x: Any, *, kind: _Sum) -> Any:
    """Abstract evaluation rule."""
    batch, end = x.shape[: len(kind.batches)], x.shape[-2:]
    middle = (lengths.shape[-1], kind.stages) if kind.is_transposed else rows.shape[-1:]
    return jax.core.ShapedArray((*batch, *middle, *end), x.dtype)


def _moved(primals: Sequence[Array], tangents: Sequence[Any], *, kind: _Sum) -> tuple[Array, Any]:
    """JVP rule: of lengths and times, which are constants, there is no tangent."""
    alpha, *steps = primals[:4]
    found = _SUMS.bind(*primals, kind=kind)
    total = ad.Zero(jax.typeof(found).to_tangent_aval())
    if not isinstance(tangents[4], ad.Zero):
        total = ad.add_tangents(total, _SUMS.bind(alpha, *steps, tangents[4], kind=kind))
    if not isinstance(tangents[0], ad.Zero):
        slope = _SUMS.bind(*primals, kind=replace(kind, in_alpha=kind.in_alpha + 1))
        sizes = iter(alpha.shape)
        batch = [next(sizes) if each[0] else 1 for each in kind.batches]
        middle = (1,) * (slope.ndim - len(batch) - 2)
        moved = jnp.asarray(tangents[0]).astype(slope.dtype).reshape(*batch, *middle, *sizes, 1)
        total = ad.add_tangents(total, slope * moved)
    return found, total


def _transposed(cotangent: Any, alpha: Any, lengths: Any, n: Any, rows: Any, x: Any, *, kind: _Sum) -> list[Any]:
    """Transposition rule."""
    if isinstance(cotangent, ad.Zero):
        return [None, None, None, None, ad.Zero(x.aval)]
    back = replace(kind, is_transposed=not kind.is_transposed)
    return [None, None, None, None, _SUMS.bind(alpha, lengths, n, rows, cotangent, kind=back)]


def _batched(arguments: Sequence[Array], axes: Sequence[int | None], *, kind: _Sum) -> tuple[Array, int]:
    """Batching rule: what is summed gets the batch in any case, so that the transpose needs no sum over it."""
    size = next(each.shape[axis] for each, axis in zip(arguments, axes, strict=True) if axis is not None)
    given = [each if axis is None else jnp.moveaxis(each, axis, 0) for each, axis in zip(arguments, axes, strict=True)]
    if axes[4] is None:
        given[4] = jnp.broadcast_to(given[4], (size, *given[4].shape))
    batched = (*(axis is not None for axis in axes[:4]), True)
    return _SUMS.bind(*given, kind=replace(kind, batches=(batched, *kind.batches))), 0


_SUMS.def_impl(partial(jax.jit, static_argnames="kind")(_found))
_SUMS.def_abstract_eval(_type)
mlir.register_lowering(_SUMS, mlir.lower_fun(_found, multiple_results=False))
ad.primitive_jvps[_SUMS] = _moved
ad.primitive_transposes[_SUMS] = _transposed
batching.primitive_batchers[_SUMS] = _batched
