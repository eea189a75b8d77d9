"""A linear operator as one custom autograd function, made of a kernel's product, its adjoint and a derivative in alpha.

Plain eager calls run the plan's kernel and save nothing of the data's size unless alpha is learned. The gradient in
alpha is <T'(alpha) x, g>: one more run, with the derivative of the weights. Double backwards and batched gradients run
the same maps in torch's own operations. `Toeplitz` is the operator at equal steps; what stands around its product,
differences and boundary columns, is in `tiles.py`.

Every plain call on a CPU checks the ends of its results for NaN and infinities (`fractional.gaps`), so that the check
must take no longer than one small call of torch. `y.numpy()` alone takes that long, and afterwards y's memory could
never be resized.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isfinite
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import Boundary, difference, finish, transposed
from hpfracc_nn.fractional.gaps import are_finite, carried_forward
from hpfracc_nn.fractional.linear import Column, StateSpace
from hpfracc_nn.fractional.torch.streams import follow
from hpfracc_nn.fractional.torch.tiles import multiplied, parts, run_in_parts, step_of
from hpfracc_nn.fractional.torch.tracing import is_followed
from hpfracc_nn.fractional.torch.weights import Operators, Weights
from hpfracc_nn.selection import Doubt, Plan, Site, Work, carried_out

Gradients = tuple[Tensor | None, Tensor | None]  # in x, in alpha


class Product(Protocol):
    """A linear operator with its weights as one kernel takes them: what a `LinearMap` runs."""

    def with_kernel(self, plan: Plan) -> Product:
        """Return the same operator with the weights as another plan's kernel takes them."""

    def run(self, plan: Plan, x: Tensor) -> Tensor:
        """Return the kernel's product with x."""

    def adjoint(self, plan: Plan, g: Tensor) -> Tensor:
        """Return the kernel's product of the transpose with g."""

    def derivative(self, plan: Plan, x: Tensor, g: Tensor, alpha: Tensor) -> Tensor:
        """Return the gradient in alpha, of alpha's shape, for samples x and the gradient g in the result."""

    def formula_backward(self, plan: Plan, x: Tensor | None, g: Tensor, alpha: Tensor | None) -> Gradients:
        """Return the gradients in x and alpha by torch's own operations, so that they are differentiable themselves."""

    def readable(self, x: Tensor) -> Tensor:
        """Return x, which is not contiguous or has a negation still to be done, in a form that kernels read."""

    def is_clear(self, y: Tensor, *, is_adjoint: bool) -> bool:
        """Whether y, a result on a CPU, is finite at the times at which any sample that is not finite would show."""

    def without_gaps(self, x: Tensor, *, is_adjoint: bool) -> tuple[Tensor, Tensor] | None:
        """Return x with finite numbers in place of NaN and infinities, and a mask; None where x is finite.

        The mask, of the result's shape, is true where the result becomes NaN.
        """

    def result_shape(self, x: Tensor, *, is_adjoint: bool) -> Sequence[int]:
        """Return the shape of the result for x, or with `is_adjoint` of the transpose's."""

    def constants(self) -> list[Tensor]:
        """Return the tensors besides x, such as weights, that can make a result infinite or NaN."""


