"""Orders and trees of updates that a transformation is given: their checks, and the precision in which it computes.

What follows from an order is computed in float64 and rounded once. A Python number is known when the step is traced:
its numbers are NumPy's, and errors are raised at once. An array may be traced; one out of range is then NaN, and under
`jax.experimental.checkify` an error.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import JAX, Array, at_least_single, widest
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.definitions import bounded
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.training.directions import IN_RANGE, check_alpha

Tree = Any  # of arrays, as the parameters


def exact(values: Array) -> Any:
    """Return the dtype in which sums of such values are formed: single precision or better."""
    return at_least_single(values.dtype)


def real(dtype: Any) -> Any:
    """Return the dtype of the real part."""
    return jnp.finfo(dtype).dtype


def arrays(tree: Tree) -> Tree:
    """Return a tree whose numbers are arrays too."""
    return jax.tree.map(jnp.asarray, tree)


def check_belongs(what: str, kept: Tree, updates: Tree, axes: int = 0) -> None:
    """Raise unless what is kept, behind so many axes, is that of parameters with such updates."""
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
    """Raise unless the parameters were given."""
    if params is None:
        raise ValueError(
            f"scale_by_fractional(kind={kind!r}): needs the parameters; call update(updates, state, params)."
        )


Schedule = Callable[[Array], Any]
Alpha = float | Array | Schedule


def check(alpha: Any) -> None:
    """Raise unless an order is good, as far as it is known: one that is traced or scheduled is looked at in the step.

    Raises:
        TypeError: It is no number.
        ValueError: It is not in (0, 1].
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
    """Whether the order is 1 at every step, and known to be."""
    return isinstance(alpha, Real) and alpha == 1


def at(alpha: Alpha, count: Array) -> float | Array:
    """Return the order after `count` steps: a float where it is a number, else an array, NaN outside [0, 1]."""
    value = alpha(count) if callable(alpha) else alpha
    check(value)
    if not _is_array(value):
        return float(value)
    order = jnp.asarray(value, widest())
    is_inside = (order > 0) & (order <= 1)
    return bounded(checked(order, is_inside, "Invalid alpha value: {alpha}: " + IN_RANGE, alpha=order), 0.0, 1.0)


def numbers(make: Callable[..., Any], alpha: float | Array, dtype: Any) -> Any:
    """Return make(alpha, namespace), arrays, rounded to `dtype`."""
    if isinstance(alpha, float):
        return jax.tree.map(lambda each: jnp.asarray(each, dtype), make(alpha, NUMPY))
    return in_float64(lambda order: make(order, JAX), alpha, dtype)


def remembered(alpha: float | Array, stored: Array) -> Array:
    """Return how many gradients are remembered after a step of that order: at alpha = 1 what was is dropped."""
    return jnp.where(alpha == 1, 0, optax.safe_increment(stored))


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)
