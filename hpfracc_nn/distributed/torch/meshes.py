"""Operators and layers on distributed tensors (DTensors), for PyTorch.

A DTensor lies over the processes of a mesh: along each axis of the mesh whole on every process (`Replicate`), cut along
one of its own axes (`Shard`), or as terms of a sum (`Partial`). An operator acts on each series alone. Where time is
whole a process computes its own part and exchanges nothing; where time is cut, the processes exchange what
`ranks.py` says. Terms of a sum are added up first.

Orders and weights that are no DTensors count as equal on all processes. Their gradient is a sum over the processes that
hold different parts, taken in the backward pass, so that it is complete on each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from hpfracc_nn import errors
from hpfracc_nn.distributed.torch.ranks import applied
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.torch.operator import apply_at
from hpfracc_nn.fractional.torch.parameters import is_spread
from hpfracc_nn.fractional.torch.tracing import uncompiled
from hpfracc_nn.selection import Site


def operated(
    owner: str, x: Tensor, definition: Definition, alpha: Tensor | None, dt: float, dim: int, site: Site
) -> Tensor:
    """Return the operator applied to a DTensor along `dim`; the result lies as `x` does, terms of a sum added up.

    Args:
        owner: The public function, for messages.
        x: The samples, a DTensor.
        definition: The operator, with a fixed order where `alpha` is None.
        alpha: The order as a tensor, equal on all processes; its gradient is complete on each. None: the definition's.
        dt: Spacing of the samples.
        dim: The time axis.
        site: The call site that keeps the plans.

    Raises:
        TypeError: The samples are not real and floating.
        ValueError: `x` has a placement other than Replicate, Shard and Partial, or time is cut along several axes of
            the mesh.
    """
    axis = errors.axis(owner, dim, x.ndim)
    spread = _settled(owner, "x", x)
    cut = [place for place, each in enumerate(spread.placements) if each.is_shard(axis)]
    if len(cut) > 1:
        raise ValueError(
            f"{owner}(x: DTensor placed {spread.placements}): needs time, axis {axis}, cut along one axis of the mesh; "
            f"pass x.redistribute(placements=...) with one Shard({axis})."
        )
    if alpha is not None:
        alpha = _orders_of_part(alpha, spread, axis)
    elif isinstance(definition.alpha, tuple) and _cuts_orders(torch.tensor(definition.alpha), spread, axis):
        fixed = torch.tensor(definition.alpha, dtype=torch.float64, device=x.device)
        definition = replace(definition, alpha=_nested(_orders_of_part(fixed, spread, axis).tolist()))
    local = spread.to_local(grad_placements=spread.placements)
    if cut:
        y = _over_time(owner, local, definition, alpha, dt, axis, site, spread, cut[0])
    else:
        y = apply_at(owner, local, definition, dt, axis, site, alpha)
    return _spread(y, spread, spread.placements)


def _over_time(
    owner: str,
    local: Tensor,
    definition: Definition,
    alpha: Tensor | None,
    dt: float,
    axis: int,
    site: Site,
    x: DTensor,
    place: int,
) -> Tensor:
    """Return this process's slice of the operator's result, where time is cut along axis `place` of the mesh of x.

    `local` is this process's slice of x; the other arguments are those of `operated`.
    """
    mesh = x.device_mesh
    if not bool((mesh.mesh.diff(dim=place) > 0).all()):  # a group has its ranks in order
        raise ValueError(
            f"{owner}(x on {mesh}): needs processes in the order of their ranks along time; make the mesh by "
            "init_device_mesh."
        )
    if alpha is not None:
        definition = replace(definition, alpha=alpha)
    return applied(owner, local, lambda: definition, dt, axis, site, mesh.get_group(place))


uncompiled(_over_time, "processes exchange parts of their slices where the call is made; it runs outside the graph")


def beside(parameter: Any, x: Tensor) -> Any:
    """Return a parameter as a DTensor, replicated over the mesh of x, for torch's operations on both.

    Where x is no DTensor, or the parameter is one, return the parameter itself.
    """
    if parameter is None or not isinstance(x, DTensor) or is_spread(parameter):
        return parameter
    return DTensor.from_local(parameter, x.device_mesh, [Replicate()] * x.device_mesh.ndim, run_check=False)


def each_on_its_own(
    owner: str,
    layer: nn.Module,
    forward: Callable[..., Any],
    inputs: Sequence[Tensor],
    axes: Collection[int],
    later: int | None = None,
    **options: Any,
) -> Any:
    """Return a layer's results for DTensors cut between independent series: each process computes its own.

    Results are cut as the inputs are. Gradients of the layer's parameters are complete on every process.

    Args:
        owner: The layer's name, for messages.
        layer: The layer.
        forward: Called as forward(layer, *inputs, **options): the forward method of the layer's class, not of a
            subclass.
        inputs: The inputs of the layer, on one mesh and with equal placements.
        axes: The axes of the inputs along which they may be cut.
        later: The axis along which all results but the first are cut; None is that of the inputs.
        options: Keyword arguments of `forward`.

    Raises:
        TypeError: Some inputs are no DTensors.
        ValueError: The inputs are cut along another axis, or placed differently.
    """
    for x in inputs:
        if not isinstance(x, DTensor):
            raise TypeError(
                f"{owner}(inputs of types {', '.join(type(each).__name__ for each in inputs)}): needs DTensors only, "
                "or none; pass DTensor.from_local(x, mesh, placements) for what is none."
            )
    given = [_settled(owner, "input", x) for x in inputs]
    first = given[0]
    for x in given:
        if x.device_mesh != first.device_mesh or x.placements != first.placements:
            raise ValueError(
                f"{owner}(inputs placed {first.placements} and {x.placements}): needs inputs that lie alike; pass "
                "x.redistribute(mesh, placements)."
            )
    for each in first.placements:
        if isinstance(each, Shard) and each.dim not in axes:
            which = " or ".join(map(str, sorted(axes))) or "none"
            raise ValueError(
                f"{owner}(input: DTensor placed {first.placements}): needs whole series, cut along axis {which} alone; "
                "pass input.redistribute(placements=...), or input.full_tensor()."
            )
    values = {f"layer.{name}": _whole(each, first) for name, each in layer.named_parameters()}
    values |= {f"layer.{name}": each.full_tensor() for name, each in layer.named_buffers() if isinstance(each, DTensor)}
    locals_ = tuple(x.to_local(grad_placements=x.placements) for x in given)
    found = torch.func.functional_call(_Bare(layer, forward), values, locals_, options)
    if isinstance(found, Tensor):
        return _spread(found, first, first.placements)
    y, *others = found
    elsewhere = [Shard(later) if isinstance(each, Shard) and later is not None else each for each in first.placements]
    return _spread(y, first, first.placements), *(_each_spread(other, first, elsewhere) for other in others)


uncompiled(
    each_on_its_own, "a layer's parameters are replaced while it computes on a part of a DTensor; it runs eagerly"
)


class _Bare(nn.Module):
    """A module that calls `forward` on a layer without the layer's hooks, which have run already."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any]):
        super().__init__()
        self.layer, self._forward = layer, forward

    def forward(self, *inputs: Tensor, **options: Any) -> Any:
        return self._forward(self.layer, *inputs, **options)


