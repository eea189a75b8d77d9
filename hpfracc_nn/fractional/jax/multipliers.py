"""Fourier multipliers on JAX arrays: the checks, the axes, the factors, and the kernels.

As in `operator.py` a call is one pure function, compiled once for each shape. The factors are made in NumPy for a fixed
alpha, and traced else. Kernels: the real fast Fourier transform, O(n log n), any size, one to three axes; and one
matrix product with the circulant matrix, for short signals and small boxes, whose entry (i, j) is the response to a
unit sample, taken at i - j modulo the size of each axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from scipy import fft as scipy_fft

from hpfracc_nn.fractional import multiplier_costs as costs
from hpfracc_nn.fractional.cache import Charge, cached_property
from hpfracc_nn.fractional.definitions import Multiplier
from hpfracc_nn.fractional.jax.arrays import JAX, Array, assumed, check_known, computed_in
from hpfracc_nn.fractional.jax.definitions import alpha_shape, floating_alpha, within
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.fractional.jax.products import in_parts, transposed
from hpfracc_nn.fractional.jax.sharding import placed_like
from hpfracc_nn.fractional.layout import transformed_axes
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.fractional.weights import SHELF
from hpfracc_nn.fractional.workloads import MULTIPLIER
from hpfracc_nn.selection import (
    BackendManager,
    Kernel,
    Plan,
    Site,
    Work,
    Workload,
    carried_out,
    given_manager,
    register,
)


@dataclass(frozen=True, eq=False)
class Symbol:
    """The factors of one operator.

    Args:
        definition: The operator; of traced orders one with any other order.
        sizes: Samples on each transformed axis.
        steps: Their spacing.
        dtype: Of the samples.
        orders: Traced orders, [channels]; None where the definition's own are meant.
    """

    definition: Multiplier
    sizes: tuple[int, ...]
    steps: tuple[float, ...]
    dtype: np.dtype
    orders: Array | None = None

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The real part and, where it has one, the imaginary part of the half spectrum, [channels, *half of sizes].

        On a line also what takes periodic images out: the columns `mass` and `moment`, each [channels, n].
        """
        if self.orders is not None:
            fixed = replace(self, orders=None)  # what makes the parts stays in programs
            return in_float64(lambda alpha: fixed._made(alpha, JAX), self.orders, jnp.dtype(self.dtype))  # type: ignore[no-any-return]

        def kept(charge: Charge) -> dict[str, np.ndarray]:
            found = self._made(np.asarray(self.definition.alpha, np.float64).reshape(-1), NUMPY)
            return {name: charge(values.astype(self.dtype)) for name, values in found.items()}

        return SHELF.get(self._key("parts"), kept)

    def values(self) -> Array:
        """The factors of the half spectrum, [channels, *half of sizes], real or complex."""
        return jnp.asarray(self._joined(lax.complex))

    def matrices(self) -> Array:
        """The transposed circulant matrices, [channels, N, N], N the samples of all axes."""
        last = tuple(range(-len(self.sizes), 0))
        where = costs.lags(self.sizes)
        if self.orders is not None:
            response = jnp.fft.irfftn(self.values(), self.sizes, axes=last)
            return response.reshape(response.shape[0], -1)[:, where]

        def kept(charge: Charge) -> np.ndarray:
            response = scipy_fft.irfftn(
                self._joined(lambda real, imaginary: real + 1j * imaginary), self.sizes, axes=last
            )
            return charge(response.reshape(response.shape[0], -1)[:, where])  # type: ignore[no-any-return]

        return jnp.asarray(SHELF.get(self._key("matrices"), kept))

    def _joined(self, join: Callable[[Any, Any], Any]) -> Any:
        real, imaginary = self.parts["real"], self.parts.get("imaginary")
        return real if imaginary is None else join(real, imaginary)

    def _made(self, alpha: Any, xp: Namespace) -> dict[str, Any]:
        found = self.definition.on_grid(alpha, self.sizes, self.steps, xp)
        parts = {"real": found.real}
        if found.imaginary is not None:
            parts["imaginary"] = found.imaginary
        if found.images is not None:
            parts["mass"], parts["moment"] = found.images
        return parts

    def _key(self, name: str) -> tuple[Hashable, ...]:
        return "jax multiplier", name, self.definition, self.sizes, self.steps, self.dtype


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


def _prepare_by_dense(symbol: Symbol, workload: Workload | None = None) -> Array:
    """Return the transposed matrices, [channels, N, N] for N samples of all axes."""
    return symbol.matrices()


def _run_by_dense(matrices: Array, x: Array) -> Array:
    if matrices.shape[0] == 1:  # one large product, which XLA does not make of it by itself
        rows = jnp.matmul(x.reshape(-1, matrices.shape[1]), matrices[0], precision=lax.Precision.HIGHEST)
        return rows.reshape(x.shape)
    flat = x.reshape(*x.shape[:2], -1)
    return jnp.einsum("bcj,cji->bci", flat, matrices, precision=lax.Precision.HIGHEST).reshape(x.shape)


register(
    Kernel(
        MULTIPLIER,
        "jax",
        "xla",
        "dense",
        _run_by_dense,
        transposed(_run_by_dense),
        _prepare_by_dense,
        costs.dense,
        costs.refuses_dense,
    )
)


def _prepare_by_fft(symbol: Symbol, workload: Workload | None = None) -> Array:
    return symbol.values()


def _run_by_fft(values: Array, x: Array) -> Array:
    last = tuple(range(2, x.ndim))
    spectrum = jnp.fft.rfftn(x, axes=last)
    return jnp.fft.irfftn(spectrum * values.astype(spectrum.dtype)[None], x.shape[2:], axes=last)


register(Kernel(MULTIPLIER, "jax", "xla", "fft", _run_by_fft, transposed(_run_by_fft), _prepare_by_fft, costs.fft))
