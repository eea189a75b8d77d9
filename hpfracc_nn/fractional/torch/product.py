"""The causal Toeplitz product as one custom autograd function, made of each kernel's run, adjoint and gram.

Plain eager calls run the plan's kernel and save nothing of the data's size unless the weights are learned. Traced calls
(functorch, forward mode), double backwards and batched gradients run the same three maps in plain aten. What stands
around the product, differences and boundary columns, is in `frame.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch import differences as diff
from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.frame import Frame
from hpfracc_nn.fractional.torch.probe import is_batched, is_traced
from hpfracc_nn.selection import Plan, Site
from hpfracc_nn.selection.workload import Direction


@dataclass(eq=False)
class Product:
    """One application of an operator: the plan, the weights in the plan's form, and how the data are differenced."""

    site: Site
    plan: Plan
    form: Form
    frame: Frame

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a gradient in the weights flows into."""
        columns = self.frame.columns
        return self.form.tensors if columns is None else (*self.form.tensors, columns)

    def __call__(self, x: Tensor) -> Tensor:
        """Return y for x [batch, channels, n, width]."""
        tensors = self.tensors
        if is_traced(x, tensors):
            return self._formula(x, self.form, self.frame.columns)
        if torch.is_grad_enabled():
            if tensors[0].requires_grad or tensors[-1].requires_grad:
                return _ProductFunction.apply(x, self, True, *tensors)
            if x.requires_grad:
                return _ProductFunction.apply(x, self, False)
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """Run the plan's kernel."""
        kernel = self.plan.kernel
        with self.plan, _Timer(self, "forward", x):
            kernel.calls["run"] += 1
            x = x.contiguous().resolve_neg()
            y = torch.empty_like(x)
            kernel.run(self.form, self.frame, x, y)
            return y

    def backward(self, x: Tensor | None, g: Tensor, needs_x: bool) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Run the kernel's adjoint, and its Gram map where x is given."""
        kernel = self.plan.kernel
        with self.plan, _Timer(self, "backward", g):
            g = g.contiguous().resolve_neg()
            gx = None
            if needs_x:
                kernel.calls["adjoint"] += 1
                gx = torch.empty_like(g)
                kernel.adjoint(self.form, self.frame, g, gx)
            if x is None:
                return gx, ()
            kernel.calls["gram"] += 1
            return gx, kernel.gram(self.form, self.frame, x.contiguous().resolve_neg(), g)

    def _formula(self, x: Tensor, form: Form, columns: Tensor | None) -> Tensor:
        """The whole map in plain aten."""
        d = diff.difference(x, self.frame.stencil)
        y = form.product(d)
        if columns is not None:
            for j, value in enumerate(diff.boundary_values(x, d, self.frame.stencil)):
                y = y + columns[j][:, :, None] * value
        return y

    def _formula_backward(
        self, x: Tensor | None, g: Tensor, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The gradients in plain aten, themselves differentiable in x, g and the weights."""
        form, columns = self.form, self.frame.columns
        if tensors:
            count = len(form.tensors)
            form, columns = form.rebuilt(tensors[:count]), (tensors[count] if columns is not None else None)
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
            return gx, ()
        d = diff.difference(x, self.frame.stencil)
        parts = list(form.gram(d, g))
        if columns is not None:
            sums = [(g * v).sum(dim=(0, 3)) for v in diff.boundary_values(x, d, self.frame.stencil)]
            parts.append(torch.stack(sums))
        return gx, tuple(parts)


class _ProductFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, product: Product, learned: bool, *tensors: Tensor) -> Tensor:
        ctx.product = product
        ctx.save_for_backward(*((x, *tensors) if learned else ()))
        return product.forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        product: Product = ctx.product
        product.site.again(product.plan)
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        x, tensors = (saved[0], saved[1:]) if saved else (None, ())
        needs_x = ctx.needs_input_grad[0]
        with torch.autocast(g.device.type, enabled=False):
            if torch.is_grad_enabled() or is_batched(g):
                return _with_blanks(product._formula_backward(x, g, tensors))
            return _with_blanks(product.backward(x, g, needs_x))


def _with_blanks(gradients: tuple[Tensor | None, tuple[Tensor, ...]]) -> tuple[Tensor | None, ...]:
    """Place gradients where the function's arguments stand: x, product, learned, tensors."""
    gx, parts = gradients
    return gx, None, None, *parts


class _Timer:
    """Times one call where its plan says so; on a CPU, where a call has ended when it returns."""

    __slots__ = ("direction", "product", "started")

    def __init__(self, product: Product, direction: Direction, x: Tensor):
        self.product, self.direction = product, direction
        self.started = time.perf_counter() if x.device.type == "cpu" and product.plan.due(direction) else None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self.started is not None and error is None:
            seconds = time.perf_counter() - self.started
            self.product.site.manager.record(self.product.plan, seconds, self.direction)
