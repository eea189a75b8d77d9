"""Product integration on PyTorch tensors: operators at any times and of orders that vary.

The integral over cells is a custom autograd function, made of each kernel's product and its transpose. Both are plain
aten, so that a traced call, a double backward and batched gradients run the very same maps. Only a plain call goes
through the function: it saves nothing of the data's size unless the order learns, and asks the manager twice. The
weights of fixed orders are NumPy's, those of learned ones traced in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional.cache import free
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.gaps import are_finite, held
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.product_integration import (
    OP,
    PREPARED,
    Cellwise,
    ChunkedScan,
    Constants,
    Dense,
    Formula,
    Grid,
    LinearOperator,
    Weights,
    applied,
    cellwise,
    fixed_weights,
    grid_of,
    in_parts,
    register_kernels,
    saves,
    workload,
)
from hpfracc_nn.fractional.sample_times import Times, sampling_of
from hpfracc_nn.fractional.tables import slope
from hpfracc_nn.fractional.torch.eager import check_alpha, check_dense, computed_in
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.streams import kept, of
from hpfracc_nn.fractional.torch.tracing import is_followed, is_traced, uncompiled
from hpfracc_nn.fractional.torch.weights import slopes
from hpfracc_nn.selection import BackendManager, Doubt, Plan, Site, Work, carried_out, given_manager

register_kernels("torch", "torch", saves=saves)


def apply(
    owner: str,
    x: Tensor,
    definition: Definition,
    t: Any,
    dim: int,
    manager: BackendManager | None,
    orders: np.ndarray | Tensor | None = None,
) -> Tensor:
    """Return the operator applied to `x`, sampled at the times `t`; same shape, dtype and device.

    Arguments are those of `numpy.product_integration.apply`.
    """
    if not definition.is_fixed:
        check_alpha(owner, definition)
    dtype = computed_in(owner, x, definition)
    check_dense(owner, "x", x)
    if torch.jit.is_tracing():
        raise RuntimeError(f"{owner}(x): torch.jit.trace cannot follow it; call it outside the traced part.")
    formulas = cellwise(owner, definition)
    alpha = definition.alpha if orders is None else orders
    axis, alpha = errors.axis(owner, dim, x.ndim), np.asarray(alpha, np.float64) if definition.is_fixed else alpha
    sampling, alpha = sampling_of(owner, t, x.shape, axis, alpha, varies=orders is not None)
    if x.numel() == 0 or x.device.type == "meta":
        return x.clone() if definition.is_fixed else x + 0 * alpha.sum().to(x)
    formulas.check(owner, sampling.times)
    site = given_manager(owner, manager).shared_site(OP, "torch", "functions")

    def integral(alpha: np.ndarray | Tensor, z: Tensor) -> Tensor:
        return multiplied(weights_of(formulas, alpha, sampling.times, x, dtype), z.to(dtype), site)

    def computed(x: Tensor) -> Tensor:
        orders = alpha if definition.is_fixed else alpha.to(x.device, torch.float64)
        with torch.autocast(x.device.type, enabled=False):
            y = applied(formulas, sampling, x, orders, partial(_evaluated, torch.float64), integral)
            return y.to(x.dtype).contiguous()

    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():  # weights are kept, and autograd refuses those it makes
            return computed(x.clone())
    return computed(x)


uncompiled(
    apply,
    "times that are not equally spaced, and orders that change with time, are looked at where the call is made; it "
    "runs outside the graph",
)


# The weights

_DTYPES: dict[torch.dtype, np.dtype] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


@dataclass(frozen=True, eq=False)
class FixedWeights:
    """NumPy's weights of fixed orders, as tensors.

    Attributes:
        of: NumPy's.
        device: Of the tensors.
        is_kept: Whether no tracer sees them.
    """

    of: Weights
    device: torch.device
    is_kept: bool

    @property
    def states(self) -> int:
        """See `Weights`."""
        return self.of.states

    @property
    def dense(self) -> Dense:
        """See `Weights`."""
        return self._placed("dense", self.of.dense)  # type: ignore[return-value]

    @property
    def chunked_scan(self) -> ChunkedScan:
        """See `Weights`."""
        return self._placed("chunked_scan", self.of.chunked_scan)  # type: ignore[return-value]

    def _placed(self, name: str, operator: LinearOperator) -> LinearOperator:
        def make() -> LinearOperator:
            arrays = {each.name: getattr(operator, each.name) for each in fields(operator)}
            return type(operator)(**{name: _on(self.device, array) for name, array in arrays.items()})

        return _kept(self.of, (name, self.device), make) if self.is_kept else make()


def weights_of(
    formulas: Cellwise, alpha: np.ndarray | Tensor, times: Times, x: Tensor, dtype: torch.dtype
) -> Weights | FixedWeights:
    """Return the weights of the integral of orders alpha: [a, 1], or each row its own, [a, cells]."""
    is_kept, of_times = not is_traced(x, ()), (times, formulas.inputs, _DTYPES[dtype])
    if isinstance(alpha, np.ndarray):
        return FixedWeights(fixed_weights(formulas.power(alpha), *of_times), x.device, is_kept)
    grid, evaluate = grid_of(*of_times), partial(_evaluated, dtype)
    constants = partial(_constants, device=x.device, is_kept=is_kept)
    return Weights(grid, formulas.power(alpha), formulas.largest_power(alpha), evaluate, constants)


def _evaluated(dtype: torch.dtype, formula: Formula, orders: Tensor) -> Tensor:
    """Return what a formula gives: by NumPy where nobody follows."""
    if _is_followed(orders):
        return formula(orders, TORCH).to(dtype)
    return torch.as_tensor(formula(_values(orders), NUMPY)).to(dtype)


def _derived(dtype: torch.dtype, formula: Formula, orders: Tensor) -> Tensor:
    """Return the derivative of what a formula gives, each row's in its own order."""
    if _is_followed(orders):
        return slopes(lambda orders: [formula(orders, TORCH)], orders)[0].to(dtype)
    return torch.as_tensor(slope(formula, _values(orders))).to(dtype)


