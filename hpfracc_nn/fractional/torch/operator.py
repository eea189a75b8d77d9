"""The operators on PyTorch tensors: the door, and which way a call takes."""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.torch.eager import check_alpha, computed
from hpfracc_nn.fractional.torch.opaque import compiled
from hpfracc_nn.selection import BackendManager, Site, default_manager

ARRAYS = (Tensor, torch.nn.Parameter)  # the classes that need no further look


def apply(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, manager: BackendManager | None) -> Tensor:
    """Return the operator applied to `x` along `dim`; same shape, dtype and device. See `fractional.derivative`."""
    dt = errors.positive_step(owner, dt)
    if torch.compiler.is_compiling():
        return compiled(owner, x, definition, dt, dim, manager)
    if not definition.is_fixed:
        check_alpha(owner, definition)
    site = (default_manager() if manager is None else manager).shared_site("toeplitz", "torch", "functions")
    return computed(owner, x, definition, dt, dim, site)


def apply_at(owner: str, x: Tensor, definition: Definition, dt: float, dim: int, site: Site) -> Tensor:
    """Return the same for arguments that were checked before, with the plans of `site`."""
    if torch.compiler.is_compiling():
        return compiled(owner, x, definition, dt, dim, site.manager)
    return computed(owner, x, definition, errors.positive_step(owner, dt), dim, site)
