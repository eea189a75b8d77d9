"""Orders that change with time, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.nonuniform.cellwise import cellwise
from hpfracc_nn.fractional.nonuniform.numpy.operator import computed, restored, spread
from hpfracc_nn.fractional.nonuniform.times import along_time, placed
from hpfracc_nn.fractional.numpy.operator import computed_in
from hpfracc_nn.selection import BackendManager


def apply_variable(
    owner: str,
    x: np.ndarray,
    definition: Definition,
    t: Any,
    axis: int,
    manager: BackendManager | None,
    alpha: np.ndarray,
) -> np.ndarray:
    """Return the operator of the orders `alpha`, of which the definition knows the extremes; see `variable_order`."""
    dtype, formulas = computed_in(owner, x, definition), cellwise(owner, definition)
    orders = np.moveaxis(alpha.reshape(along_time(owner, "alpha", alpha.shape, x.shape, axis)), axis, -1)
    place = placed(owner, t, x.shape, axis, orders.shape[:-1])
    if not x.size:
        return np.zeros_like(x)
    formulas.check(owner, place.times)
    return restored(computed(formulas, x, spread(orders, place), place, dtype, manager), place, x.dtype)
