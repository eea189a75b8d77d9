"""Arrays sharded over explicit axes of a mesh, where every operation states the sharding of its result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hpfracc_nn.fractional.jax.arrays import Array


def placed_like(x: Array, function: Callable[..., Any], *given: Any) -> Any:
    """Return function(*given), arrays whose first axes are those of `x`, sharded as `x` is.

    Inside the function explicit axes are automatic: XLA decides how intermediate arrays are sharded. Where no array's
    type names explicit axes, as `jax.make_mesh` makes them, this is function(*given). Traced arrays must be arguments.
    """
    mesh = _known(_arrays((x, given)))
    if mesh is None:
        return function(*given)
    lies = NamedSharding(mesh, jax.typeof(x).sharding.spec)
    return jax.sharding.auto_axes(function, out_sharding=lies)(*given)


def unplaced(function: Callable[..., Any], *given: Any) -> Any:
    """Return function(*given), with explicit axes made automatic where no array's type shows a sharding over them.

    No type shows the sharding where `jax.vmap` maps over an explicit axis; loops, scatters and concatenations of JAX
    refuse such an array beside one that does not know the mesh.
    """
    arrays = _arrays(given)
    if not arrays or any(map(is_placed, arrays)):
        return function(*given)
    return placed_like(jnp.zeros(()), function, *given)


def product(subscripts: str, *operands: Any) -> Array:
    """Return `jnp.einsum` in full precision, each axis of the result sharded as the operands' axis of that name.

    Axes that are summed over may lie over explicit axes, as they do where a product with a state is transposed to give
    the derivative by its weights.
    """
    arrays = [jnp.asarray(each) for each in operands]
    computed = partial(jnp.einsum, subscripts, precision=jax.lax.Precision.HIGHEST)
    mesh = _mesh(arrays)
    if mesh is None:
        return computed(*arrays)
    given, result = subscripts.split("->")
    named: dict[str, Any] = {}
    others: tuple[Any, ...] = ()
    for names, each in zip(given.split(","), arrays, strict=True):
        parts = tuple(jax.typeof(each).sharding.spec)
        own = names.removesuffix("...")
        named |= {name: part for name, part in zip(own, parts, strict=False) if part is not None}
        others = parts[len(own) :] or others
    lies = PartitionSpec(*(named.get(name) for name in result.removesuffix("...")), *others)
    return jax.sharding.auto_axes(computed, out_sharding=NamedSharding(mesh, lies))(*arrays)


def beside(x: Array, others: Any) -> Array:
    """Return `x`, varying over every mesh axis over which it or one of the others varies.

    What a loop carries must lie over mesh axes from the first step on as it does after that step: inside of
    `jax.shard_map`, whose axes JAX follows through each operation, and where `jax.vmap` maps over an explicit axis.
    Elsewhere the result is `x` itself.
    """
    over_axes = [each for each in jax.tree.leaves(others) if isinstance(each, jax.Array) and _is_over_axes(each)]
    for each in over_axes:
        never = _never(each)
        x = x | never if x.dtype == bool else x + never.astype(x.dtype)
    return x


def _is_over_axes(array: Array) -> bool:
    mesh = jax.typeof(array).sharding.mesh
    return bool(mesh.explicit_axes or mesh.manual_axes)


def _never(array: Array) -> Array:
    """Return a False that varies over the same mesh axes as `array`.

    Combined with another array it makes that vary over them too, as the type check of `jax.shard_map` requires.
    """
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = array.real if jnp.iscomplexobj(array) else array
    return (array < array).any()


def lies_along(x: Array, axis: int) -> NamedSharding | None:
    """Return the sharding of an array whose axis `axis` is known to lie over several devices, else None.

    The sharding is known of explicit axes of a mesh, and outside of `jax.jit` of all arrays.
    """
    found: Any = jax.typeof(x).sharding if is_placed(x) else None
    if found is None and not isinstance(x, jax.core.Tracer):
        found = x.sharding
    if not isinstance(found, NamedSharding) or axis >= len(found.spec) or found.spec[axis] is None:
        return None
    return found if found.mesh.size > 1 else None


def is_varying(x: Array) -> bool:
    """Return whether an array varies over axes of `jax.shard_map`."""
    found = jax.typeof(x)
    return bool(found.vma if hasattr(found, "vma") else found.mat.varying)  # by the version of JAX


def is_placed(x: Array) -> bool:
    """Return whether an array is sharded over explicit axes."""
    return _sharding(x) is not None


def _arrays(tree: Any) -> list[Array]:
    return [each for each in jax.tree.leaves(tree) if isinstance(each, jax.Array)]


def _known(arrays: list[Array]) -> Any:
    """Return the first mesh with explicit axes that an array's type names, even one not sharded over them, or None."""
    return next((mesh for mesh in (jax.typeof(each).sharding.mesh for each in arrays) if mesh.explicit_axes), None)


def _mesh(arrays: list[Any]) -> Any:
    """Return the first mesh over whose explicit axes one of the arrays is sharded, or None."""
    spread = [_sharding(each) for each in arrays if isinstance(each, jax.Array)]
    return next((sharding.mesh for sharding in spread if sharding is not None), None)


def _sharding(array: Array) -> NamedSharding | None:
    """Return an array's sharding over explicit axes; None where it has none or is replicated."""
    found = jax.typeof(array).sharding
    return found if found.mesh.explicit_axes and any(part is not None for part in found.spec) else None