def _is_followed(orders: Tensor) -> bool:
    """Whether autograd, a transform or a device has to see how weights are made."""
    recorded = orders.requires_grad and torch.is_grad_enabled()
    return recorded or is_traced(orders, ()) or orders.device.type != "cpu"


def _values(orders: Tensor) -> np.ndarray:
    return orders.detach().resolve_neg().numpy()


def _constants(grid: Grid, device: torch.device, is_kept: bool) -> Constants:
    """Return the grid's constants as tensors; on a CPU, where formulas may be NumPy's, C as it is."""
    B, C, A = grid.constants
    if device.type == "cpu":
        return _on(device, B), C, _on(device, A)
    return _kept(grid, device, lambda: _on(device, (B, C, A))) if is_kept else _on(device, (B, C, A))  # type: ignore[no-any-return]


def _on(device: torch.device, arrays: Any) -> Any:
    """Return NumPy's arrays as tensors on a device, without a copy on a CPU."""
    if isinstance(arrays, tuple):
        return tuple(_on(device, each) for each in arrays)
    return None if arrays is None else torch.as_tensor(arrays, device=device)


def _kept(owner: Weights | Grid, key: Any, make: Callable[[], Any]) -> Any:
    """Return what NumPy's weights keep for a device."""
    device = key if isinstance(key, torch.device) else key[1]
    charge = owner.charge if device.type != "cpu" else free
    return kept(of(owner.placed, device), owner.placed, key, lambda: charge(make()))


# The product


Gradients = tuple[Tensor | None, Tensor | None]


@dataclass(eq=False, slots=True)
class Integral:
    """The integral at the cells' ends as a linear map: a plan, the weights, and their operator for its kernel."""

    plan: Plan
    site: Site
    weights: Any  # `Weights` where an order is learned, else `FixedWeights`
    operator: LinearOperator

    def run(self, z: Tensor) -> Tensor:
        """Return the product with data [sets, rows, inputs, cells]."""
        self.plan.kernel.calls["run"] += 1
        return in_parts(self.plan.kernel.run, self.operator, z, self.plan.chunk)  # type: ignore[no-any-return]

    def adjoint(self, g: Tensor, power: Tensor | None) -> Tensor:
        """Return the transpose applied to g, differentiable also in the order where gradients are recorded."""
        kernel, operator = self.plan.kernel, self.operator
        kernel.calls["adjoint"] += 1
        if power is not None and torch.is_grad_enabled():
            operator = kernel.prepare(replace(self.weights, orders=power), self.plan.workload)
        return in_parts(kernel.adjoint, operator, g, self.plan.chunk)  # type: ignore[no-any-return]

    def derivative(self, z: Tensor, g: Tensor, power: Tensor) -> Tensor:
        """Return the gradient in the order: the product with the weights' derivatives, times g."""
        kernel = self.plan.kernel
        kernel.calls["slope"] += 1
        derived = replace(self.weights, orders=power, evaluate=partial(_derived, z.dtype))
        moved = in_parts(kernel.run, kernel.prepare(derived, self.plan.workload), z, self.plan.chunk) * g
        return moved.to(torch.float64).sum(1).sum_to_size(power.shape)  # type: ignore[no-any-return]

    def adopt(self, plan: Plan) -> None:
        """Go on with another plan's kernel."""
        if plan is not self.plan:
            self.operator = plan.kernel.prepare(self.weights, plan.workload)
            self.plan = plan


