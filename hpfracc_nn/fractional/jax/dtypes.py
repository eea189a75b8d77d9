"""Which dtypes of JAX arrays the operators take, and what they compute them in."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.jax.namespace import Array, widest

_COMPUTED_IN = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


def of_numpy(x: Any) -> Any:
    """Return a NumPy array as one of JAX, in the dtype that JAX has for it; what is none as it is."""
    return jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x


def at_least_single(dtype: Any) -> Any:
    """Return the dtype that half precision is computed in, others as they are; nothing of a caller's is mixed by it."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)


def computed_in(owner: str, x: Array, definition: Definition | None = None) -> str:
    """Return the dtype that `x` is computed in, or raise unless it is real and floating."""
    if not isinstance(x, jax.Array):
        raise TypeError(f"{owner}(x of type {type(x).__name__}): needs a JAX array; pass jax.numpy.asarray(x).")
    dtype = _COMPUTED_IN.get(x.dtype.name)
    if dtype is None:
        raise TypeError(
            f"{owner}(x of dtype {x.dtype}): needs float16, bfloat16, float32 or float64; "
            + (
                "take x.real and x.imag apart."
                if jnp.issubdtype(x.dtype, jnp.complexfloating)
                else "convert with x.astype(jax.numpy.float32)."
            )
        )
    return jnp.dtype(widest()).name if definition is not None and definition.is_wide else dtype
