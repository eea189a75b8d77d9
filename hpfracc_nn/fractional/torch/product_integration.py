"""Product integration on PyTorch tensors: operators at any times and of orders that vary.

The integral over cells is a custom autograd function, made of each kernel's product and its transpose. Both are plain
aten, so that a traced call, a double backward and batched gradients run the very same maps. Only a plain call goes
through the function: it saves nothing of the data's size unless the order learns, and asks the manager twice. The
weights of fixed orders are kept by value, those of learned ones traced in float64. Data are [sets, rows, inputs,
cells], results [sets, rows, cells].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn import errors
from hpfracc_nn.fractional import product_integration
from hpfracc_nn.fractional.cache import Charge, cached_property, free
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.gaps import are_finite, held
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numpy.product_integration import spread as spread_by_numpy
from hpfracc_nn.fractional.product_integration import LENGTH, OP, Cellwise, cellwise, register_kernels, saves
from hpfracc_nn.fractional.sample_times import Placement, Times, along_time, placed
from hpfracc_nn.fractional.tables import slope
from hpfracc_nn.fractional.torch.eager import alpha_shape, arranged, check_alpha, check_dense, computed_in, restored
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.streams import follow, kept, on
from hpfracc_nn.fractional.torch.tracing import is_followed, is_traced, uncompiled
from hpfracc_nn.fractional.torch.weights import slopes
from hpfracc_nn.fractional.weights import SHELF
from hpfracc_nn.selection import BackendManager, Doubt, Plan, Site, Work, Workload, carried_out, given_manager


def apply(owner: str, x: Tensor, definition: Definition, t: Any, dim: int, manager: BackendManager | None) -> Tensor:
    """Return the operator applied to `x`, sampled at the times `t`; same shape, dtype and device."""
    dtype = checked(owner, x, definition)
    formulas = cellwise(owner, definition)
    place = placed(owner, t, x.shape, errors.axis(owner, dim, x.ndim), alpha_shape(definition))
    if x.numel() == 0 or x.device.type == "meta":
        return x.clone() if definition.is_fixed else x + 0 * definition.alpha.sum().to(x)
    formulas.check(owner, place.times)
    given = definition.alpha
    values = given if isinstance(given, Tensor) else np.asarray(given, np.float64)
    alpha = spread(values.reshape(*place.orders, 1), place)
    site = given_manager(owner, manager).shared_site(OP, "torch", "functions")
    return run(formulas, x, alpha, place, dtype, site)


uncompiled(apply, "times that are not equally spaced are looked at where the call is made; it runs outside the graph")


def checked(owner: str, x: Tensor, definition: Definition) -> torch.dtype:
    """Return the dtype that `x` is computed in, or raise where it cannot be."""
    if not definition.is_fixed:
        check_alpha(owner, definition)
    dtype = computed_in(owner, x, definition)
    check_dense(owner, "x", x)
    if torch.jit.is_tracing():
        raise RuntimeError(f"{owner}(x): torch.jit.trace cannot follow it; call it outside the traced part.")
    return dtype


def run(
    formulas: Cellwise, x: Tensor, alpha: np.ndarray | Tensor, place: Placement, dtype: torch.dtype, site: Site
) -> Tensor:
    """Return the result of checked arguments, whatever stands around the call; alpha [a, 1], or per row [a, n]."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():  # weights are kept, and autograd refuses those it makes
            return run(formulas, x.clone(), alpha, place, dtype, site)
    with torch.autocast(x.device.type, enabled=False):
        data = _ordered(x, place)
        return _restored(_computed(formulas, data, alpha, place, dtype, site), place, x.dtype)


