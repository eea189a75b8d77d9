"""Product integration on JAX arrays: operators at any times and of orders that vary, their weights and products.

Times are known when a call is made or traced. Outside of `jax.jit` other times compile nothing anew: the weights are
arguments of the product, and pytrees. Of fixed orders they are NumPy's, kept by value, of traced ones made in float64.
Data are [sets, rows, inputs, cells], results [sets, rows, cells].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional import product_integration
from hpfracc_nn.fractional.cache import Charge, cached_property
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.jax.arrays import JAX, Array, assumed, computed_in, widest
from hpfracc_nn.fractional.jax.definitions import alpha_shape, checked_alpha
from hpfracc_nn.fractional.jax.float64 import in_float64, mapped
from hpfracc_nn.fractional.jax.probe import JaxProbe, device_name
from hpfracc_nn.fractional.jax.products import in_parts
from hpfracc_nn.fractional.jax.sharding import placed_like
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numpy import product_integration as by_numpy
from hpfracc_nn.fractional.numpy.product_integration import spread as spread_by_numpy
from hpfracc_nn.fractional.product_integration import LENGTH, OP, Cellwise, cellwise, register_kernels
from hpfracc_nn.fractional.sample_times import Placement, Times, along_time, placed
from hpfracc_nn.fractional.weights import SHELF
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


@dataclass(frozen=True, eq=False)
class FixedWeights:
    """An integral of fixed orders at given times.

    Attributes:
        of: NumPy's weights.
    """

    of: by_numpy.CellWeights

    @property
    def states(self) -> int:
        """See `numpy.product_integration`."""
        return self.of.states

    def matrix(self) -> MatrixForm:
        """All weights at once."""
        return MatrixForm(jnp.asarray(self.of.matrix().weights))

    def chunks(self) -> ChunkForm:
        """Weights inside chunks and states between them."""
        found = self.of.chunks()
        if found.into is None or found.out is None:
            return ChunkForm(jnp.asarray(found.near))
        near, into, out = map(jnp.asarray, (found.near, found.into, found.out))
        return ChunkForm(near, into, out, tuple(jnp.asarray(decay, widest()) for decay in found.decays))


@dataclass(frozen=True, eq=False)
class TracedWeights:
    """The same of orders in an array.

    Attributes:
        formulas: Of the operator.
        alpha: Its orders, [a, 1], or each row its own, [a, cells].
        times: More than one.
        dtype: What the product is computed in.
    """

    formulas: Cellwise
    alpha: Array
    times: Times
    dtype: np.dtype

    @property
    def states(self) -> int:
        """What the exponentials carry; 0 where the order may be above 1, or where one chunk holds all cells."""
        largest = max(self.formulas.power(bound) for bound in self.formulas.definition.interval)
        return self._chunks().states if largest <= 1 else 0

    def matrix(self) -> MatrixForm:
        """All weights at once."""
        times, inputs, rows = self.times, self.formulas.inputs, range(self.times.cells)

        def made(power: Array) -> Array:
            return product_integration.matrix_rows(power, JAX, times=times, inputs=inputs, rows=rows)

        return MatrixForm(self._made(self._orders, made))

    def chunks(self) -> ChunkForm:
        """Weights inside chunks and states between them."""
        key = "jax nonuniform", self.times, self.formulas.inputs, self.dtype
        chunks = SHELF.get(key, self._chunks)

        def made(power: Array) -> tuple[Array, ...]:
            near = chunks.near(power, JAX)
            if chunks.nodes is None:
                return (near,)
            return near, JAX.constant(chunks.out, power) * chunks.coefficients(power, JAX)

        near, *out = self._made(self._orders_in_chunks, made)
        if not out:
            return ChunkForm(near)
        decays = tuple(jnp.asarray(decay, widest()) for decay in chunks.decays)
        return ChunkForm(near, jnp.asarray(chunks.into, self.dtype), out[0], decays)

    def _made(self, orders: Array, make: Callable[[Array], Any]) -> Any:
        """Return what `make` makes of the order of the integral, [sets, 1], or each row its own, [sets, rows]."""
        formulas = self.formulas  # and not self, which holds alpha: what makes weights stays in programs

        def of_alpha(alpha: Array) -> Any:
            return make(formulas.power(alpha.reshape(alpha.shape[0], -1)))

        return in_float64(mapped(of_alpha, orders.ndim), orders, jnp.dtype(self.dtype))

    @cached_property
    def _orders(self) -> Array:
        """The orders, [sets], or each row its own, [sets, cells]."""
        sets = max(self.alpha.shape[0], self.times.values.shape[0])
        alpha = jnp.broadcast_to(self.alpha, (sets, self.alpha.shape[1]))
        return alpha[:, 0] if alpha.shape[1] == 1 else alpha

    @property
    def _orders_in_chunks(self) -> Array:
        """The same, each row its own as [sets, C, L]: the last chunk is filled up."""
        if self._orders.ndim == 1:
            return self._orders
        count = self._chunks().count
        at = np.minimum(np.arange(count * product_integration.LENGTH), self.times.cells - 1)
        return self._orders[:, at].reshape(-1, count, product_integration.LENGTH)

    def _chunks(self, charge: Charge | None = None) -> product_integration.Chunks:
        """Return what chunks take from the times; who keeps it is charged for its arrays."""
        found = product_integration.Chunks(self.times, self.formulas.inputs, self.dtype.name)
        if charge is not None and found.nodes is not None:
            charge((found.into, found.out, *found.decays))
        return found


CellWeights = FixedWeights | TracedWeights


def weights_of(formulas: Cellwise, alpha: Any, times: Times, dtype: np.dtype) -> CellWeights:
    """Return the weights of orders [a, 1], or each row its own, [a, cells]: NumPy's where they are fixed, or traced."""
    if isinstance(alpha, np.ndarray):
        return FixedWeights(by_numpy.weights_of(formulas.power(alpha), times, formulas.inputs, dtype))
    return TracedWeights(formulas, alpha, times, dtype)


