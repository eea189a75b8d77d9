"""Arrays that lie over the explicit axes of a mesh, where every operation must say how its result lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

from hpfracc_nn.fractional.jax.namespace import Array


def placed_like(x: Array, function: Callable[..., Array], *given: Any) -> Array:
    """Return function(*given), of the shape of `x`, lying as `x` does.

    Inside, explicit axes are automatic: XLA says how what is between lies. Where no array is sharded over the explicit
    axes that `jax.make_mesh` makes, this is function(*given).
    """
    spread = [_sharding(each) for each in jax.tree.leaves((x, given)) if isinstance(each, jax.Array)]
    mesh = next((sharding.mesh for sharding in spread if sharding is not None), None)
    if mesh is None:
        return function(*given)
    lies = NamedSharding(mesh, jax.typeof(x).sharding.spec)
    return jax.sharding.auto_axes(function, out_sharding=lies)(*given)  # type: ignore[no-any-return]


def _sharding(array: Array) -> NamedSharding | None:
    """Return how an array lies over explicit axes, None where it does not or each device has the whole of it."""
    found = jax.typeof(array).sharding
    return found if found.mesh.explicit_axes and any(part is not None for part in found.spec) else None
