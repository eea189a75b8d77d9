"""Fourier multipliers on PyTorch tensors: the checks, the axes, the factors, the product and its kernels.

A kernel is called with its form of the symbol, the samples with the transformed axes last, and their sizes; `prepare`
makes the form. Plain calls run the plan's kernel, and its adjoint in the backward pass, both chosen by the manager; the
gradient in the symbol is that of the transforms. Traced calls and second gradients are the transforms in plain aten.

Kernels: the real fast Fourier transform, O(n log n), any size, one to three axes; and one matrix product with the
circulant matrix, for short signals and small boxes, whose entry (i, j) is the response to a unit sample, taken at i - j
modulo the size of each axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional import multiplier_costs as costs
from hpfracc_nn.fractional.cache import Charge, free
from hpfracc_nn.fractional.definitions import Multiplier
from hpfracc_nn.fractional.layout import transformed_axes
from hpfracc_nn.fractional.torch.eager import alpha_shape, check_dense, computed_in, floating_alpha, may_be_read
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.streams import follow, kept, on, placed
from hpfracc_nn.fractional.torch.tracing import has_tangent, is_batched, is_traced
from hpfracc_nn.fractional.weights import SHELF
from hpfracc_nn.fractional.workloads import MULTIPLIER
from hpfracc_nn.selection import (
    BackendManager,
    Kernel,
    Plan,
    Site,
    Work,
    Workload,
    carried_out,
    given_manager,
    register,
)

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


Factors = tuple[Symbol, tuple[Tensor, Tensor] | None]  # the symbol, and columns of images


def apply(
    owner: str, x: Tensor, definition: Multiplier, dt: Any, dim: Any, manager: BackendManager | None = None
) -> Tensor:
    """Return the operator applied to `x`; same shape, dtype and device. See `fractional.derivative`."""
    if torch.compiler.is_compiling():  # a graph is not told of plans
        return apply_at(owner, x, definition, dt, dim, None)
    site = given_manager(owner, manager).shared_site(OP, "torch", "functions")
    return apply_at(owner, x, definition, dt, dim, site)


def apply_at(owner: str, x: Tensor, definition: Multiplier, dt: Any, dim: Any, site: Site | None) -> Tensor:
    """Return the same with the plans of `site`.

    Args:
        owner: Who asks, for messages.
        x: Samples.
        definition: The operator.
        dt: One spacing, or one for each axis.
        dim: One axis or several, or None: see `transformed_axes`.
        site: Where the plans are kept; None in a compiled graph, which asks nobody.
    """
    dtype = computed_in(owner, x)
    check_dense(owner, "x", x)
    if not definition.is_fixed:
        floating_alpha(owner, definition.alpha)
        if may_be_read(definition.alpha):
            for value in definition.alpha.reshape(-1).tolist():
                definition.check(value)
    axes, steps = transformed_axes(owner, x.shape, definition, dt, dim, alpha_shape(definition))
    if 0 in x.shape or x.device.type == "meta":
        return x.clone() if definition.is_fixed else x + 0 * definition.alpha.sum().to(x)
    with torch.autocast(x.device.type, enabled=False):
        last = tuple(range(-len(axes), 0))
        data = x.movedim(axes, last).to(dtype)
        sizes = tuple(data.shape[-len(axes) :])
        symbol, images = _factors_of(definition, sizes, steps, data)
        y = multiplied(data, symbol, site)
        if images is not None:
            away = (torch.arange(sizes[-1], device=x.device) - sizes[-1] // 2).to(dtype) * steps[-1]
            y = y + images[0] * data.sum(-1, keepdim=True) + images[1] * (data * away).sum(-1, keepdim=True)
        return y.movedim(last, axes).contiguous().to(x.dtype)


def _factors_of(definition: Multiplier, sizes: tuple[int, ...], steps: tuple[float, ...], x: Tensor) -> Factors:
    """Return those that are kept, where alpha is a number or numbers and nobody traces; else new ones."""
    if torch.compiler.is_compiling() or not definition.is_fixed or is_traced(x, ()):
        return _factors(definition, sizes, steps, x.dtype, x.device, free)
    key = "torch", definition, sizes, steps, x.dtype, x.device

    def build(charge: Charge) -> Factors:
        with torch.inference_mode(False), torch.no_grad():  # autograd refuses tensors that inference mode made
            return _factors(definition, sizes, steps, x.dtype, x.device, on(x.device, charge))

    found = SHELF.get(key, build)
    follow(found[0].charge)
    return found


def _factors(
    definition: Multiplier,
    sizes: Sequence[int],
    steps: Sequence[float],
    dtype: torch.dtype,
    device: torch.device,
    charge: Charge,
) -> Factors:
    alpha = TORCH.asarray(definition.alpha).to(device)
    alpha = alpha.reshape(*alpha.shape, *(1,) * len(sizes))
    omega = []
    for axis, (n, step) in enumerate(zip(sizes, steps, strict=True)):
        frequencies = torch.fft.rfftfreq if axis == len(sizes) - 1 else torch.fft.fftfreq
        found = 2 * math.pi * frequencies(n, step, dtype=torch.float64, device=device)
        omega.append(found.reshape(-1, *(1,) * (len(sizes) - 1 - axis)))
    real, imaginary = definition.symbol(alpha, omega, TORCH)
    values = real.to(dtype) if imaginary is None else torch.complex(real.to(dtype), imaginary.to(dtype))
    images = definition.images(alpha, sizes[-1], steps[-1], TORCH)
    symbol = Symbol(charge(values), tuple(sizes), charge)
    return symbol, None if images is None else charge((images[0].to(dtype), images[1].to(dtype)))


def _prepare_by_dense(symbol: Symbol, workload: Workload | None = None) -> Tensor:
    """Return the transposed matrices, [*c, N, N] for N samples of all axes."""
    last = tuple(range(-len(symbol.sizes), 0))
    response = torch.fft.irfftn(symbol.values, symbol.sizes, dim=last).flatten(last[0])
    return response[..., _lags(symbol.sizes, response.device)]


def _run_by_dense(matrix: Tensor, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    flat = x.flatten(-len(sizes))
    if matrix.ndim == 2:
        return (flat @ matrix).view(x.shape)
    return torch.matmul(flat.unsqueeze(-2), matrix).squeeze(-2).view(x.shape)


def _adjoint_by_dense(matrix: Tensor, g: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return _run_by_dense(matrix.mT, g, sizes)


@placed
def _lags(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return where in the flat response the entry (j, i) of the transposed matrix stands."""
    with torch.inference_mode(False):
        return torch.as_tensor(costs.lags(sizes), device=device)


register(
    Kernel(
        OP,
        "torch",
        "torch",
        "dense",
        _run_by_dense,
        _adjoint_by_dense,
        _prepare_by_dense,
        costs.dense,
        costs.refuses_dense,
        costs.saves,
    )
)


def _prepare_by_fft(symbol: Symbol, workload: Workload | None = None) -> Tensor:
    return symbol.values


def _run_by_fft(values: Tensor, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    last = tuple(range(-len(sizes), 0))
    return torch.fft.irfftn(torch.fft.rfftn(x, dim=last) * values, sizes, dim=last)


def _adjoint_by_fft(values: Tensor, g: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return _run_by_fft(values.conj() if values.is_complex() else values, g, sizes)


register(
    Kernel(OP, "torch", "torch", "fft", _run_by_fft, _adjoint_by_fft, _prepare_by_fft, costs.fft, saves=costs.saves)
)
