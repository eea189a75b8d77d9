"""Orders that change with time, on JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.jax.dtypes import computed_in
from hpfracc_nn.fractional.jax.namespace import Array
from hpfracc_nn.fractional.jax.orders import checked_alpha
from hpfracc_nn.fractional.nonuniform.cellwise import cellwise
from hpfracc_nn.fractional.nonuniform.jax.operator import check_known, run
from hpfracc_nn.fractional.nonuniform.times import along_time, placed
from hpfracc_nn.selection import BackendManager


def apply_variable(
    owner: str,
    x: Array,
    definition: Definition,
    t: Any,
    axis: int,
    manager: BackendManager | None,
    alpha: np.ndarray | Array,
) -> Array:
    """Return the operator of the orders `alpha`, of which the definition knows the extremes; see `variable_order`."""
    dtype, formulas = computed_in(owner, x, definition), cellwise(owner, definition)
    shape = along_time(owner, "alpha", tuple(alpha.shape), tuple(x.shape), axis)
    values: Any = checked_alpha(owner, definition) if isinstance(alpha, jax.Array) else alpha
    orders = (jnp if isinstance(values, jax.Array) else np).moveaxis(values.reshape(shape), axis, -1)  # type: ignore[attr-defined]
    check_known(owner, t)
    place = placed(owner, t, x.shape, axis, tuple(orders.shape[:-1]))
    return run(owner, formulas, x, orders, place, dtype, manager)
