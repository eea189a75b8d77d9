"""Multipliers on JAX arrays: the checks, the axes, and the product by the kernel that was chosen.

As in `operator.py` a call is one pure function, compiled once for each shape. `torch/spectral.py` is the twin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.axes import transformed_axes
from hpfracc_nn.fractional.definitions import Multiplier
from hpfracc_nn.fractional.jax.dtypes import computed_in
from hpfracc_nn.fractional.jax.kernels import multiplier_dense, multiplier_fft  # noqa: F401  registered on import
from hpfracc_nn.fractional.jax.linear import in_parts
from hpfracc_nn.fractional.jax.namespace import Array
from hpfracc_nn.fractional.jax.orders import alpha_shape, floating_alpha, within
from hpfracc_nn.fractional.jax.placement import placed_like
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.fractional.jax.sizes import assumed, check_known
from hpfracc_nn.fractional.jax.symbol import Symbol
from hpfracc_nn.fractional.workloads import MULTIPLIER
from hpfracc_nn.selection import BackendManager, Kernel, Plan, Site, Work, Workload, carried_out, given_manager

_TYPICAL = 0.5  # an order that every multiplier takes


@dataclass(frozen=True)
class Call:
    """All of a multiplier's call that is static.

    Attributes:
        definition: The operator; of traced orders one with another order.
        is_traced: Whether orders come as an array.
        shape: Of the samples.
        axes: Those that are transformed.
        own: Those on which alpha differs.
        steps: Spacing on each transformed axis.
        dtype: What is computed in, by name.
    """

    definition: Multiplier
    is_traced: bool
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    own: tuple[int, ...]
    steps: tuple[float, ...]
    dtype: str

    @property
    def order(self) -> tuple[int, ...]:
        """The axes as kernels want them: those that share factors, those that do not, those that are transformed."""
        shared = [axis for axis in range(len(self.shape)) if axis not in (*self.own, *self.axes)]
        return (*shared, *self.own, *self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples on each transformed axis."""
        return tuple(self.shape[axis] for axis in self.axes)

    @property
    def channels(self) -> int:
        """Distinct symbols."""
        return math.prod(self.shape[axis] for axis in self.own)

    def workload(self) -> Workload:
        """Return what is asked of the manager: gradients may be wanted of whatever is traced."""
        n = math.prod(self.sizes)
        return Workload(
            MULTIPLIER,
            "jax",
            device=device_name(),
            dtype=self.dtype,
            rows=math.prod(assumed(size) for axis, size in enumerate(self.shape) if axis not in self.axes),
            n=n,
            channels=math.prod(assumed(self.shape[axis]) for axis in self.own),
            needs_gradient=True,
            learns_weights=self.is_traced,
            threads=JaxProbe().threads(),
        )


def apply(
    owner: str, x: Array, definition: Multiplier, dt: Any, dim: Any, manager: BackendManager | None = None
) -> Array:
    """Return the operator applied to `x`; same shape and dtype. See `fractional.derivative`."""
    site = given_manager(owner, manager).shared_site(MULTIPLIER, "jax", "functions")
    return apply_at(owner, x, definition, dt, dim, site)


def apply_at(owner: str, x: Array, definition: Multiplier, dt: Any, dim: Any, site: Site) -> Array:
    """Return the same with the plans of `site`."""
    dtype = computed_in(owner, x)
    alpha = None if definition.is_fixed else _checked_alpha(owner, definition)
    orders = alpha_shape(definition)
    axes, steps = transformed_axes(owner, x.shape, definition, dt, dim, orders)
    for axis in axes:
        check_known(owner, "samples", x.shape[axis])
    if x.size == 0:
        return x if alpha is None else x + 0 * alpha.sum().astype(x.dtype)
    others = [axis for axis in range(x.ndim) if axis not in axes]
    own = tuple(axis for size, axis in zip(orders[::-1], others[::-1], strict=False) if size > 1)[::-1]
    kind = definition if alpha is None else replace(definition, alpha=_TYPICAL)
    call = Call(kind, alpha is not None, tuple(x.shape), axes, own, steps, dtype)
    plan = site.pick_traced(call, call.workload)
    return carried_out(_TRACED, site, plan, call, x, alpha)  # type: ignore[no-any-return]


def _checked_alpha(owner: str, definition: Multiplier) -> Array:
    """Return orders in an array: concrete ones that are none of this operator's raise, traced ones are NaN."""
    alpha = floating_alpha(owner, definition.alpha)
    if isinstance(alpha, jax.core.Tracer):
        low, high = definition.interval
        return alpha if math.isinf(high) else within(owner, alpha, low, high)
    for value in np.asarray(alpha, np.float64).reshape(-1):
        definition.check(float(value))
    return alpha


@partial(jax.jit, static_argnames=("call", "kernel", "workload", "chunk"))
def _computed(
    call: Call, kernel: Kernel, workload: Workload, chunk: int | None, x: Array, alpha: Array | None
) -> Array:
    return placed_like(x, partial(_by, call, kernel, workload, chunk), x, alpha)


def _by(call: Call, kernel: Kernel, workload: Workload, chunk: int | None, x: Array, alpha: Array | None) -> Array:
    ordered = x.astype(call.dtype).transpose(call.order)
    data = ordered.reshape(-1, call.channels, *call.sizes)
    orders = None if alpha is None else alpha.reshape(-1)
    symbol = Symbol(call.definition, call.sizes, call.steps, np.dtype(call.dtype), orders)
    y = in_parts(kernel.run, kernel.prepare(symbol, workload), data, chunk)
    if "mass" in symbol.parts:  # on a line, which has one axis
        n, step = call.sizes[0], call.steps[0]
        away = ((np.arange(n) - n // 2) * step).astype(call.dtype)
        mass, moment = (jnp.asarray(symbol.parts[name]) for name in ("mass", "moment"))
        y = (
            y
            + mass[None] * data.sum(-1, keepdims=True)
            + moment[None] * (data * away[None, None]).sum(-1, keepdims=True)
        )
    return y.reshape(ordered.shape).transpose(np.argsort(call.order)).astype(x.dtype)


def _run(plan: Plan, call: Call, x: Array, alpha: Array | None) -> Array:
    plan.kernel.calls["run"] += 1
    return _computed(call, plan.kernel, plan.workload, plan.chunk, x, alpha)  # type: ignore[no-any-return]


_TRACED = Work(_run, is_timed=False)  # as in `operator.py`
