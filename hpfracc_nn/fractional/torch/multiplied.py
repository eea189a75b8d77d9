"""The operation `multiplier`: a signal, each of whose frequencies gets its factor.

A kernel is called with its form of the symbol, the samples with the transformed axes last, and their sizes; `prepare`
makes the form. Plain calls run the plan's kernel, and its adjoint in the backward pass, both chosen by the manager; the
gradient in the symbol is that of the transforms. Traced calls and second gradients are the transforms in plain aten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.shelf import Charge, free
from hpfracc_nn.fractional.torch.probe import has_tangent, is_batched, is_traced
from hpfracc_nn.fractional.torch.streams import follow, kept
from hpfracc_nn.fractional.workloads import MULTIPLIER
from hpfracc_nn.selection import Kernel, Plan, Site, Work, Workload, carried_out

OP = MULTIPLIER


@dataclass(eq=False, slots=True)
class Symbol:
    """The factors of one operator on one grid.

    Args:
        values: Of the half spectrum, real or complex, [*c, *half of sizes].
        sizes: Samples on each transformed axis.
        charge: Is told of what is kept.
    """

    values: Tensor
    sizes: tuple[int, ...]
    charge: Charge = free
    _forms: dict[str, Tensor] = field(default_factory=dict)

    @property
    def channels(self) -> int:
        """Distinct symbols."""
        return math.prod(self.values.shape[: -len(self.sizes)])

    def form(self, kernel: Kernel, workload: Workload) -> Tensor:
        """Return the kernel's form, kept as long as this is."""
        found = self._forms.get(kernel.name)
        if found is None:
            with torch.inference_mode(False), torch.no_grad():  # it is kept: autograd refuses what inference mode made
                found = kernel.prepare(self, workload)
            if found is self.values:
                self._forms[kernel.name] = found
            else:
                found = kept(self.charge, self._forms, kernel.name, lambda: found)
        follow(self.charge)
        return found


def multiplied(x: Tensor, symbol: Symbol, site: Site | None) -> Tensor:
    """Return the product; autograd and every transform of torch.func follow it.

    Args:
        x: [..., *sizes], of the dtype that the symbol was made for.
        symbol: Of the operator; its leading axes broadcast to those of x.
        site: Where the plans are kept; None in a compiled graph, which asks nobody.
    """
    if site is None or torch.compiler.is_compiling() or is_traced(x, (symbol.values,)):
        return formula(x, symbol.values, symbol.sizes)
    tracks = torch.is_grad_enabled()
    needs, learns = tracks and x.requires_grad, tracks and symbol.values.requires_grad
    key = (x.shape, x.dtype, x.device, symbol.channels, len(symbol.sizes), needs, learns, torch.get_num_threads())
    plan = site.pick(key, lambda: _workload(x, symbol, needs, learns))
    if needs or learns:
        return _Multiplied.apply(x, symbol.values, symbol, site, plan)
    return carried_out(_FORWARD, site, plan, symbol, x)


