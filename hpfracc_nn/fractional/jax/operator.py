"""The operators on JAX arrays.

A call is one pure function of the samples and of traced orders, compiled once for each shape, so that calls outside of
`jax.jit` are fast too. Which kernel it contains is decided when it is called or traced, from shapes and dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hpfracc_nn import errors
from hpfracc_nn.fractional.boundary import boundary_of, difference, finish
from hpfracc_nn.fractional.definitions import Definition, FourierMultiplier, family
from hpfracc_nn.fractional.dispatch import on_other_sides, shape_of
from hpfracc_nn.fractional.jax import kernels, slices  # noqa: F401  kernels are registered on import
from hpfracc_nn.fractional.jax.arrays import JAX, Array, assumed, check_known, computed_in, of_numpy, widest  # noqa: F401  texts over all frameworks call these as `operator.name`
from hpfracc_nn.fractional.jax.definitions import checked_alpha, floating_alpha, within
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.jax.kernels import in_parts
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.fractional.jax.sharding import lies_along, placed_like
from hpfracc_nn.fractional.jax.slices import may_be_sliced
from hpfracc_nn.fractional.jax.weights import Weights, nodes_of
from hpfracc_nn.fractional.layout import Layout, layout_of
from hpfracc_nn.fractional.weights import CACHE
from hpfracc_nn.selection import BackendManager, Kernel, Plan, Site, Work, Workload, carried_out, given_manager

# The class of arrays is private, and an array that is made to ask it would start the devices on import.
ARRAYS: tuple[type, ...] = ()
HALVES = (jnp.float16, jnp.bfloat16)


@dataclass(frozen=True)
class Call:
    """The static facts of an operator's call.

    Attributes:
        definition: The operator; of traced orders their family at its upper bound.
        is_traced: Whether orders come as an array.
        dt: Spacing of the samples.
        layout: Of the samples' axes.
        dtype: What is computed in, by name.
    """

    definition: Definition
    is_traced: bool
    dt: float
    layout: Layout
    dtype: str

    def workload(self) -> Workload:
        """Return the Workload of the call, with gradients, which traced arrays may need."""
        layout = self.layout
        nodes = nodes_of(self.definition, layout.n, self.dt, np.dtype(self.dtype), self.is_traced)
        return Workload(
            op="toeplitz",
            framework="jax",
            device=device_name(),
            dtype=self.dtype,
            rows=assumed(layout.batch) * assumed(layout.channels),
            n=layout.n,
            width=assumed(layout.width),
            channels=assumed(layout.channels),
            exponentials=0 if nodes is None else nodes.states,
            needs_gradient=True,
            learns_weights=self.is_traced,
            threads=JaxProbe().threads(),
        )


def parts(x: Array) -> tuple[Array, ...] | None:
    """Return integers as (float,) of the default dtype and complex samples as (real, imaginary); None for floats."""
    kind = getattr(x, "dtype", np.dtype(float)).kind
    if kind == "c":
        return x.real, x.imag
    return (x.astype(jnp.result_type(float)),) if kind in "biu" else None


def whole(parts: list[Array]) -> Array:
    """Return the array that `parts` took apart."""
    return parts[0] if len(parts) == 1 else lax.complex(*parts)


broadcast_to = jnp.broadcast_to


def check_samples(owner: str, name: str, x: Array, definition: Definition | FourierMultiplier) -> str:
    """Return the dtype, by name, that an operator on the samples x is computed in.

    Raises:
        TypeError: x is no JAX array of a real floating dtype.
    """
    return computed_in(owner, x, definition)


def is_hollow(x: Array) -> bool:
    """Whether an array has no values to compute with."""
    return x.size == 0


def checked_orders(owner: str, definition: FourierMultiplier) -> Array:
    """Return a multiplier's orders, an array; those out of its range raise or, where they are traced, become NaN.

    Raises:
        TypeError: The orders are no floating array of JAX.
        ValueError: A concrete order is out of range.
    """
    alpha = floating_alpha(owner, definition.alpha)
    if isinstance(alpha, jax.core.Tracer):
        low, high = definition.interval
        return alpha if math.isinf(high) else within(owner, alpha, low, high)
    for value in np.asarray(alpha, np.float64).reshape(-1):
        definition.check(float(value))
    return alpha


def may_keep(x: Array) -> bool:
    """Whether factors of fixed orders may be kept for later calls: always, as NumPy makes them."""
    return True


def kept(key: tuple[Hashable, ...], build: Callable[[], tuple[np.ndarray, ...]], like: Array) -> tuple[Array, ...]:
    """Return build(), or what it returned for an equal key, as JAX arrays."""
    return tuple(map(jnp.asarray, CACHE.get(key, build)))


@partial(jax.jit, static_argnames=("function", "arguments"))
def compiled_once(function: Callable[..., Array], arguments: tuple[Any, ...], x: Array, alpha: Array | None) -> Array:
    """Return function(x, alpha, *arguments), sharded as `x` is; compiled once for each shape."""

    def computed(x: Array, alpha: Array | None) -> Array:
        with exactly(x):
            return function(x, alpha, *arguments)

    return placed_like(x, computed, x, alpha)


def filtered(x: Array, symbol: Array, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """Return the inverse transform of a symbol times the transform of `x`.

    Transforms have one axis before those that are transformed: beside a transposition of several, XLA gives an array
    that is spread over devices a layout that its transform on CPUs does not take ("IsMonotonicWithDim0Major").
    """
    transformed = jnp.fft.rfftn(x.reshape(-1, *sizes), axes=axes)
    weighted = transformed.reshape(*x.shape[: -len(axes)], *transformed.shape[1:]) * symbol
    return jnp.fft.irfftn(weighted.reshape(-1, *transformed.shape[1:]), sizes, axes=axes).reshape(
        weighted.shape[: -len(axes)] + sizes
    )


@contextmanager
def exactly(x: Array) -> Iterator[None]:
    """Return a context in which formulas on samples broadcast and promote as NumPy does, whatever the caller allows."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@partial(jax.jit, static_argnames=("formula", "arguments", "dtype"))
