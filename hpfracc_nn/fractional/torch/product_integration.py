"""Product integration on PyTorch tensors: operators at any times and of orders that vary.

The integral over cells is a `LinearMap`, made of each kernel's product and its transpose. Both are torch's own
operations, so that a traced call, a double backward and batched gradients run the very same maps. The weights of fixed
orders are kept by value, those of learned ones traced in float64.

Cells are the intervals between times, data [sets, rows, inputs, cells] and results [sets, rows, cells], with `inputs`
and the state space model (B, C, A) as in `fractional/product_integration.py`. Signals of a set share times and orders;
orders are [a, 1], or one for each cell, [a, cells], with a = 1 or sets. A formula is called with orders and a
namespace, and returns weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional import product_integration as cells
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.gaps import are_finite, carried_forward
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.sample_times import Times, sampling_of
from hpfracc_nn.fractional.torch.derivatives import complex_step, derivatives
from hpfracc_nn.fractional.torch.eager import check_alpha, check_dense, computed_in
from hpfracc_nn.fractional.torch.linear_map import Gradients, LinearMap
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.streams import kept, streams_of, streams_on
from hpfracc_nn.fractional.torch.tracing import is_traced, uncompiled
from hpfracc_nn.fractional.weights import CACHE
from hpfracc_nn.selection import BackendManager, Plan, Site, carried_out, given_manager

cells.register_kernels("torch", "torch", saves=cells.saves)


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
    formulas = cells.cellwise(owner, definition)
    alpha = definition.alpha if orders is None else orders
    axis, alpha = errors.axis(owner, dim, x.ndim), np.asarray(alpha, np.float64) if definition.is_fixed else alpha
    sampling, alpha = sampling_of(owner, t, x.shape, axis, alpha, varies=orders is not None)
    if x.numel() == 0 or x.device.type == "meta":
        return x.clone() if definition.is_fixed else x + 0 * alpha.sum().to(x)
    formulas.check(owner, sampling.times)
    site = given_manager(owner, manager).shared_site(cells.OP, "torch", "functions")

    def integral(alpha: np.ndarray | Tensor, z: Tensor) -> Tensor:
        return multiplied(weights_of(formulas, alpha, sampling.times, x, dtype), z.to(dtype), site)

    def computed(x: Tensor) -> Tensor:
        orders = alpha if definition.is_fixed else alpha.to(x.device, torch.float64)
        with torch.autocast(x.device.type, enabled=False):
            y = cells.applied(formulas, sampling, x, orders, partial(_evaluated, x.device, torch.float64), integral)
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


def weights_of(
    formulas: cells.Cellwise, alpha: np.ndarray | Tensor, times: Times, x: Tensor, dtype: torch.dtype
) -> cells.Weights:
    """Return the weights of the integral of orders alpha, [a, 1], or one for each cell, [a, cells].

    The weights are kept where the orders are fixed and nothing traces: what a tracer sees must not be kept.
    """
    device, power, is_seen = x.device, formulas.power(alpha), is_traced(x, ())
    grid = cells.grid_of(times, formulas.inputs, _DTYPES[dtype])
    evaluate = partial(_evaluated, device, dtype)
    constants = partial(_constants, device=device, by_numpy=isinstance(power, np.ndarray), is_kept=not is_seen)

    def build() -> cells.Weights:
        keep = partial(kept, None if isinstance(power, Tensor) or is_seen else streams_on(device))
        return cells.Weights(grid, power, formulas.largest_power(alpha), evaluate, constants, keep=keep)

    if isinstance(power, Tensor) or is_seen:
        return build()
    return CACHE.get(("cells", power.shape, power.tobytes(), times, formulas.inputs, dtype, device), build)


def _evaluated(device: torch.device, dtype: torch.dtype, formula: cells.Formula, orders: np.ndarray | Tensor) -> Tensor:
    """Return the values of a formula at the orders, as a tensor on `device` in `dtype`.

    NumPy computes the values where neither autograd nor a transform follows the orders, else torch.
    """
    if isinstance(orders, Tensor) and _is_followed(orders):
        return formula(orders, TORCH).to(dtype)
    return torch.as_tensor(formula(_values(orders), NUMPY), device=device).to(dtype)


def _derived(dtype: torch.dtype, formula: cells.Formula, orders: Tensor) -> Tensor:
    """Return the derivative of a formula in the orders, each value's in the one order that it depends on.

    NumPy or torch computes the derivative, as in `_evaluated`.
    """
    if _is_followed(orders):
        return derivatives(lambda orders: [formula(orders, TORCH)], orders)[0].to(dtype)
    return torch.as_tensor(complex_step(formula, _values(orders))).to(dtype)


def _is_followed(orders: Tensor) -> bool:
    """Return whether torch, and not NumPy, must compute the weights of these orders.

    Torch must where autograd or a transform follows the orders, and where they are not on the CPU.
    """
    recorded = orders.requires_grad and torch.is_grad_enabled()
    return recorded or is_traced(orders, ()) or orders.device.type != "cpu"


def _values(orders: np.ndarray | Tensor) -> np.ndarray:
    return orders.detach().resolve_neg().numpy() if isinstance(orders, Tensor) else orders


def _constants(grid: cells.Grid, device: torch.device, by_numpy: bool, is_kept: bool) -> cells.Constants:
    """Return (B, C, A) of the state space model on the device: all of the model that does not depend on the orders.

    C stays a NumPy array on a CPU, and on a device if `by_numpy`: its formula is evaluated there. With `is_kept` the
    copies on a device are cached with the grid.
    """
    B, C, A = grid.constants

    def place(array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, device=device)

    if device.type == "cpu":
        return place(B), C, tuple(map(place, A))

    def make() -> cells.Constants:
        return place(B), C if by_numpy else place(C), tuple(map(place, A))

    return kept(streams_of(grid.placed, device), grid.placed, (device, by_numpy), make) if is_kept else make()


# The product


@dataclass(eq=False, slots=True)
class Integral:
    """The integral at the cells' ends, with its weights as an operator for one kernel; see `linear_map.Product`."""

    weights: cells.Weights
    operator: cells.LinearOperator

    def with_kernel(self, plan: Plan) -> Integral:
        """Return the same integral with the weights as another plan's kernel takes them."""
        return Integral(self.weights, plan.kernel.prepare(self.weights, plan.workload))

    def run(self, plan: Plan, x: Tensor) -> Tensor:
        """Return the integral, [sets, rows, cells], of data [sets, rows, inputs, cells]."""
        return cells.in_parts(plan.kernel.run, self.operator, x, plan.chunk)

    def adjoint(self, plan: Plan, g: Tensor) -> Tensor:
        """Return the integral's transpose, [sets, rows, inputs, cells], on g [sets, rows, cells]."""
        return cells.in_parts(plan.kernel.adjoint, self.operator, g, plan.chunk)

    def derivative(self, plan: Plan, x: Tensor, g: Tensor, alpha: Tensor) -> Tensor:
        """Return the gradient in the integral's orders: the product with the weights' derivatives, times g, summed."""
        derived = self.weights.of(alpha, partial(_derived, x.dtype))
        moved = Integral(derived, plan.kernel.prepare(derived, plan.workload)).run(plan, x) * g
        return moved.to(torch.float64).sum(1).sum_to_size(alpha.shape)

    def formula_backward(self, plan: Plan, x: Tensor | None, g: Tensor, alpha: Tensor | None) -> Gradients:
        """Return the gradients in x and the orders by torch's own operations, so that they have derivatives themselves.

        That in the orders is None unless they are learned.
        """
        if x is None or alpha is None:
            return self.adjoint(plan, g), None
        traced = Integral(self.weights.of(alpha), self.operator).with_kernel(plan)
        return traced.adjoint(plan, g), self.derivative(plan, x, g, alpha)

    def readable(self, x: Tensor) -> Tensor:
        """Return x without a negation that is still to be done."""
        return x.resolve_neg()

    def is_clear(self, y: Tensor, *, is_adjoint: bool) -> bool:
        """Return whether y is finite at the last cell, or for the transpose at the first."""
        return are_finite(y.numpy()[..., 0 if is_adjoint else -1])

    def without_gaps(self, x: Tensor, *, is_adjoint: bool) -> tuple[Tensor, Tensor] | None:
        """Return x with finite numbers in place of NaN and infinities, and a mask of the results that are NaN.

        Return None where x is finite.
        """
        data = x.detach()[:, :, None] if is_adjoint else x.detach()
        found = carried_forward(data.mT.numpy(), backwards=is_adjoint)
        if found is None:
            return None
        finite, reached = (torch.from_numpy(each).mT for each in found)
        return (finite[:, :, 0], reached) if is_adjoint else (finite.contiguous(), reached.any(dim=2))

    def result_shape(self, x: Tensor, *, is_adjoint: bool) -> Sequence[int]:
        """Return the shape of the result for x: [sets, rows, cells], of the transpose's [sets, rows, inputs, cells]."""
        sets, rows, *_, n = x.shape
        return (sets, rows, self.weights.grid.inputs, n) if is_adjoint else (sets, rows, n)

    def constants(self) -> list[Tensor]:
        """Return the orders, where they are learned: weights of increasing times are finite."""
        return [self.weights.orders] if isinstance(self.weights.orders, Tensor) else []


def multiplied(weights: cells.Weights, z: Tensor, site: Site) -> Tensor:
    """Return the integral at the cells' ends, [sets, rows, cells], of data [sets, rows, inputs, cells]."""
    power = weights.orders if isinstance(weights.orders, Tensor) else None
    tracks = torch.is_grad_enabled()
    needs, learns = tracks and z.requires_grad, tracks and power is not None and power.requires_grad
    threads = torch.get_num_threads()
    facts = {"device": str(z.device), "needs_gradient": needs, "learns_weights": learns, "threads": threads}
    key = (z.shape, z.dtype, z.device, needs, learns, weights.states, threads)
    plan = site.pick(key, lambda: cells.workload("torch", weights, z, **facts))
    if is_traced(z, () if power is None else (power,)):
        return plan.kernel.run(plan.kernel.prepare(weights, plan.workload), z)
    with torch.no_grad():
        plan, operator = carried_out(cells.PREPARED, site, plan, weights)
    linear = LinearMap(site, plan, Integral(weights, operator))
    return linear.recorded(z, power if learns else None) if needs or learns else linear.forward(z)
