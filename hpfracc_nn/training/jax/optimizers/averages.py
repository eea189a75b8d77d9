"""Transformations that replace the updates with an average of the last ones.

A window keeps the gradients in a ring, one more axis before the parameters' own; exponentials keep four moving
averages. A gradient is written into the ring before the ring is read: so XLA writes it in place where the state is
donated or carried through a scan, and would copy the whole ring otherwise.

Sums are formed in single precision or better and rounded once. What weighs nothing brings nothing that is not
finite into the average.

In the private functions, the R rows [R, *shape] of a parameter are what is kept of its past gradients, in the ring or
as moving averages, and `stored` is the number of gradients that were stored so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.fractional.namespace import Namespace
from hpfracc_nn.training import directions
from hpfracc_nn.training.directions import Law
from hpfracc_nn.training.jax.optimizers.arguments import (
    Alpha,
    Tree,
    arrays,
    at,
    check_belongs,
    exact,
    numbers,
    real,
    remembered,
)

_IN_LINE = 16  # rows that are added one by one in the program, which would grow with more of them

Weigh = Callable[[Any], tuple[Array, Array]]  # of a dtype: the weight of the present gradient, and those of the rows


class FractionalWindowState(NamedTuple):
    """What a window keeps: steps taken, gradients remembered, and the tree of these, [memory, ...] of a parameter."""

    count: Array  # type: ignore[assignment]
    stored: Array
    gradients: Tree


class FractionalAveragesState(NamedTuple):
    """What exponentials keep: steps taken, gradients that went in, and moving averages as trees of the parameters."""

    count: Array  # type: ignore[assignment]
    stored: Array
    averages: tuple[Tree, ...]


def window(alpha: Alpha, law: Law, memory: int | None, key: Any, dtype: Any) -> optax.GradientTransformation:
    """Average the present gradient and those before it.

    Args:
        alpha: The order.
        law: Of the weights.
        memory: How many; None in an update takes what the state has.
        key: Where the random numbers of a law that drops gradients begin.
        dtype: Of what is kept; None is the parameters'.
    """

    def init(params: Tree) -> FractionalWindowState:
        if memory is None:
            raise TypeError(
                "Invalid memory type: traced array: needs a whole number or 'exponentials'; with "
                "optax.inject_hyperparams pass static_args='memory'"
            )

        def ring(p: Any) -> Array:
            row = jnp.zeros_like(p, dtype=dtype)  # laid out over devices as the parameter is
            return jnp.broadcast_to(row, (memory, *row.shape))

        return FractionalWindowState(_zero(), _zero(), jax.tree.map(ring, params))

    def update(updates: Tree, state: FractionalWindowState, params: Tree = None) -> tuple[Tree, FractionalWindowState]:
        del params
        _check_kind_of(state, FractionalWindowState)
        count, stored, gradients = state
        updates = arrays(updates)
        check_belongs("past gradients", gradients, updates, axes=1)
        length = _length(gradients, memory)
        order = at(alpha, count)

        def stored_in(rows: Array, grad: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(rows, grad.astype(rows.dtype), stored % length, 0)

        kept = jax.tree.map(stored_in, gradients, updates)
        lag = _dropped(key, stored, length - 1) if law.drops and length > 1 else None
        weigh = cache(partial(_window_weights, law, order, length, stored, lag))
        averages = jax.tree.map(lambda grad, rows: _mixed(grad, rows, weigh), updates, kept)
        return averages, FractionalWindowState(optax.safe_increment(count), remembered(order, stored), kept)

    return optax.GradientTransformation(init, update)


def fading(alpha: Alpha, dtype: Any) -> optax.GradientTransformation:
    """Average by exponentials that stand for the integral's weights, tempered.

    Args:
        alpha: The order.
        dtype: Of the moving averages; None is the parameters', or float32 where these are half as wide: there the slow
            ones would stop on the way.
    """
    decays = directions.decays()

    def init(params: Tree) -> FractionalAveragesState:
        def zeros(p: Any) -> Array:
            return jnp.zeros_like(p, dtype=dtype or exact(jnp.asarray(p)))

        kept = tuple(jax.tree.map(zeros, params) for _ in decays)
        return FractionalAveragesState(_zero(), _zero(), kept)

    def update(
        updates: Tree, state: FractionalAveragesState, params: Tree = None
    ) -> tuple[Tree, FractionalAveragesState]:
        del params
        _check_kind_of(state, FractionalAveragesState)
        count, stored, averages = state
        updates = arrays(updates)
        check_belongs("moving averages", averages[0], updates)
        order = at(alpha, count)

        def moved(decay: float, grad: Array, row: Array) -> Array:
            wide = exact(row)
            held = row.astype(wide)
            faded = held + wide.type(1 - decay) * (grad.astype(wide) - held)
            return jnp.where(order == 1, 0.0, faded).astype(row.dtype)  # at alpha = 1 what was remembered is dropped

        weigh = cache(partial(_fading_weights, order, stored))
        mixed = jax.tree.map(lambda grad, *rows: _mixed(grad, rows, weigh), updates, *averages)
        kept = tuple(
            jax.tree.map(partial(moved, decay), updates, row) for decay, row in zip(decays, averages, strict=True)
        )
        return mixed, FractionalAveragesState(optax.safe_increment(count), remembered(order, stored), kept)

    return optax.GradientTransformation(init, update)


def _mixed(grad: Array, rows: Sequence[Array] | Array, weigh: Weigh) -> Array:
    """Return the weighted sum of a gradient and the rows that are kept of those before it.

    Args:
        grad: The gradient of one parameter, [*shape].
        rows: Its rows, [R, *shape].
        weigh: Returns, for a dtype, the weight of the gradient and the R weights of the rows.
    """
    wide = exact(grad)
    first, weights = weigh(real(wide))
    total = first.astype(wide) * grad.astype(wide)
    if len(rows) > _IN_LINE:
        return jax.lax.scan(_add, total, (jnp.asarray(rows), weights))[0].astype(grad.dtype)
    for kept in zip(rows, weights, strict=True):
        total, _ = _add(total, kept)
    return total.astype(grad.dtype)


def _add(total: Array, kept: tuple[Array, Array]) -> tuple[Array, None]:
    """Return the total with a weighted row added, and None: the function that `lax.scan` calls for each row.

    It is no closure, which a scan outside of jit would compile at every call.

    Args:
        total: The sum so far.
        kept: A row and its weight.
    """
    row, weight = (each.astype(total.dtype) for each in kept)
    # A finite row of weight 0 stays: at alpha = 1 the weight is 0 and its slope in alpha is not.
    return total + weight * jnp.where((weight == 0) & ~jnp.isfinite(row), 0.0, row), None


def _window_weights(
    law: Law, alpha: float | Array, length: int, stored: Array, dropped: Array | None, dtype: Any
) -> tuple[Array, Array]:
    by_lag = numbers(lambda order, xp: law.weights(order, length, xp), alpha, dtype)
    places = jnp.arange(length, dtype=stored.dtype)
    lags = (stored - places) % length  # 0 is the present gradient, which is weighed by itself
    counts = (lags > 0) & (lags <= stored)
    if dropped is not None:
        counts &= lags != dropped
    weights = jnp.where(counts, by_lag[lags], 0)
    total = by_lag[0] + weights.sum() if law.is_normalised else by_lag[0]
    return by_lag[0] / total, weights / total


def _fading_weights(alpha: float | Array, stored: Array, dtype: Any) -> tuple[Array, Array]:
    parts = numbers(_parts, alpha, dtype)
    # 1 - decay**stored, all of whose digits are wanted while few gradients went in.
    reached = -jnp.expm1(stored.astype(dtype) * jnp.asarray(directions.log_decays(), dtype))
    total = 1 + (parts * reached).sum()
    return 1 / total, parts / total


def _parts(alpha: Any, xp: Namespace) -> Array:
    """Return the weights [*alpha, 4] of the four moving averages, before all weights are divided by their sum."""
    found = _fitted(alpha) if xp is JAX else directions.coefficients(alpha)
    return found / xp.constant(1 - directions.decays(), found)


def _fitted(alpha: Array) -> Array:
    """Return what `directions.coefficients` does, [*alpha, 4], for orders that are traced."""
    matrix, target, scale = directions.fit_problem(alpha, JAX)
    q, r = jnp.linalg.qr(matrix)
    projected = JAX.matmul(jnp.swapaxes(q, -1, -2), jnp.asarray(target)[:, None])
    return scale[..., None] * jax.scipy.linalg.solve_triangular(r, projected)[..., 0]


def _dropped(key: Any, stored: Array, past: int) -> Array:
    """Return the lag, drawn from 1 to `past`, whose gradient is left out of the average at this step.

    Args:
        key: A key of jax.random, or a seed for one.
        stored: How many gradients were stored so far, by which each step has a draw of its own.
        past: How many past gradients there are.
    """
    is_key = jnp.ndim(key) > 0 or (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key))
    drawn = jax.random.fold_in(jnp.asarray(key) if is_key else jax.random.key(key), stored)
    return jax.random.randint(drawn, (), 1, past + 1, jnp.int32)


def _length(gradients: Tree, memory: int | None) -> int:
    """Return how many past gradients the state has rows for; raise ValueError if it is not `memory`."""
    lengths = {rows.shape[0] for rows in jax.tree.leaves(gradients)} or {memory or 1}
    length = min(lengths)
    if memory is not None and memory != length:
        raise ValueError(
            f"the state holds what memory={length} remembers and memory={memory} was asked for: memory is fixed when "
            "the state is made; make a new state with init."
        )
    return length


def _check_kind_of(state: Any, wanted: type) -> None:
    if not isinstance(state, wanted):
        raise TypeError(
            f"the state is a {type(state).__name__} and this memory keeps a {wanted.__name__}: kind and memory are "
            "fixed when the state is made; make a new state with init."
        )


def _zero() -> Array:
    return jnp.zeros((), jnp.int32)
