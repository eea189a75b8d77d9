"""Product integration on NumPy arrays: operators at any times and of orders that vary, their weights and products.

Data are [sets, rows, inputs, cells], results [sets, rows, cells]. The weights of fixed orders are kept by value, in the
form that a kernel asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional import product_integration
from hpfracc_nn.fractional.cache import Charge, cached_property
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.gaps import are_finite, held
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numpy.operator import computed_in
from hpfracc_nn.fractional.product_integration import LENGTH, OP, Cellwise, cellwise, register_kernels, saves
from hpfracc_nn.fractional.sample_times import Placement, Times, along_time, placed
from hpfracc_nn.fractional.weights import SHELF
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


@dataclass(frozen=True, eq=False)
class CellWeights:
    """An integral at given times.

    Attributes:
        power: Its order p, [a, 1], or each row its own, [a, cells].
        times: More than one.
        inputs: Numbers on a cell.
        dtype: What the product is computed in.
        charge: What is told of every array that is made.
    """

    power: np.ndarray
    times: Times
    inputs: int
    dtype: np.dtype
    charge: Charge = field(repr=False)
    _forms: dict[str, Form] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def states(self) -> int:
        """What the exponentials carry; 0 where the order is above 1, or where one chunk holds all cells."""
        return self._chunks.states if self.power.max() <= 1 else 0

    def matrix(self) -> MatrixForm:
        """All weights at once."""
        if "matrix" not in self._forms:
            found = product_integration.matrix(self.power, self.times, self.inputs, NUMPY)
            self._forms["matrix"] = self.charge(MatrixForm(found.astype(self.dtype)))
        return self._forms["matrix"]  # type: ignore[return-value]

    def chunks(self) -> ChunkForm:
        """Weights inside chunks and states between them."""
        if "chunks" not in self._forms:
            self._forms["chunks"] = self.charge(self._chunked())
        return self._forms["chunks"]  # type: ignore[return-value]

    def _chunked(self) -> ChunkForm:
        chunks = self._chunks
        near = chunks.near(self.power, NUMPY).astype(self.dtype)
        if chunks.nodes is None:
            return ChunkForm(near, None, None, [])
        out = (chunks.out * chunks.coefficients(self.power, NUMPY)).astype(self.dtype)
        return ChunkForm(near, chunks.into.astype(self.dtype), out, chunks.decays)

    @cached_property
    def _chunks(self) -> product_integration.Chunks:
        return product_integration.Chunks(self.times, self.inputs, self.dtype.name)


def weights_of(power: np.ndarray, times: Times, inputs: int, dtype: np.dtype) -> CellWeights:
    """Return the weights of fixed orders: those that are kept, or new ones."""
    key = "nonuniform", power.shape, power.tobytes(), times, inputs, dtype
    return SHELF.get(key, lambda charge: CellWeights(power, times, inputs, dtype, charge))


@dataclass(frozen=True, eq=False)
class MatrixForm:
    """All weights, [sets, cells, inputs * cells]."""

    weights: np.ndarray

    @property
    def nbytes(self) -> int:
        """Of the weights."""
        return self.weights.nbytes

    def product(self, z: np.ndarray) -> np.ndarray:
        """Return the integral at the cells' ends."""
        sets, rows, inputs, cells = z.shape
        return z.reshape(sets, rows, inputs * cells) @ self.weights.swapaxes(1, 2)

    def adjoint(self, g: np.ndarray) -> np.ndarray:
        """Return the transpose of `product` on g."""
        sets, rows, cells = g.shape
        return (g @ self.weights).reshape(sets, rows, -1, cells)


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """Weights inside chunks, and states between them; see `product_integration.py`.

    Attributes:
        near: [sets, C, L, inputs * L].
        into: [grids, C, inputs * L, Q], or None where there is one chunk.
        out: [sets, C, L, Q], times the coefficients.
        decays: Over 1, 2, 4, ... chunks, float64, each [grids, C, 1, Q].
    """

    near: np.ndarray
    into: np.ndarray | None
    out: np.ndarray | None
    decays: list[np.ndarray]

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        arrays = [self.near, *(a for a in (self.into, self.out) if a is not None), *self.decays]
        return sum(array.nbytes for array in arrays)

    def product(self, z: np.ndarray) -> np.ndarray:
        """Return the integral at the cells' ends."""
        chunks = self._chunked(z)
        y = chunks @ self.near.swapaxes(-1, -2)
        if self.into is not None and self.out is not None:
            y += self._scanned(chunks @ self.into) @ self.out.swapaxes(-1, -2)
        return y.swapaxes(1, 2).reshape(*z.shape[:2], -1)[..., : z.shape[-1]]

    def adjoint(self, g: np.ndarray) -> np.ndarray:
        """Return the transpose of `product` on g."""
        chunks = self._chunked(g[:, :, None])
        z = chunks @ self.near
        if self.into is not None and self.out is not None:
            z += self._scanned_back(chunks @ self.out) @ self.into.swapaxes(-1, -2)
        count, length = self.near.shape[1:3]
        z = z.reshape(*z.shape[:3], -1, length).transpose(0, 2, 3, 1, 4)
        return z.reshape(*z.shape[:3], count * length)[..., : g.shape[-1]]

    def _chunked(self, z: np.ndarray) -> np.ndarray:
        """Return data [sets, rows, inputs, cells] as [sets, C, rows, inputs * L]."""
        sets, rows, inputs, cells = z.shape
        count = self.near.shape[1]
        padded = np.zeros((sets, rows, inputs, count * LENGTH), z.dtype)
        padded[..., :cells] = z
        chunks = padded.reshape(sets, rows, inputs, count, LENGTH).transpose(0, 3, 1, 2, 4)
        return chunks.reshape(sets, count, rows, inputs * LENGTH)

    def _scanned(self, brought: np.ndarray) -> np.ndarray:
        """Return the states before each chunk from what each one brings, by doubling, in float64."""
        states = np.zeros(brought.shape)
        states[:, 1:] = brought[:, :-1]
        step = 1
        for decay in self.decays:
            states[:, step:] += decay[:, step:] * states[:, :-step].copy()
            step *= 2
        return states.astype(brought.dtype)

    def _scanned_back(self, grads: np.ndarray) -> np.ndarray:
        """Return the transpose of `_scanned` on gradients."""
        states = grads.astype(np.float64)
        for k, decay in reversed(list(enumerate(self.decays))):
            step = 1 << k
            states[:, :-step] += (decay * states)[:, step:]
        brought = np.zeros(grads.shape, grads.dtype)
        brought[:, :-1] = states[:, 1:]
        return brought


Form = MatrixForm | ChunkForm