def multiplied(weights: Weights | FixedWeights, z: Tensor, site: Site) -> Tensor:
    """Return the integral at the cells' ends, [sets, rows, cells], of data [sets, rows, inputs, cells]."""
    power = weights.orders if isinstance(weights, Weights) else None
    tracks = torch.is_grad_enabled()
    needs, learns = tracks and z.requires_grad, tracks and power is not None and power.requires_grad
    threads = torch.get_num_threads()
    facts = {"device": str(z.device), "needs_gradient": needs, "learns_weights": learns, "threads": threads}
    key = (z.shape, z.dtype, z.device, needs, learns, weights.states, threads)
    plan = site.pick(key, lambda: workload("torch", weights, z, **facts))
    if is_traced(z, () if power is None else (power,)):
        return plan.kernel.run(plan.kernel.prepare(weights, plan.workload), z)  # type: ignore[no-any-return]
    with torch.no_grad():
        plan, operator = carried_out(PREPARED, site, plan, weights)
    product = Integral(plan, site, weights, operator)
    if needs or learns:
        return _Recorded.apply(z, power, product)  # type: ignore[no-any-return]
    return _forward(product, z)


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, power: Tensor | None, product: Integral) -> Tensor:
        ctx.product = product
        learns = ctx.needs_input_grad[1]
        ctx.save_for_backward(z if learns else None, power if learns else None)
        return _forward(product, z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        product: Integral = ctx.product
        plan = product.site.again(product.plan)
        given = (*ctx.saved_tensors, g, ctx.needs_input_grad[0])
        with torch.autocast(g.device.type, enabled=False):
            return (*(_gradients(plan, product, *given) if is_followed(g) else _backward(product, *given)), None)


def _forward(product: Integral, z: Tensor) -> Tensor:
    """Carry out the product, and once more where data are not finite; see `fractional.gaps`."""
    y = carried_out(_FORWARD, product.site, product.plan, product, z)
    found = None if not y.is_cpu or are_finite(y.numpy()[..., -1]) else held(z.detach().mT.numpy())
    if found is None:
        return y  # type: ignore[no-any-return]
    finite, reached = map(torch.from_numpy, found)
    y = carried_out(_FORWARD, product.site, product.plan, product, finite.mT.contiguous())
    return y.masked_fill(reached.any(dim=-1), torch.nan)  # type: ignore[no-any-return]


def _backward(product: Integral, z: Tensor | None, power: Tensor | None, g: Tensor, needs_z: bool) -> Gradients:
    """The same for the gradients."""
    gz, order = carried_out(_BACKWARD, product.site, product.plan, product, z, power, g, needs_z)
    if gz is None or not gz.is_cpu or are_finite(gz.numpy()[..., 0]):
        return gz, order
    found = held(g.resolve_neg().numpy()[..., None], backwards=True)
    if found is None:
        return gz, order
    finite, reached = map(torch.from_numpy, found)
    gz, _ = carried_out(_BACKWARD, product.site, product.plan, product, None, None, finite[..., 0], True)
    return gz.masked_fill(reached.mT, torch.nan), order


def _run(plan: Plan, product: Integral, z: Tensor) -> Tensor:
    product.adopt(plan)
    return product.run(z)


def _gradients(
    plan: Plan, product: Integral, z: Tensor | None, power: Tensor | None, g: Tensor, needs_z: bool
) -> Gradients:
    """Return the gradients in the data, if wanted, and in the order, if given; themselves differentiable."""
    product.adopt(plan)
    gz = product.adjoint(g, power) if needs_z else None
    return gz, None if z is None or power is None else product.derivative(z, g, power)


def _fault(found: Any, product: Integral, *given: Any) -> str | None:
    """Return what is wrong with a result or gradients, unless it follows from the data or the order."""
    results = found if isinstance(found, tuple) else (found,)
    if _are_finite(results) or not _are_finite((*given, getattr(product.weights, "orders", None))):
        return None
    return Doubt("not finite, though input and weights are")


def _are_finite(values: tuple[Any, ...]) -> bool:
    return all(bool(torch.isfinite(each).all()) for each in values if isinstance(each, Tensor))


_FORWARD, _BACKWARD = Work(_run, _fault), Work(_gradients, _fault, "backward")
