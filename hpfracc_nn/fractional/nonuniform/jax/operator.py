"""The operators on JAX arrays at any times; `torch/operator.py` is the twin.

Times are known when a call is made or traced. Outside of `jax.jit` other times compile nothing anew: the weights are
arguments of the product.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.jax.dtypes import computed_in
from hpfracc_nn.fractional.jax.linear import in_parts
from hpfracc_nn.fractional.jax.namespace import JAX, Array, widest
from hpfracc_nn.fractional.jax.orders import alpha_shape, checked_alpha
from hpfracc_nn.fractional.jax.placement import placed_like
from hpfracc_nn.fractional.jax.precision import in_float64, mapped
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.fractional.jax.sizes import assumed
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.nonuniform.cellwise import Cellwise, cellwise
from hpfracc_nn.fractional.nonuniform.costs import OP, register_kernels
from hpfracc_nn.fractional.nonuniform.jax.forms import Form
from hpfracc_nn.fractional.nonuniform.jax.weights import CellWeights, TracedWeights, weights_of
from hpfracc_nn.fractional.nonuniform.numpy.operator import spread as spread_by_numpy
from hpfracc_nn.fractional.nonuniform.times import Placement, Times, placed
from hpfracc_nn.selection import BackendManager, Kernel, Plan, Site, Work, Workload, carried_out, given_manager


def apply(owner: str, x: Array, definition: Definition, t: Any, dim: int, manager: BackendManager | None) -> Array:
    """Return the operator applied to `x`, sampled at the times `t`; same shape and dtype."""
    dtype, formulas = computed_in(owner, x, definition), cellwise(owner, definition)
    alpha: Any = definition.alpha if definition.is_fixed else checked_alpha(owner, definition)
    values = np.asarray(alpha, np.float64) if definition.is_fixed else alpha
    check_known(owner, t)
    place = placed(owner, t, x.shape, errors.axis(owner, dim, x.ndim), alpha_shape(definition))
    return run(owner, formulas, x, values.reshape(*place.orders, 1), place, dtype, manager)


def check_known(owner: str, t: Any) -> None:
    """Raise TypeError for times that are traced."""
    if isinstance(t, jax.core.Tracer):
        raise TypeError(
            f"{owner}(t: traced array): needs times that are known when the call is traced, because weights are made "
            "of them; pass a NumPy array, or use an array from outside of the traced function."
        )


def run(
    owner: str,
    formulas: Cellwise,
    x: Array,
    alpha: Any,
    place: Placement,
    dtype: str,
    manager: BackendManager | None,
) -> Array:
    """Return the result of checked arguments; alpha [*orders, 1], or for each sample [*orders, n]."""
    if x.size == 0:
        return x if isinstance(alpha, np.ndarray) else x + 0 * alpha.sum().astype(x.dtype)
    formulas.check(owner, place.times)
    site = given_manager(owner, manager).shared_site(OP, "jax", "functions")
    return placed_like(x, partial(_by, formulas, place, np.dtype(dtype), site), x, alpha)


def _by(formulas: Cellwise, place: Placement, dtype: np.dtype, site: Site, x: Array, alpha: Any) -> Array:
    y = _computed(formulas, _ordered(x, place), spread(alpha, place), place.times, dtype, site)
    return _restored(y, place).astype(x.dtype)


def spread(alpha: Any, place: Placement) -> Any:
    """Return alpha [1, r], or [sets, r] where the sets' orders differ, from its values [*orders, r]."""
    if isinstance(alpha, np.ndarray):
        return spread_by_numpy(alpha, place)
    r = alpha.shape[-1]
    if alpha.size == r:
        return alpha.reshape(1, r)
    return jnp.broadcast_to(alpha, (*place.joint, r)).reshape(-1, r)