def formula(x: Tensor, values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return the product in plain aten."""
    last = tuple(range(-len(sizes), 0))
    return torch.fft.irfftn(torch.fft.rfftn(x, dim=last) * values, sizes, dim=last)


def _workload(x: Tensor, symbol: Symbol, needs: bool, learns: bool) -> Workload:
    n = math.prod(symbol.sizes)
    return Workload(
        OP,
        "torch",
        device=str(x.device),
        dtype=str(x.dtype).removeprefix("torch."),
        rows=x.numel() // n,
        n=n,
        channels=symbol.channels,
        needs_gradient=needs,
        learns_weights=learns,
        threads=torch.get_num_threads(),
    )


def _run(plan: Plan, symbol: Symbol, x: Tensor) -> Tensor:
    plan.kernel.calls["run"] += 1
    return _in_parts(plan.kernel.run, plan, symbol, x)


def _adjoint(plan: Plan, symbol: Symbol, g: Tensor) -> Tensor:
    plan.kernel.calls["adjoint"] += 1
    return _in_parts(plan.kernel.adjoint, plan, symbol, g)


def _in_parts(step: Callable[..., Tensor], plan: Plan, symbol: Symbol, x: Tensor) -> Tensor:
    """Return one direction of a kernel, as many rows at a time as the plan says."""
    form = symbol.form(plan.kernel, plan.workload)
    if plan.chunk is None:
        return step(form, x, symbol.sizes)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    for place in parts(x.shape, symbol, plan.chunk):
        y[place] = step(form, x[place], symbol.sizes)
    return y


def parts(shape: Sequence[int], symbol: Symbol, rows: int) -> Iterator[tuple[slice, ...]]:
    """Yield slices of pieces of at most `rows` rows, at least one for each of the symbol's channels."""
    leading = shape[: len(shape) - len(symbol.sizes)]
    own = tuple(symbol.values.shape[: -len(symbol.sizes)])
    channels = (1,) * (len(leading) - len(own)) + own
    room, counts = max(1, rows // math.prod(channels)), []
    for size, distinct in reversed(list(zip(leading, channels, strict=True))):
        counts.append(size if distinct > 1 else max(1, min(size, room)))
        room = max(1, room // (counts[-1] if distinct == 1 else 1))
    starts = [range(0, size, count) for size, count in zip(leading, reversed(counts), strict=True)]
    for begins in product(*starts):
        yield tuple(slice(begin, begin + count) for begin, count in zip(begins, reversed(counts), strict=True))


def _fault(y: Tensor, symbol: Symbol, x: Tensor) -> str | None:
    if y.shape != x.shape or y.dtype != x.dtype:
        return f"{y.dtype} of shape {tuple(y.shape)} in place of {x.dtype} of shape {tuple(x.shape)}"
    return None


_FORWARD = Work(_run, _fault)
_BACKWARD = Work(_adjoint, _fault, "backward")


class _Multiplied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, symbol: Symbol, site: Site, plan: Plan) -> Tensor:
        ctx.symbol, ctx.site, ctx.plan = symbol, site, plan
        ctx.save_for_backward(x if values.requires_grad else None, values)
        return carried_out(_FORWARD, site, plan, symbol, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        x, values = ctx.saved_tensors
        symbol, (needs, learns, *_) = ctx.symbol, ctx.needs_input_grad
        ctx.site.again(ctx.plan)
        follows = torch.is_grad_enabled() or is_batched(g) or has_tangent(g)
        with torch.autocast(g.device.type, enabled=False):
            gx = None
            if needs and follows:
                gx = formula(g, values.conj() if values.is_complex() else values, symbol.sizes)
            elif needs:
                gx = carried_out(_BACKWARD, ctx.site, ctx.plan, symbol, g)
            gvalues = _in_values(x, symbol, g, None if follows else ctx.plan.chunk) if learns else None
        return gx, gvalues, None, None, None


def _in_values(x: Tensor, symbol: Symbol, g: Tensor, rows: int | None) -> Tensor:
    """Return the gradient in the factors, of as many rows at a time as the plan says."""
    if rows is None:
        return _slope(x, symbol.values, g, symbol.sizes)
    total = torch.zeros_like(symbol.values)
    for place in parts(x.shape, symbol, rows):
        total += _slope(x[place], symbol.values, g[place], symbol.sizes)
    return total


def _slope(x: Tensor, values: Tensor, g: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return the gradient in the factors of the half spectrum: of each frequency, what it adds to <y, g>.

    A frequency that the half spectrum stands for twice, as itself and as its conjugate, counts twice.
    """
    last = tuple(range(-len(sizes), 0))
    n = sizes[-1]
    counted = torch.full((n // 2 + 1,), 2.0, dtype=g.dtype, device=g.device)
    counted[0] = 1.0
    if n % 2 == 0:
        counted[-1] = 1.0
    found = torch.fft.rfftn(x, dim=last).conj() * torch.fft.rfftn(g, dim=last) * (counted / math.prod(sizes))
    found = found if values.is_complex() else found.real
    return found.sum_to_size(values.shape)
