"""Definitions in JAX: pytrees whose leaf is an array of orders, and checks and bounds of orders that are traced."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.definitions import DEFINITIONS, MULTIPLIERS, Definition, DistributedOrder, FourierMultiplier
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked


def checked_alpha(owner: str, definition: Definition) -> Array:
    """Return a definition's orders, an array, within its bounds.

    Concrete orders out of bounds raise. Traced ones become NaN, and raise under `jax.experimental.checkify`.

    Raises:
        TypeError: The orders are no floating array of JAX.
        ValueError: The orders are concrete and out of bounds.
    """
    alpha = floating_alpha(owner, definition.alpha)
    low, high = definition.interval
    if not isinstance(alpha, jax.core.Tracer):
        values = np.asarray(alpha)
        least, most = np.asarray([low, high]).astype(values.dtype)  # float32 rounds 0.3 to more than 0.3
        if not ((values >= least) & (values <= most)).all():
            values = values.astype(np.float64)
            raise ValueError(
                f"{owner}(alpha={values.tolist()}): needs an alpha within its bounds ({low:g}, {high:g}); "
                "pass bounds that hold it, such as bounds=(1, 2), or a float."
            )
        return alpha
    return within(owner, alpha, low, high)


def floating_alpha(owner: str, alpha: Any) -> Array:
    """Return orders, or raise TypeError unless they are a floating array of JAX."""
    if not isinstance(alpha, jax.Array) or not jnp.issubdtype(alpha.dtype, jnp.floating):
        kind = f"{alpha.dtype} array" if isinstance(alpha, jax.Array) else type(alpha).__name__
        raise TypeError(
            f"{owner}(alpha: {kind}): needs a float or a floating JAX array; pass for example jax.numpy.asarray(0.5)."
        )
    return alpha


def within(owner: str, alpha: Array, low: float, high: float, nearest: tuple[float, float] | None = None) -> Array:
    """Return traced orders as `bounded` does; under `jax.experimental.checkify` those beyond their bounds raise."""
    least, most = nearest or (low, high)
    alpha = checked(
        alpha,
        ((alpha >= least) & (alpha <= most)).all(),
        f"{owner}: needs every alpha within its bounds ({least:g}, {most:g}); got one of {{alpha}}.",
        alpha=alpha,
    )
    return bounded(alpha, low, high, nearest)


def bounded(alpha: Array, low: float, high: float, nearest: tuple[float, float] | None = None) -> Array:
    """Return orders within bounds; beyond them NaN, as their gradient is.

    Args:
        alpha: The orders.
        low: The lower bound; what exceeds a bound by no more than it is rounded becomes the bound.
        high: The upper bound.
        nearest: What orders on a bound become, where bounds are no orders themselves: the nearest two that are. None is
            the bounds.
    """
    rounding = 4 * float(jnp.finfo(alpha.dtype).eps)  # of low + (high - low) * u, u from 0 to 1
    is_inside = (alpha >= low - rounding * abs(low)) & (alpha <= high + rounding * abs(high))
    # Added without a gradient of its own: on a bound the gradient is whole, and beyond it what follows makes it NaN.
    moved = jnp.where(is_inside, jnp.clip(alpha, *(nearest or (low, high))) - alpha, jnp.nan)
    return alpha + lax.stop_gradient(moved)


def _flattened(value: Definition | FourierMultiplier) -> tuple[tuple[Any, ...], tuple[bool, tuple[Any, ...]]]:
    """Return a definition's leaves and structure, as `jax.tree_util.register_pytree_node` asks for.

    An alpha that is an array is the one leaf. The structure is whether alpha is fixed, and the other fields in order,
    with a fixed alpha before them.
    """
    rest = tuple(getattr(value, field.name) for field in fields(value) if field.name != "alpha")
    if value.is_fixed:
        return (), (True, (value.alpha, *rest))
    return (value.alpha,), (False, rest)


def _restored(kind: type, structure: tuple[bool, tuple[Any, ...]], leaves: Any) -> Definition | FourierMultiplier:
    """Return the definition of a class, `kind`, with the structure and leaves that `_flattened` returns.

    Its fields are not checked: JAX passes placeholders as leaves too.
    """
    is_fixed, kept = structure
    value: Definition | FourierMultiplier = object.__new__(kind)
    names = [field.name for field in fields(kind) if field.name != "alpha"]
    object.__setattr__(value, "alpha", kept[0] if is_fixed else next(iter(leaves)))
    for name, given in zip(names, kept[1:] if is_fixed else kept, strict=True):
        object.__setattr__(value, name, given)
    return value


def _register(kind: type) -> None:
    jax.tree_util.register_pytree_node(kind, _flattened, lambda structure, leaves: _restored(kind, structure, leaves))


for _kind in {*DEFINITIONS.values(), *MULTIPLIERS.values(), DistributedOrder}:
    _register(_kind)