_EXACT = lax.Precision.HIGHEST


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MatrixForm:
    """All weights, [sets, cells, inputs * cells]."""

    weights: Array

    def product(self, z: Array) -> Array:
        """Return the integral at the cells' ends."""
        sets, rows, inputs, cells = z.shape
        return jnp.matmul(z.reshape(sets, rows, inputs * cells), self.weights.mT, precision=_EXACT)

    def adjoint(self, g: Array) -> Array:
        """Return the transpose of `product` on g."""
        return _transposed(self, g, self.weights.shape[-1] // self.weights.shape[-2])


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ChunkForm:
    """Weights inside chunks, and states between them; see `product_integration.py`.

    Attributes:
        near: [sets, C, L, inputs * L].
        into: [grids, C, inputs * L, Q], or None where there is one chunk.
        out: [sets, C, L, Q], times the coefficients.
        decays: Over 1, 2, 4, ... chunks, each [grids, C, 1, Q].
    """

    near: Array
    into: Array | None = None
    out: Array | None = None
    decays: tuple[Array, ...] = ()

    def product(self, z: Array) -> Array:
        """Return the integral at the cells' ends."""
        chunks = self._chunked(z)
        y = jnp.matmul(chunks, self.near.mT, precision=_EXACT)
        if self.into is not None and self.out is not None:
            states = self._scanned(jnp.matmul(chunks, self.into, precision=_EXACT))
            y = y + jnp.matmul(states, self.out.mT, precision=_EXACT)
        return y.swapaxes(1, 2).reshape(*z.shape[:2], -1)[..., : z.shape[-1]]

    def adjoint(self, g: Array) -> Array:
        """Return the transpose of `product` on g."""
        return _transposed(self, g, self.near.shape[-1] // LENGTH)

    def _chunked(self, z: Array) -> Array:
        """Return data [sets, rows, inputs, cells] as [sets, C, rows, inputs * L]."""
        sets, rows, inputs, cells = z.shape
        count = self.near.shape[1]
        padded = jnp.pad(z, ((0, 0), (0, 0), (0, 0), (0, count * LENGTH - cells)))
        chunks = padded.reshape(sets, rows, inputs, count, LENGTH).transpose(0, 3, 1, 2, 4)
        return chunks.reshape(sets, count, rows, inputs * LENGTH)

    def _scanned(self, brought: Array) -> Array:
        """Return the states before each chunk from what each one brings, by doubling, in the widest dtype there is."""
        states = _later(brought.astype(widest()), 1)
        for k, decay in enumerate(self.decays):
            states = states + decay * _later(states, 1 << k)
        return states.astype(brought.dtype)


Form = MatrixForm | ChunkForm


def _transposed(form: Form, g: Array, inputs: int) -> Array:
    sets, rows, cells = g.shape
    data = jax.ShapeDtypeStruct((sets, rows, inputs, cells), g.dtype)
    return jax.linear_transpose(form.product, data)(g)[0]  # type: ignore[no-any-return]


def _later(states: Array, step: int) -> Array:
    """Move states [sets, C, rows, Q] by `step` chunks; zeros come in."""
    return jnp.pad(states[:, : states.shape[1] - step], ((0, 0), (step, 0), (0, 0), (0, 0)))
