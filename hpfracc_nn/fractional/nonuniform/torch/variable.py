"""Orders that change with time, on PyTorch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.nonuniform.cellwise import cellwise
from hpfracc_nn.fractional.nonuniform.costs import OP
from hpfracc_nn.fractional.nonuniform.times import along_time, placed
from hpfracc_nn.fractional.nonuniform.torch.operator import checked, run, spread
from hpfracc_nn.fractional.torch.probe import uncompiled
from hpfracc_nn.selection import BackendManager, given_manager


def apply_variable(
    owner: str,
    x: Tensor,
    definition: Definition,
    t: Any,
    axis: int,
    manager: BackendManager | None,
    alpha: np.ndarray | Tensor,
) -> Tensor:
    """Return the operator of the orders `alpha`, of which the definition knows the extremes; see `variable_order`."""
    dtype, formulas = checked(owner, x, definition), cellwise(owner, definition)
    shape = along_time(owner, "alpha", tuple(alpha.shape), tuple(x.shape), axis)
    if isinstance(alpha, Tensor):
        orders: np.ndarray | Tensor = alpha.reshape(shape).movedim(axis, -1)
    else:
        orders = np.moveaxis(alpha.reshape(shape), axis, -1)
    place = placed(owner, t, x.shape, axis, tuple(orders.shape[:-1]))
    if x.numel() == 0 or x.device.type == "meta":
        return x.clone() if isinstance(alpha, np.ndarray) else x + 0 * alpha.sum().to(x)
    formulas.check(owner, place.times)
    site = given_manager(owner, manager).shared_site(OP, "torch", "functions")
    return run(formulas, x, spread(orders, place), place, dtype, site)


uncompiled(
    apply_variable, "orders that change with time are looked at where the call is made; it runs outside the graph"
)
