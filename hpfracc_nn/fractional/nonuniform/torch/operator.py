"""The operators on PyTorch tensors at any times."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.nonuniform.cellwise import Cellwise, cellwise
from hpfracc_nn.fractional.nonuniform.costs import OP
from hpfracc_nn.fractional.nonuniform.numpy.operator import spread as spread_by_numpy
from hpfracc_nn.fractional.nonuniform.times import Placement, placed
from hpfracc_nn.fractional.nonuniform.torch.product import multiplied
from hpfracc_nn.fractional.nonuniform.torch.weights import grid_of, weights_of
from hpfracc_nn.fractional.torch.eager import alpha_shape, arranged, check_alpha, check_dense, computed_in, restored
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.probe import uncompiled
from hpfracc_nn.selection import BackendManager, Site, given_manager


def apply(owner: str, x: Tensor, definition: Definition, t: Any, dim: int, manager: BackendManager | None) -> Tensor:
    """Return the operator applied to `x`, sampled at the times `t`; same shape, dtype and device."""
    dtype = checked(owner, x, definition)
    formulas = cellwise(owner, definition)
    place = placed(owner, t, x.shape, errors.axis(owner, dim, x.ndim), alpha_shape(definition))
    if x.numel() == 0 or x.device.type == "meta":
        return x.clone() if definition.is_fixed else x + 0 * definition.alpha.sum().to(x)
    formulas.check(owner, place.times)
    given = definition.alpha
    values = given if isinstance(given, Tensor) else np.asarray(given, np.float64)
    alpha = spread(values.reshape(*place.orders, 1), place)
    site = given_manager(owner, manager).shared_site(OP, "torch", "functions")
    return run(formulas, x, alpha, place, dtype, site)


uncompiled(apply, "times that are not equally spaced are looked at where the call is made; it runs outside the graph")


def checked(owner: str, x: Tensor, definition: Definition) -> torch.dtype:
    """Return the dtype that `x` is computed in, or raise where it cannot be."""
    if not definition.is_fixed:
        check_alpha(owner, definition)
    dtype = computed_in(owner, x, definition)
    check_dense(owner, "x", x)
    if torch.jit.is_tracing():
        raise RuntimeError(f"{owner}(x): torch.jit.trace cannot follow it; call it outside the traced part.")
    return dtype


def run(
    formulas: Cellwise, x: Tensor, alpha: np.ndarray | Tensor, place: Placement, dtype: torch.dtype, site: Site
) -> Tensor:
    """Return the result of checked arguments, whatever stands around the call; alpha [a, 1], or per row [a, n]."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():  # weights are kept, and autograd refuses those it makes
            return run(formulas, x.clone(), alpha, place, dtype, site)
    with torch.autocast(x.device.type, enabled=False):
        data = _ordered(x, place)
        return _restored(_computed(formulas, data, alpha, place, dtype, site), place, x.dtype)


def _computed(
    formulas: Cellwise, x: Tensor, alpha: np.ndarray | Tensor, place: Placement, dtype: torch.dtype, site: Site
) -> Tensor:
    """Return the result in the kernels' order, [sets, rows, n], float64."""
    times = place.times
    if isinstance(alpha, Tensor):
        alpha = alpha.to(x.device, torch.float64)
        columns = formulas.columns(alpha, times, TORCH)
    else:
        found = formulas.columns(alpha, times, NUMPY)
        columns = None if found is None else torch.as_tensor(found, device=x.device)
    y = _integrated(formulas, x, alpha, place, dtype, site) if times.cells else 0 * x
    if columns is not None:
        for j, head in enumerate(formulas.heads(x, times, TORCH)):
            y = y + columns[:, j, None] * head
    return y


def _integrated(
    formulas: Cellwise, x: Tensor, alpha: np.ndarray | Tensor, place: Placement, dtype: torch.dtype, site: Site
) -> Tensor:
    """Return the integral of what the scheme interpolates, float64, 0 at the first time."""
    power = formulas.power(alpha if alpha.shape[-1] == 1 else alpha[..., 1:])
    if isinstance(power, Tensor):
        largest = max(formulas.power(bound) for bound in formulas.definition.interval)
    else:
        largest = float(power.max())
    weights = weights_of(power, grid_of(place.times, formulas.inputs, x, dtype), x, largest)
    z = torch.stack(formulas.pieces(x, place.times, TORCH), dim=2).to(dtype)
    return F.pad(multiplied(weights, z, site).to(torch.float64), (1, 0))


def spread(alpha: np.ndarray | Tensor, place: Placement) -> np.ndarray | Tensor:
    """Return alpha [1, r], or [sets, r] where the sets' orders differ, from its values [*orders, r]."""
    if not isinstance(alpha, Tensor):
        return spread_by_numpy(alpha, place)
    r = alpha.shape[-1]
    return alpha.reshape(1, r) if alpha.numel() == r else alpha.expand(*place.joint, r).reshape(-1, r)


def _ordered(x: Tensor, place: Placement) -> Tensor:
    """Return `x` as [sets, rows, n], float64."""
    layout = place.layout
    data = arranged(x, layout, torch.float64).reshape(layout.canonical)
    return data.permute(1, 0, 3, 2).reshape(layout.channels, -1, layout.n)


def _restored(y: Tensor, place: Placement, dtype: torch.dtype) -> Tensor:
    """Undo `_ordered`."""
    layout = place.layout
    canonical = y.reshape(layout.channels, layout.batch, layout.width, layout.n).permute(1, 0, 3, 2)
    return restored(canonical.reshape(layout.permuted), layout, dtype).contiguous()
