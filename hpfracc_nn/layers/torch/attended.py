"""The operation `attention`: values averaged with weights that fall with the distance of query and key.

A kernel is called with an `Attention`, what stays the same for all queries, and with `Given`, the tensors. It returns
the averages and, where they are wanted, the weights; its adjoint gets their gradients and returns those of the tensors.
Nothing of the size queries times keys is kept for the backward pass but which weights were dropped: the adjoint
computes the weights again. Plain calls run the plan's kernel, and its adjoint in the backward pass; traced calls and
second gradients are the formula in plain aten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.probe import has_tangent, is_batched, is_traced
from hpfracc_nn.selection import Plan, Site, Work, Workload, carried_out

OP = "attention"
_HALF = (torch.float16, torch.bfloat16)


class Given(NamedTuple):
    """The tensors of a call.

    `bias` is added to the logarithms of the weights and broadcasts to [batch, heads, queries, keys]; minus infinity
    hides a key. `alpha` is a number of orders that broadcasts to [heads, 1, 1], None for alpha = 2. `kept` says which
    weights are not dropped.
    """

    q: Tensor  # [batch, heads, queries, features]
    k: Tensor  # [batch, heads, keys, features]
    v: Tensor  # [batch, heads, keys, values]
    bias: Tensor | None = None
    alpha: Tensor | None = None
    kept: Tensor | None = None

    def part(self, items: slice, queries: slice, keys: slice) -> Given:
        """Return the views that some queries of some of the batch need."""
        place = (items, slice(None), queries, keys)
        bias = None if self.bias is None else self.bias[along(self.bias, place)]
        kept = None if self.kept is None else self.kept[place]
        return Given(self.q[items, :, queries], self.k[items, :, keys], self.v[items, :, keys], bias, self.alpha, kept)


@dataclass(frozen=True, slots=True)
class Attention:
    """What is computed, and of what.

    Args:
        dimension: The space's, to which alpha is added in the exponent.
        bandwidth: The square of the distance beyond which weights fall.
        is_causal: Whether query i sees keys up to i only.
        needs_weights: Whether the weights are returned.
        gain: Of the weights that are not dropped.
    """

    dimension: float
    bandwidth: float
    is_causal: bool = False
    needs_weights: bool = False
    gain: float = 1.0

    def formula(self, given: Given, first: int = 0) -> tuple[Tensor, Tensor | None]:
        """Return averages and weights in plain aten; `first` is the number of the first query."""
        weights = torch.softmax(self._logarithms(given, first), -1)
        if given.kept is not None:
            weights = weights * given.kept * self.gain
        return weights @ given.v, weights if self.needs_weights else None

    def _logarithms(self, given: Given, first: int) -> Tensor:
        q = given.q * (1 / self.bandwidth)
        products = q @ given.k.mT
        hidden = self._hidden(given, products, first)
        if given.alpha is None:
            found = 2 * products
        else:
            exponent = (self.dimension + given.alpha).to(products.dtype)
            found = -exponent * torch.log1p(self._distances(given, q, products, hidden))
        if given.bias is not None:
            found = found + given.bias
        return found.masked_fill(hidden, -torch.inf) if self.is_causal and hidden is not None else found

    def _distances(self, given: Given, q: Tensor, products: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the distances from queries to lifted keys, in square roots of the bandwidth.

        Queries `q` and their products with the keys come divided by the bandwidth.
        """
        squares = given.k.square().sum(-1).unsqueeze(-2) * (1 / self.bandwidth)  # [batch, heads, 1, keys]
        radius = (squares if hidden is None else squares.masked_fill(hidden, 0.0)).amax(-1, keepdim=True)
        own = (q * given.q).sum(-1, keepdim=True)
        squared = torch.add(own + radius, products, alpha=-2)
        # The square root has no slope at 0; what is below is rounding.
        return squared.clamp_min(torch.finfo(squared.dtype).eps).sqrt()

    def _hidden(self, given: Given, products: Tensor, first: int) -> Tensor | None:
        """Return which keys a query does not see, of a shape that broadcasts; None where it sees all."""
        hidden = None if given.bias is None else given.bias == -torch.inf
        if not self.is_causal:
            return hidden
        queries, keys = products.shape[-2:]
        later = torch.ones(queries, keys, dtype=torch.bool, device=products.device).triu(first + 1)
        return later if hidden is None else hidden | later

    def pulled(
        self, given: Given, grads: Sequence[Tensor | None], wanted: Sequence[bool], first: int = 0
    ) -> list[Tensor | None]:
        """Return the gradients in q, k, v, bias and alpha that are wanted: the formula once more, and backwards."""
        with torch.enable_grad():
            leaves = [
                None if tensor is None else tensor.detach().requires_grad_(wants)
                for tensor, wants in zip(given[:5], wanted, strict=True)
            ]
            results = self.formula(Given._make([*leaves, given.kept]), first)
        return gradients(results, grads, leaves)


def gradients(
    results: Sequence[Tensor | None], grads: Sequence[Tensor | None], leaves: Sequence[Tensor | None], **how: bool
) -> list[Tensor | None]:
    """Return the gradients in those leaves that ask for one, None for the others."""
    pairs = [(y, g) for y, g in zip(results, grads, strict=True) if y is not None and g is not None]
    asked = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    ys, gs = [y for y, _ in pairs], [g for _, g in pairs]
    found = iter(torch.autograd.grad(ys, asked, gs, allow_unused=True, **how))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def attended(attention: Attention, given: Given, site: Site) -> tuple[Tensor, Tensor | None]:
    """Return averages [batch, heads, queries, values] and weights; half precision is computed in float32."""
    dtype = given.q.dtype
    if dtype in _HALF:
        wide = Given._make([*(None if t is None else t.float() for t in given[:4]), *given[4:]])
        y, weights = attended(attention, wide, site)
        return y.to(dtype), None if weights is None else weights.to(dtype)
    with torch.autocast(given.q.device.type, enabled=False):
        tensors = tuple(tensor for tensor in given[1:5] if tensor is not None)
        is_empty = 0 in given.q.shape or given.q.is_meta
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
    return plan.kernel.run(attention, given)


def _adjoint(
    plan: Plan, attention: Attention, given: Given, grads: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor | None]:
    plan.kernel.calls["adjoint"] += 1
    return plan.kernel.adjoint(attention, given, grads, wanted)


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
        results = attention.formula(given)
        return gradients(results, grads, given[:5], create_graph=creates)


def along(tensor: Tensor, place: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the slices of a tensor that broadcasts: all of an axis of size 1."""
    return tuple(slice(None) if size == 1 else part for size, part in zip(tensor.shape, place, strict=True))
