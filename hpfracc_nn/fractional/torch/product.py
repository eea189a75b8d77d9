"""The causal Toeplitz product as one custom autograd function, made of each kernel's run and adjoint.

Plain eager calls run the plan's kernel and save nothing of the data's size unless alpha is learned. Its gradient is
<T'(alpha) x, g>: one more run, with the derivative of the weights. Traced calls (functorch, forward mode), double
backwards and batched gradients run the same maps in plain aten. What stands around the product, differences and
boundary columns, is in `tiles.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.gaps import held
from hpfracc_nn.fractional.torch import boundary as diff
from hpfracc_nn.fractional.torch.boundary import is_clear
from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.probe import is_followed
from hpfracc_nn.fractional.torch.streams import follow
from hpfracc_nn.fractional.torch.tiles import Frame, multiplied, parts, run_in_parts, step_of
from hpfracc_nn.fractional.torch.weights import Columns, Weights
from hpfracc_nn.selection import Doubt, Plan, Site, Work, carried_out


@dataclass(eq=False, slots=True)
class Product:
    """One application of an operator: the plan, the weights in the plan's form, and what stands around the product.

    Data and results have any shape that is a view of `canonical`, [batch, channels, n, width]: views are made inside of
    what autograd records, where each would be a step of its own, by the kernels. `weights` returns those of the form:
    for alpha's gradient, and for the form of another kernel where the plan's own fails. Then `plan` and `form` become
    those of the kernel that did its work, and the backward pass begins with that one.
    """

    site: Site
    plan: Plan
    form: Form
    frame: Frame
    canonical: tuple[int, int, int, int]
    weights: Callable[[], Weights]

    def recorded(self, x: Tensor, alpha: Tensor | None = None) -> Tensor:
        """Return y, of x's shape, with its gradients in x and in a learned alpha, where nothing is traced."""
        # `apply` of the class would do this too, and look for functorch's transforms, which have been looked for.
        unwrap = torch._C._functorch.unwrap_if_dead
        return _record(unwrap(x), self, alpha if alpha is None else unwrap(alpha))

    def forward(self, x: Tensor) -> Tensor:
        """Run the plan's kernel."""
        x = _readable(x)
        y = carried_out(_FORWARD, self.site, self.plan, self, x)
        if not y.is_cpu or is_clear(y, self.canonical, at_end=True):
            return y
        return self._mended(x, y, lambda finite: carried_out(_FORWARD, self.site, self.plan, self, finite))

    def backward(
        self, x: Tensor | None, g: Tensor, alpha: Tensor | None, needs_x: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradient in x, if it is wanted, and where alpha is given that in alpha, of as many values."""
        x, g = None if x is None else _readable(x), _readable(g)
        gx, order = carried_out(_BACKWARD, self.site, self.plan, self, x, g, alpha, needs_x)
        if gx is None or not gx.is_cpu or is_clear(gx, self.canonical, at_end=False):
            return gx, order

        def again(finite: Tensor) -> Tensor:
            return carried_out(_BACKWARD, self.site, self.plan, self, None, finite, None, True)[0]

        return self._mended(g, gx, again, backwards=True), order

    def _mended(self, x: Tensor, y: Tensor, run: Callable[[Tensor], Tensor], *, backwards: bool = False) -> Tensor:
        """Return what is made of x, which is y, without what is not finite in x spoiling other times."""
        numbers = x.detach().to(torch.float32) if x.dtype == torch.bfloat16 else x.detach()
        found = held(numbers.numpy().reshape(self.canonical), self.frame.stencil.ahead, backwards=backwards)
        if found is None:
            return y
        finite, reached = map(torch.from_numpy, found)
        y = run(finite.to(x.dtype).view(x.shape))
        y.view(self.canonical).masked_fill_(reached, torch.nan)
        return y

    def adopt(self, plan: Plan) -> None:
        """Go on with another plan's kernel, and make its form first."""
        self.form = plan.kernel.prepare(self.weights(), plan.kernel.given(plan.workload))
        self.plan = plan

    def order_gradient(self, x: Tensor, g: Tensor, alpha: Tensor) -> Tensor:
        """Return <dy/dalpha, g> of each channel: the kernel runs with the derivative of the weights."""
        kernel, slopes, total = self.plan.kernel, self.weights().slopes(alpha), None
        kernel.calls["slope"] += 1
        form = kernel.prepare(slopes, kernel.given(self.plan.workload))
        inner = kernel.inner or partial(multiplied, step_of(self.plan, "run"))
        for shape, (data, grads) in parts(self.canonical, self.plan.chunk, x, g):
            if not kernel.as_stored:
                data, grads = data.to(slopes.frame.dtype), grads.to(slopes.frame.dtype)
            found = inner(form, slopes.frame, shape, data, grads)
            total = found if total is None else total.add_(found)
        assert total is not None, "an empty product is not computed"
        return total

    def blames(self, *given: Tensor) -> str | None:
        """Return why a result that is not finite is the kernel's fault, None where it follows from data or weights."""
        weights = self.weights()
        tensors = [*given, weights.column().column, *([] if self.frame.columns is None else [self.frame.columns])]
        return Doubt("not finite, though input and weights are") if all(map(_is_finite, tensors)) else None

    def formula(self, x: Tensor) -> Tensor:
        """Return y in plain aten, which every tracer and transform follows."""
        y = self._mapped(_shaped(x, self.canonical), self.form, self.frame.columns)
        return _shaped(y, x.shape)

    def formula_backward(self, x: Tensor | None, g: Tensor, alpha: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the gradients in plain aten, themselves differentiable in x, g and alpha."""
        weights, form, columns = None, self.form, self.frame.columns
        follow(form.charge)
        if alpha is not None:
            weights = self.weights().at(alpha)
            form, columns = self._form_of(weights)
        shape, dtype, g = g.shape, g.dtype, _shaped(g, self.canonical).to(self.frame.dtype)
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
        gx = _shaped(gx, shape).to(dtype)
        if x is None or alpha is None or weights is None:
            return gx, None
        data = _shaped(x, self.canonical).to(self.frame.dtype)
        moved = self._mapped(data, *self._form_of(weights.slopes(alpha)))
        return gx, (moved * g).sum(dim=(0, 2, 3))

    def _form_of(self, weights: Columns) -> tuple[Form, Tensor | None]:
        kernel = self.plan.kernel
        return kernel.prepare(weights, kernel.given(self.plan.workload)), weights.columns()

    def _mapped(self, x: Tensor, form: Form, columns: Tensor | None) -> Tensor:
        d = diff.difference(x, self.frame.stencil)
        y = form.product(d)
        if columns is not None:
            for j, value in enumerate(diff.boundary_values(x, d, self.frame.stencil)):
                y = y + columns[j][:, :, None] * value
        return y


def _run(plan: Plan, product: Product, x: Tensor) -> Tensor:
    if plan is not product.plan:
        product.adopt(plan)
    follow(product.form.charge)
    kernel = plan.kernel
    kernel.calls["run"] += 1
    y = torch.empty_like(x)
    whole = plan.chunk, product.form, product.frame, product.canonical
    run_in_parts(step_of(plan, "run"), *whole, x, y, as_stored=kernel.as_stored)
    return y


def _run_backward(
    plan: Plan, product: Product, x: Tensor | None, g: Tensor, alpha: Tensor | None, needs_x: bool
) -> tuple[Tensor | None, Tensor | None]:
    if plan is not product.plan:
        product.adopt(plan)
    follow(product.form.charge)
    kernel, gx = plan.kernel, None
    if needs_x:
        kernel.calls["adjoint"] += 1
        gx = torch.empty_like(g)
        whole = plan.chunk, product.form, product.frame, product.canonical
        run_in_parts(step_of(plan, "adjoint"), *whole, g, gx, as_stored=kernel.as_stored)
    return gx, None if x is None or alpha is None else product.order_gradient(x, g, alpha)


def _fault(y: Tensor, product: Product, x: Tensor) -> str | None:
    if y.shape != x.shape or y.dtype != x.dtype:
        return _another(y, x)
    return None if _is_finite(y, is_rounded=True) else product.blames(x)


def _fault_backward(
    found: tuple[Tensor | None, Tensor | None],
    product: Product,
    x: Tensor | None,
    g: Tensor,
    alpha: Tensor | None,
    needs_x: bool,
) -> str | None:
    gx, _ = found
    if gx is not None and (gx.shape != g.shape or gx.dtype != g.dtype):
        return _another(gx, g)
    return (
        None
        if all(_is_finite(part, is_rounded=True) for part in found if part is not None)
        else product.blames(g if x is None else x, g)
    )


def _is_finite(x: Tensor, *, is_rounded: bool = False) -> bool:
    """Return whether all numbers of `x` are finite, without the copies that `isfinite` of all of it would take.

    What was rounded to half precision may be infinite, because large numbers are rounded so, but not NaN.
    """
    x = x.detach().resolve_neg()
    if x.dtype in _INFINITE:
        bits = x.view(torch.int16).numpy() & 0x7FFF
        return bool(bits.max(initial=0) < _INFINITE[x.dtype] + is_rounded)
    values = x.numpy()  # by NumPy: torch's own threads do not outlive a fork
    return bool(np.isfinite(values.min()) and np.isfinite(values.max()))  # both are NaN where any number is


def _another(y: Tensor, like: Tensor) -> str:
    return f"{y.dtype} of shape {tuple(y.shape)} in place of {like.dtype} of shape {tuple(like.shape)}"


_INFINITE = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}  # the bits of it, without the sign
_FORWARD = Work(_run, _fault)
_BACKWARD = Work(_run_backward, _fault_backward, "backward")


class _ProductFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, product: Product, alpha: Tensor | None) -> Tensor:
        ctx.product = product
        if alpha is not None:
            ctx.save_for_backward(x, alpha)
        return product.forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        product: Product = ctx.product
        product.site.again(product.plan)
        x, alpha = ctx.saved_tensors or (None, None)
        needs_x = ctx.needs_input_grad[0]
        if is_followed(g):
            with torch.autocast(g.device.type, enabled=False):
                return _placed(product.formula_backward(x, g, alpha), alpha)
        if not torch._C._is_any_autocast_enabled():
            return _placed(product.backward(x, g, alpha, needs_x), alpha)
        with torch.autocast(g.device.type, enabled=False):
            return _placed(product.backward(x, g, alpha, needs_x), alpha)


_record = super(torch.autograd.Function, _ProductFunction).apply


def _placed(gradients: tuple[Tensor | None, Tensor | None], alpha: Tensor | None) -> tuple[Tensor | None, ...]:
    """Place gradients where the function's arguments stand: x, product, alpha."""
    gx, order = gradients
    return gx, None, None if alpha is None or order is None else in_shape_of(alpha, order)


def in_shape_of(alpha: Tensor, gradient: Tensor) -> Tensor:
    """Return a gradient [channels] as one of alpha: its shape, dtype and device."""
    return gradient.reshape(alpha.shape).to(alpha)


def _readable(x: Tensor) -> Tensor:
    """Return `x` contiguous, without a negation that is still to be done."""
    x = x.contiguous()
    return x.resolve_neg() if x.is_neg() else x


def _shaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a view of `x`, or itself: a view of all would be an alias, which batched gradients cannot follow."""
    return x if x.shape == shape else x.reshape(shape)
