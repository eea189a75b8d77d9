"""What solves are asked for: states, orders and times, checked at the door. `torch/arguments.py` is the twin.

What is concrete is checked and raises. What is traced has no numbers yet: its shape and dtype are checked, and the
numbers by `jax.experimental.checkify`, where a caller uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.definitions import within
from hpfracc_nn.solvers import checks

State = Any  # a pytree of arrays
_DTYPES = (np.dtype("float32"), np.dtype("float64"))


def is_traced(x: Any) -> bool:
    """Return whether x has no numbers yet."""
    return isinstance(x, jax.core.Tracer)


def checked_state(owner: str, name: str, y: State) -> State:
    """Return a state, its leaves arrays of JAX.

    Raises:
        TypeError: A leaf is no array, or of a dtype that does not fit.
        ValueError: It holds no numbers, or one that is not finite.
    """
    leaves, tree = jax.tree.flatten(y)
    if not leaves:
        raise ValueError(f"{owner}({name}={y!r}): needs an array, or some of them; pass the state at the start.")
    for leaf in leaves:
        if isinstance(leaf, bool) or not isinstance(leaf, jax.Array | np.ndarray | np.generic | float):
            raise TypeError(
                f"{owner}({name} of type {type(leaf).__name__}): needs an array, or a pytree of arrays; pass "
                f"jax.numpy.asarray({name})."
            )
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    return jax.tree.unflatten(tree, [_checked_part(owner, name, part, arrays[0].dtype) for part in arrays])


def _checked_part(owner: str, name: str, part: Array, dtype: Any) -> Array:
    if part.dtype not in _DTYPES:
        raise TypeError(
            f"{owner}({name} of dtype {part.dtype}): needs float32 or float64; "
            + (
                f"pass ({name}.real, {name}.imag), a state of two parts, and write the equation for them."
                if jnp.issubdtype(part.dtype, jnp.complexfloating)
                else f"convert with {name}.astype(jax.numpy.float32)."
            )
        )
    if part.dtype != dtype:
        raise TypeError(
            f"{owner}({name}): needs arrays of one dtype; they are {dtype} and {part.dtype}; convert them with "
            ".astype(...)."
        )
    if part.size == 0:
        raise ValueError(f"{owner}({name} of shape {part.shape}): needs numbers; pass a state that has some.")
    if is_traced(part):
        return checked(part, jnp.isfinite(part).all(), f"{owner}({name}): needs finite numbers.")
    if not np.isfinite(np.asarray(part)).all():
        values = np.asarray(part).reshape(-1)
        i = int(np.argmin(np.isfinite(values)))
        raise ValueError(
            f"{owner}({name}): needs finite numbers; {name} holds {values[i]} at place {i} of {values.size}; replace "
            "it, or leave what it belongs to out."
        )
    return part


@dataclass(frozen=True, eq=False)
class Orders:
    """The orders alpha of a solve.

    Attributes:
        values: [a], float64, where they are concrete.
        traced: [a], within their bounds, where they are not.
        shape: Of the alpha that was given.
        highest: The largest that a traced one may be.
        lowest: Where what a traced one may be begins.
    """

    values: np.ndarray | None
    traced: Array | None
    shape: tuple[int, ...]
    highest: float
    lowest: float = 0.0


def orders_of(owner: str, alpha: Any, has_slope: bool) -> Orders:
    """Return the orders of a call.

    Args:
        owner: Who asks, for messages.
        alpha: What was given.
        has_slope: Whether the derivative at the start was.

    Raises:
        TypeError: It is neither a number nor a floating array.
        ValueError: It is concrete and out of bounds.
    """
    if isinstance(alpha, jax.Array | np.ndarray):
        if not jnp.issubdtype(alpha.dtype, jnp.floating):
            raise TypeError(
                f"{owner}(alpha of dtype {alpha.dtype}): needs a floating array; pass alpha.astype(jax.numpy.float32)."
            )
    elif isinstance(alpha, bool) or not isinstance(alpha, int | float | np.floating):
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a floating array; pass for example 0.5."
        )
    highest = 2.0 if has_slope else 1.0
    shape = tuple(np.shape(alpha))
    if not is_traced(alpha):
        values = np.asarray(alpha, np.float64).reshape(-1)
        checks.orders(owner, values, has_slope, isinstance(alpha, jax.Array))
        return Orders(values, None, shape, highest)
    eps = float(jnp.finfo(alpha.dtype).eps)  # 0 and 2 are no orders of an equation
    nearest = eps, 2 - 2 * eps if has_slope else 1.0
    return Orders(None, within(owner, alpha, 0.0, highest, nearest).reshape(-1), shape, highest)


def times_of(owner: str, ts: Any) -> np.ndarray | Array:
    """Return output times: float64 where they are concrete, else traced and without a gradient.

    Raises:
        ValueError: They are not two or more on one axis, or concrete and not increasing.
        TypeError: They are traced and not floating.
    """
    if not is_traced(ts):
        return checks.increasing(owner, np.asarray(ts))
    if ts.ndim != 1 or ts.size < 2:
        raise ValueError(checks.times_message(owner, ts.shape))
    if not jnp.issubdtype(ts.dtype, jnp.floating):
        raise TypeError(f"{owner}(ts of dtype {ts.dtype}): needs floating times; pass ts.astype(jax.numpy.float32).")
    return _without_gradient(checked(ts, jnp.all(ts[1:] > ts[:-1]), f"{owner}(ts=...): times must increase."))


@jax.custom_jvp
def _without_gradient(ts: Array) -> Array:
    return ts


def _refused(primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
    (ts,), (moved,) = primals, tangents
    if not isinstance(moved, jax.custom_derivatives.SymbolicZero):
        raise ValueError(
            "fdeint(ts that a gradient is wanted of): needs times that are given, because the mesh is made of them; "
            "pass jax.lax.stop_gradient(ts)."
        )
    return ts, moved


_without_gradient.defjvp(_refused, symbolic_zeros=True)


def resolution(ts: Any) -> float:
    """Return the relative precision that times were given in."""
    dtype = getattr(ts, "dtype", None)
    is_floating = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
    return float(jnp.finfo(dtype if is_floating else np.float64).eps)
