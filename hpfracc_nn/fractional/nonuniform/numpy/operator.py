"""The operators on NumPy arrays at any times."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.gaps import are_finite, held
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.nonuniform.cellwise import Cellwise, cellwise
from hpfracc_nn.fractional.nonuniform.costs import OP, register_kernels, saves
from hpfracc_nn.fractional.nonuniform.numpy.forms import Form
from hpfracc_nn.fractional.nonuniform.numpy.weights import CellWeights, weights_of
from hpfracc_nn.fractional.nonuniform.times import Placement, placed
from hpfracc_nn.fractional.numpy.operator import computed_in
from hpfracc_nn.selection import BackendManager, Doubt, Plan, Work, Workload, carried_out, given_manager


def apply(
    owner: str, x: np.ndarray, definition: Definition, t: Any, dim: int, manager: BackendManager | None
) -> np.ndarray:
    """Return the operator applied to `x`, sampled at the times `t`; same shape and dtype."""
    dtype, formulas = computed_in(owner, x, definition), cellwise(owner, definition)
    place = placed(owner, t, x.shape, errors.axis(owner, dim, x.ndim), np.shape(definition.alpha))
    if not x.size:
        return np.zeros_like(x)
    formulas.check(owner, place.times)
    alpha = spread(np.asarray(definition.alpha, np.float64).reshape(*place.orders, 1), place)
    return restored(computed(formulas, x, alpha, place, dtype, manager), place, x.dtype)


def computed(
    formulas: Cellwise,
    x: np.ndarray,
    alpha: np.ndarray,
    place: Placement,
    dtype: np.dtype,
    manager: BackendManager | None,
) -> np.ndarray:
    """Return the result in the kernels' order, [sets, rows, n]; alpha [a, 1], or each row its own, [a, n]."""
    data, times = _arranged(x, place), place.times
    y = np.zeros(data.shape)
    with np.errstate(invalid="ignore"):  # infinities may meet
        if times.cells:
            power = formulas.power(alpha if alpha.shape[-1] == 1 else alpha[:, 1:])
            weights = weights_of(power, times, formulas.inputs, dtype)
            z = np.stack(formulas.pieces(data, times, NUMPY), axis=2).astype(dtype)
            y[..., 1:] = _product(weights, z, manager)
        columns = formulas.columns(alpha, times, NUMPY)
        if columns is not None:
            for j, head in enumerate(formulas.heads(data, times, NUMPY)):
                y += columns[:, j, None] * head
    return y


def _product(weights: CellWeights, z: np.ndarray, manager: BackendManager | None) -> np.ndarray:
    site = given_manager("derivative", manager).shared_site(OP, "numpy", "numpy")
    key = z.shape, z.dtype, weights.power.shape, weights.states
    plan = site.pick(key, lambda: _workload(weights, z))
    plan, form = carried_out(_FORMED, site, plan, weights)
    y = carried_out(_PRODUCT, site, plan, weights, form, plan, z)
    found = None if are_finite(y[..., -1]) else held(z.swapaxes(2, 3))
    if found is None:
        return y  # type: ignore[no-any-return]
    finite, reached = found
    y = carried_out(_PRODUCT, site, plan, weights, form, plan, np.ascontiguousarray(finite.swapaxes(2, 3)))
    return np.where(reached.any(axis=-1), y.dtype.type(np.nan), y)


def _formed(plan: Plan, weights: CellWeights) -> tuple[Plan, Form]:
    return plan, plan.kernel.prepare(weights, plan.workload)


def _run(plan: Plan, weights: CellWeights, form: Form, formed_for: Plan, z: np.ndarray) -> np.ndarray:
    if plan.kernel is not formed_for.kernel:
        form = plan.kernel.prepare(weights, plan.workload)
    kernel = plan.kernel
    kernel.calls["run"] += 1
    if plan.chunk is None:
        return kernel.run(form, z)
    count = max(1, plan.chunk // z.shape[0])
    return np.concatenate([kernel.run(form, z[:, i : i + count]) for i in range(0, z.shape[1], count)], axis=1)


def _fault(y: np.ndarray, weights: CellWeights, form: Form, formed_for: Plan, z: np.ndarray) -> str | None:
    """Return what is wrong with a result, unless it follows from the data; weights of increasing times are finite."""
    if np.isfinite(y).all() or not np.isfinite(z).all():
        return None
    return Doubt("not finite, though input and weights are")


_FORMED, _PRODUCT = Work(_formed, is_timed=False), Work(_run, _fault)


def _workload(weights: CellWeights, z: np.ndarray) -> Workload:
    sets, rows, inputs, cells = z.shape
    return Workload(
        op=OP,
        framework="numpy",
        dtype=weights.dtype.name,
        rows=sets * rows,
        n=cells,
        width=inputs,
        channels=sets,
        exponentials=weights.states,
    )


def spread(alpha: np.ndarray, place: Placement) -> np.ndarray:
    """Return alpha [1, r], or [sets, r] where the sets' orders differ, from its values [*orders, r]."""
    r = alpha.shape[-1]
    if alpha.size == r:
        return alpha.reshape(1, r)
    return np.broadcast_to(alpha, (*place.joint, r)).reshape(-1, r)


def _arranged(x: np.ndarray, place: Placement) -> np.ndarray:
    """Return `x` as [sets, rows, n], float64."""
    layout = place.layout
    ordered = x if layout.order is None else x.transpose(layout.order)
    data = ordered.astype(np.float64).reshape(layout.canonical).transpose(1, 0, 3, 2)
    return data.reshape(layout.channels, -1, layout.n)


def restored(y: np.ndarray, place: Placement, dtype: np.dtype) -> np.ndarray:
    """Undo `_arranged`."""
    layout = place.layout
    canonical = y.reshape(layout.channels, layout.batch, layout.width, layout.n).transpose(1, 0, 3, 2)
    found = canonical.reshape(layout.permuted)
    return np.ascontiguousarray(found if layout.inverse is None else found.transpose(layout.inverse), dtype=dtype)


register_kernels("numpy", "numpy", saves=saves)
