"""Traced orders: what is checked of them, and how they are kept within their bounds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.experimental import checkify

from hpfracc_nn.fractional.definitions import Definition, Multiplier
from hpfracc_nn.fractional.jax.namespace import Array


def alpha_shape(definition: Definition | Multiplier) -> tuple[int, ...]:
    """Return the shape of a definition's alpha."""
    alpha = definition.alpha
    return tuple(alpha.shape) if isinstance(alpha, jax.Array) else np.shape(alpha)


def checked_alpha(owner: str, definition: Definition) -> Array:
    """Return a definition's orders, an array, within its bounds.

    Concrete ones that lie outside raise. Traced ones are clamped, and raise under `jax.experimental.checkify`.

    Raises:
        TypeError: They are no floating array of JAX.
        ValueError: They are concrete and out of bounds.
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


def within(owner: str, alpha: Array, low: float, high: float) -> Array:
    """Return traced orders clamped to bounds; on a bound their gradient is whole, beyond it zero."""
    inside = (alpha >= low) & (alpha <= high)
    checkify.debug_check(
        inside.all(),
        f"{owner}: needs every alpha within its bounds ({low:g}, {high:g}); got one of {{alpha}}.",
        alpha=alpha,
    )
    # Not jnp.clip, which halves the gradient on a bound.
    return jnp.where(alpha < low, low, jnp.where(alpha > high, high, alpha)).astype(alpha.dtype)
