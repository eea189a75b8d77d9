"""The special functions on PyTorch tensors.

    E(z) = sum_k z**k / Gamma(alpha k + beta),      F[m, n] = d^m/dz^m d^n/dbeta^n E

are the Mittag-Leffler function and a family of its derivatives that is closed under differentiation in z, alpha and
beta (`fractional/special/mittag_leffler.py`): the backward of a member F[m, n] is made of other members, so that
derivatives of every order follow. Here z, alpha and beta are tensors in double precision that broadcast.

Inside a compiler F[m, n] is the custom operation `hpfracc_nn::mittag_leffler`. Forward mode differentiates the formula
itself: PyTorch gives zero, without a word, for the tangent of a tangent of a custom autograd function.

An `owner` is the name of the public function, for messages.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hpfracc_nn import errors
from hpfracc_nn.fractional.special.fractional_fourier import check_shapes, chirps_of, fixed_chirps, nearest, transformed
from hpfracc_nn.fractional.special.mittag_leffler import (
    Options,
    check,
    combined,
    is_wrong_alpha,
    is_wrong_beta,
    partial_derivative,
)
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import has_tangent, is_watched

_ARRAYS = (np.ndarray, np.generic, list, tuple)  # what becomes a tensor; torch.compile cannot join these types
_COMPLEX: dict[torch.dtype, np.dtype] = {
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}


def mittag_leffler(z: Any, alpha: Any, beta: Any, derivative: tuple[int, int, int]) -> Tensor:
    """Return E or a derivative of it; see `fractional.special.functions`."""
    owner = "mittag_leffler"
    given = _tensors(owner, z=z, alpha=alpha, beta=beta)
    _check_real(owner, alpha=given[1], beta=given[2])
    check(owner, *(value if isinstance(value, int | float) else 1.0 for value in (alpha, beta)))
    like = _leading(given)
    points, alphas, betas = (_double(value, like) for value in given)
    total = combined(points, derivative, lambda m, n: partial(points, alphas, betas, m, n))
    return total.to(_promoted(*given))


def fractional_fourier(x: Any, order: Any, dim: int, centred: bool) -> Tensor:
    """Return the fractional Fourier transform; see `fractional.special.functions`."""
    owner = "fractional_fourier"
    samples, orders = _tensors(owner, x=x, order=order)
    samples = samples if isinstance(samples, Tensor) else torch.as_tensor(samples)  # a number: axis() refuses it
    _check_real(owner, order=orders)
    axis = errors.axis(owner, dim, samples.ndim)
    check_shapes(owner, tuple(samples.shape), axis, tuple(orders.shape) if isinstance(orders, Tensor) else ())
    is_double = samples.dtype in (torch.float64, torch.complex128)
    data = samples.movedim(axis, -1).to(torch.complex128 if is_double else torch.complex64)
    data = torch.fft.ifftshift(data, dim=-1) if centred else data
    result = _learned(data, _double(orders, data)) if isinstance(orders, Tensor) else _fixed(data, orders)
    return (torch.fft.fftshift(result, dim=-1) if centred else result).movedim(-1, axis)


def _fixed(x: Tensor, order: float) -> Tensor:
    """Return the fractional Fourier transform of complex x over its last axis, for one order that is a number."""
    whole = nearest("fractional_fourier", order)
    if order == whole:
        return transformed(x, whole % 4, None, TORCH)
    if torch.compiler.is_compiling():
        chirps = _chirps(_double(order - whole, x), x)
    else:
        kept = fixed_chirps(order - whole, x.shape[-1], _COMPLEX[x.dtype])
        chirps = [torch.as_tensor(chirp, device=x.device) for chirp in kept]
    return transformed(x, whole % 4, chirps, TORCH)


def _learned(x: Tensor, order: Tensor) -> Tensor:
    """Return the fractional Fourier transform of complex x over its last axis, for orders in a tensor.

    The orders broadcast to the other axes of x; their values are not read.
    """
    whole = torch.round(order.detach())
    return transformed(x, whole % 4, _chirps(order - whole, x), TORCH)


def _chirps(order: Tensor, x: Tensor) -> list[Tensor]:
    return [chirp.to(x.dtype) for chirp in chirps_of(order, x.shape[-1], TORCH)]


def _tensors(owner: str, **values: Any) -> list[Any]:
    """Return the values as tensors, but for numbers, which stay numbers because they promote no tensor's dtype.

    Arrays and lists go to the device of the tensors among the values; anything else raises TypeError, which names it.
    """
    device = _leading(values.values()).device
    found = []
    for name, value in values.items():
        if isinstance(value, Tensor):
            check_dense(owner, name, value)
        elif isinstance(value, _ARRAYS):
            value = torch.as_tensor(value, device=device)
        elif not isinstance(value, int | float | complex):
            raise TypeError(f"{owner}({name}={value!r}): needs numbers; pass a number, an array or a tensor.")
        found.append(value)
    return found


def _leading(values: Iterable[Any]) -> Tensor:
    """Return the tensor whose device the other values take: the first with axes, or else the first of all tensors."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return next((tensor for tensor in tensors if tensor.ndim), tensors[0])