def _computed(
    formulas: Cellwise, x: Tensor, alpha: np.ndarray | Tensor, place: Placement, dtype: torch.dtype, site: Site
) -> Tensor:
    """Return the result in the kernels' order, [sets, rows, n], float64."""
    times = place.times
    if isinstance(alpha, Tensor):
        alpha = alpha.to(x.device, torch.float64)
        columns = formulas.columns(alpha, times, TORCH)
    else:
        found = formulas.columns(alpha, times, NUMPY)
        columns = None if found is None else torch.as_tensor(found, device=x.device)
    y = _integrated(formulas, x, alpha, place, dtype, site) if times.cells else 0 * x
    if columns is not None:
        for j, head in enumerate(formulas.heads(x, times, TORCH)):
            y = y + columns[:, j, None] * head
    return y


def _integrated(
    formulas: Cellwise, x: Tensor, alpha: np.ndarray | Tensor, place: Placement, dtype: torch.dtype, site: Site
) -> Tensor:
    """Return the integral of what the scheme interpolates, float64, 0 at the first time."""
    power = formulas.power(alpha if alpha.shape[-1] == 1 else alpha[..., 1:])
    if isinstance(power, Tensor):
        largest = max(formulas.power(bound) for bound in formulas.definition.interval)
    else:
        largest = float(power.max())
    weights = weights_of(power, grid_of(place.times, formulas.inputs, x, dtype), x, largest)
    z = torch.stack(formulas.pieces(x, place.times, TORCH), dim=2).to(dtype)
    return F.pad(multiplied(weights, z, site).to(torch.float64), (1, 0))


def spread(alpha: np.ndarray | Tensor, place: Placement) -> np.ndarray | Tensor:
    """Return alpha [1, r], or [sets, r] where the sets' orders differ, from its values [*orders, r]."""
    if not isinstance(alpha, Tensor):
        return spread_by_numpy(alpha, place)
    r = alpha.shape[-1]
    return alpha.reshape(1, r) if alpha.numel() == r else alpha.expand(*place.joint, r).reshape(-1, r)


def _ordered(x: Tensor, place: Placement) -> Tensor:
    """Return `x` as [sets, rows, n], float64."""
    layout = place.layout
    data = arranged(x, layout, torch.float64).reshape(layout.canonical)
    return data.permute(1, 0, 3, 2).reshape(layout.channels, -1, layout.n)


def _restored(y: Tensor, place: Placement, dtype: torch.dtype) -> Tensor:
    """Undo `_ordered`."""
    layout = place.layout
    canonical = y.reshape(layout.channels, layout.batch, layout.width, layout.n).permute(1, 0, 3, 2)
    return restored(canonical.reshape(layout.permuted), layout, dtype).contiguous()


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


_NAMES = {torch.float32: "float32", torch.float64: "float64"}
Gradients = tuple[Tensor | None, Tensor | None]


@dataclass(eq=False, slots=True)
class Product:
    """One product: the plan, the weights, and their form for the plan's kernel."""

    site: Site
    plan: Plan
    weights: CellWeights
    form: Form

    def adopt(self, plan: Plan) -> None:
        """Go on with another plan's kernel."""
        if plan is not self.plan:
            self.form = plan.kernel.prepare(self.weights, plan.workload)
            self.plan = plan

    def forward(self, z: Tensor) -> Tensor:
        """Run the plan's kernel."""
        kernel = self.plan.kernel
        kernel.calls["run"] += 1
        return _in_parts(kernel.run, self.plan, self.form, z)

    def backward(self, z: Tensor | None, g: Tensor, power: Tensor | None, needs_z: bool) -> Gradients:
        """Return the gradients in the data, if wanted, and in the order, if given; themselves differentiable."""
        kernel, gz, order = self.plan.kernel, None, None
        if needs_z:
            kernel.calls["adjoint"] += 1
            form = self.form
            if power is not None and torch.is_grad_enabled():
                form = kernel.prepare(self.weights.at(power), self.plan.workload)
            gz = _in_parts(kernel.adjoint, self.plan, form, g)
        if power is not None and z is not None:
            kernel.calls["slope"] += 1
            slopes = kernel.prepare(self.weights.slopes(power), self.plan.workload)
            moved = _in_parts(kernel.run, self.plan, slopes, z) * g
            order = moved.to(torch.float64).sum(1).sum_to_size(power.shape)
        return gz, order


