"""The fractional integrals over the steps taken so far, in collocation, as one operation of JAX.

How many steps were taken is known only when the program runs: a sum is a loop over as many blocks of steps as there
are. JAX does not differentiate such a loop in reverse. The sum is linear in the right-hand sides, and its weights
depend on alpha: a primitive knows the sum's transpose, another such loop, and its derivatives in alpha, which are the
same sum with other weights. Derivatives therefore exist in both modes, to any order.

Weights are computed in float64, whether or not the process has enabled 64 bit types.

Shapes: a orders alpha; r numbers of the state for each order; s stages of a step; N steps for which arrays have room;
rows of times at which the integrals are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.solvers.collocation import FAR, after, after_far

_BLOCK, _CLOSE = 32, 8  # how many steps a block has: of steps far from the rows' times, and of steps close to them


@dataclass(frozen=True)
class _Sum:
    """Which sum the primitive `sums_over_steps` computes: its parameters besides arrays.

    Attributes:
        stages: The number of stages of a step.
        in_time: 1 for the derivative of the integrals in time, else 0.
        in_alpha: How often the weights are differentiated in alpha.
        is_transposed: Whether the transpose is computed, which takes cotangents of the integrals to cotangents of the
            right-hand sides.
        batches: For each axis that `vmap` added, the outermost first: which of the primitive's six arguments have this
            axis, as their first.
    """

    stages: int
    in_time: int = 0
    in_alpha: int = 0
    is_transposed: bool = False
    batches: tuple[tuple[bool, ...], ...] = ()


def sums(
    stages: int, alpha: Array, lengths: Array, n: Array, rows: Array, values: Array, in_time: int = 0, in_alpha: int = 0
) -> Array:
    """Return the fractional integrals of f over the first n steps, at times after the end of step n, [rows, a, r].

    JAX differentiates in alpha and the values of f; the lengths of steps and the times are constants.

    Args:
        stages: The number of stages of a step.
        alpha: The orders, [a].
        lengths: The lengths of the steps, [N]; those from step n on are ignored.
        n: How many steps the integrals cover.
        rows: Increasing times since the end of the n steps, [rows].
        values: The values of f at the stages of all steps, [N, s, a, r].
        in_time: 1 for the derivative of the integrals in time, else 0.
        in_alpha: How often the integrals are differentiated in alpha.
    """
    total = jnp.zeros((*rows.shape, *values.shape[2:]), values.dtype)
    return _SUMS.bind(alpha, lengths, n, rows, values, total, kind=_Sum(stages, in_time, in_alpha))  # type: ignore[no-any-return]


def spread_back(
    stages: int, alpha: Array, lengths: Array, n: Array, rows: Array, cotangent: Array, total: Array
) -> Array:
    """Return `total` [N, s, a, r] plus the transpose of `sums` applied to a cotangent of the integrals, [rows, a, r].

    The other arguments are those of `sums`.
    """
    kind = _Sum(stages, is_transposed=True)
    return _SUMS.bind(alpha, lengths, n, rows, cotangent, total, kind=kind)  # type: ignore[no-any-return]


_SUMS = Primitive("sums_over_steps")


def _found(alpha: Array, lengths: Array, n: Array, rows: Array, x: Array, total: Array, *, kind: _Sum) -> Array:
    """Return the value of the primitive: `total` plus the sum that `kind` describes, or plus its transpose, of x."""
    function: Callable[..., Array] = partial(_one, kind)
    for each in reversed(kind.batches):
        function = jax.vmap(function, in_axes=tuple(0 if is_batched else None for is_batched in each))
    return function(alpha, lengths, n, rows, x, total)


def _one(kind: _Sum, alpha: Array, lengths: Array, n: Array, rows: Array, x: Array, total: Array) -> Array:
    """Return `total` plus the sum that `kind` describes, or plus its transpose, of x, for arrays without batch axes."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        alpha, rows = alpha.astype(jnp.float64), rows.astype(jnp.float64)
        count, orders = lengths.size, alpha.size
        is_past = jnp.arange(count) < n
        h = jnp.where(is_past, lengths.astype(jnp.float64), 0.0)
        since = _later(h)
        is_close = is_past & (since + rows[0] <= FAR * h)

        def add(weights_of: Callable[..., Array], first: Array, size: int, counting: Array, total: Array) -> Array:
            """Return `total` plus the part of the steps first, ..., first + size - 1 for which `counting` is True."""
            # The last block reaches back into the block before. Under `vmap` `begin` becomes the index of a scatter,
            # which JAX lowers outside of `enable_x64`, where there may be no 64 bit types.
            begin = jnp.minimum(first, count - size).astype(jnp.int32)

            def block(each: Array) -> Array:
                return lax.dynamic_slice_in_dim(each, begin, size)

            counts = block(counting) & (begin + jnp.arange(size) >= first)
            gap = block(since) + rows[:, None]
            length = jnp.broadcast_to(jnp.where(counts, block(h), 1.0), gap.shape)

            def weights(alpha: Array) -> Array:
                return weights_of(kind.stages, alpha, gap.reshape(-1), length.reshape(-1), JAX, kind.in_time)

            for _ in range(kind.in_alpha):
                weights = partial(_slope, weights)
            found = weights(alpha).reshape(orders, rows.size, size, kind.stages)
            found = jnp.where(counts[:, None], found, 0.0).astype(x.dtype)
            if kind.is_transposed:
                part = jnp.einsum("akms,kar->msar", found, x, precision=lax.Precision.HIGHEST)
                return lax.dynamic_update_slice_in_dim(total, block(total) + part, begin, 0)
            return total + jnp.einsum("akms,msar->kar", found, block(x), precision=lax.Precision.HIGHEST)

        size, few = min(_BLOCK, count), min(_CLOSE, count)
        blocks = -(-jnp.minimum(n, count) // size)
        total = lax.fori_loop(
            0, blocks, lambda k, total: add(after_far, k * size, size, is_past & ~is_close, total), total
        )
        numbers = jnp.arange(-(-count // few))
        has_close = jnp.pad(is_close, (0, numbers.size * few - count)).reshape(-1, few).any(1)

        def following(k: Array | int) -> Array:
            return jnp.min(jnp.where(has_close & (numbers > k), numbers, numbers.size))

        def close(state: tuple[Array, Array]) -> tuple[Array, Array]:
            k, total = state
            return following(k), add(after, k * few, few, is_close, total)

        return lax.while_loop(lambda state: state[0] < numbers.size, close, (following(-1), total))[1]


def _later(h: Array) -> Array:
    """Return for each step the sum of the lengths of all later steps, [N]; differences of times would lose digits.

    `h` are the lengths of the steps, [N].
    """
    size = min(_BLOCK, h.size)
    blocks = jnp.pad(h, (0, -h.size % size)).reshape(-1, size)

    def after_each(x: Array) -> Array:
        place = np.arange(x.shape[-1])
        return jnp.where(place > place[:, None], x[..., None, :], 0.0).sum(-1)

    return (after_each(blocks) + after_each(blocks.sum(1))[:, None]).reshape(-1)[: h.size]


def _slope(function: Callable[[Array], Array], alpha: Array) -> Array:
    """Return the derivative of function(alpha) at orders alpha [a], of each entry in the one order that it depends on.

    The result has the shape of function(alpha).
    """
    return jax.jvp(function, (alpha,), (jnp.ones_like(alpha),))[1]


def _type(alpha: Any, lengths: Any, n: Any, rows: Any, x: Any, total: Any, *, kind: _Sum) -> Any:
    """Abstract evaluation rule of the primitive: return the shape and dtype of the result, those of `total`."""
    return jax.core.ShapedArray(total.shape, total.dtype)


def _moved(primals: Sequence[Array], tangents: Sequence[Any], *, kind: _Sum) -> tuple[Array, Any]:
    """JVP rule of the primitive: return its value and the tangent in alpha, x and total.

    The lengths of steps and the times are constants.
    """
    alpha, *steps, x, total = primals
    found = _SUMS.bind(*primals, kind=kind)
    moved = tangents[5]
    if not isinstance(tangents[4], ad.Zero):
        moved = _SUMS.bind(alpha, *steps, tangents[4], ad.instantiate_zeros(moved), kind=kind)
    if not isinstance(tangents[0], ad.Zero):
        slope = _SUMS.bind(alpha, *steps, x, jnp.zeros_like(total), kind=replace(kind, in_alpha=kind.in_alpha + 1))
        sizes = iter(alpha.shape)
        batch = [next(sizes) if each[0] else 1 for each in kind.batches]
        middle = (1,) * (slope.ndim - len(batch) - 2)
        of_alpha = jnp.asarray(tangents[0]).astype(slope.dtype).reshape(*batch, *middle, *sizes, 1)
        moved = ad.add_tangents(moved, slope * of_alpha)
    return found, moved


def _transposed(cotangent: Any, alpha: Any, lengths: Any, n: Any, rows: Any, x: Any, total: Any, *, kind: _Sum) -> Any:
    """Transposition rule of the primitive: return the cotangents of its arguments x and total, None for the others."""
    back = cotangent if ad.is_undefined_primal(total) else None
    if not ad.is_undefined_primal(x):
        return [None, None, None, None, None, back]
    if isinstance(cotangent, ad.Zero):
        return [None, None, None, None, ad.Zero(x.aval), back]
    kind = replace(kind, is_transposed=not kind.is_transposed)
    none = jnp.zeros(x.aval.shape, x.aval.dtype)
    return [None, None, None, None, _SUMS.bind(alpha, lengths, n, rows, cotangent, none, kind=kind), back]


def _batched(arguments: Sequence[Array], axes: Sequence[int | None], *, kind: _Sum) -> tuple[Array, int]:
    """Batching rule of the primitive: return the batched value and 0, the number of its batch axis.

    The arguments x and total, in which the value is linear, always get the batch axis, so that the transpose needs no
    sum over the batch.
    """
    size = next(each.shape[axis] for each, axis in zip(arguments, axes, strict=True) if axis is not None)
    given = [each if axis is None else jnp.moveaxis(each, axis, 0) for each, axis in zip(arguments, axes, strict=True)]
    for k in (4, 5):
        if axes[k] is None:
            given[k] = jnp.broadcast_to(given[k], (size, *given[k].shape))
    batched = (*(axis is not None for axis in axes[:4]), True, True)
    return _SUMS.bind(*given, kind=replace(kind, batches=(batched, *kind.batches))), 0


_SUMS.def_impl(partial(jax.jit, static_argnames="kind")(_found))
_SUMS.def_abstract_eval(_type)
mlir.register_lowering(_SUMS, mlir.lower_fun(_found, multiple_results=False))
ad.primitive_jvps[_SUMS] = _moved
ad.primitive_transposes[_SUMS] = _transposed
batching.primitive_batchers[_SUMS] = _batched