def _double(value: Any, like: Tensor) -> Tensor:
    """Return the value as a double precision tensor; scalars move to the device of `like`, as in PyTorch."""
    if not isinstance(value, Tensor):
        value = torch.as_tensor(value, dtype=torch.complex128 if isinstance(value, complex) else torch.float64)
    value = value.to(torch.complex128 if value.is_complex() else torch.float64)
    return value if value.ndim else value.to(like.device)


def _promoted(z: Any, *parameters: Any) -> torch.dtype:
    """Return the floating or complex dtype of a result, as `torch.result_type` promotes z and the parameters.

    torch.compile cannot trace that function. The result is complex only if z is.
    """
    tensors = [value for value in (z, *parameters) if isinstance(value, Tensor)]
    leading = [tensor for tensor in tensors if tensor.ndim] or tensors
    dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in leading])
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    is_complex = z.is_complex() if isinstance(z, Tensor) else isinstance(z, complex)
    return torch.promote_types(dtype, torch.complex32) if is_complex else dtype


def _check_real(owner: str, **values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, complex) or (isinstance(value, Tensor) and value.is_complex()):
            raise TypeError(f"{owner}({name}={value!r}): needs real numbers; pass {name}.real.")


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
    """Return the first derivative of F[m, n] in one of (z, alpha, beta), made of other members of the family.

    `member(z, alpha, beta, m, n)` computes F[m, n]; `index` is that of the tensor in `tensors`.
    """
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
    """Autograd function of F[m, n] outside of compiled graphs, with rules for reverse mode and vmap."""

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
    """Batching rule: return F[m, n] of batched tensors, with the batch axis first, and 0, the index of that axis.

    `member(z, alpha, beta, m, n)` computes F[m, n], `arguments` are those five, and `in_dims` are the batch axes of the
    tensors among them, None where there is none.
    """
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
    """Return F[m, n] by its formula, some thousand points at a time; NaN where alpha or beta is out of range.

    With `is_differentiated` autograd or a transform may differentiate what is computed.
    """
    shape = torch.broadcast_shapes(z.shape, alpha.shape, beta.shape)
    points = z.expand(shape).reshape(-1)
    alpha = torch.where(is_wrong_alpha(alpha), torch.nan, alpha)
    beta = torch.where(is_wrong_beta(beta), torch.nan, beta)
    alpha, beta = (value if value.ndim == 0 else value.expand(shape).reshape(-1) for value in (alpha, beta))
    chunk, block = (_CHUNK, _BLOCK) if z.device.type == "cpu" else (_LARGE_CHUNK, _LARGE_BLOCK)
    options = Options(block=block, is_differentiated=is_differentiated)
    found = [points[:0]]
    for begin in range(0, points.numel(), chunk):
        part = slice(begin, begin + chunk)
        its_alpha, its_beta = (value if value.ndim == 0 else value[part] for value in (alpha, beta))
        found.append(partial_derivative(points[part], its_alpha, its_beta, m, n, TORCH, options))
    return torch.cat(found).reshape(shape)


# In a graph


class _Opaque(torch.autograd.Function):
    """Autograd function of F[m, n] in compiled graphs, where the forward and the backward pass each call operations.

    Both call `hpfracc_nn::mittag_leffler`, into which a compiler does not look; arguments are those of `_Partial`.
    """

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
    """Implementation of `hpfracc_nn::mittag_leffler` for the Autograd dispatch key: return F[m, n], differentiable.

    An autograd function is recorded; under transforms of torch.func and in forward mode F[m, n] comes from its formula.
    """
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
