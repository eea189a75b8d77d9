"""The operators inside torch.compile and torch.export: one opaque operation that asks the manager when it runs.

`hpfracc_nn::operator` takes tensors, numbers and strings only, one of which is the definition as JSON, so that an
exported graph holds the whole definition and no address. A compiler sees the operation's shape (the fake kernel) and
its backward, `hpfracc_nn::operator_backward`; forward mode, torch.func and a gradient that is differentiated again get
the formula in aten operations instead, and vmap makes one call with one more axis. The weights are never traced: that
takes a second a layer.

Arguments are x, the samples, or in the backward g, the gradient in the result, and x only where alpha's gradient needs
it; alpha, a tensor of orders or None; then those of `Operator`, among them the definition and `owner`, the name of the
public function; and flags: `needs_x` and `needs_alpha`, which gradients are wanted, and `traced`, whether the operation
stands in a compiled graph. `*given` are all arguments after the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import DEFINITIONS, Definition, DistributedOrder
from hpfracc_nn.fractional.layout import Layout, layout_of
from hpfracc_nn.fractional.torch.eager import (
    arranged,
    check_alpha,
    check_dense,
    computed,
    computed_in,
    floating_alpha,
    orders_shape,
    planned,
    restored,
    sample_dtype,
)
from hpfracc_nn.fractional.torch.linear_map import LinearMap
from hpfracc_nn.fractional.torch.tracing import has_tangent, is_watched, plainly, uncompiled, unpacked
from hpfracc_nn.fractional.torch.weights import weights_of
from hpfracc_nn.selection import BackendManager, Site, default_manager, given_manager, is_process_wide

_SUM = "distributed_order"  # not in DEFINITIONS, which are those of one order
_NAMES: dict[type, str] = {DistributedOrder: _SUM, **{kind: name for name, kind in DEFINITIONS.items()}}

_OPERATOR = "str definition, float dt, int dim, str owner"
_NEEDS = "bool needs_x=False, bool needs_alpha=False"
_TAGS = (torch.Tag.pt2_compliant_tag,)
_LIBRARY = torch.library.Library("hpfracc_nn", "DEF")
_LIBRARY.define(f"operator(Tensor x, Tensor? alpha, {_OPERATOR}, {_NEEDS}, bool traced=False) -> Tensor", tags=_TAGS)
_LIBRARY.define(f"operator_backward(Tensor g, Tensor? x, Tensor? alpha, {_OPERATOR}, {_NEEDS}) -> Tensor[]", tags=_TAGS)
APPLY, BACKWARD = torch.ops.hpfracc_nn.operator.default, torch.ops.hpfracc_nn.operator_backward.default


class Operator(NamedTuple):
    """The arguments of an operation besides its tensors; `definition` is what `as_json` returns."""

    definition: str
    dt: float
    dim: int
    owner: str

    def eagerly(self, x: Tensor, alpha: Tensor | None) -> Tensor:
        """Return the operator on x as a plain call computes it: autograd and every transform of torch.func follow."""
        if not all(isinstance(size, int) for size in x.shape):
            x = x.reshape([int(size) for size in x.shape])  # the formula is written for one size
        return computed(self.owner, x, from_json(self.definition), self.dt, self.dim, _site(), alpha)


def compiled(
    owner: str,
    x: Tensor,
    definition: Definition,
    dt: float,
    dim: int,
    manager: BackendManager | None,
    alpha: Tensor | None,
) -> Tensor:
    """Return the operator applied to `x`, in a way that a compiler can follow.

    Raises:
        ValueError: In torch.export, where the manager or the class of the definition is the caller's own, or an option
            is no number, string, tuple or None.
    """
    check_dense(owner, "x", x)
    text = as_json(definition, alpha is not None)
    if text is None or not (manager is None or is_process_wide(manager)):
        if torch.compiler.is_exporting():
            raise ValueError(
                f"{owner}: torch.export needs the process-wide BackendManager and a definition among "
                f"{', '.join(_NAMES.values())}, with numbers, strings and tuples of them as options; leave "
                "manager=None and configure() that manager."
            )
        return _outside(owner, x, definition, dt, dim, manager, alpha)
    return APPLY(x, alpha, text, errors.positive_step(owner, dt), dim, owner)


def _outside(
    owner: str,
    x: Tensor,
    definition: Definition,
    dt: float,
    dim: int,
    manager: BackendManager | None,
    alpha: Tensor | None,
) -> Tensor:
    site = given_manager(owner, manager).shared_site("toeplitz", "torch", "functions")
    return computed(owner, x, definition, dt, dim, site, alpha)


uncompiled(_outside, "a graph cannot name a BackendManager or a definition of the caller's own; it runs outside")


def _site() -> Site:
    return default_manager().shared_site("toeplitz", "torch", "compiled")


def as_json(definition: Definition, is_learned: bool) -> str | None:
    """Return a definition as JSON, of a learned order its family at the upper bound; None where that is impossible.

    For example '{"definition":"caputo","alpha":0.5,"scheme":"l1_2","bounds":null,"side":"left"}'. Compilers follow this
    function, but not Python's json module.
    """
    name = _NAMES.get(type(definition))
    if name is None:
        return None
    bounds = definition.interval if is_learned else definition.bounds
    alpha = definition.interval[1] if is_learned else definition.alpha
    names = ("definition", "alpha", "scheme", "bounds", "side", *definition.own_fields)
    options = (name, alpha, definition.scheme, bounds, definition.side, *definition.options)
    values = [_encoded(value) for value in options]
    if None in values:
        return None
    return "{" + ",".join([f'"{key}":{value}' for key, value in zip(names, values, strict=True)]) + "}"


def _encoded(value: Any) -> str | None:
    """Return the JSON text of a number, string, None, class of a definition or tuple of these; None for all else."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = repr(float.fromhex(value.hex()))  # `hex`, because a compiler makes a constant of it
        return text.replace("nan", "NaN").replace("inf", "Infinity")
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join([each if each >= " " else f"\\u{ord(each):04x}" for each in text]) + '"'
    if isinstance(value, tuple):
        parts = [_encoded(each) for each in value]
        return None if None in parts else "[" + ",".join([str(each) for each in parts]) + "]"
    if isinstance(value, type) and value in _NAMES:
        return '{"definition":"' + _NAMES[value] + '"}'
    return None


