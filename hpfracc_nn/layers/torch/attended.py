"""The operation `attention`: values averaged with weights that fall with the distance of query and key.

A kernel is called with an `Attention`, what stays the same for all queries, and with `Given`, the tensors. It returns
the averages and, where they are wanted, the weights; its adjoint gets their gradients and returns those of the tensors.
Nothing of the size queries times keys is kept for the backward pass but which weights were dropped: the adjoint
computes the weights again. Plain calls run the plan's kernel, and its adjoint in the backward pass; traced calls and
second gradients are the formula in plain aten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import has_tangent, is_batched, is_traced
from hpfracc_nn.fractional.torch.weights import apart
from hpfracc_nn.layers.attention import OP
from hpfracc_nn.layers.torch.attention_formula import Attention, Given, gradients
from hpfracc_nn.layers.torch.attention_parts import averaged, items, pulled
from hpfracc_nn.selection import Plan, Site, Work, Workload, carried_out

_HALF = (torch.float16, torch.bfloat16)


def attended(attention: Attention, given: Given, site: Site) -> tuple[Tensor, Tensor | None]:
    """Return averages [batch, heads, queries, values] and weights; half precision is computed in float32."""
    dtype = given.q.dtype
    if dtype in _HALF:
        wide = Given._make([*(None if t is None else t.float() for t in given[:4]), *given[4:]])
        y, weights = attended(attention, wide, site)
        return y.to(dtype), None if weights is None else weights.to(dtype)
    if given.q.is_meta:  # torch has no autocast there
        return attention.formula(given)
    with torch.autocast(given.q.device.type, enabled=False):
        tensors = tuple(tensor for tensor in given[1:5] if tensor is not None)
        is_empty = 0 in given.q.shape or 0 in given.k.shape
        if torch.compiler.is_compiling() or is_empty or is_traced(given.q, tensors):
            return attention.formula(given)
        plan = _picked(attention, given, site)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (given.q, *tensors)):
            return _Attended.apply(attention, site, plan, *given)
        return carried_out(_FORWARD, site, plan, attention, given)


def _picked(attention: Attention, given: Given, site: Site) -> Plan:
    needs = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given[:5])
    q, keys = given.q, given.k.shape[2]
    if q.shape[2] == 1:
        keys = 1 << (keys - 1).bit_length()  # a stream asks at each step: a plan for each length would be too many
    key = (q.shape, keys, q.dtype, q.device, needs, attention, torch.get_num_threads())
    return site.pick(key, lambda: workload(tuple(q.shape), keys, str(q.dtype), str(q.device), needs, attention))


def workload(shape: tuple[int, ...], keys: int, dtype: str, device: str, needs: bool, attention: Attention) -> Workload:
    """Return what a call asks for: `rows` heads of `n` queries with `width` features, `exponentials` keys."""
    batch, heads, queries, features = shape
    return Workload(
        OP,
        "torch",
        device=device,
        dtype=dtype.removeprefix("torch."),
        rows=batch * heads,
        n=queries,
        width=features,
        channels=heads,
        exponentials=keys,
        needs_gradient=needs,
        learns_weights=attention.needs_weights,
        threads=torch.get_num_threads(),
    )


def _run(plan: Plan, attention: Attention, given: Given) -> tuple[Tensor, Tensor | None]:
    plan.kernel.calls["run"] += 1
    if plan.chunk is None:
        return plan.kernel.run(attention, given)
    places = items(given, plan.chunk)
    return averaged(places, given, attention.needs_weights, lambda part, first: plan.kernel.run(attention, part))


def _adjoint(
    plan: Plan, attention: Attention, given: Given, grads: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor | None]:
    plan.kernel.calls["adjoint"] += 1
    if plan.chunk is None:
        return plan.kernel.adjoint(attention, given, grads, wanted)
    places = items(given, plan.chunk)
    return pulled(
        places, given, grads, wanted, lambda part, some, first: plan.kernel.adjoint(attention, part, some, wanted)
    )


def _fault(result: tuple[Tensor, Tensor | None], attention: Attention, given: Given) -> str | None:
    y, expected = result[0], (*given.q.shape[:3], given.v.shape[-1])
    return None if tuple(y.shape) == expected else f"shape {tuple(y.shape)} in place of {expected}"


_FORWARD = Work(_run, _fault)
_BACKWARD = Work(_adjoint, direction="backward")


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, attention: Attention, site: Site, plan: Plan, *given: Any) -> tuple[Tensor, Tensor | None]:
        ctx.attention, ctx.site, ctx.plan = attention, site, plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given)
        return carried_out(_FORWARD, site, plan, attention, Given(*given))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given, wanted = Given(*ctx.saved_tensors), ctx.needs_input_grad[3:8]
        ctx.site.again(ctx.plan)
        there = [g for g in grads if g is not None]
        if not there:
            return (None,) * 9
        with torch.autocast(given.q.device.type, enabled=False):
            if torch.is_grad_enabled() or any(is_batched(g) or has_tangent(g) for g in there):
                found = _traced_gradients(ctx.attention, given, grads)
            else:
                found = carried_out(_BACKWARD, ctx.site, ctx.plan, ctx.attention, given, grads, wanted)
        return (None, None, None, *found, None)


def _traced_gradients(attention: Attention, given: Given, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients, themselves differentiable where gradients are on."""
    creates = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [apart(tensor) for tensor in given[:5]]
        results = attention.formula(Given._make([*leaves, given.kept]))
        return gradients(results, grads, leaves, create_graph=creates)
