"""The operators on PyTorch tensors: the public call, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional import inverse
from hpfracc_nn.fractional.definitions import Definition, FourierMultiplier
from hpfracc_nn.fractional.dispatch import on_other_sides
from hpfracc_nn.fractional.torch.custom_op import compiled
from hpfracc_nn.fractional.torch.eager import (
    check_alpha,
    check_dense,
    computed,
    computed_in,
    floating_alpha,
    may_be_read,
)
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.streams import Streams, follow, recorded, streams_on
from hpfracc_nn.fractional.torch.tracing import is_traced, uncompiled
from hpfracc_nn.fractional.weights import CACHE
from hpfracc_nn.selection import BackendManager, Site, given_manager

ARRAYS = (Tensor, torch.nn.Parameter)  # classes that are torch's without a look at their bases
HALVES = (torch.float16, torch.bfloat16)


def parts(x: Tensor) -> tuple[Tensor, ...] | None:
    """Return integers and booleans as one float tensor, complex numbers as two, real and imaginary; None for all else.

    Integers and booleans become the default dtype.
    """
    if not isinstance(x, Tensor) or x.is_floating_point():
        return None
    if x.is_complex():
        x = x.resolve_conj()
        return x.real, x.imag
    return None if x.is_quantized else (x.to(torch.get_default_dtype()),)


def whole(parts: list[Tensor]) -> Tensor:
    """Return the tensor that `parts` took apart: a single part itself, or two as a complex tensor."""
    return parts[0] if len(parts) == 1 else torch.complex(*parts)


broadcast_to = torch.broadcast_to


def check_samples(owner: str, name: str, x: Tensor, definition: Definition | FourierMultiplier) -> torch.dtype:
    """Return the dtype that an operator on the samples x is computed in.

    Raises:
        TypeError: x is not a dense tensor of a real floating dtype.
    """
    dtype = computed_in(owner, x, definition)
    check_dense(owner, name, x)
    return dtype


def checked_alpha(owner: str, definition: Definition) -> Tensor:
    """Return a definition's orders, a tensor; raise TypeError or ValueError as `check_alpha` does."""
    check_alpha(owner, definition)
    return definition.alpha  # type: ignore[return-value]


def checked_orders(owner: str, definition: FourierMultiplier) -> Tensor:
    """Return a multiplier's orders, a tensor; values out of its range raise where they may be read.

    Raises:
        TypeError: The orders are no dense floating tensor.
        ValueError: An order is out of range.
    """
    alpha = definition.alpha
    floating_alpha(owner, alpha)
    if may_be_read(alpha):
        for value in alpha.reshape(-1).tolist():
            definition.check(value)
    return alpha


def may_keep(x: Tensor) -> bool:
    """Whether factors of fixed orders may be kept for later calls: no compiler or transform follows a call on x."""
    return not (torch.compiler.is_compiling() or is_traced(x, ()))


def kept(key: tuple[Hashable, ...], build: Callable[[], tuple[np.ndarray, ...]], like: Tensor) -> tuple[Tensor, ...]:
    """Return build() as tensors on the device of `like`, or those of an earlier call with an equal key."""

    def made() -> tuple[Streams | None, tuple[Tensor, ...]]:
        streams = streams_on(like.device)
        with torch.inference_mode(False), torch.no_grad():  # autograd refuses tensors that inference mode made
            return streams, recorded(streams, tuple(torch.as_tensor(each, device=like.device) for each in build()))

    streams, found = CACHE.get((*key, like.device), made)
    follow(streams)
    return found


def compiled_once(
    function: Callable[..., Tensor], arguments: tuple[Any, ...], x: Tensor, alpha: Tensor | None
) -> Tensor:
    """Return function(x, alpha, *arguments), computed without autocast."""
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return function(x, alpha, *arguments)
    return function(x, alpha, *arguments)