@lru_cache(maxsize=1024)
def from_json(text: str) -> Definition:
    """Return the definition whose text `as_json` returned."""
    values = json.loads(text)
    kind = _kind(values)
    return kind(**{each.name: _decoded(values[each.name]) for each in fields(kind) if each.init})


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return _kind(value)
    return tuple(_decoded(each) for each in value) if isinstance(value, list) else value


def _kind(values: dict[str, Any]) -> type[Definition]:
    return DistributedOrder if values["definition"] == _SUM else DEFINITIONS[values["definition"]]


# Forward


def _run(x: Tensor, alpha: Tensor | None, *given: Any) -> Tensor:
    """Implementation of `operator`: plan and run a kernel on plain tensors, without autograd or autocast.

    Return the result, of x's shape and dtype.
    """
    operator, needs_x, needs_alpha, _ = _read(given)
    definition = from_json(operator.definition)
    if alpha is not None and not needs_alpha:
        check_alpha(operator.owner, definition, alpha)
    layout, dtype = _layout(operator, x, alpha), computed_in(operator.owner, x, definition)
    if 0 in layout.canonical:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    with plainly():
        weights = weights_of(definition, layout.n, operator.dt, dtype, x.device, alpha)
        data = arranged(x, layout, sample_dtype(x.dtype, dtype, definition))
        site = _site()
        linear = LinearMap(site, *planned(site.pick, data, weights, layout, site, needs_x, needs_alpha))
        return restored(linear.forward(data), layout, x.dtype)


def _fake(x: Tensor, alpha: Tensor | None, *given: Any) -> Tensor:
    """Fake implementation of `operator` for tracers: return an empty tensor like the result.

    Arguments are checked as far as the values of tensors are not needed.
    """
    operator, *_ = _read(given)
    computed_in(operator.owner, x)
    if alpha is not None:
        floating_alpha(operator.owner, alpha)
    axis, shape = errors.axis(operator.owner, operator.dim, x.ndim), _orders_shape(operator, alpha)
    layout_of.__wrapped__(operator.owner, tuple(x.shape), axis, shape)  # sizes may be symbols, which no cache holds
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _autograd(x: Tensor, alpha: Tensor | None, *given: Any) -> Tensor:
    """Implementation of `operator` for the Autograd dispatch key: return the result, with its derivatives recorded.

    For a tracer `_Opaque` is recorded, whose two passes are opaque operations; otherwise the operator is called as
    eager code calls it.
    """
    operator, needs_x, needs_alpha, traced = _read(given)
    tensors = (x,) if alpha is None else (x, alpha)
    watched = is_watched(x)
    if traced:
        _refuse_tangents(operator.owner, tensors)
    tracks = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if torch._C._are_functorch_transforms_active() or (not watched and (tracks or has_tangent(*tensors))):
        return operator.eagerly(x, alpha)
    if has_tangent(*tensors):
        return _with_tangents(operator, x, alpha)
    if tracks:
        return _Opaque.apply(x, alpha, operator)
    with torch._C._AutoDispatchBelowAutograd():
        return APPLY(x, alpha, *operator, needs_x, needs_alpha, watched or traced)


