"""The causal Toeplitz product as one custom autograd function, made of each kernel's run, adjoint and gram.

    y = T(left) d(x) + sum over j of columns[j] * v_j(x),

with d the differenced data and v_j their few boundary values. Plain eager calls run the plan's kernel, tile by tile
so that a tile's buffers stay in the cache, and save nothing of the data's size unless the weights are learned. Traced
calls (torch.compile, functorch, forward mode), double backwards and batched gradients run the same three maps in
plain aten.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.torch import differences as diff
from hpfracc_nn.fractional.torch import tiles
from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.probe import is_batched, is_traced
from hpfracc_nn.fractional.torch.tiles import cut
from hpfracc_nn.selection import Plan, Site
from hpfracc_nn.selection.workload import Direction


@dataclass(eq=False)
class Product:
    """One application of an operator: the plan, the weights in the plan's form, and how the data are differenced."""

    site: Site
    plan: Plan
    form: Form
    stencil: Stencil
    columns: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Return y for x [batch, channels, n, width]."""
        tensors = self.form.tensors if self.columns is None else (*self.form.tensors, self.columns)
        if is_traced(x, tensors):
            return self._formula(x, self.form, self.columns)
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
            kernel.run(self.form, self._forward_tiles(x, y))
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
                kernel.adjoint(self.form, self._backward_tiles(g, gx))
            if x is None:
                return gx, ()
            kernel.calls["gram"] += 1
            columns: list[Tensor] = []
            parts = kernel.gram(self.form, self._gram_tiles(x.contiguous().resolve_neg(), g, columns))
            return gx, (*parts, *columns)

    def _forward_tiles(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (differenced data, room for the result); what belongs to the boundary is added when a tile is done."""
        stencil, n = self.stencil, x.shape[2]
        rows, length = tiles.tile_rows(x), self._padded(n)
        work = tiles.buffer("result", x, rows, length) if length > n else None
        columns = self._each_column()
        seen = tiles.differenced(x, rows, length, stencil, self.plan.kernel.preprocess)
        for part, done, d in zip(cut(x, rows), cut(y, rows), seen, strict=True):
            values = diff.boundary_values(part, d, stencil) if columns else ()
            yield d, done if work is None else work[: d.shape[0]]
            if work is not None:
                done.copy_(work[: d.shape[0], :, :n])
            for column, value in zip(columns, values, strict=True):
                done.addcmul_(column, value)

    def _backward_tiles(self, g: Tensor, gx: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (gradient, room for the adjoint); when a tile is done it goes back through the differences."""
        stencil, n = self.stencil, g.shape[2]
        rows, length = tiles.tile_rows(g), self._padded(n)
        back = tiles.buffer("result", g, rows, length)
        columns = self._each_column()
        for part, found, padded in zip(cut(g, rows), cut(gx, rows), tiles.padded(g, rows, length), strict=True):
            out = back if part.shape[0] == rows else back[: part.shape[0]]
            yield padded, out
            values = [(part * column).sum(dim=2, keepdim=True) for column in columns]
            start, analytic = diff.split_boundary(values, stencil)
            gd = out.narrow(2, 0, n)
            if start is not None:
                gd[:, :, stencil.start_index : stencil.start_index + 1] += start
            diff.difference_adjoint_into(found, gd, stencil)
            if analytic:
                found[:, :, :4] += diff.head_gradient(analytic, found)

    def _gram_tiles(self, x: Tensor, g: Tensor, columns: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (differenced data, gradient); the gradient of the boundary columns is summed into the list."""
        stencil = self.stencil
        rows, length = tiles.tile_rows(x), self._padded(x.shape[2])
        data = tiles.differenced(x, rows, length, stencil, self.plan.kernel.preprocess)
        for part, d, grad, padded in zip(cut(x, rows), data, cut(g, rows), tiles.padded(g, rows, length), strict=True):
            if self.columns is not None:
                values = diff.boundary_values(part, d, stencil)
                found = torch.stack([(grad * value).sum(dim=(0, 3)) for value in values])
                columns[:] = [columns[0] + found] if columns else [found]
            yield d, padded

    def _formula(self, x: Tensor, form: Form, columns: Tensor | None) -> Tensor:
        """The whole map in plain aten."""
        d = diff.difference(x, self.stencil)
        y = form.product(d)
        if columns is not None:
            for j, value in enumerate(diff.boundary_values(x, d, self.stencil)):
                y = y + columns[j][:, :, None] * value
        return y

    def _formula_backward(
        self, x: Tensor | None, g: Tensor, tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The gradients in plain aten, themselves differentiable in x, g and the weights."""
        form, columns = self.form, self.columns
        if tensors:
            count = len(form.tensors)
            form, columns = form.rebuilt(tensors[:count]), (tensors[count] if columns is not None else None)
        values = []
        if columns is not None:
            values = [(g * columns[j][:, :, None]).sum(dim=2, keepdim=True) for j in range(columns.shape[0])]
        start, analytic = diff.split_boundary(values, self.stencil)
        gd = form.adjoint(g)
        if start is not None:
            gd = diff.add_at(gd, self.stencil.start_index, start)
        gx = diff.difference_adjoint(gd, self.stencil)
        if analytic:
            gx = diff.add_at(gx, 0, diff.head_gradient(analytic, gx))
        if x is None:
            return gx, ()
        d = diff.difference(x, self.stencil)
        parts = list(form.gram(d, g))
        if columns is not None:
            sums = [(g * v).sum(dim=(0, 3)) for v in diff.boundary_values(x, d, self.stencil)]
            parts.append(torch.stack(sums))
        return gx, tuple(parts)

    def _each_column(self) -> list[Tensor]:
        return [] if self.columns is None else [column[:, :, None] for column in self.columns]

    def _padded(self, n: int) -> int:
        """The length of whole chunks that holds n samples."""
        return -(-n // self.form.multiple) * self.form.multiple


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