def filtered(x: Tensor, symbol: Tensor, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Tensor:
    """Return the inverse Fourier transform of a symbol times the transform of `x`, over axes with these sizes."""
    if x.requires_grad and not symbol.requires_grad and torch.is_grad_enabled() and may_keep(x):
        return _Filtered.apply(x, symbol, sizes, axes)
    return torch.fft.irfftn(torch.fft.rfftn(x, dim=axes) * symbol, sizes, dim=axes)


class _Filtered(torch.autograd.Function):
    """Autograd function of a Fourier multiplier of fixed order; the backward pass multiplies by the conjugate symbol.

    Such a backward pass takes half the transforms that autograd's own takes. The function is applied to x, its symbol
    on the bins of `torch.fft.rfftn`, and the sizes and indices of the transformed axes.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, symbol: Tensor, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Tensor:
        ctx.given = symbol, sizes, axes
        return torch.fft.irfftn(torch.fft.rfftn(x, dim=axes) * symbol, sizes, dim=axes)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        symbol, sizes, axes = ctx.given
        with torch.autocast(grads[0].device.type, enabled=False):
            return filtered(grads[0], symbol.conj(), sizes, axes), None, None, None


def is_hollow(x: Tensor) -> bool:
    """Whether a tensor has no values to compute with: it is empty, or a meta tensor."""
    return x.numel() == 0 or x.device.type == "meta"


def exactly(x: Tensor) -> Any:
    """Return a context for formulas on samples, in which autocast casts nothing on their device."""
    return torch.autocast(x.device.type, enabled=False)


def in_double(formula: Callable[..., Any], arguments: tuple[Any, ...], alpha: Tensor, like: Tensor) -> Any:
    """Return formula(alpha, *arguments, TORCH), with alpha in float64 on the device of `like`."""
    return formula(alpha.to(like.device, torch.float64), *arguments, TORCH)


def as_array(values: Any, like: Tensor) -> Tensor:
    """Return values as a tensor: tensors as they are, all else on the device of `like`."""
    return values if isinstance(values, Tensor) else torch.as_tensor(values, device=like.device)


def value_of(x: Tensor) -> float:
    """Return the value of a tensor without axes."""
    return float(x.detach())


def apply(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, manager: BackendManager | None) -> Tensor:
    """Return the operator applied to `x` along `dim`; same shape, dtype and device. See `fractional.derivative`."""
    dt = errors.positive_step(owner, dt)
    if definition.side != "left":
        return _on_other_sides(
            owner, x, definition, dim, lambda x, left, axis: apply(owner, x, left, dt, axis, manager)
        )
    alpha = None if definition.is_fixed else definition.alpha
    if torch.compiler.is_compiling():
        return compiled(owner, x, definition, dt, dim, manager, alpha)
    if alpha is not None:
        check_alpha(owner, definition)
    site = given_manager(owner, manager).shared_site("toeplitz", "torch", "functions")
    return computed(owner, x, definition, dt, dim, site, alpha)


def apply_at(
    owner: str, x: Tensor, definition: Definition, dt: float, dim: int, site: Site, alpha: Tensor | None = None
) -> Tensor:
    """Return the operator applied to `x`, as `apply` does, for arguments that were checked before.

    Args:
        owner: Name of the public function, for messages.
        x: As in `fractional.derivative`.
        definition: With a fixed order.
        dt: As in `fractional.derivative`.
        dim: As there.
        site: Where the plans are kept; compiled graphs keep theirs in a site that all share.
        alpha: A tensor in place of the definition's order, of values within its bounds.
    """
    if definition.side != "left":
        return _on_other_sides(
            owner, x, definition, dim, lambda x, left, axis: apply_at(owner, x, left, dt, axis, site, alpha)
        )
    if torch.compiler.is_compiling():
        return compiled(owner, x, definition, dt, dim, site.manager, alpha)
    return computed(owner, x, definition, dt, dim, site, alpha)


def _on_other_sides(
    owner: str, x: Tensor, definition: Definition, dim: int, on_left: Callable[[Tensor, Definition, int], Tensor]
) -> Tensor:
    check_dense(owner, "x", x)
    axis = errors.axis(owner, dim, x.ndim)
    found: Tensor = on_other_sides(x, computed_in(owner, x, definition), definition, axis, TORCH, on_left)
    return found


uncompiled(inverse.applied, "the inverse's columns are kept where the call is made; it runs outside the graph")