def _with_tangents(operator: Operator, x: Tensor, alpha: Tensor | None) -> Tensor:
    """Return the result with its tangent, as a dual tensor, for an x or an alpha that has one, inside a trace.

    The result's tangent is the operator on x's tangent, since the map is linear in x, plus the derivative along
    alpha's.
    """
    (value, moved), order = unpacked(x), None if alpha is None else unpacked(alpha)[0]
    tangents = [] if moved is None else [APPLY(moved, order, *operator)]
    if alpha is not None and has_tangent(alpha):
        turned = unpacked(operator.eagerly(value, alpha))[1]
        tangents.append(turned if turned is not None else torch.zeros_like(value))
    return torch._VF._make_dual(APPLY(value, order, *operator), sum(tangents), level=0)  # type: ignore[attr-defined]


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor | None, operator: Operator) -> Tensor:
        needs_x, needs_alpha, _ = ctx.needs_input_grad
        ctx.operator = operator
        ctx.save_for_backward(x if needs_alpha else None, alpha)
        return APPLY(x, alpha, *operator, needs_x, needs_alpha, True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        x, alpha = ctx.saved_tensors
        needs_x, needs_alpha, _ = ctx.needs_input_grad
        moves = has_tangent(*[tensor for tensor in (g, x, alpha) if tensor is not None])
        backward = _formula_backward if moves else _opaque_backward
        found = iter(backward(ctx.operator, g, x, alpha, needs_x, needs_alpha))
        return next(found) if needs_x else None, next(found) if needs_alpha else None, None


# Backward


def _run_backward(g: Tensor, x: Tensor | None, alpha: Tensor | None, *given: Any) -> list[Tensor]:
    """Implementation of `operator_backward`: return the wanted gradients, first that in x, then that in alpha.

    The gradient in x is the kernel's adjoint of g.
    """
    operator, needs_x, needs_alpha, _ = _read(given)
    definition = from_json(operator.definition)
    layout, dtype = _layout(operator, g, alpha), computed_in(operator.owner, g, definition)
    if 0 in layout.canonical:
        return _like(g, alpha, needs_x, needs_alpha, torch.zeros_like)
    with plainly():
        weights = weights_of(definition, layout.n, operator.dt, dtype, g.device, alpha)
        grads = arranged(g.detach(), layout, sample_dtype(g.dtype, dtype, definition))
        site = _site()
        linear = LinearMap(site, *planned(site.pick_backward, grads, weights, layout, site, needs_x, needs_alpha))
        data = arranged(x.detach(), layout, grads.dtype) if needs_alpha and x is not None else None
        gx, order = linear.backward(data, grads, alpha, needs_x)
        found = [restored(gx, layout, g.dtype)] if gx is not None else []
        if alpha is not None and order is not None:
            found.append(order)
    return found


def _fake_backward(g: Tensor, x: Tensor | None, alpha: Tensor | None, *given: Any) -> list[Tensor]:
    _, needs_x, needs_alpha, _ = _read(given)
    return _like(g, alpha, needs_x, needs_alpha, torch.empty_like)


def _autograd_backward(g: Tensor, x: Tensor | None, alpha: Tensor | None, *given: Any) -> list[Tensor]:
    """Implementation of `operator_backward` for the Autograd dispatch key: return the wanted gradients.

    Where they are differentiated themselves, they come from the aten formula.
    """
    operator, needs_x, needs_alpha, _ = _read(given)
    tensors = [tensor for tensor in (g, x, alpha) if tensor is not None]
    _refuse_tangents(operator.owner, tensors)
    if torch._C._are_functorch_transforms_active() or (
        torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    ):
        return _formula_backward(operator, g, x, alpha, needs_x, needs_alpha)
    with torch._C._AutoDispatchBelowAutograd():
        return BACKWARD(g, x, alpha, *operator, needs_x, needs_alpha)


def _opaque_backward(
    operator: Operator, g: Tensor, x: Tensor | None, alpha: Tensor | None, needs_x: bool, needs_alpha: bool
) -> list[Tensor]:
    return BACKWARD(g, x, alpha, *operator, needs_x, needs_alpha)


def _formula_backward(
    operator: Operator, g: Tensor, x: Tensor | None, alpha: Tensor | None, needs_x: bool, needs_alpha: bool
) -> list[Tensor]:
    """Return the wanted gradients, first that in x, then that in alpha, by the aten formula.

    The gradients are differentiable in g, x and alpha. Where x is None the gradient in alpha is not wanted.
    """
    data = torch.zeros_like(g) if x is None else x  # the map is linear: the gradient in x does not depend on x
    if not needs_alpha:
        pull = torch.func.vjp(lambda x: operator.eagerly(x, alpha), data)[1]
    elif needs_x:
        pull = torch.func.vjp(operator.eagerly, data, alpha)[1]
    else:
        pull = torch.func.vjp(lambda alpha: operator.eagerly(data, alpha), alpha)[1]
    return list(pull(g))


# Batches of calls: one call with one more axis


def _vmap(info: Any, in_dims: tuple, x: Tensor, alpha: Tensor | None, *given: Any) -> tuple[Tensor, int]:
    operator, needs_x, needs_alpha, traced = _read(given)
    batched = _with_batch(info, x, in_dims[0])
    orders = None if alpha is None else _orders_with_batch(info, alpha, in_dims[1], batched.ndim)
    moved = operator._replace(dim=errors.axis(operator.owner, operator.dim, batched.ndim - 1) + 1)
    return APPLY(batched, orders, *moved, needs_x, needs_alpha, traced), 0


def _vmap_backward(
    info: Any, in_dims: tuple, g: Tensor, x: Tensor | None, alpha: Tensor | None, *given: Any
) -> tuple[list[Tensor], list[int]]:
    operator, needs_x, needs_alpha, _ = _read(given)
    grads = _with_batch(info, g, in_dims[0])
    data = None if x is None else _with_batch(info, x, in_dims[1])
    orders = None if alpha is None else _orders_with_batch(info, alpha, in_dims[2], grads.ndim)
    moved = operator._replace(dim=errors.axis(operator.owner, operator.dim, grads.ndim - 1) + 1)
    found = BACKWARD(grads, data, orders, *moved, needs_x, needs_alpha)
    if alpha is not None and needs_alpha:  # one gradient per call, in alpha's own shape
        shape = alpha.shape if in_dims[2] is None else alpha.movedim(in_dims[2], 0).shape[1:]
        found = [*found[:-1], found[-1].reshape(info.batch_size, *shape)]
    return found, [0] * len(found)


def _with_batch(info: Any, x: Tensor, where: int | None) -> Tensor:
    return x.expand(info.batch_size, *x.shape) if where is None else x.movedim(where, 0)


def _orders_with_batch(info: Any, alpha: Tensor, where: int | None, ndim: int) -> Tensor:
    """Return alpha [*c] with the batch axis of a vmap first, [batch, 1, ..., *c].

    The result broadcasts to an x of `ndim` axes, the batch among them, without time. `where` is the batch axis that
    alpha has, None if it has none; `info` knows the size of the batch.
    """
    orders = _with_batch(info, alpha, where)
    return orders.reshape(info.batch_size, *(1,) * (ndim - 1 - orders.ndim), *orders.shape[1:])


# What all of them share


def _read(given: tuple) -> tuple[Operator, bool, bool, bool]:
    """Return the Operator and the flags needs_x, needs_alpha and traced of the arguments after the tensors.

    The dispatcher leaves out flags that have their default value, False.
    """
    count = len(Operator._fields)
    needs_x, needs_alpha, traced = (*given[count:], False, False, False)[:3]
    return Operator(*given[:count]), needs_x, needs_alpha, traced


def _layout(operator: Operator, x: Tensor, alpha: Tensor | None) -> Layout:
    axis = errors.axis(operator.owner, operator.dim, x.ndim)
    return layout_of(operator.owner, x.shape, axis, _orders_shape(operator, alpha))


def _orders_shape(operator: Operator, alpha: Tensor | None) -> tuple[int, ...]:
    return orders_shape(from_json(operator.definition), alpha)


def _refuse_tangents(owner: str, tensors: Sequence[Tensor]) -> None:
    """Raise RuntimeError where a compiled graph is run on tensors that have tangents of forward mode.

    Code around the operation would drop them. `owner` is the name of the public function, for the message.
    """
    if has_tangent(*tensors) and not torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            f"{owner}(x with a tangent): a compiled graph loses the tangents of its inputs; "
            "take forward mode inside the compiled function, or call it without torch.compile."
        )


def _like(
    g: Tensor, alpha: Tensor | None, needs_x: bool, needs_alpha: bool, make: Callable[..., Tensor]
) -> list[Tensor]:
    wanted = [g] if needs_x else []
    if alpha is not None and needs_alpha:
        wanted.append(alpha)
    return [make(tensor, memory_format=torch.contiguous_format) for tensor in wanted]


for _name, _key, _kernel in (
    ("operator", "CompositeExplicitAutograd", _run),
    ("operator_backward", "CompositeExplicitAutograd", _run_backward),
    ("operator", "Autograd", _autograd),
    ("operator_backward", "Autograd", _autograd_backward),
):
    _LIBRARY.impl(_name, uncompiled(_kernel), _key)
torch.library.register_fake("hpfracc_nn::operator", _fake, lib=_LIBRARY)
torch.library.register_fake("hpfracc_nn::operator_backward", _fake_backward, lib=_LIBRARY)
torch.library.register_vmap("hpfracc_nn::operator", _vmap, lib=_LIBRARY)
torch.library.register_vmap("hpfracc_nn::operator_backward", _vmap_backward, lib=_LIBRARY)
