"""Transformations made of Caputo's derivative of the loss along the way of the parameters: see `directions.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import optax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import JAX, Array, widest
from hpfracc_nn.fractional.namespace import Namespace
from hpfracc_nn.training import directions
from hpfracc_nn.training.jax.optimizers.arguments import (
    Alpha,
    Tree,
    arrays,
    at,
    check_belongs,
    check_given,
    exact,
    numbers,
    real,
    remembered,
)

_BESIDE_1 = 1e-14  # moves nodes and weights by as much


class FractionalPreviousState(NamedTuple):
    """What the closed form keeps: steps taken, points remembered, and the parameters before the last step."""

    count: Array  # type: ignore[assignment]
    stored: Array
    previous: Tree


class FractionalTerminalState(NamedTuple):
    """What the derivative from a fixed terminal keeps: steps taken."""

    count: Array  # type: ignore[assignment]


def closed_form(alpha: Alpha) -> optax.GradientTransformation:
    """Multiply the updates by a power of the last step's length; the first step takes them as they are."""

    def init(params: Tree) -> FractionalPreviousState:
        return FractionalPreviousState(_zero(), _zero(), jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: Tree, state: FractionalPreviousState, params: Tree = None
    ) -> tuple[Tree, FractionalPreviousState]:
        check_given(params, "caputo")
        count, stored, previous = state
        updates, params = arrays(updates), arrays(params)
        check_belongs("the previous point", previous, updates)
        order = at(alpha, count)

        def along(grad: Array, p: Array, before: Array) -> Array:
            way = p.astype(exact(p)) - before.astype(exact(p))
            has_moved = (stored > 0) & jnp.any(way != 0)
            return jnp.where(has_moved, _modulated(grad, way, order), grad)

        directions = jax.tree.map(along, updates, params, previous)
        kept = jax.tree.map(lambda p, before: p.astype(before.dtype), params, previous)
        return directions, FractionalPreviousState(optax.safe_increment(count), remembered(order, stored), kept)

    return optax.GradientTransformation(init, update)


def fixed_terminal(alpha: Alpha) -> optax.GradientTransformationExtraArgs:
    """Replace the updates with Caputo's derivative from 0 of `value_fn`, which `update` is given."""

    def init(params: Tree) -> FractionalTerminalState:
        del params
        return FractionalTerminalState(_zero())

    def update(
        updates: Tree,
        state: FractionalTerminalState,
        params: Tree = None,
        *,
        value_fn: Callable[[Tree], Array] | None = None,
        **extra_args: Any,  # of other transformations
    ) -> tuple[Tree, FractionalTerminalState]:
        del extra_args
        check_given(params, "caputo_terminal")
        if value_fn is None:
            raise ValueError(
                "scale_by_fractional(kind='caputo_terminal'): needs gradients at other points; pass value_fn, the loss "
                "of parameters, to update."
            )
        updates, params = arrays(updates), arrays(params)
        check_belongs("no past gradients, but parameters", params, updates)
        order = at(alpha, state.count)
        means = _mean_gradients(value_fn, params, order)
        directions = jax.tree.map(
            lambda mean, p, update: _modulated(mean, p, order).astype(update.dtype), means, params, updates
        )
        return directions, FractionalTerminalState(optax.safe_increment(state.count))

    return optax.GradientTransformationExtraArgs(init, update)


def _mean_gradients(value_fn: Callable[[Tree], Array], params: Tree, alpha: float | Array) -> Tree:
    """Return the mean of the gradients of the loss at s * params, 0 < s < 1, weighted by `(1 - s)**-alpha`.

    Args:
        value_fn: The loss of parameters.
        params: The parameters at s = 1.
        alpha: The order.
    """

    def add(means: Tree, node: tuple[Array, Array]) -> tuple[Tree, None]:
        place, weight = node
        gradients = jax.grad(value_fn)(jax.tree.map(partial(_shortened, place), params))
        return jax.tree.map(partial(_add, weight), means, gradients), None

    zeros = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=exact(p)), params)
    return jax.lax.scan(add, zeros, numbers(_quadrature, alpha, widest()))[0]


def _shortened(place: Array, p: Array) -> Array:
    wide = exact(p)
    return (place.astype(wide) * p.astype(wide)).astype(p.dtype)


def _add(weight: Array, mean: Array, gradient: Array) -> Array:
    """Return `mean + weight * conj(gradient)`, the mean with one more point of the quadrature.

    For complex parameters, the direction of ascent is the conjugate of JAX's gradient.
    """
    return mean + weight.astype(mean.dtype) * jnp.conj(gradient).astype(mean.dtype)


def _quadrature(alpha: Any, xp: Namespace) -> tuple[Any, Any]:
    if xp is not JAX:
        return directions.quadrature(alpha)
    # The matrix has a root of 1 - alpha, without a slope at 1, in what nodes and weights only see the square of.
    alpha = alpha - jnp.where(alpha > 1 - _BESIDE_1, _BESIDE_1, 0.0)
    nodes, vectors = jnp.linalg.eigh(directions.jacobi_matrix(alpha, JAX))
    return nodes, vectors[..., 0, :] ** 2


def _modulated(grad: Array, way: Array, alpha: float | Array) -> Array:
    """Return `grad * abs(way)**(1 - alpha) / Gamma(2 - alpha)`, for real and imaginary parts separately.

    `way` is the displacement of the parameter from the terminal, of the shape of `grad`.
    """
    wide = exact(grad)
    power, factor = numbers(_power, alpha, real(wide))

    def part(values: Array, distance: Array) -> Array:
        return values * jnp.abs(distance) ** power * factor

    grad, way, dtype = grad.astype(wide), way.astype(wide), grad.dtype
    if jnp.iscomplexobj(grad):
        return jax.lax.complex(part(grad.real, way.real), part(grad.imag, way.imag)).astype(dtype)
    return part(grad, way).astype(dtype)


def _power(alpha: Any, xp: Namespace) -> tuple[Array, Array]:
    order = xp.asarray(alpha)
    return 1 - order, xp.exp(-xp.gammaln(2 - order))


def _zero() -> Array:
    return jnp.zeros((), jnp.int32)
