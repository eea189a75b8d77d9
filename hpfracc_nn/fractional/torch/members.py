"""The family of E's partial derivatives on PyTorch tensors, closed under differentiation.

The backward of a member is made of other members, so that derivatives of every order follow. Inside a compiler a
member is the opaque operation `hpfracc_nn::mittag_leffler`. Forward mode differentiates the formula itself: PyTorch
gives zero, without a word, for the tangent of a tangent of a custom autograd function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpfracc_nn.fractional.special import partials
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.probe import has_tangent, is_watched

_CHUNK, _BLOCK = 4096, 256  # points at once on a CPU, so that what is computed of them stays in the cache
_LARGE_CHUNK, _LARGE_BLOCK = 2**20, 2**16  # elsewhere

_LIBRARY = torch.library.Library("hpfracc_nn", "FRAGMENT")
_LIBRARY.define(
    "mittag_leffler(Tensor z, Tensor alpha, Tensor beta, int m, int n) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
_OPERATION = torch.ops.hpfracc_nn.mittag_leffler.default


def partial(z: Tensor, alpha: Tensor, beta: Tensor, m: int, n: int) -> Tensor:
    """Return F[m, n]; double precision in and out."""
    if torch.compiler.is_compiling():
        return _OPERATION(z, alpha, beta, m, n)
    if forward_ad._current_level >= 0:
        return _computed(z, alpha, beta, m, n, is_differentiated=True)
    return _Partial.apply(z, alpha, beta, m, n)


def _derivative(member: Any, index: int, tensors: tuple[Tensor, Tensor, Tensor], m: int, n: int) -> Tensor:
    """Return the derivative of F[m, n] in z, alpha or beta, which `member` computes as other members."""
    if index == 0:
        return member(*tensors, m + 1, n)
    if index == 2:
        return member(*tensors, m, n + 1)
    found = tensors[0] * member(*tensors, m + 1, n + 1)
    return found + m * member(*tensors, m, n + 1) if m else found


def _saved(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, int], output: Tensor) -> None:
    *tensors, ctx.m, ctx.n = inputs
    ctx.save_for_backward(*tensors)


def _gradients(member: Any, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    found: list[Tensor | None] = []
    for index, tensor in enumerate(tensors):
        if not ctx.needs_input_grad[index]:
            found.append(None)
            continue
        product = grad * _derivative(member, index, tensors, ctx.m, ctx.n).conj()
        found.append((product if tensor.is_complex() else product.real).sum_to_size(tensor.shape))
    return (*found, None, None)


class _Partial(torch.autograd.Function):
    """F[m, n] outside a compiler, for reverse mode and vmap."""

    @staticmethod
    def forward(z: Tensor, alpha: Tensor, beta: Tensor, m: int, n: int) -> Tensor:
        return _computed(z, alpha, beta, m, n)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, int], output: Tensor) -> None:
        _saved(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(partial, ctx, *grads)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        return _batched(_Partial.apply, in_dims, *arguments)


def _batched(member: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    """Return F[m, n] of tensors of which some have one more axis, first in the result."""
    tensors, orders = arguments[:3], arguments[3:]
    rank = max(tensor.ndim - (dim is not None) for tensor, dim in zip(tensors, in_dims, strict=False))
    moved = []
    for tensor, dim in zip(tensors, in_dims, strict=False):
        if dim is not None:
            tensor = tensor.movedim(dim, 0)
            tensor = tensor.reshape(tensor.shape[0], *(1,) * (rank + 1 - tensor.ndim), *tensor.shape[1:])
        moved.append(tensor)
    return member(*moved, *orders), 0


def _computed(z: Tensor, alpha: Tensor, beta: Tensor, m: int, n: int, is_differentiated: bool = False) -> Tensor:
    """Return F[m, n] by its formula, NaN where alpha or beta is outside its range."""
    shape = torch.broadcast_shapes(z.shape, alpha.shape, beta.shape)
    points = z.expand(shape).reshape(-1)
    alpha = torch.where(partials.is_wrong_alpha(alpha), torch.nan, alpha)
    beta = torch.where(partials.is_wrong_beta(beta), torch.nan, beta)
    alpha, beta = (value if value.ndim == 0 else value.expand(shape).reshape(-1) for value in (alpha, beta))
    chunk, block = (_CHUNK, _BLOCK) if z.device.type == "cpu" else (_LARGE_CHUNK, _LARGE_BLOCK)
    options = partials.Options(block=block, is_differentiated=is_differentiated)
    found = [points[:0]]
    for begin in range(0, points.numel(), chunk):
        part = slice(begin, begin + chunk)
        its_alpha, its_beta = (value if value.ndim == 0 else value[part] for value in (alpha, beta))
        found.append(partials.partial(points[part], its_alpha, its_beta, m, n, TORCH, options))
    return torch.cat(found).reshape(shape)


# In a graph


class _Opaque(torch.autograd.Function):
    """The operation with its gradient, which is made of the same operation, for a tracer."""

    @staticmethod
    def forward(z: Tensor, alpha: Tensor, beta: Tensor, m: int, n: int) -> Tensor:
        return _OPERATION(z, alpha, beta, m, n)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int, int], output: Tensor) -> None:
        _saved(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(_OPERATION, ctx, *grads)


def _autograd(z: Tensor, alpha: Tensor, beta: Tensor, m: int, n: int) -> Tensor:
    """Choose who differentiates: for a loaded program what a plain call does, for transforms the formula."""
    tensors = (z, alpha, beta)
    if torch._C._are_functorch_transforms_active() or has_tangent(*tensors):
        return _computed(*tensors, m, n, is_differentiated=True)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return (_Opaque if is_watched(z) else _Partial).apply(*tensors, m, n)
    with torch._C._AutoDispatchBelowAutograd():
        return _OPERATION(*tensors, m, n)


def _fake(z: Tensor, alpha: Tensor, beta: Tensor, m: int, n: int) -> Tensor:
    return z.new_empty(torch.broadcast_shapes(z.shape, alpha.shape, beta.shape))


_LIBRARY.impl("mittag_leffler", _computed, "CompositeExplicitAutograd")
_LIBRARY.impl("mittag_leffler", _autograd, "Autograd")
torch.library.register_fake(_OPERATION, _fake, lib=_LIBRARY)
torch.library.register_vmap(_OPERATION, lambda info, *given: _batched(_OPERATION, *given), lib=_LIBRARY)
