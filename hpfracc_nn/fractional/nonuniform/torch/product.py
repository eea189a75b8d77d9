"""The integral over cells as a custom autograd function, made of each kernel's product and its transpose.

Both are plain aten, so that a traced call, a double backward and batched gradients run the very same maps. Only a plain
call goes through the function: it saves nothing of the data's size unless the order learns, and asks the manager twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.gaps import are_finite, held
from hpfracc_nn.fractional.nonuniform.costs import OP, register_kernels, saves
from hpfracc_nn.fractional.nonuniform.torch.forms import Form
from hpfracc_nn.fractional.nonuniform.torch.weights import CellWeights
from hpfracc_nn.fractional.torch.probe import is_followed, is_traced
from hpfracc_nn.selection import Doubt, Plan, Site, Work, Workload, carried_out

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