def _computed(formulas: Cellwise, x: Array, alpha: Any, times: Times, dtype: np.dtype, site: Site) -> Array:
    """Return the result in the kernels' order, [sets, rows, n], in the widest dtype there is."""
    columns, y = _columns(formulas, alpha, times), jnp.zeros_like(x)
    if times.cells:
        weights = weights_of(formulas, alpha if alpha.shape[-1] == 1 else alpha[..., 1:], times, dtype)
        z = jnp.stack(formulas.pieces(x, times, JAX), axis=2).astype(dtype)
        y = jnp.pad(_integrated(weights, z, site).astype(x.dtype), ((0, 0), (0, 0), (1, 0)))
    if columns is not None:
        for j, head in enumerate(formulas.heads(x, times, JAX)):
            y = y + columns[:, j, None] * head
    return y


def _columns(formulas: Cellwise, alpha: Any, times: Times) -> Array | None:
    """Return the columns [sets, terms, n] that multiply x(0) and x'(0); None where there are none."""
    if isinstance(alpha, np.ndarray):
        found = formulas.columns(alpha, times, NUMPY)
        return None if found is None else jnp.asarray(found, widest())
    sets = max(alpha.shape[0], times.values.shape[0])
    orders = jnp.broadcast_to(alpha, (sets, alpha.shape[1]))

    def made(alpha: Array) -> Array | None:
        found = formulas.columns(alpha.reshape(sets, -1), times, JAX)
        return None if found is None else found.swapaxes(1, 2)  # the samples' axis is one of the orders' own

    given = orders[:, 0] if orders.shape[1] == 1 else orders
    found = in_float64(mapped(made, given.ndim), given, widest())
    return None if found is None else found.swapaxes(1, 2)


def _integrated(weights: CellWeights, z: Array, site: Site) -> Array:
    """Return the integral at the cells' ends, [sets, rows, cells], of data [sets, rows, inputs, cells]."""
    key = z.shape, z.dtype.name, isinstance(weights, TracedWeights), weights.states
    plan = site.pick_traced(key, lambda: _workload(weights, z))
    return carried_out(_TRACED, site, plan, weights, z)  # type: ignore[no-any-return]


def _run(plan: Plan, weights: CellWeights, z: Array) -> Array:
    plan.kernel.calls["run"] += 1
    return _product(plan.kernel, plan.chunk, plan.kernel.prepare(weights, plan.workload), z)  # type: ignore[no-any-return]


_TRACED = Work(_run, is_timed=False)  # as in `fractional.jax.operator`


@partial(jax.jit, static_argnames=("kernel", "chunk"))
def _product(kernel: Kernel, chunk: int | None, form: Form, z: Array) -> Array:
    """Return the product, of so many signals at a time where memory is short."""

    def of_rows(form: Form, rows: Array) -> Array:
        return kernel.run(form, rows.swapaxes(0, 1)).swapaxes(0, 1)  # type: ignore[no-any-return]

    return in_parts(of_rows, form, z.swapaxes(0, 1), chunk).swapaxes(0, 1)


def _workload(weights: CellWeights, z: Array) -> Workload:
    sets, rows, inputs, cells = z.shape
    return Workload(
        op=OP,
        framework="jax",
        device=device_name(),
        dtype=z.dtype.name,
        rows=assumed(sets) * assumed(rows),
        n=cells,
        width=inputs,
        channels=assumed(sets),
        exponentials=weights.states,
        needs_gradient=True,
        learns_weights=isinstance(weights, TracedWeights),
        threads=JaxProbe().threads(),
    )


def _ordered(x: Array, place: Placement) -> Array:
    """Return `x` as [sets, rows, n], in the widest dtype there is."""
    layout = place.layout
    ordered = x if layout.order is None else x.transpose(layout.order)
    data = ordered.astype(widest()).reshape(layout.canonical).transpose(1, 0, 3, 2)
    return data.reshape(layout.channels, -1, layout.n)


def _restored(y: Array, place: Placement) -> Array:
    """Undo `_ordered`."""
    layout = place.layout
    canonical = y.reshape(layout.channels, layout.batch, layout.width, layout.n).transpose(1, 0, 3, 2)
    found = canonical.reshape(layout.permuted)
    return found if layout.inverse is None else found.transpose(layout.inverse)


register_kernels("jax", "xla")