def _in_double(formula: Callable[..., Any], arguments: tuple[Any, ...], dtype: Any, alpha: Array) -> Any:
    found = in_float64(lambda orders: formula(orders, *arguments, JAX), alpha.reshape(-1), dtype)
    return jax.tree.map(lambda each: each.reshape(*alpha.shape, *each.shape[1:]), found)


def in_double(formula: Callable[..., Any], arguments: tuple[Any, ...], alpha: Array, like: Array) -> Any:
    """Return formula(alpha, *arguments, JAX), arrays [*c, ...] of alpha [*c], computed in float64."""
    return _in_double(formula, arguments, jnp.dtype(widest()), alpha)


def as_array(values: Any, like: Array) -> Array:
    """Return values as a JAX array."""
    return jnp.asarray(values)


def value_of(x: Array) -> float | None:
    """Return the value of an array without axes, None where it is traced."""
    return None if isinstance(x, jax.core.Tracer) else float(x)


def apply(owner: str, x: Array, definition: Definition, dt: float, dim: int, manager: BackendManager | None) -> Array:
    """Return the operator applied to `x` along `dim`; same shape and dtype. See `fractional.derivative`."""
    site = given_manager(owner, manager).shared_site("toeplitz", "jax", "functions")
    return apply_at(owner, x, definition, dt, dim, site)


