"""The operators on PyTorch tensors: the public call, eager or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional import inverse
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.torch.custom_op import compiled
from hpfracc_nn.fractional.torch.eager import check_alpha, check_dense, computed, computed_in
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import uncompiled
from hpfracc_nn.selection import BackendManager, Site, given_manager

ARRAYS = (Tensor, torch.nn.Parameter)  # the classes that need no further look
HALVES = (torch.float16, torch.bfloat16)


def parts(x: Tensor) -> tuple[Tensor, ...] | None:
    """Return other numbers as floats of the default dtype, complex ones in two parts; None for all else."""
    if not isinstance(x, Tensor) or x.is_floating_point():
        return None
    if x.is_complex():
        x = x.resolve_conj()
        return x.real, x.imag
    return None if x.is_quantized else (x.to(torch.get_default_dtype()),)


def whole(parts: list[Tensor]) -> Tensor:
    """Return the number that was taken apart by `parts`."""
    return parts[0] if len(parts) == 1 else torch.complex(*parts)


broadcast_to = torch.broadcast_to


def check_samples(owner: str, name: str, x: Tensor, definition: Definition) -> None:
    """Raise unless an operator takes these samples."""
    computed_in(owner, x, definition)
    check_dense(owner, name, x)


def checked_alpha(owner: str, definition: Definition) -> Tensor:
    """Return a definition's orders, a tensor, or raise."""
    check_alpha(owner, definition)
    return definition.alpha  # type: ignore[return-value]


def is_hollow(x: Tensor) -> bool:
    """Whether there are no values to compute."""
    return x.numel() == 0 or x.device.type == "meta"


def exactly(x: Tensor) -> Any:
    """Return a context for formulas on samples: nothing is cast behind their back."""
    return torch.autocast(x.device.type, enabled=False)


def in_double(formula: Callable[..., Any], arguments: tuple[Any, ...], alpha: Tensor, like: Tensor) -> Any:
    """Return formula(alpha, *arguments, xp) in float64."""
    return formula(alpha.to(like.device, torch.float64), *arguments, TORCH)


def as_array(values: Any, like: Tensor) -> Tensor:
    """Return any values as a tensor; numbers on the device of `like`."""
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
    """Return the same for arguments that were checked before, with the plans of `site`.

    Args:
        owner: Whose call it is, for messages.
        x: As in `fractional.derivative`.
        definition: With a fixed order.
        dt: As in `fractional.derivative`.
        dim: As there.
        site: Where the plans are kept.
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
    """Return the operator in reversed time, or the mean of both, which are one product of twice as many rows."""
    check_dense(owner, "x", x)
    axis, left = errors.axis(owner, dim, x.ndim), definition.to_the_left
    backwards = x.flip(axis)
    if definition.side == "right":
        return on_left(backwards, left, axis).flip(axis)
    # Until they are added up: they are rounded once, and large parts may cancel.
    both = torch.stack([x, backwards]).to(computed_in(owner, x, definition))
    from_left, from_right = on_left(both, left, axis + 1)
    return ((from_left + from_right.flip(axis)) / 2).to(x.dtype)


uncompiled(inverse.applied, "the inverse's columns are kept where the call is made; it runs outside the graph")
