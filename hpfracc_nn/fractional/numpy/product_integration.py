"""Product integration on NumPy arrays: operators at any times and of orders that vary.

Cells are the intervals between times, data z [sets, rows, inputs, cells] and results y [sets, rows, cells], with
`inputs` as in `fractional/product_integration.py`. A `Doubt` is a text that says what is wrong with a result unless the
data explain it: the kernel is to blame only where another one does better.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional import product_integration as cells
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.gaps import are_finite, carried_forward
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numpy.operator import computed_in
from hpfracc_nn.fractional.sample_times import sampling_of
from hpfracc_nn.selection import BackendManager, Doubt, Plan, Site, Work, carried_out, given_manager

cells.register_kernels("numpy", "numpy", saves=cells.saves)


def apply(
    owner: str,
    x: np.ndarray,
    definition: Definition,
    t: Any,
    dim: int,
    manager: BackendManager | None,
    orders: np.ndarray | None = None,
) -> np.ndarray:
    """Return the operator applied to `x`, sampled at the times `t`; same shape and dtype.

    Args:
        owner: The public function, for messages.
        x: Samples.
        definition: The operator.
        t: Times; see `sampling_of`.
        dim: The time axis.
        manager: Who chooses the kernel.
        orders: The orders of each sample, where they vary with time (the definition then has the smallest and the
            largest of them); else None.
    """
    dtype, formulas = computed_in(owner, x, definition), cells.cellwise(owner, definition)
    alpha = np.asarray(definition.alpha if orders is None else orders, np.float64)
    axis = errors.axis(owner, dim, x.ndim)
    sampling, alpha = sampling_of(owner, t, x.shape, axis, alpha, varies=orders is not None)
    if not x.size:
        return np.zeros_like(x)
    formulas.check(owner, sampling.times)
    site = given_manager(owner, manager).shared_site(cells.OP, "numpy", "numpy")

    def integral(alpha: np.ndarray, z: np.ndarray) -> np.ndarray:
        weights = cells.fixed_weights(formulas.power(alpha), sampling.times, formulas.inputs, dtype)
        return _multiplied(weights, z.astype(dtype), site)

    with np.errstate(invalid="ignore"):  # infinities may meet
        y = cells.applied(formulas, sampling, x, alpha, lambda formula, alpha: formula(alpha, NUMPY), integral)
    return np.ascontiguousarray(y, dtype=x.dtype)


def _multiplied(weights: cells.Weights, z: np.ndarray, site: Site) -> np.ndarray:
    key = z.shape, z.dtype, weights.orders.shape, weights.states
    plan = site.pick(key, lambda: cells.workload("numpy", weights, z))
    prepared = carried_out(cells.PREPARED, site, plan, weights)
    y = carried_out(_PRODUCT, site, prepared[0], weights, prepared, z)
    found = None if are_finite(y[..., -1]) else carried_forward(z.swapaxes(2, 3))
    if found is None:
        return y
    finite, reached = found
    y = carried_out(_PRODUCT, site, prepared[0], weights, prepared, np.ascontiguousarray(finite.swapaxes(2, 3)))
    return np.where(reached.any(axis=-1), y.dtype.type(np.nan), y)


def _run(plan: Plan, weights: cells.Weights, prepared: tuple[Plan, cells.LinearOperator], z: np.ndarray) -> np.ndarray:
    kernel, (of, operator) = plan.kernel, prepared
    if kernel is not of.kernel:  # that one failed
        operator = kernel.prepare(weights, plan.workload)
    kernel.calls["run"] += 1
    return cells.in_parts(kernel.run, operator, z, plan.chunk)


def _fault(
    y: np.ndarray, weights: cells.Weights, prepared: tuple[Plan, cells.LinearOperator], z: np.ndarray
) -> str | None:
    """Return a Doubt if the result y of `_run` is not finite although the data z are, else None.

    Weights of increasing times are finite, so that neither they nor `prepared`, what a kernel made of them, are looked
    at; the signature is that of `Work.fault`, the result and then the arguments of `_run`.
    """
    if np.isfinite(y).all() or not np.isfinite(z).all():
        return None
    return Doubt("not finite, though input and weights are")


_PRODUCT = Work(_run, _fault)