def apply_at(owner: str, x: Array, definition: Definition, dt: float, dim: int, site: Site) -> Array:
    """Return the operator applied to `x`, with the plans of `site`."""
    dt = errors.positive_step(owner, dt)
    dtype = computed_in(owner, x, definition)
    axis = errors.axis(owner, dim, x.ndim)
    check_known(owner, "samples", x.shape[axis])
    over = lies_along(x, axis)
    if over is not None and may_be_sliced(owner, x, definition, dt, over.spec[axis]):
        return _over_devices(owner, x, definition, dt, axis, site, over)
    if definition.side != "left":
        return on_other_sides(
            x, dtype, definition, axis, JAX, lambda x, left, axis: apply_at(owner, x, left, dt, axis, site)
        )
    alpha = None if definition.is_fixed else checked_alpha(owner, definition)
    layout = layout_of(owner, tuple(x.shape), axis, shape_of(definition.alpha))
    if 0 in layout.canonical:
        return x if alpha is None else x + 0 * alpha.sum().astype(x.dtype)
    call = Call(definition if alpha is None else family(definition), alpha is not None, dt, layout, dtype)
    plan = site.pick_traced(call, call.workload)
    return carried_out(_TRACED, site, plan, call, x, alpha)


def _over_devices(
    owner: str, x: Array, definition: Definition, dt: float, axis: int, site: Site, over: NamedSharding
) -> Array:
    """Return the operator applied, slice by slice, to samples whose time axis lies over mesh axes, those of `over`."""
    alpha = None if definition.is_fixed else checked_alpha(owner, definition)
    kept = definition if alpha is None else replace(family(definition), side=definition.side)
    return _in_slices(owner, kept, dt, axis, site, over, x, alpha)


@partial(jax.jit, static_argnames=("owner", "definition", "dt", "axis", "site", "over"))
def _in_slices(
    owner: str,
    definition: Definition,
    dt: float,
    axis: int,
    site: Site,
    over: NamedSharding,
    x: Array,
    alpha: Array | None,
) -> Array:
    spec: Any = PartitionSpec(*over.spec, *(None,) * (x.ndim - len(over.spec)))
    others = (*spec[:axis], *spec[axis + 1 :])
    sizes = () if alpha is None else alpha.shape
    of_alpha: Any = PartitionSpec(
        *(None if size == 1 else part for size, part in zip(sizes, others[len(others) - len(sizes) :], strict=True))
    )

    def whole(series: Array, left: Definition, axis: int) -> Array:
        return apply_at(owner, series, left, dt, axis, site)

    def of_slice(x: Array, alpha: Array | None) -> Array:
        present = definition if alpha is None else replace(definition, alpha=alpha)
        return slices.applied(owner, x, present, dt, axis, spec[axis], whole)

    if alpha is not None and over.mesh.explicit_axes:
        alpha = jax.sharding.reshard(alpha, NamedSharding(over.mesh, of_alpha))
    return jax.shard_map(of_slice, mesh=over.mesh, in_specs=(spec, of_alpha), out_specs=spec)(x, alpha)


@partial(jax.jit, static_argnames=("call", "kernel", "workload", "chunk"))
def computed(call: Call, kernel: Kernel, workload: Workload, chunk: int | None, x: Array, alpha: Array | None) -> Array:
    """Return the operator of a call on x by one kernel, `chunk` rows at a time; None for all at once."""
    return placed_like(x, partial(_by, call, kernel, workload, chunk), x, alpha)


def _by(call: Call, kernel: Kernel, workload: Workload, chunk: int | None, x: Array, alpha: Array | None) -> Array:
    layout = call.layout
    ordered = x.astype(call.dtype)
    if layout.order is not None:
        ordered = ordered.transpose(layout.order)
    data = ordered.reshape(layout.canonical)
    orders = None if alpha is None else alpha.reshape(-1)
    weights = Weights(call.definition, layout.n, call.dt, np.dtype(call.dtype), orders)
    b = boundary_of(weights.facts, weights.boundary_columns())
    d = difference(data, b)
    y = in_parts(kernel.run, kernel.prepare(weights, workload), d, chunk)
    y = finish(y, data, d, b).reshape(ordered.shape)
    return (y if layout.inverse is None else y.transpose(layout.inverse)).astype(x.dtype)


def _run(plan: Plan, call: Call, x: Array, alpha: Array | None) -> Array:
    plan.kernel.calls["run"] += 1
    return computed(call, plan.kernel, plan.workload, plan.chunk, x, alpha)


_TRACED = Work(_run, is_timed=False)  # tracing shows no time, and nobody waits for what is computed