@dataclass(eq=False, slots=True)
class LinearMap:
    """One application of a linear operator by the kernel of a plan, forward and backward.

    Where the plan's kernel fails, plan and product become those of the kernel that did its work, with which the
    backward pass begins.
    """

    site: Site
    plan: Plan
    product: Product

    def recorded(self, x: Tensor, alpha: Tensor | None = None) -> Tensor:
        """Return the product with its gradients in x and in a learned alpha recorded; for calls that nothing traces."""
        # `apply` of the class would do this too, and look for functorch's transforms, which have been looked for.
        unwrap = torch._C._functorch.unwrap_if_dead
        return _record(unwrap(x), self, alpha if alpha is None else unwrap(alpha))

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with x, without recording a gradient."""
        product = self.product
        if not x.is_contiguous() or x.is_neg():
            x = product.readable(x)
        y = carried_out(_FORWARD, self.site, self.plan, self, x)
        if not y.is_cpu or product.is_clear(y, is_adjoint=False):
            return y
        return self._mended(x, y, lambda finite: carried_out(_FORWARD, self.site, self.plan, self, finite))

    def backward(self, x: Tensor | None, g: Tensor, alpha: Tensor | None, needs_x: bool) -> Gradients:
        """Return the gradient in x, if it is wanted, and that in alpha, if x and alpha are there."""
        product = self.product
        if x is not None and (not x.is_contiguous() or x.is_neg()):
            x = product.readable(x)
        if not g.is_contiguous() or g.is_neg():
            g = product.readable(g)
        gx, order = carried_out(_BACKWARD, self.site, self.plan, self, x, g, alpha, needs_x)
        if gx is None or not gx.is_cpu or product.is_clear(gx, is_adjoint=True):
            return gx, order

        def again(finite: Tensor) -> Tensor:
            return carried_out(_BACKWARD, self.site, self.plan, self, None, finite, None, True)[0]

        return self._mended(g, gx, again, is_adjoint=True), order

    def _mended(self, x: Tensor, y: Tensor, run: Callable[[Tensor], Tensor], *, is_adjoint: bool = False) -> Tensor:
        """Return the result y for x, computed once more where x is not finite.

        The result is then NaN at the times that such samples reach, and exact at all others. `run(x)` returns the
        result for a finite x; with `is_adjoint` the results are those of the transpose.
        """
        found = self.product.without_gaps(x, is_adjoint=is_adjoint)
        if found is None:
            return y
        finite, reached = found
        return run(finite).masked_fill_(reached, torch.nan)

    def adopt(self, plan: Plan) -> None:
        """Change to another plan, with the weights as its kernel takes them."""
        self.product, self.plan = self.product.with_kernel(plan), plan

    def fault(self, y: Tensor, x: Tensor, *, is_adjoint: bool) -> str | None:
        """Return why y cannot be the result for x: its shape or its dtype; or None. Its numbers are left to `blame`."""
        shape = self.product.result_shape(x, is_adjoint=is_adjoint)
        if y.shape == shape and y.dtype == x.dtype:
            return None
        return f"{y.dtype} of shape {tuple(y.shape)} in place of {x.dtype} of shape {tuple(shape)}"

    def blame(self, results: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> str | None:
        """Return a Doubt where results are not finite although the data `given` and the weights are; else None."""
        if all(_is_finite(each, is_rounded=True) for each in results if each is not None):
            return None
        tensors = [each for each in given if each is not None] + self.product.constants()
        return Doubt("not finite, though input and weights are") if all(map(_is_finite, tensors)) else None


def _run(plan: Plan, linear: LinearMap, x: Tensor) -> Tensor:
    if plan is not linear.plan:
        linear.adopt(plan)
    plan.kernel.calls["run"] += 1
    return linear.product.run(plan, x)


def _run_backward(
    plan: Plan, linear: LinearMap, x: Tensor | None, g: Tensor, alpha: Tensor | None, needs_x: bool
) -> Gradients:
    if plan is not linear.plan:
        linear.adopt(plan)
    calls, gx, order = plan.kernel.calls, None, None
    if needs_x:
        calls["adjoint"] += 1
        gx = linear.product.adjoint(plan, g)
    if x is not None and alpha is not None:
        calls["derivative"] += 1
        order = linear.product.derivative(plan, x, g, alpha)
    return gx, order


def _fault(y: Tensor, linear: LinearMap, x: Tensor) -> str | None:
    return linear.fault(y, x, is_adjoint=False) or linear.blame([y], [x])


def _fault_backward(
    found: Gradients, linear: LinearMap, x: Tensor | None, g: Tensor, alpha: Tensor | None, needs_x: bool
) -> str | None:
    gx, _ = found
    return (None if gx is None else linear.fault(gx, g, is_adjoint=True)) or linear.blame(found, [x, g])


def _is_finite(x: Tensor, *, is_rounded: bool = False) -> bool:
    """Return whether all numbers of `x` are finite, without the copies that `isfinite` of the whole tensor would take.

    With `is_rounded` infinities in half precision count as finite, because large numbers are rounded to them; NaN does
    not.
    """
    x = x.detach().resolve_neg()
    if x.dtype in _INFINITE:
        bits = x.view(torch.int16).numpy() & 0x7FFF
        return bool(bits.max(initial=0) < _INFINITE[x.dtype] + is_rounded)
    values = x.numpy()  # by NumPy: torch's own threads do not outlive a fork
    return bool(np.isfinite(values.min()) and np.isfinite(values.max()))  # both are NaN where any number is


_INFINITE = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}  # the bits of infinity, without the sign
_FORWARD = Work(_run, _fault)
_BACKWARD = Work(_run_backward, _fault_backward, "backward")


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: LinearMap, alpha: Tensor | None) -> Tensor:
        ctx.linear = linear
        if alpha is not None:
            ctx.save_for_backward(x, alpha)
        return linear.forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        linear: LinearMap = ctx.linear
        linear.site.again(linear.plan)
        x, alpha = ctx.saved_tensors or (None, None)
        if is_followed(g):
            with torch.autocast(g.device.type, enabled=False):
                gx, order = linear.product.formula_backward(linear.plan, x, g, alpha)
        elif torch._C._is_any_autocast_enabled():
            with torch.autocast(g.device.type, enabled=False):
                gx, order = linear.backward(x, g, alpha, ctx.needs_input_grad[0])
        else:
            gx, order = linear.backward(x, g, alpha, ctx.needs_input_grad[0])
        return gx, None, order


_record = super(torch.autograd.Function, _Recorded).apply


@dataclass(eq=False, slots=True)
class Toeplitz:
    """An operator at equal steps: its weights for a kernel, and the boundary around the product.

    Data and results have any shape that can be viewed as `canonical`, [batch, channels, n, width]. The kernels make the
    views, inside of what autograd records as one step; outside each view would be a step of its own.

    Attributes:
        operator: The weights, as the kernel takes them.
        boundary: The differences before and the boundary columns after the product.
        canonical: The shape of the data, for kernels.
        weights: Returns the weights: for alpha's gradient, and for the operator of another kernel where this one fails.
    """

    operator: Column | StateSpace
    boundary: Boundary
    canonical: tuple[int, int, int, int]
    weights: Callable[[], Weights]

    def with_kernel(self, plan: Plan) -> Toeplitz:
        """Return the same operator with the weights as another plan's kernel takes them."""
        operator = plan.kernel.prepare(self.weights(), plan.kernel.given(plan.workload))
        return Toeplitz(operator, self.boundary, self.canonical, self.weights)

    def run(self, plan: Plan, x: Tensor, direction: Literal["run", "adjoint"] = "run") -> Tensor:
        """Return the operator, or with "adjoint" its transpose, on x; part by part of the batch if memory is short."""
        step = step_of(plan, direction) if plan.devices else getattr(plan.kernel, direction)
        operator, boundary, is_stored, y = self.operator, self.boundary, plan.kernel.as_stored, torch.empty_like(x)
        if operator.streams is not None:
            operator.streams.follow()
        if plan.chunk is None and (is_stored or x.dtype == boundary.dtype):
            step(operator, boundary, self.canonical, x, y)
        else:
            run_in_parts(step, plan.chunk, operator, boundary, self.canonical, x, y, as_stored=is_stored)
        return y

    def adjoint(self, plan: Plan, g: Tensor) -> Tensor:
        """Return the operator's transpose on g."""
        return self.run(plan, g, "adjoint")

    def derivative(self, plan: Plan, x: Tensor, g: Tensor, alpha: Tensor) -> Tensor:
        """Return <dy/dalpha, g>: the kernel runs with the derivative of the weights."""
        if self.operator.streams is not None:
            self.operator.streams.follow()
        kernel, workload, derived, total = plan.kernel, plan.workload, self.weights().derivatives(alpha), None
        operator = kernel.prepare(derived, kernel.given(workload) if workload.converts_to else workload)
        inner, b = kernel.inner or partial(multiplied, step_of(plan, "run")), derived.boundary
        whole = ((self.canonical, (x, g)),)
        for shape, (data, grads) in whole if plan.chunk is None else parts(self.canonical, plan.chunk, x, g):
            if not kernel.as_stored:
                data, grads = data.to(b.dtype), grads.to(b.dtype)
            found = inner(operator, b, shape, data, grads)
            total = found if total is None else total.add_(found)
        assert total is not None, "an empty product is not computed"
        return in_shape_of(alpha, total)

    def readable(self, x: Tensor) -> Tensor:
        """Return `x` contiguous, without a negation that is still to be done."""
        x = x.contiguous()
        return x.resolve_neg() if x.is_neg() else x

    def is_clear(self, y: Tensor, *, is_adjoint: bool) -> bool:
        """Return whether y is finite at its last time, or for the transpose at its first."""
        return is_clear(y, self.canonical, at_end=not is_adjoint)

    def without_gaps(self, x: Tensor, *, is_adjoint: bool) -> tuple[Tensor, Tensor] | None:
        """Return x with finite numbers in place of NaN and infinities, and a mask of the results that are NaN.

        Both have x's shape. Return None where x is finite.
        """
        numbers = x.detach().to(torch.float32) if x.dtype == torch.bfloat16 else x.detach()
        ahead = self.boundary.ahead
        found = carried_forward(numbers.numpy().reshape(self.canonical), ahead, backwards=is_adjoint)
        if found is None:
            return None
        finite, reached = map(torch.from_numpy, found)
        return finite.to(x.dtype).view(x.shape), reached.view(x.shape)

    def result_shape(self, x: Tensor, *, is_adjoint: bool) -> Sequence[int]:
        """Return the shape of x, which the result has."""
        return x.shape

    def constants(self) -> list[Tensor]:
        """Return the column of weights and the boundary columns."""
        columns = [] if self.boundary.columns is None else [self.boundary.columns]
        return [self.weights().column().weights, *columns]

    def formula(self, x: Tensor) -> Tensor:
        """Return the operator on x in plain aten, which every tracer and transform follows."""
        return _shaped(_applied(_shaped(x, self.canonical), self.operator, self.boundary), x.shape)

    def formula_backward(self, plan: Plan, x: Tensor | None, g: Tensor, alpha: Tensor | None) -> Gradients:
        """Return the gradients in x and alpha in plain aten, so that they are differentiable themselves.

        That in alpha is None unless alpha is learned.
        """
        weights, operator, b = None, self.operator, self.boundary
        follow(operator.streams)
        if alpha is not None:
            weights = self.weights().at(alpha)
            operator, b = self._operator_of(plan, weights), weights.boundary
        shape, dtype, g = g.shape, g.dtype, _shaped(g, self.canonical).to(b.dtype)
        gx = _shaped(transposed(operator.rmatvec(g), g, b), shape).to(dtype)
        if x is None or alpha is None or weights is None:
            return gx, None
        derived = weights.derivatives(alpha)
        moved = _applied(_shaped(x, self.canonical).to(b.dtype), self._operator_of(plan, derived), derived.boundary)
        return gx, in_shape_of(alpha, (moved * g).sum(dim=(0, 2, 3)))

    def _operator_of(self, plan: Plan, weights: Operators) -> Column | StateSpace:
        return plan.kernel.prepare(weights, plan.kernel.given(plan.workload))


