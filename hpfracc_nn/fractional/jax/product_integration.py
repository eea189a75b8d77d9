"""Product integration on JAX arrays: operators at any times and of orders that vary.

Times are known when a call is made or traced. Outside of `jax.jit` other times compile nothing anew: the weights are
arguments of the product, and pytrees. NumPy makes the weights of fixed orders; those of traced orders are made in
float64.

Cells are the n intervals between times, data [sets, rows, inputs, cells] and results [sets, rows, cells], with `inputs`
as in `fractional/product_integration.py`; C chunks have L cells. Signals of a set share times and orders; orders are
[a, 1], or one for each cell, [a, n], with a = 1 or sets. A formula is called with orders and a namespace, and returns
weights.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional import product_integration as cells
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.jax.arrays import JAX, Array, assumed, computed_in, widest
from hpfracc_nn.fractional.jax.definitions import checked_alpha
from hpfracc_nn.fractional.jax.float64 import in_float64, mapped
from hpfracc_nn.fractional.jax.kernels import in_parts
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.fractional.jax.sharding import placed_like
from hpfracc_nn.fractional.sample_times import Sampling, sampling_of
from hpfracc_nn.selection import BackendManager, Kernel, Plan, Site, Work, carried_out, given_manager

for _operator in (cells.Dense, cells.ChunkedScan):
    jax.tree_util.register_dataclass(_operator)
cells.register_kernels("jax", "xla")


def apply(
    owner: str,
    x: Array,
    definition: Definition,
    t: Any,
    dim: int,
    manager: BackendManager | None,
    orders: np.ndarray | Array | None = None,
) -> Array:
    """Return the operator applied to `x`, sampled at the times `t`; same shape and dtype.

    Arguments are those of `numpy.product_integration.apply`.
    """
    dtype, formulas = np.dtype(computed_in(owner, x, definition)), cells.cellwise(owner, definition)
    if definition.is_fixed:
        alpha: Any = np.asarray(definition.alpha if orders is None else orders, np.float64)
    else:
        alpha = checked_alpha(owner, definition)
    if isinstance(t, jax.core.Tracer):
        raise TypeError(
            f"{owner}(t: traced array): needs times that are known when the call is traced, because weights are made "
            "of them; pass a NumPy array, or use an array from outside of the traced function."
        )
    axis = errors.axis(owner, dim, x.ndim)
    sampling, alpha = sampling_of(owner, t, x.shape, axis, alpha, varies=orders is not None)
    if x.size == 0:
        return x if definition.is_fixed else x + 0 * alpha.sum().astype(x.dtype)
    formulas.check(owner, sampling.times)
    site = given_manager(owner, manager).shared_site(cells.OP, "jax", "functions")
    return placed_like(x, partial(_applied, formulas, sampling, dtype, site), x, alpha)


def _applied(formulas: cells.Cellwise, sampling: Sampling, dtype: np.dtype, site: Site, x: Array, alpha: Any) -> Array:
    times = sampling.times
    sets = max(sampling.by_set(alpha).shape[0], times.values.shape[0])

    def integral(alpha: Any, z: Array) -> Array:
        is_fixed = isinstance(alpha, np.ndarray)
        if is_fixed:
            weights = cells.fixed_weights(formulas.power(alpha), times, formulas.inputs, dtype)
        else:
            evaluate = partial(_evaluated, sets, dtype, formulas)
            grid = cells.grid_of(times, formulas.inputs, dtype)
            weights = cells.Weights(grid, alpha, formulas.largest_power(alpha), evaluate, _constants, is_split=False)
        return _multiplied(weights, z.astype(dtype), site, learns=not is_fixed)

    y = cells.applied(formulas, sampling, x, alpha, partial(_evaluated, sets, widest(), None), integral)
    return y.astype(x.dtype)


def _evaluated(sets: int, dtype: Any, formulas: cells.Cellwise | None, formula: cells.Formula, alpha: Array) -> Array:
    """Return the values of a formula at traced orders, computed in float64 and rounded to `dtype`.

    `alpha` are the definition's orders, [a, 1] or [a, n], or in chunks [a, 1, 1] or [a, C, L]; a of 1 becomes `sets`.
    The formula is one of these orders where `formulas` is None, else of the order of the integral that the definition
    contains, `formulas.power(alpha)`.
    """
    whole = sets, *alpha.shape[1:]
    shape = whole if whole[-1] > 1 else (sets,)  # what is computed begins with the axes of the orders

    def of_orders(orders: Array) -> Array:  # must hold no alpha: compiled programs keep this function
        orders = orders.reshape(whole)
        return formula(orders if formulas is None else formulas.power(orders), JAX)

    return in_float64(mapped(of_orders, len(shape)), jnp.broadcast_to(alpha, whole).reshape(shape), jnp.dtype(dtype))


def _constants(grid: cells.Grid) -> cells.Constants:
    B, C, A = grid.constants
    return jnp.asarray(B), C, tuple(jnp.asarray(each, widest()) for each in A)


def _multiplied(weights: cells.Weights, z: Array, site: Site, *, learns: bool) -> Array:
    """Return the integral at the cells' ends, [sets, rows, cells], of data [sets, rows, inputs, cells].

    The integral's orders are those of the weights. `site` keeps the plans, by which a kernel is chosen; `learns` is
    whether the orders are traced.
    """
    sets, rows = map(assumed, z.shape[:2])
    facts = {"rows": sets * rows, "channels": sets, "needs_gradient": True, "learns_weights": learns}
    key = z.shape, z.dtype.name, learns, weights.states
    plan = site.pick_traced(
        key, lambda: cells.workload("jax", weights, z, **facts, device=device_name(), threads=JaxProbe().threads())
    )
    return carried_out(_TRACED, site, plan, weights, z)


def _run(plan: Plan, weights: cells.Weights, z: Array) -> Array:
    plan.kernel.calls["run"] += 1
    return _product(plan.kernel, plan.chunk, plan.kernel.prepare(weights, plan.workload), z)


_TRACED = Work(_run, is_timed=False)  # as in `fractional.jax.operator`


@partial(jax.jit, static_argnames=("kernel", "chunk"))
def _product(kernel: Kernel, chunk: int | None, operator: cells.LinearOperator, z: Array) -> Array:
    """Return the kernel's product of the weights with z, [sets, rows, inputs, cells]: [sets, rows, cells].

    `operator` are the weights as the kernel takes them; `chunk` is how many rows are multiplied at once, None for all.
    """

    def of_rows(operator: cells.LinearOperator, rows: Array) -> Array:
        return kernel.run(operator, rows.swapaxes(0, 1)).swapaxes(0, 1)

    return in_parts(of_rows, operator, z.swapaxes(0, 1), chunk).swapaxes(0, 1)
