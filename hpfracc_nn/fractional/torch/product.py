"""The causal Toeplitz product of an operator as one custom autograd function, made of each kernel's run, adjoint and gram.

    y = T(left) d(x) + sum over j of columns[j] * v_j(x),

with d the differenced data and v_j their few boundary values. Plain eager calls run the plan's kernel, tile by tile so that a
tile's buffers stay in the cache, and save nothing of the data's size unless the weights are learned. Traced calls
(torch.compile, functorch, forward mode), double backwards and batched gradients run the same three maps in plain aten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.torch import differences as diff
from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.probe import is_batched, is_traced
from hpfracc_nn.selection import Plan, Site
from hpfracc_nn.selection.workload import Direction

_TILE_BYTES = 256 * 1024  # of data: with its difference, states and result it fits a second-level cache


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
        if is_traced(x, *tensors):
            return self._formula(x, self.form, self.columns)
        learned = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        if learned:
            return _ProductFunction.apply(x, self, True, *tensors)
        if torch.is_grad_enabled() and x.requires_grad:
            return _ProductFunction.apply(x, self, False)
        with torch.no_grad():
            return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """Run the plan's kernel."""
        run, n = self.plan.kernel.run, x.shape[2]
        with self.plan, _Timer(self, "forward", x):
            self.plan.kernel.calls["run"] += 1
            x = x.contiguous()
            y = torch.empty_like(x)
            seen, result = self._seen(x), self._buffer(x) if self._padded(n) > n else None
            for rows in self._tiles(x):
                d = seen(rows)
                values = diff.boundary_values(x[rows], d, self.stencil) if self.columns is not None else ()
                if result is None:
                    run(self.form, d, y[rows])
                else:
                    out = result[: d.shape[0]]
                    run(self.form, d, out)
                    y[rows] = out[:, :, :n]
                for column, value in zip(self._each_column(), values, strict=True):
                    y[rows].addcmul_(column, value)
            return y

    def backward(self, x: Tensor | None, g: Tensor, needs_x: bool) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Run the kernel's adjoint, and its Gram map where x is given."""
        kernel, n = self.plan.kernel, g.shape[2]
        with self.plan, _Timer(self, "backward", g):
            kernel.calls["adjoint"] += needs_x
            kernel.calls["gram"] += x is not None
            g = g.contiguous()
            gx = torch.empty_like(g) if needs_x else None
            x = x if x is None else x.contiguous()
            seen, padded = None if x is None else self._seen(x), self._padder(g)
            back = self._buffer(g) if needs_x else None
            sums: list[Tensor] = []
            for rows in self._tiles(g):
                grad = padded(rows)
                if x is not None and seen is not None:
                    parts = self._gram(x[rows], seen(rows), grad, g[rows])
                    sums = [a.add_(b) for a, b in zip(sums, parts, strict=True)] if sums else parts
                if gx is not None and back is not None:
                    out = back[: grad.shape[0]]
                    kernel.adjoint(self.form, grad, out)
                    self._difference_backward(gx[rows], out[:, :, :n], g[rows])
            return gx, tuple(sums)

    def _gram(self, x: Tensor, d: Tensor, padded: Tensor, g: Tensor) -> list[Tensor]:
        parts = list(self.plan.kernel.gram(self.form, d, padded))
        if self.columns is not None:
            parts.append(torch.stack([(g * v).sum(dim=(0, 3)) for v in diff.boundary_values(x, d, self.stencil)]))
        return parts

    def _difference_backward(self, gx: Tensor, gd: Tensor, g: Tensor) -> None:
        values = [(g * column).sum(dim=2, keepdim=True) for column in self._each_column()]
        start, analytic = diff.split_boundary(values, self.stencil)
        if start is not None:
            gd[:, :, self.stencil.start_index : self.stencil.start_index + 1] += start
        diff.difference_adjoint_into(gx, gd, self.stencil)
        if analytic:
            gx[:, :, :4] += diff.head_gradient(analytic, gx)

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

    def _tile(self, x: Tensor) -> int:
        """Signals per tile: on a CPU as many as a cache holds; all where they are regrouped by channel."""
        batch, channels, n, width = x.shape
        if x.device.type != "cpu" or channels > 1:
            return batch
        return max(1, _TILE_BYTES * torch.get_num_threads() // max(1, n * width * x.element_size()))

    def _tiles(self, x: Tensor) -> Iterator[slice]:
        tile = self._tile(x)
        return (slice(first, min(first + tile, x.shape[0])) for first in range(0, x.shape[0], tile))

    def _buffer(self, x: Tensor) -> Tensor:
        """One tile of padded data; what lies behind the samples is zero."""
        batch, channels, n, width = x.shape
        padded = self._padded(n)
        buffer = x.new_empty(min(self._tile(x), batch), channels, padded, width)
        if padded > n:
            buffer[:, :, n:] = 0
        return buffer

    def _seen(self, x: Tensor) -> Callable[[slice], Tensor]:
        """Return what gives a tile as the kernel sees it: differenced and padded, in one buffer for all tiles."""
        if not (self.stencil.differences or self.stencil.subtract):
            return self._padder(x)
        buffer = self._buffer(x)

        def tile(rows: slice) -> Tensor:
            d = buffer[: rows.stop - rows.start]
            diff.difference_into(d, x[rows], self.stencil)
            return d

        return tile

    def _padder(self, x: Tensor) -> Callable[[slice], Tensor]:
        """Return what gives a tile padded to whole chunks: the tile itself where nothing is missing."""
        n = x.shape[2]
        if self._padded(n) == n:
            return x.__getitem__
        buffer = self._buffer(x)

        def tile(rows: slice) -> Tensor:
            buffer[: rows.stop - rows.start, :, :n] = x[rows]
            return buffer[: rows.stop - rows.start]

        return tile


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
        x, *tensors = ctx.saved_tensors or (None,)
        with torch.autocast(g.device.type, enabled=False):
            if torch.is_grad_enabled() or is_batched(g):
                gx, parts = product._formula_backward(x, g, tuple(tensors))
            else:
                gx, parts = product.backward(x, g, ctx.needs_input_grad[0])
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