def _applied(x: Tensor, operator: Column | StateSpace, b: Boundary) -> Tensor:
    d = difference(x, b)
    return finish(operator.matvec(d), x, d, b)


def in_shape_of(alpha: Tensor, gradient: Tensor) -> Tensor:
    """Return a gradient [channels] as one of alpha: its shape, dtype and device."""
    return _shaped(gradient, alpha.shape).to(alpha)


def _shaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return x viewed as `shape`; x itself if it has that shape, because batched gradients cannot follow an alias."""
    return x if x.shape == shape else x.reshape(shape)


_FEW = 64  # numbers, up to which Python's sum is faster than NumPy's product (measured)
_READ_AS = {torch.bfloat16: "h", torch.float16: "e", torch.float32: "f", torch.float64: "d"}
_UPPER = int(sys.byteorder == "little")  # which half of a float32 has the bits of bfloat16
_memory = (ctypes.c_char * (1 << 46)).from_address


def is_clear(y: Tensor, shape: tuple[int, int, int, int], *, at_end: bool) -> bool:
    """Return whether a contiguous y on a CPU, of a canonical shape, is finite at its last time, or else its first."""
    return _look(shape, y.dtype, at_end)(_memory(y.data_ptr()))


@lru_cache(maxsize=4096)
def _look(shape: tuple[int, int, int, int], dtype: torch.dtype, at_end: bool) -> Callable[[Any], bool]:
    """Return a function of a result's memory: whether its numbers at the last time (or the first) are all finite.

    The result is contiguous, of `shape` [batch, channels, n, width] and of `dtype`; its memory is a ctypes array.
    """
    (batch, channels, n, width), kind = shape, _READ_AS[dtype]
    rows, size = batch * channels, struct.calcsize(kind)
    other = (n - 1) * width * size  # bytes of all other times
    place = other if at_end else 0

    def reader(kind: str) -> Callable[[Any], tuple[float, ...]]:
        return struct.Struct("=" + (f"{place}x{width}{kind}{other - place}x") * rows).unpack_from

    if rows * width > _FEW:
        strides, read = (n * width * size, size), np.dtype(kind)

        def look(memory: Any) -> bool:
            found = np.ndarray((rows, width), read, memory, place, strides)
            return are_finite(_widened(found) if dtype == torch.bfloat16 else found)

        return look
    if dtype == torch.bfloat16:
        signed, unsigned = reader("h"), reader("H")
        # Only ones in the exponent: the largest numbers of either sign.
        return lambda memory: max(signed(memory)) < 0x7F80 and max(unsigned(memory)) < 0xFF80
    numbers = reader(kind)
    return lambda memory: isfinite(sum(numbers(memory)))


def _widened(bits: np.ndarray) -> np.ndarray:
    """Return numbers in bfloat16 as float32; `bits` are those of each number, in int16."""
    found = np.zeros((*bits.shape, 2), np.int16)
    found[..., _UPPER] = bits
    return found.view(np.float32)