def multiplied(weights: CellWeights, z: Tensor, site: Site) -> Tensor:
    """Return the integral at the cells' ends, [sets, rows, cells], of data [sets, rows, inputs, cells]."""
    power = weights.power if isinstance(weights.power, Tensor) else None
    tracks = torch.is_grad_enabled()
    needs, learns = tracks and z.requires_grad, tracks and power is not None and power.requires_grad
    is_followed = is_traced(z, () if power is None else (power,))
    key = (z.shape, z.dtype, z.device, needs, learns, weights.states, torch.get_num_threads())
    plan = site.pick(key, lambda: _workload(weights, z, needs, learns))
    if is_followed:
        return plan.kernel.run(plan.kernel.prepare(weights, plan.workload), z)  # type: ignore[no-any-return]
    with torch.no_grad():
        plan, form = carried_out(_FORMED, site, plan, weights)
    product = Product(site, plan, weights, form)
    if needs or learns:
        return _Applied.apply(z, power, product)  # type: ignore[no-any-return]
    return _forward(product, z)


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, power: Tensor | None, product: Product) -> Tensor:
        ctx.product = product
        learns = ctx.needs_input_grad[1]
        ctx.save_for_backward(z if learns else None, power if learns else None)
        return _forward(product, z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        product: Product = ctx.product
        plan = product.site.again(product.plan)
        z, power = ctx.saved_tensors
        needs_z = ctx.needs_input_grad[0]
        with torch.autocast(g.device.type, enabled=False):
            if is_followed(g):
                found = product.backward(z, g, power, needs_z)
            else:
                found = _backward(plan, product, z, g, power, needs_z)
        return (*found, None)


def _forward(product: Product, z: Tensor) -> Tensor:
    """Carry out the product, and once more where data are not finite; see `fractional.gaps`."""
    y = carried_out(_FORWARD, product.site, product.plan, product, z)
    found = None if not y.is_cpu or are_finite(y.numpy()[..., -1]) else held(z.detach().mT.numpy())
    if found is None:
        return y  # type: ignore[no-any-return]
    finite, reached = map(torch.from_numpy, found)
    y = carried_out(_FORWARD, product.site, product.plan, product, finite.mT.contiguous())
    return y.masked_fill(reached.any(dim=-1), torch.nan)  # type: ignore[no-any-return]


def _backward(
    plan: Plan, product: Product, z: Tensor | None, g: Tensor, power: Tensor | None, needs_z: bool
) -> Gradients:
    """The same for the gradients."""
    gz, order = carried_out(_BACKWARD, product.site, plan, product, z, g, power, needs_z)
    if gz is None or not gz.is_cpu or are_finite(gz.numpy()[..., 0]):
        return gz, order
    found = held(g.resolve_neg().numpy()[..., None], backwards=True)
    if found is None:
        return gz, order
    finite, reached = map(torch.from_numpy, found)
    gz, _ = carried_out(_BACKWARD, product.site, product.plan, product, None, finite[..., 0], None, True)
    return gz.masked_fill(reached.mT, torch.nan), order


def _in_parts(step: Any, plan: Plan, form: Form, data: Tensor) -> Tensor:
    """Run one direction of a kernel, as many signals at a time as the plan has memory for."""
    if plan.chunk is None:
        return step(form, data)  # type: ignore[no-any-return]
    count = max(1, plan.chunk // data.shape[0])
    return torch.cat([step(form, part) for part in data.split(count, dim=1)], dim=1)


def _formed(plan: Plan, weights: CellWeights) -> tuple[Plan, Form]:
    return plan, plan.kernel.prepare(weights, plan.workload)


def _run(plan: Plan, product: Product, z: Tensor) -> Tensor:
    product.adopt(plan)
    return product.forward(z)


def _run_backward(
    plan: Plan, product: Product, z: Tensor | None, g: Tensor, power: Tensor | None, needs_z: bool
) -> Gradients:
    product.adopt(plan)
    return product.backward(z, g, power, needs_z)


def _fault(y: Tensor, product: Product, z: Tensor) -> str | None:
    """Return what is wrong with a result, unless it follows from the data or the order."""
    return _blamed([y], [z], product)


def _fault_backward(
    found: Gradients, product: Product, z: Tensor | None, g: Tensor, power: Tensor | None, needs_z: bool
) -> str | None:
    return _blamed(found, [g, z], product)


def _blamed(results: Any, given: Any, product: Product) -> str | None:
    power = product.weights.power
    given = [*given, power if isinstance(power, Tensor) else None]
    is_wrong = not all(bool(torch.isfinite(each).all()) for each in results if each is not None)
    if is_wrong and all(bool(torch.isfinite(each).all()) for each in given if each is not None):
        return Doubt("not finite, though input and weights are")
    return None


_FORMED = Work(_formed, is_timed=False)
_FORWARD, _BACKWARD = Work(_run, _fault), Work(_run_backward, _fault_backward, "backward")


def _workload(weights: CellWeights, z: Tensor, needs: bool, learns: bool) -> Workload:
    sets, rows, inputs, cells = z.shape
    return Workload(
        op=OP,
        framework="torch",
        device=str(z.device),
        dtype=_NAMES[z.dtype],
        rows=sets * rows,
        n=cells,
        width=inputs,
        channels=sets,
        exponentials=weights.states,
        needs_gradient=needs,
        learns_weights=learns,
        threads=torch.get_num_threads(),
    )


register_kernels("torch", "torch", saves=saves)


Formula = Callable[[Any, Any], Any]  # of p and its namespace


class Grid:
    """What weights take from the times alone, kept by value: tensors on a device."""

    def __init__(self, times: Times, inputs: int, dtype: torch.dtype, device: torch.device, charge: Charge):
        self.times, self.inputs, self.dtype, self.device, self.charge = times, inputs, dtype, device, charge
        self.chunks = product_integration.Chunks(times, inputs, _NAMES[dtype])

    @cached_property
    def into(self) -> Tensor:
        """See `weights.Chunks`."""
        return self.charge(torch.as_tensor(self.chunks.into, device=self.device).to(self.dtype))  # type: ignore[no-any-return]

    @cached_property
    def out(self) -> Tensor:
        """See `weights.Chunks`; float64."""
        return self.charge(torch.as_tensor(self.chunks.out, device=self.device))  # type: ignore[no-any-return]

    @cached_property
    def decays(self) -> tuple[Tensor, ...]:
        """See `weights.Chunks`; float64."""
        return self.charge(tuple(torch.as_tensor(d, device=self.device) for d in self.chunks.decays))  # type: ignore[no-any-return]


class CellWeights:
    """An integral at given times.

    Args:
        power: Its order p, [a, 1], or each row its own, [a, cells]: NumPy's where it is fixed, else a tensor, float64.
        grid: The times.
        largest: The largest value that p may take.
        charge: What is told of every tensor that is made.
    """

    def __init__(self, power: np.ndarray | Tensor, grid: Grid, largest: float, charge: Charge = free):
        self.power, self.grid, self._largest, self._charge = power, grid, largest, charge
        self._forms: dict[str, Form] = {}

    @property
    def states(self) -> int:
        """What the exponentials carry; 0 where the order may be above 1, or where one chunk holds all cells."""
        return self.grid.chunks.states if self._largest <= 1 else 0

    def matrix(self) -> MatrixForm:
        """All weights at once."""
        return self._kept("matrix")  # type: ignore[return-value]

    def chunks(self) -> ChunkForm:
        """Weights inside chunks and states between them."""
        return self._kept("chunks")  # type: ignore[return-value]

    def at(self, power: Tensor) -> CellWeights:
        """Return the weights of other orders at the same times, made anew."""
        return CellWeights(power, self.grid, self._largest)

    def slopes(self, power: Tensor) -> Slopes:
        """Return the derivative of the weights in p at `power`."""
        return Slopes(power, self.grid, self._largest)

    def _kept(self, name: str) -> Form:
        found: Form = kept(self._charge, self._forms, name, partial(self._made, name))
        return found

    def _made(self, name: str) -> Form:
        if name == "matrix":
            return MatrixForm(self._joined(_rows(self.grid)))
        grid = self.grid
        near = self._joined(_chunks(grid))
        if grid.chunks.nodes is None:
            return ChunkForm(near, None, None, ())
        into, out, decays = grid.into, grid.out, grid.decays
        follow(grid.charge)
        return ChunkForm(near, into, (out * self._evaluated(grid.chunks.coefficients)).to(grid.dtype), decays)

    def _joined(self, formulas: list[Formula]) -> Tensor:
        """Return what formulas give, in the product's dtype, one after the other along axis 1."""
        return torch.cat([self._evaluated(formula).to(self.grid.dtype) for formula in formulas], dim=1)

    def _evaluated(self, formula: Formula) -> Tensor:
        """Return what a formula gives, float64: by NumPy where nobody follows."""
        if _is_followed(self.power):
            return formula(self.power, TORCH)
        return torch.as_tensor(formula(_values(self.power), NUMPY), device=self.grid.device)


class Slopes(CellWeights):
    """The derivative of weights in p, each row's in its own: in place of the weights they give the result's."""

    power: Tensor

    def _evaluated(self, formula: Formula) -> Tensor:
        if _is_followed(self.power):
            return slopes(lambda p: [formula(p, TORCH)], self.power)[0]
        return torch.as_tensor(slope(formula, _values(self.power)), device=self.grid.device)


def _is_followed(power: np.ndarray | Tensor) -> bool:
    """Whether autograd, a transform or a device has to see how weights are made."""
    if isinstance(power, np.ndarray):
        return False
    return (power.requires_grad and torch.is_grad_enabled()) or is_traced(power, ()) or power.device.type != "cpu"


def _values(power: np.ndarray | Tensor) -> np.ndarray:
    return power.detach().resolve_neg().numpy() if isinstance(power, Tensor) else power


def _rows(grid: Grid) -> list[Formula]:
    """Return the matrix's formulas, each of so many rows that what autograd keeps of one is small."""
    times, inputs = grid.times, grid.inputs
    return [
        partial(product_integration.matrix_rows, times=times, inputs=inputs, rows=rows)
        for rows in product_integration.blocks_of(times.cells, product_integration.ROWS)
    ]


def _chunks(grid: Grid) -> list[Formula]:
    """The same of the weights inside chunks."""
    blocks = product_integration.blocks_of(grid.chunks.count, product_integration.CHUNKS)
    return [partial(grid.chunks.near, chunks=chunks) for chunks in blocks]


def grid_of(times: Times, inputs: int, x: Tensor, dtype: torch.dtype) -> Grid:
    """Return what is kept of given times, or a new one."""
    if is_traced(x, ()):
        return Grid(times, inputs, dtype, x.device, free)  # what a tracer sees is not kept
    key = "nonuniform grid", times, inputs, dtype, x.device
    return SHELF.get(key, lambda charge: Grid(times, inputs, dtype, x.device, on(x.device, charge)))


def weights_of(power: np.ndarray | Tensor, grid: Grid, x: Tensor, largest: float) -> CellWeights:
    """Return the weights at given times: those that are kept where the orders are fixed and nobody traces, else new."""
    if isinstance(power, Tensor) or is_traced(x, ()):
        return CellWeights(power, grid, largest)
    key = "nonuniform", power.shape, power.tobytes(), grid.times, grid.inputs, grid.dtype, grid.device
    return SHELF.get(key, lambda charge: CellWeights(power, grid, largest, on(grid.device, charge)))


@dataclass(frozen=True, eq=False)
class MatrixForm:
    """All weights, [sets, cells, inputs * cells]."""

    weights: Tensor

    @property
    def nbytes(self) -> int:
        """Of the weights."""
        return self.weights.nbytes

    def product(self, z: Tensor) -> Tensor:
        """Return the integral at the cells' ends."""
        sets, rows, inputs, cells = z.shape
        return torch.matmul(z.reshape(sets, rows, inputs * cells), self.weights.mT)

    def adjoint(self, g: Tensor) -> Tensor:
        """Return the transpose of `product` on g."""
        sets, rows, cells = g.shape
        return torch.matmul(g, self.weights).reshape(sets, rows, -1, cells)


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """Weights inside chunks, and states between them; see `product_integration.py`.

    Attributes:
        near: [sets, C, L, inputs * L].
        into: [grids, C, inputs * L, Q], or None where there is one chunk.
        out: [sets, C, L, Q], times the coefficients.
        decays: Over 1, 2, 4, ... chunks, float64, each [grids, C, 1, Q].
    """

    near: Tensor
    into: Tensor | None
    out: Tensor | None
    decays: Sequence[Tensor]

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        tensors = [self.near, *(a for a in (self.into, self.out) if a is not None), *self.decays]
        return sum(tensor.nbytes for tensor in tensors)

    def product(self, z: Tensor) -> Tensor:
        """Return the integral at the cells' ends."""
        chunks = self._chunked(z)
        y = torch.matmul(chunks, self.near.mT)
        if self.into is not None and self.out is not None:
            y = y + torch.matmul(self._scanned(torch.matmul(chunks, self.into)), self.out.mT)
        return y.transpose(1, 2).reshape(*z.shape[:2], -1)[..., : z.shape[-1]]

    def adjoint(self, g: Tensor) -> Tensor:
        """Return the transpose of `product` on g."""
        chunks = self._chunked(g.unsqueeze(2))
        z = torch.matmul(chunks, self.near)
        if self.into is not None and self.out is not None:
            z = z + torch.matmul(self._scanned_back(torch.matmul(chunks, self.out)), self.into.mT)
        sets, count, rows = z.shape[:3]
        z = z.reshape(sets, count, rows, -1, LENGTH).permute(0, 2, 3, 1, 4)
        return z.reshape(*z.shape[:3], count * LENGTH)[..., : g.shape[-1]]

    def _chunked(self, z: Tensor) -> Tensor:
        """Return data [sets, rows, inputs, cells] as [sets, C, rows, inputs * L]."""
        sets, rows, inputs, cells = z.shape
        count = self.near.shape[1]
        padded = F.pad(z, (0, count * LENGTH - cells))
        chunks = padded.reshape(sets, rows, inputs, count, LENGTH).permute(0, 3, 1, 2, 4)
        return chunks.reshape(sets, count, rows, inputs * LENGTH)

    def _scanned(self, brought: Tensor) -> Tensor:
        """Return the states before each chunk from what each one brings, by doubling, in float64."""
        states = _moved(brought.to(torch.float64), 1)
        for k, decay in enumerate(self.decays):
            states = states + decay * _moved(states, 1 << k)
        return states.to(brought.dtype)

    def _scanned_back(self, grads: Tensor) -> Tensor:
        """Return the transpose of `_scanned` on gradients."""
        states = grads.to(torch.float64)
        for k, decay in reversed(list(enumerate(self.decays))):
            states = states + _moved(decay * states, -(1 << k))
        return _moved(states, -1).to(grads.dtype)


Form = MatrixForm | ChunkForm


def _moved(states: Tensor, step: int) -> Tensor:
    """Move states [sets, C, rows, Q] by `step` chunks, later or, below 0, earlier; zeros come in."""
    count = states.shape[1]
    if step > 0:
        return F.pad(states.narrow(1, 0, count - step), (0, 0, 0, 0, step, 0))
    return F.pad(states.narrow(1, -step, count + step), (0, 0, 0, 0, 0, -step))