def _settled(owner: str, name: str, x: Tensor) -> DTensor:
    """Return a DTensor with terms of a sum added up; raise ValueError if not placed by Replicate, Shard or Partial."""
    assert isinstance(x, DTensor), "the caller has looked"
    for each in x.placements:
        if hasattr(each, "split_factor") or not isinstance(each, Replicate | Shard | Partial):  # a strided Shard
            raise ValueError(
                f"{owner}({name}: DTensor placed {x.placements}): needs Replicate, Shard or Partial; pass "
                f"{name}.redistribute(placements=...)."
            )
    if not any(isinstance(each, Partial) for each in x.placements):
        return x
    return x.redistribute(placements=[Replicate() if isinstance(each, Partial) else each for each in x.placements])


def _spread(local: Tensor, like: DTensor, placements: Sequence[Placement]) -> Tensor:
    """Return this process's part `local` of a result as a DTensor on the mesh of `like`.

    Where the result is cut, its whole length is that of `like` along the axis that the same mesh axis cuts.
    """
    shape = list(local.shape)
    for own, other in zip(placements, like.placements, strict=True):
        if isinstance(own, Shard) and isinstance(other, Shard):
            shape[own.dim] = like.shape[other.dim]
    strides = [1]
    for length in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(length, 1))
    return DTensor.from_local(
        local.contiguous(),
        like.device_mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(strides[: len(shape)]),
    )


def _each_spread(found: Any, like: DTensor, placements: Sequence[Placement]) -> Any:
    if isinstance(found, Tensor):
        return _spread(found, like, placements)
    return tuple(_each_spread(each, like, placements) for each in found) if isinstance(found, tuple) else found


def _whole(parameter: Tensor, x: DTensor) -> Tensor:
    """Return a parameter as a whole plain tensor; its gradient is summed over processes with different parts of x."""
    mesh = x.device_mesh
    whole = [Replicate()] * mesh.ndim
    if isinstance(parameter, DTensor) and parameter.device_mesh == mesh:
        spread = parameter.redistribute(placements=whole)
    else:
        plain = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        spread = DTensor.from_local(plain, mesh, whole, run_check=False)
    return spread.to_local(
        grad_placements=[Partial() if isinstance(each, Shard) else Replicate() for each in x.placements]
    )


def _cut_axes(orders: Tensor, x: DTensor, axis: int) -> list[int | None]:
    """Return for each axis of the mesh which axis of `orders` it cuts, or None.

    `orders` broadcasts with x without its time axis, `axis`. None stands for a mesh axis that cuts time or nothing, or
    where the orders have length 1.
    """
    found: list[int | None] = []
    for each in x.placements:
        place = None
        if isinstance(each, Shard) and each.dim != axis:
            place = each.dim - (each.dim > axis) - (x.ndim - 1 - orders.ndim)
            place = place if place >= 0 and orders.shape[place] > 1 else None
        found.append(place)
    return found


def _cuts_orders(orders: Tensor, x: DTensor, axis: int) -> bool:
    return any(place is not None for place in _cut_axes(orders, x, axis))


def _orders_of_part(alpha: Tensor, x: DTensor, axis: int) -> Tensor:
    """Return the orders of this process's part of x.

    In the backward pass the gradients of parts that share an order are added up. Where time is cut, `ranks.applied`
    adds them up.
    """
    mesh, own, grads = x.device_mesh, [], []
    for each, place in zip(x.placements, _cut_axes(alpha, x, axis), strict=True):
        own.append(Replicate() if place is None else Shard(place))
        shares = isinstance(each, Shard) and each.dim != axis and place is None
        grads.append(Partial() if shares else own[-1])
    spread = DTensor.from_local(alpha, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return spread.redistribute(placements=own).to_local(grad_placements=grads)


def _nested(values: Any) -> Any:
    return tuple(map(_nested, values)) if isinstance(values, list) else values
