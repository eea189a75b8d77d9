"""optax transformations that replace updates by averages of the last ones, or by Caputo's derivatives.

A window keeps the last gradients in a ring, with one more axis before the parameters' own; exponentials keep four
moving averages. A gradient is written into the ring before the ring is read: so XLA writes in place where the state is
donated or carried through a scan, and would copy the whole ring otherwise. Caputo's derivatives, along the way of the
parameters, are those of `training/directions.py`.

Sums are formed in single precision or better and rounded once. A row of weight 0 adds nothing to the average even if it
is not finite.

Weights are computed from the order alpha in float64 and rounded once. An order that is a Python number is known when
the step is traced: weights are then NumPy's, and errors are raised at once. An array may be traced; an order out of
range is then NaN, and under `jax.experimental.checkify` an error.

In the private functions, the R rows [R, *shape] of a parameter are what is kept of its past gradients, in the ring or
as moving averages, and `stored` is the number of gradients that were stored so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from numbers import Real
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import JAX, Array, at_least_single, widest
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.definitions import bounded
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.training import directions
from hpfracc_nn.training.directions import IN_RANGE, Law, check_alpha

Tree = Any  # of arrays, as the parameters
Schedule = Callable[[Array], Any]
Alpha = float | Array | Schedule

_BESIDE_1 = 1e-14  # subtracted from orders closer to 1; nodes and weights of a quadrature change by about as much
_IN_LINE = 16  # rows that are added one by one in the program, which would grow with more of them

Weigh = Callable[[Any], tuple[Array, Array]]  # takes a dtype to the weights of the present gradient and of the rows


class FractionalWindowState(NamedTuple):
    """The state of a `window`: steps taken, gradients stored, and the tree of these, [memory, *shape] a parameter."""

    count: Array  # type: ignore[assignment]
    stored: Array
    gradients: Tree


class FractionalAveragesState(NamedTuple):
    """The state of `fading`: steps taken, gradients averaged, and four moving averages, trees like the parameters."""

    count: Array  # type: ignore[assignment]
    stored: Array
    averages: tuple[Tree, ...]


def window(alpha: Alpha, law: Law, memory: int | None, key: Any, dtype: Any) -> optax.GradientTransformation:
    """Return the transformation that averages the present gradient and those of the last steps, kept in a ring.

    Args:
        alpha: The order.
        law: The law of the weights.
        memory: How many gradients are averaged, the present one included; None, for a traced option, takes the number
            that the state has room for.
        key: The key or seed of the random numbers of a law that drops gradients.
        dtype: The dtype of the gradients that are kept; None is the parameters'.
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
    """Return the transformation that averages gradients by exponentials, which stand for the integral's weights.

    The weights are tempered; see `training/directions.py`.

    Args:
        alpha: The order.
        dtype: The dtype of the moving averages; None is the parameters', or float32 for parameters in half precision,
            in which the slow averages would stop before they reach their values.
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
            return jnp.where(order == 1, 0.0, faded).astype(row.dtype)  # at alpha = 1 the history is dropped

        weigh = cache(partial(_fading_weights, order, stored))
        mixed = jax.tree.map(lambda grad, *rows: _mixed(grad, rows, weigh), updates, *averages)
        kept = tuple(
            jax.tree.map(partial(moved, decay), updates, row) for decay, row in zip(decays, averages, strict=True)
        )
        return mixed, FractionalAveragesState(optax.safe_increment(count), remembered(order, stored), kept)

    return optax.GradientTransformation(init, update)


def _mixed(grad: Array, rows: Sequence[Array] | Array, weigh: Weigh) -> Array:
    """Return the weighted sum of a gradient and the rows that are kept of past gradients, [*shape].

    Args:
        grad: The gradient of one parameter, [*shape].
        rows: The rows of this parameter, [R, *shape].
        weigh: Called with a dtype; returns the weight of the gradient and the R weights of the rows.
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

    This function is no closure, because a scan outside of jit would compile a closure at every call.

    Args:
        total: The sum so far.
        kept: A row and its weight.
    """
    row, weight = (each.astype(total.dtype) for each in kept)
    # A finite row of weight 0 is not replaced by 0: at alpha = 1 the derivative of its weight in alpha is not 0.
    return total + weight * jnp.where((weight == 0) & ~jnp.isfinite(row), 0.0, row), None


def _window_weights(
    law: Law, alpha: float | Array, length: int, stored: Array, dropped: Array | None, dtype: Any
) -> tuple[Array, Array]:
    by_lag = numbers(lambda order, xp: law.weights(order, length, xp), alpha, dtype)
    places = jnp.arange(length, dtype=stored.dtype)
    lags = (stored - places) % length  # lag 0 is the present gradient, whose weight is returned by itself
    counts = (lags > 0) & (lags <= stored)
    if dropped is not None:
        counts &= lags != dropped
    weights = jnp.where(counts, by_lag[lags], 0)
    total = by_lag[0] + weights.sum() if law.is_normalised else by_lag[0]
    return by_lag[0] / total, weights / total


def _fading_weights(alpha: float | Array, stored: Array, dtype: Any) -> tuple[Array, Array]:
    parts = numbers(_parts, alpha, dtype)
    # 1 - decay**stored, computed so that no digits are lost while few gradients were stored.
    reached = -jnp.expm1(stored.astype(dtype) * jnp.asarray(directions.log_decays(), dtype))
    total = 1 + (parts * reached).sum()
    return 1 / total, parts / total


def _parts(alpha: Any, xp: Namespace) -> Array:
    """Return the weights [*alpha, 4] of the four moving averages, before all weights are divided by their sum."""
    found = _fitted(alpha) if xp is JAX else directions.coefficients(alpha)
    return found / xp.constant(1 - directions.decays(), found)


def _fitted(alpha: Array) -> Array:
    """Return the coefficients of the exponentials, [*alpha, 4], for traced orders; see `directions.coefficients`."""
    matrix, target, scale = directions.fit_problem(alpha, JAX)
    q, r = jnp.linalg.qr(matrix)
    projected = JAX.matmul(jnp.swapaxes(q, -1, -2), jnp.asarray(target)[:, None])
    return scale[..., None] * jax.scipy.linalg.solve_triangular(r, projected)[..., 0]


def _dropped(key: Any, stored: Array, past: int) -> Array:
    """Return the lag, drawn from 1 to `past`, whose gradient is left out of the average at this step.

    Args:
        key: A key of jax.random, or a seed for a key.
        stored: How many gradients were stored so far: each step has a draw of its own.
        past: The number of past gradients in the average.
    """
    is_key = jnp.ndim(key) > 0 or (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key))
    drawn = jax.random.fold_in(jnp.asarray(key) if is_key else jax.random.key(key), stored)
    return jax.random.randint(drawn, (), 1, past + 1, jnp.int32)


def _length(gradients: Tree, memory: int | None) -> int:
    """Return for how many gradients the state has rows; raise ValueError if the number differs from `memory`."""
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


class FractionalPreviousState(NamedTuple):
    """The state of `closed_form`: steps taken, points remembered, and the parameters before the last step."""

    count: Array  # type: ignore[assignment]
    stored: Array
    previous: Tree


class FractionalTerminalState(NamedTuple):
    """The state of `fixed_terminal`: the number of steps taken."""

    count: Array  # type: ignore[assignment]


def closed_form(alpha: Alpha) -> optax.GradientTransformation:
    """Return the transformation of kind "caputo": updates times |last step|**(1 - alpha) / Gamma(2 - alpha).

    The first step leaves the updates as they are.
    """

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
    """Return the transformation of kind "caputo_terminal": it replaces updates by Caputo's derivative from 0.

    The derivative is that of the loss `value_fn`, an argument of `update`.
    """

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
    """Return the mean of the gradients of the loss at s * params over s in (0, 1), weighted by `(1 - s)**-alpha`.

    Args:
        value_fn: The loss of parameters.
        params: The parameters at s = 1.
        alpha: The order.
    """

    def add(means: Tree, node: tuple[Array, Array]) -> tuple[Tree, None]:
        place, weight = node
        gradients = jax.grad(value_fn)(jax.tree.map(partial(_shortened, place), params))
        return jax.tree.map(partial(_with_node, weight), means, gradients), None

    zeros = jax.tree.map(lambda p: jnp.zeros_like(p, dtype=exact(p)), params)
    return jax.lax.scan(add, zeros, numbers(_quadrature, alpha, widest()))[0]


def _shortened(place: Array, p: Array) -> Array:
    wide = exact(p)
    return (place.astype(wide) * p.astype(wide)).astype(p.dtype)


def _with_node(weight: Array, mean: Array, gradient: Array) -> Array:
    """Return `mean + weight * conj(gradient)`, the mean with one more point of the quadrature.

    For complex parameters, the direction of ascent is the conjugate of JAX's gradient.
    """
    return mean + weight.astype(mean.dtype) * jnp.conj(gradient).astype(mean.dtype)


def _quadrature(alpha: Any, xp: Namespace) -> tuple[Any, Any]:
    if xp is not JAX:
        return directions.quadrature(alpha)
    # The matrix holds sqrt(1 - alpha), which has no derivative at 1; nodes and weights depend on its square alone.
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


def exact(values: Array) -> Any:
    """Return the dtype in which sums of arrays like `values` are formed: theirs, but at least single precision."""
    return at_least_single(values.dtype)


def real(dtype: Any) -> Any:
    """Return the real dtype that belongs to `dtype`: that of the real part if `dtype` is complex, else itself."""
    return jnp.finfo(dtype).dtype


def arrays(tree: Tree) -> Tree:
    """Return a tree with all its leaves as arrays of JAX."""
    return jax.tree.map(jnp.asarray, tree)


def check_belongs(what: str, kept: Tree, updates: Tree, axes: int = 0) -> None:
    """Raise ValueError unless the state belongs to the parameters: its tree and shapes are those of the updates.

    Args:
        what: What the state holds, for messages.
        kept: The tree of arrays in the state.
        updates: The updates, a tree like the parameters.
        axes: How many axes of the state's arrays come before those of the parameters.
    """
    held_tree, given_tree = (str(jax.tree.structure(tree)) for tree in (kept, updates))
    if held_tree != given_tree:
        raise ValueError(
            f"the state holds {what} of the tree {held_tree}, and the updates are {given_tree}: what is remembered "
            "belongs to the parameters that init was given; make a new state with init, or leave parameters that have "
            "no gradient to optax.masked or optax.partition."
        )
    for held, update in zip(jax.tree.leaves(kept), jax.tree.leaves(updates), strict=True):
        shape, given = held.shape[axes:], jnp.shape(update)
        if shape != given:
            raise ValueError(
                f"the state holds {what} of shape {shape}, and the gradient has shape {given}: what is remembered "
                "belongs to the parameters that init was given; make a new state with init."
            )


def check_given(params: Tree, kind: str) -> None:
    """Raise ValueError if `update` was called without the parameters, which this kind needs."""
    if params is None:
        raise ValueError(
            f"scale_by_fractional(kind={kind!r}): needs the parameters; call update(updates, state, params)."
        )


def check(alpha: Any) -> None:
    """Check an order alpha that is known: a number or a concrete array. Traced and scheduled orders are checked later.

    Raises:
        TypeError: alpha is no number.
        ValueError: alpha is not in (0, 1].
    """
    if callable(alpha):
        return
    if not _is_array(alpha):
        check_alpha(alpha)
        return
    if alpha.shape != () or not jnp.issubdtype(alpha.dtype, jnp.number):
        raise TypeError(
            f"Invalid alpha type: array of {alpha.dtype} and shape {alpha.shape}: needs a number; pass a float such as "
            "alpha=0.9"
        )
    if not isinstance(alpha, jax.core.Tracer):
        check_alpha(float(alpha))


def is_identity(alpha: Alpha) -> bool:
    """Return whether the order is known to be 1 at every step: a Python number that is 1."""
    return isinstance(alpha, Real) and alpha == 1


def at(alpha: Alpha, count: Array) -> float | Array:
    """Return the order after `count` steps: a float if alpha is a number, else an array, NaN outside [0, 1]."""
    value = alpha(count) if callable(alpha) else alpha
    check(value)
    if not _is_array(value):
        return float(value)
    order = jnp.asarray(value, widest())
    is_inside = (order > 0) & (order <= 1)
    return bounded(checked(order, is_inside, "Invalid alpha value: {alpha}: " + IN_RANGE, alpha=order), 0.0, 1.0)


def numbers(make: Callable[..., Any], alpha: float | Array, dtype: Any) -> Any:
    """Return make(alpha, xp), a pytree of arrays computed in float64, rounded to `dtype`."""
    if isinstance(alpha, float):
        return jax.tree.map(lambda each: jnp.asarray(each, dtype), make(alpha, NUMPY))
    return in_float64(lambda order: make(order, JAX), alpha, dtype)


def remembered(alpha: float | Array, stored: Array) -> Array:
    """Return the number of stored gradients after a step of order alpha: one more, or 0 at alpha = 1.

    At alpha = 1 the history is dropped.
    """
    return jnp.where(alpha == 1, 0, optax.safe_increment(stored))


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)
