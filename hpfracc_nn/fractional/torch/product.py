"""The causal Toeplitz product as one custom autograd function, made of each kernel's run, adjoint and gram.

Plain eager calls run the plan's kernel and save nothing of the data's size unless the weights are learned. Traced calls
(functorch, forward mode), double backwards and batched gradients run the same three maps in plain aten. What stands
around the product, differences and boundary columns, is in `frame.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch import differences as diff
from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.frame import Frame
from hpfracc_nn.fractional.torch.probe import is_batched, is_traced
from hpfracc_nn.selection import Plan, Site


@dataclass(eq=False, slots=True)
class Product:
    """One application of an operator: the plan, the weights in the plan's form, and what stands around the product.

    Data and results have any shape that is a view of `canonical`, [batch, channels, n, width]: views are made inside of
    what autograd records, where each would be a step of its own, by the kernels.
    """

    site: Site
    plan: Plan
    form: Form
    frame: Frame
    canonical: tuple[int, int, int, int]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a gradient in the weights flows into."""
        columns = self.frame.columns
        return self.form.tensors if columns is None else (*self.form.tensors, columns)

    def __call__(self, x: Tensor) -> Tensor:
        """Return y, of x's shape."""
        tensors = self.tensors
        if is_traced(x, tensors):
            return self._formula(x, self.form, self.frame.columns)
        if torch.is_grad_enabled():
            if tensors[0].requires_grad or tensors[-1].requires_grad:
                return _ProductFunction.apply(x, self, *tensors)
            if x.requires_grad:
                return _ProductFunction.apply(x, self)
        return self.forward(x)

    def recorded(self, x: Tensor) -> Tensor:
        """Return y with its gradient in x, by autograd; the weights are fixed, and nothing is traced."""
        return _ProductFunction.apply(x, self)

    def forward(self, x: Tensor) -> Tensor:
        """Run the plan's kernel."""
        plan = self.plan
        kernel = plan.kernel
        kernel.calls["run"] += 1
        x = _readable(x)
        y = torch.empty_like(x)
        started = time.perf_counter() if plan.due("forward") and x.device.type == "cpu" else None
        with plan:
            kernel.run(self.form, self.frame, self.canonical, x, y)
        if started is not None:
            self.site.manager.record(plan, time.perf_counter() - started, "forward")
        return y

    def backward(self, x: Tensor | None, g: Tensor, needs_x: bool) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Run the kernel's adjoint, and its Gram map where x is given."""
        plan, canonical = self.plan, self.canonical
        kernel, gx, parts = plan.kernel, None, ()
        g = _readable(g)
        started = time.perf_counter() if plan.due("backward") and g.device.type == "cpu" else None
        with plan:
            if needs_x:
                kernel.calls["adjoint"] += 1
                gx = torch.empty_like(g)
                kernel.adjoint(self.form, self.frame, canonical, g, gx)
            if x is not None:
                kernel.calls["gram"] += 1
                parts = kernel.gram(self.form, self.frame, canonical, _readable(x), g)
        if started is not None:
            self.site.manager.record(plan, time.perf_counter() - started, "backward")
        return gx, parts

    def _formula(self, x: Tensor, form: Form, columns: Tensor | None) -> Tensor:
        """The whole map in plain aten."""
        shape, x = x.shape, _shaped(x, self.canonical)
        d = diff.difference(x, self.frame.stencil)
        y = form.product(d)
        if columns is not None:
            for j, value in enumerate(diff.boundary_values(x, d, self.frame.stencil)):
                y = y + columns[j][:, :, None] * value
        return _shaped(y, shape)

    def _formula_backward(
        self, x: Tensor | None, g: Tensor, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The gradients in plain aten, themselves differentiable in x, g and the weights."""
        form, columns, shape = self.form, self.frame.columns, g.shape
        g = _shaped(g, self.canonical)
        if tensors:
            count = len(form.tensors)
            form, columns = form.rebuilt(tuple(tensors[:count])), (tensors[count] if columns is not None else None)
        values = []
        if columns is not None:
            values = [(g * columns[j][:, :, None]).sum(dim=2, keepdim=True) for j in range(columns.shape[0])]
        start, analytic = diff.split_boundary(values, self.frame.stencil)
        gd = form.adjoint(g)
        if start is not None:
            gd = diff.add_at(gd, self.frame.stencil.start_index, start)
        gx = diff.difference_adjoint(gd, self.frame.stencil)
        if analytic:
            gx = diff.add_at(gx, 0, diff.head_gradient(analytic, gx))
        if x is None:
            return _shaped(gx, shape), ()
        x = _shaped(x, self.canonical)
        d = diff.difference(x, self.frame.stencil)
        parts = list(form.gram(d, g))
        if columns is not None:
            sums = [(g * v).sum(dim=(0, 3)) for v in diff.boundary_values(x, d, self.frame.stencil)]
            parts.append(torch.stack(sums))
        return _shaped(gx, shape), tuple(parts)


class _ProductFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, product: Product, *tensors: Tensor) -> Tensor:
        ctx.product = product
        if tensors:
            ctx.save_for_backward(x, *tensors)
        return product.forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        product: Product = ctx.product
        product.site.again(product.plan)
        x, *tensors = ctx.saved_tensors or (None,)
        needs_x = ctx.needs_input_grad[0]
        if torch.is_grad_enabled() or is_batched(g):
            with torch.autocast(g.device.type, enabled=False):
                return _with_blanks(product._formula_backward(x, g, tensors))
        if not torch._C._is_any_autocast_enabled():
            return _with_blanks(product.backward(x, g, needs_x))
        with torch.autocast(g.device.type, enabled=False):
            return _with_blanks(product.backward(x, g, needs_x))


def _with_blanks(gradients: tuple[Tensor | None, tuple[Tensor, ...]]) -> tuple[Tensor | None, ...]:
    """Place gradients where the function's arguments stand: x, product, tensors."""
    gx, parts = gradients
    return gx, None, *parts


def _readable(x: Tensor) -> Tensor:
    """Return `x` contiguous, without a negation that is still to be done."""
    x = x.contiguous()
    return x.resolve_neg() if x.is_neg() else x


def _shaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a view of `x`, or itself: a view of all would be an alias, which batched gradients cannot follow."""
    return x if x.shape == shape else x.reshape(shape)
