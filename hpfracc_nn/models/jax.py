"""Formulas of networks on JAX arrays, in float64 whatever the process has enabled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import JAX
from hpfracc_nn.fractional.jax.float64 import jointly_in_float64
from hpfracc_nn.models.networks import Network


def computed(
    formula: Callable[..., Any], network: Network, x: Any, values: Mapping[str, Any], *, is_complex: bool
) -> jax.Array:
    """Return formula(network, x, values, xp) with JAX's namespace; every transform of JAX applies.

    Args:
        formula: See `evaluate.evaluated`.
        network: A network whose fields are numbers, or names of the values.
        x: An array of JAX or NumPy.
        values: Arrays of JAX or NumPy by name.
        is_complex: Whether the result is complex.
    """
    arrays = {key: jnp.asarray(each) for key, each in values.items()}
    is_fixed = not isinstance(x, jax.Array) and bool(arrays) and all(each.ndim == 0 for each in arrays.values())
    if not is_fixed:
        arrays["x"] = jnp.asarray(x)
    floating = [each for each in arrays.values() if jnp.issubdtype(each.dtype, jnp.inexact)]
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*floating) if floating else jnp.result_type(float)
    shape = jnp.broadcast_shapes(*(each.shape for each in arrays.values()))
    spread = tuple(each if each.ndim == 0 else jnp.broadcast_to(each, shape) for each in arrays.values())

    def make(*arguments: jax.Array) -> jax.Array:
        found = dict(zip(arrays, arguments, strict=True))
        points = jnp.asarray(np.asarray(x), jnp.float64) if is_fixed else found.pop("x")
        return formula(network, points, found, JAX)

    def mapped(*arguments: jax.Array) -> jax.Array:
        function = make
        for _ in range(max(each.ndim for each in arguments)):  # parameters without axes under a map
            function = jax.vmap(function)
        return function(*arguments)

    return jointly_in_float64(mapped if is_fixed else make, spread, JAX.complex_of(dtype) if is_complex else dtype)
