"""Parameters that are DTensors, as of `fully_shard` and of tensor parallel plans.

An average is formed number by number, so that every process keeps the past of its own part of a parameter and nothing
is exchanged. States hold DTensors that lie as the parameter does, for checkpoints to read and to write; kernels get the
parts. The other kinds are torch's operations, which follow DTensors by themselves: whether a parameter moved at all is
known to all processes together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.parameters import is_spread
from hpfracc_nn.selection import Site
from hpfracc_nn.training.torch.optimizers.directions import Average, Directions, Group, State, View, kind_of


def prepared_spread(
    group: Group,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[State],
    site: Site,
    views: list[View],
) -> Directions:
    """Return what `Kind.prepared` does, for parameters some of which are DTensors."""
    kind, grads = kind_of(group), [_as_laid(grad, p) for p, grad in zip(params, grads, strict=True)]
    if not isinstance(kind, Average):
        return kind.prepared(group, params, grads, states, site, views)
    parts: list[State] = [{key: _part(value) for key, value in state.items()} for state in states]
    make = kind.prepared(group, [*map(_part, params)], [*map(_part, grads)], parts, site, views)

    def directions() -> list[Tensor]:
        found = make()
        for p, state, part in zip(params, states, parts, strict=True):
            for key in kind.keeps:
                if key not in part:
                    state.pop(key, None)
                elif not isinstance(part[key], Tensor):
                    state[key] = part[key]
                elif _part(state.get(key)) is not part[key]:
                    state[key] = _spread(part[key], p)
        return [_spread(direction, p) for p, direction in zip(params, found, strict=True)]

    return directions


def _as_laid(grad: Tensor, p: Tensor) -> Tensor:
    """Return a gradient that lies as its parameter does, added up where it is terms of a sum."""
    if not is_spread(p) or grad.placements == p.placements:  # type: ignore[attr-defined]
        return grad
    laid: Tensor = grad.redistribute(placements=p.placements)  # type: ignore[attr-defined]
    return laid


def _part(value: Any) -> Any:
    """Return this process's part of a DTensor, and all else as it is."""
    if not isinstance(value, Tensor) or not is_spread(value):
        return value
    with torch.no_grad():  # the part itself, not a view
        part: Any = value.to_local()  # type: ignore[attr-defined]
    return part.wait() if hasattr(type(part), "wait") else part  # of a sum that is still under way


def _spread(part: Tensor, p: Tensor) -> Tensor:
    """Return a part as a DTensor that lies as p does in its last axes, and is whole along others; or as it is."""
    if not is_spread(p):
        return part
    from torch.distributed.tensor import DTensor  # loaded, since there is such a parameter

    more = part.shape[: part.ndim - p.ndim]
    placements = [_moved(each, len(more)) for each in p.placements]  # type: ignore[attr-defined]
    strides = [p.numel() * math.prod(more[k + 1 :]) for k in range(len(more))]
    return DTensor.from_local(
        part,
        p.device_mesh,  # type: ignore[attr-defined]
        placements,
        run_check=False,
        shape=torch.Size((*more, *p.shape)),
        stride=(*strides, *p.stride()),
    )


def _moved(placement: Any, axes: int) -> Any:
    """Return a placement of a tensor that has so many axes more in front."""
    if not hasattr(placement, "dim"):
        return placement
    options = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
    return type(placement)(placement.dim + axes, **options)
