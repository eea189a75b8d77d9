"""The inverse operators on PyTorch tensors: differentiable in y, in alpha and in what is given at the start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.inverse import check_given, inverse_of
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.fractional.numpy.inverse import columns_of
from hpfracc_nn.fractional.stencil import Columns, columns, solved
from hpfracc_nn.fractional.torch import operator
from hpfracc_nn.fractional.torch.eager import alpha_shape, check_alpha, check_dense, computed_in
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import uncompiled
from hpfracc_nn.selection import BackendManager


def solve(
    owner: str,
    y: Tensor,
    definition: Definition,
    dt: float,
    dim: int,
    start: tuple[Any, Any],
    manager: BackendManager | None,
) -> Tensor:
    """Return x with `definition`(x) = y; same shape, dtype and device. See `numpy.inverse.solve`."""
    computed_in(owner, y, definition)
    check_dense(owner, "y", y)
    if not definition.is_fixed:
        check_alpha(owner, definition)
    dt, axis = errors.positive_step(owner, dt), errors.axis(owner, dim, y.ndim)
    inverse = inverse_of(owner, definition)
    layout_of(owner, tuple(y.shape), axis, alpha_shape(definition))
    if y.numel() == 0 or y.device.type == "meta":
        return y.clone() if definition.is_fixed else y + 0 * definition.alpha.sum().to(y)
    with torch.autocast(y.device.type, enabled=False):
        data = y.movedim(axis, -1).to(torch.float64)
        first, slope = (_given(owner, name, value, data) for name, value in zip(("x0", "dx0"), start, strict=True))
        x = solved(
            _columns(definition, y.shape[axis], dt, data),
            data,
            lambda z: operator.apply(owner, z.contiguous(), inverse, dt, -1, manager),
            first,
            None if slope is None else slope * dt,
            TORCH,
        )
        return x.movedim(-1, axis).to(y.dtype).contiguous()


uncompiled(solve, "the inverse's columns are kept where the call is made; it runs outside the graph")


def _given(owner: str, name: str, value: Any, data: Tensor) -> Tensor | None:
    if value is None:
        return None
    found = torch.as_tensor(value, dtype=torch.float64, device=data.device)  # a number's own dtype would be single
    check_given(owner, name, tuple(found.shape), tuple(data.shape[:-1]))
    return found[..., None]


def _columns(definition: Definition, n: int, dt: float, like: Tensor) -> Columns:
    if not definition.is_fixed:
        return columns(definition.stencil_at(definition.alpha.to(like.device, torch.float64), n, dt, TORCH), TORCH)
    found = columns_of(definition, n, dt)

    def placed(column: Any) -> Any:
        return None if column is None else torch.as_tensor(column, device=like.device)

    return Columns(found.stencil, [placed(each) for each in found.known], placed(found.start), placed(found.head))
