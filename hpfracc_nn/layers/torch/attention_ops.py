"""The operation `attention`: values averaged with weights that fall with the distance of query and key.

A kernel is called with an `Attention`, the options of the call, and with `Inputs`, its tensors. It returns the averages
and, where they are wanted, the weights; its adjoint gets the gradients of both and returns those of the tensors. Of
arrays of the size queries times keys only the dropout mask is kept for the backward pass: the adjoint computes the
weights again. Plain calls run the plan's kernel, and its adjoint in the backward pass; traced calls and second
gradients are the formula in plain aten.

The kernel "dense" computes the weights of all queries at once: few calls, and memory for queries times keys. "blocks"
takes a block of queries at a time, whose weights stay in the cache, and leaves out keys that no query of a block may
see, which halves a causal pass; its backward pass computes each block's weights once more and adds up the gradients of
keys and values.

A distance is that between a query and a lifted key, one with another coordinate added, which gives all keys that a
query sees the same norm. `hidden` is a mask, True at keys that a query does not see, and broadcasts to [batch, heads,
queries, keys].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.derivatives import apart
from hpfracc_nn.fractional.torch.tracing import has_tangent, is_batched, is_traced
from hpfracc_nn.layers.order import ATTENTION, NEGLIGIBLE
from hpfracc_nn.selection import Cost, Kernel, Plan, Site, Work, Workload, carried_out, register

_HALF = (torch.float16, torch.bfloat16)


def attended(attention: Attention, inputs: Inputs, site: Site) -> tuple[Tensor, Tensor | None]:
    """Return the averages of the values, [batch, heads, queries, values], and the weights, or None if not wanted.

    Half precision is computed in float32.
    """
    dtype = inputs.q.dtype
    if dtype in _HALF:
        wide = Inputs._make([*(None if t is None else t.float() for t in inputs[:4]), *inputs[4:]])
        y, weights = attended(attention, wide, site)
        return y.to(dtype), None if weights is None else weights.to(dtype)
    if inputs.q.is_meta:  # torch has no autocast there
        return attention.formula(inputs)
    with torch.autocast(inputs.q.device.type, enabled=False):
        tensors = tuple(tensor for tensor in inputs[1:5] if tensor is not None)
        is_empty = 0 in inputs.q.shape or 0 in inputs.k.shape
        if torch.compiler.is_compiling() or is_empty or is_traced(inputs.q, tensors):
            return attention.formula(inputs)
        plan = _picked(attention, inputs, site)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (inputs.q, *tensors)):
            return _Attended.apply(attention, site, plan, *inputs)
        return carried_out(_FORWARD, site, plan, attention, inputs)


def _picked(attention: Attention, inputs: Inputs, site: Site) -> Plan:
    needs = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs[:5])
    q, keys = inputs.q, inputs.k.shape[2]
    if q.shape[2] == 1:
        keys = 1 << (keys - 1).bit_length()  # a stream has one more key each step: a plan for each would be too many
    key = (q.shape, keys, q.dtype, q.device, needs, attention, torch.get_num_threads())
    return site.pick(key, lambda: workload(tuple(q.shape), keys, str(q.dtype), str(q.device), needs, attention))


def workload(shape: tuple[int, ...], keys: int, dtype: str, device: str, needs: bool, attention: Attention) -> Workload:
    """Return the Workload of a call.

    Its `rows` are batch times heads, `n` the queries, `width` the features of a head, `exponentials` the keys.

    Args:
        shape: The shape of the queries, (batch, heads, queries, features).
        keys: The number of keys.
        dtype: Name of the dtype, with or without "torch.".
        device: Name of the device.
        needs: Whether a gradient will be needed.
        attention: The options of the call.
    """
    batch, heads, queries, features = shape
    return Workload(
        ATTENTION,
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


def _run(plan: Plan, attention: Attention, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    plan.kernel.calls["run"] += 1
    if plan.chunk is None:
        return plan.kernel.run(attention, inputs)
    places = items(inputs, plan.chunk)
    return averaged(places, inputs, attention.needs_weights, lambda part, first: plan.kernel.run(attention, part))


def _adjoint(
    plan: Plan, attention: Attention, inputs: Inputs, grads: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor | None]:
    plan.kernel.calls["adjoint"] += 1
    if plan.chunk is None:
        return plan.kernel.adjoint(attention, inputs, grads, wanted)
    places = items(inputs, plan.chunk)
    return pulled(
        places, inputs, grads, wanted, lambda part, some, first: plan.kernel.adjoint(attention, part, some, wanted)
    )


def _fault(result: tuple[Tensor, Tensor | None], attention: Attention, inputs: Inputs) -> str | None:
    y, expected = result[0], (*inputs.q.shape[:3], inputs.v.shape[-1])
    return None if tuple(y.shape) == expected else f"shape {tuple(y.shape)} in place of {expected}"


_FORWARD = Work(_run, _fault)
_BACKWARD = Work(_adjoint, direction="backward")


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, attention: Attention, site: Site, plan: Plan, *inputs: Any) -> tuple[Tensor, Tensor | None]:
        ctx.attention, ctx.site, ctx.plan = attention, site, plan
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        return carried_out(_FORWARD, site, plan, attention, Inputs(*inputs))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, wanted = Inputs(*ctx.saved_tensors), ctx.needs_input_grad[3:8]
        ctx.site.again(ctx.plan)
        there = [g for g in grads if g is not None]
        if not there:
            return (None,) * 9
        with torch.autocast(inputs.q.device.type, enabled=False):
            if torch.is_grad_enabled() or any(is_batched(g) or has_tangent(g) for g in there):
                found = _traced_gradients(ctx.attention, inputs, grads)
            else:
                found = carried_out(_BACKWARD, ctx.site, ctx.plan, ctx.attention, inputs, grads, wanted)
        return (None, None, None, *found, None)


def _traced_gradients(attention: Attention, inputs: Inputs, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients in q, k, v, bias and alpha, by autograd of the formula.

    The gradients are differentiable where gradients are on.

    Args:
        attention: The options of the call.
        inputs: The tensors of the call.
        grads: Gradients of the averages and of the weights, None where there is none.
    """
    creates = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [apart(tensor) for tensor in inputs[:5]]
        results = attention.formula(Inputs._make([*leaves, inputs.kept]))
        return gradients(results, grads, leaves, create_graph=creates)


class Inputs(NamedTuple):
    """The tensors of a call of the operation.

    `bias` is added to the logarithms of the weights and broadcasts to [batch, heads, queries, keys]; a key is hidden
    where its bias is minus infinity, or `NEGLIGIBLE` or more below the greatest bias of its query. `alpha` has the
    orders, broadcasting to [heads, 1, 1]; None is alpha = 2. `kept` is the dropout mask, [batch, heads, queries, keys],
    True at the weights that are not dropped.
    """

    q: Tensor  # [batch, heads, queries, features]
    k: Tensor  # [batch, heads, keys, features]
    v: Tensor  # [batch, heads, keys, values]
    bias: Tensor | None = None
    alpha: Tensor | None = None
    kept: Tensor | None = None

    def part(self, items: slice, queries: slice, keys: slice) -> Inputs:
        """Return the Inputs of a part of the call, views of these: slices of the batch, of the queries and the keys."""
        place = (items, slice(None), queries, keys)
        bias = None if self.bias is None else self.bias[along(self.bias, place)]
        kept = None if self.kept is None else self.kept[place]
        return Inputs(self.q[items, :, queries], self.k[items, :, keys], self.v[items, :, keys], bias, self.alpha, kept)


@dataclass(frozen=True, slots=True)
class Attention:
    """The options of a call of the operation that are no tensors.

    Args:
        dimension: D, the dimension of the space; weights fall with the exponent D + alpha.
        bandwidth: The square of the distance beyond which weights fall.
        is_causal: Whether query i sees keys up to i only.
        needs_weights: Whether the weights are returned.
        gain: The factor on weights that dropout keeps.
    """

    dimension: float
    bandwidth: float
    is_causal: bool = False
    needs_weights: bool = False
    gain: float = 1.0

    def formula(self, inputs: Inputs, first: int = 0) -> tuple[Tensor, Tensor | None]:
        """Return averages and weights (None unless wanted), in plain aten; `first` is the first query's position.

        A query that sees no key has weights of zeros, and zeros as gradients.
        """
        q = inputs.q * (1 / self.bandwidth)
        products = q @ inputs.k.mT
        if not inputs.k.shape[2]:
            return products @ inputs.v, products if self.needs_weights else None  # sums of nothing
        hidden = self._hidden(inputs, products, first)
        logarithms = self._logarithms(inputs, q, products, hidden)
        if inputs.bias is None or hidden is None:  # the first key is always seen
            weights = torch.softmax(logarithms, -1)
        else:
            is_blind = hidden.all(-1, keepdim=True)
            # Zeros first, because the softmax of a row of minus infinities is NaN, and so is its gradient.
            weights = torch.softmax(logarithms.masked_fill(is_blind, 0.0), -1).masked_fill(is_blind, 0.0)
        if inputs.kept is not None:
            weights = weights * inputs.kept * self.gain
        return weights @ inputs.v, weights if self.needs_weights else None

    def _logarithms(self, inputs: Inputs, q: Tensor, products: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the logarithms of the weights up to a constant per query, [batch, heads, queries, keys].

        Args:
            inputs: The tensors of the call.
            q: Queries divided by the bandwidth.
            products: Their inner products with the keys, [batch, heads, queries, keys].
            hidden: Which keys a query does not see, or None.
        """
        if inputs.alpha is None:
            found = 2 * products
        else:
            exponent = (self.dimension + inputs.alpha).to(products.dtype)
            found = -exponent * torch.log1p(self._distances(inputs, q, products, hidden))
        if inputs.bias is not None:
            found = found + inputs.bias
        return found if hidden is None else found.masked_fill(hidden, -torch.inf)

    def _distances(self, inputs: Inputs, q: Tensor, products: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the distances of queries and lifted keys divided by the square root of the bandwidth.

        Arguments and shape are those of `_logarithms`.
        """
        squares = inputs.k.square().sum(-1).unsqueeze(-2) * (1 / self.bandwidth)  # [batch, heads, 1, keys]
        radius = (squares if hidden is None else squares.masked_fill(hidden, 0.0)).amax(-1, keepdim=True)
        own = (q * inputs.q).sum(-1, keepdim=True)
        squared = torch.add(own + radius, products, alpha=-2)
        # The square root has no finite slope at 0; values below 0 are rounding.
        return squared.clamp_min(torch.finfo(squared.dtype).eps).sqrt()

    def _hidden(self, inputs: Inputs, products: Tensor, first: int) -> Tensor | None:
        """Return the mask `hidden`, True at the keys that a query does not see; None where all keys are seen.

        Args:
            inputs: The tensors of the call, all keys and some of the queries.
            products: A tensor whose shape is [..., queries, keys].
            first: The position of the first of these queries in the sequence.
        """
        later = None
        if self.is_causal:
            queries, keys = products.shape[-2:]
            later = torch.ones(queries, keys, dtype=torch.bool, device=products.device).triu(first + 1)
        if inputs.bias is None:
            return later
        bias = inputs.bias.detach()
        bias = bias if later is None else bias.masked_fill(later, -torch.inf)
        return (bias == -torch.inf) | (bias < bias.amax(-1, keepdim=True) - NEGLIGIBLE)

    def pulled(
        self, inputs: Inputs, grads: Sequence[Tensor | None], wanted: Sequence[bool], first: int = 0
    ) -> list[Tensor | None]:
        """Return the gradients in q, k, v, bias and alpha, None where not wanted: compute the formula again, and back.

        Args:
            inputs: The tensors of the call, or of a part of it.
            grads: Gradients of the averages and of the weights, None where there is none.
            wanted: Which of the five gradients are wanted.
            first: The position of the first query in the sequence.
        """
        with torch.enable_grad():
            leaves = [
                None if tensor is None else tensor.detach().requires_grad_(wants)
                for tensor, wants in zip(inputs[:5], wanted, strict=True)
            ]
            results = self.formula(Inputs._make([*leaves, inputs.kept]), first)
        return gradients(results, grads, leaves)


def gradients(
    results: Sequence[Tensor | None], grads: Sequence[Tensor | None], leaves: Sequence[Tensor | None], **how: bool
) -> list[Tensor | None]:
    """Return the gradient in each leaf that requires one, None for the others.

    Args:
        results: Tensors computed from the leaves; None are passed over.
        grads: Gradients of the results; results whose gradient is None are passed over.
        leaves: The tensors to differentiate in.
        **how: Further arguments of `torch.autograd.grad`.
    """
    pairs = [(y, g) for y, g in zip(results, grads, strict=True) if y is not None and g is not None]
    asked = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    ys, gs = [y for y, _ in pairs], [g for _, g in pairs]
    found = iter(torch.autograd.grad(ys, asked, gs, allow_unused=True, **how))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def along(tensor: Tensor, place: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the slices `place` for a tensor that broadcasts: an axis of size 1 is taken whole."""
    return tuple(slice(None) if size == 1 else part for size, part in zip(tensor.shape, place, strict=True))


Place = tuple[slice, slice, slice]  # items of the batch, queries, keys
Averages = tuple[Tensor, Tensor | None]
Gradients = list[Tensor | None]


def items(inputs: Inputs, rows: int | None) -> Iterator[Place]:
    """Yield places that split the batch: items with at most `rows` heads together, or one item; None: the whole batch.

    All queries and keys of an item are in its place.
    """
    batch, heads, queries, _ = inputs.q.shape
    count = batch if rows is None else max(1, rows // heads)
    for begin in range(0, batch, count):
        yield slice(begin, begin + count), slice(0, queries), slice(0, inputs.k.shape[2])


def averaged(
    places: Iterable[Place], inputs: Inputs, needs_weights: bool, run: Callable[[Inputs, int], Averages]
) -> Averages:
    """Return averages and weights (None unless wanted) of all queries, computed part by part.

    Args:
        places: The parts, as slices of the batch, of the queries and the keys.
        inputs: The tensors of the call.
        needs_weights: Whether the weights are returned.
        run: Returns averages and weights of a part, from its Inputs and the position of its first query.
    """
    shape = inputs.q.shape
    y = inputs.v.new_empty(*shape[:3], inputs.v.shape[-1])
    weights = inputs.v.new_zeros(*shape[:3], inputs.k.shape[2]) if needs_weights else None
    for some, queries, keys in places:
        y[some, :, queries], found = run(inputs.part(some, queries, keys), queries.start)
        if weights is not None and found is not None:
            weights[some, :, queries, keys] = found
    return y, weights


def pulled(
    places: Iterable[Place],
    inputs: Inputs,
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
    run: Callable[[Inputs, Sequence[Tensor | None], int], Gradients],
) -> Gradients:
    """Return the gradients in q, k, v, bias and alpha, None where not wanted: the sums of the gradients of all parts.

    Args:
        places: The parts, as slices of the batch, of the queries and the keys.
        inputs: The tensors of the call.
        grads: Gradients of the averages and of the weights, None where there is none.
        wanted: Which of the five gradients are wanted.
        run: Returns a part's gradients, from its Inputs, its results' gradients and the position of its first query.
    """
    total = [
        torch.zeros_like(tensor) if wants and tensor is not None else None
        for tensor, wants in zip(inputs[:5], wanted, strict=True)
    ]
    (gy, gweights), every = grads, slice(None)
    for some, queries, keys in places:
        mine = (
            None if gy is None else gy[some, :, queries],
            None if gweights is None else gweights[some, :, queries, keys],
        )
        found = run(inputs.part(some, queries, keys), mine, queries.start)
        of_bias = () if inputs.bias is None else along(inputs.bias, (some, every, queries, keys))
        where = ((some, every, queries), (some, every, keys), (some, every, keys), of_bias, ())
        for whole, part, place in zip(total, found, where, strict=True):
            if whole is not None and part is not None:
                whole[place] += part
    return total


_CALLS = 12  # dispatches of one forward pass
_PASSES = 9  # element-wise passes over the weights, each read and written
_KEPT = 8 << 20  # bytes: on a CPU the system takes larger arrays back, and hands each out anew, page by page
_PAGE = 8 * 4096  # bytes that are handed out in the time of a dispatch
_HELD = 4  # arrays of the weights' size that exist at once, forward
_BACK = 3  # a backward pass: the formula again, and its transposes


def _pairs(workload: Workload) -> int:
    """Return the number of pairs of a query and a key over all heads and the batch; `exponentials` counts the keys."""
    return workload.rows * workload.n * workload.exponentials


def _cost_dense(workload: Workload) -> Cost:
    times = 1 + _BACK * workload.needs_gradient
    found = float(_pairs(workload))
    weights = found * workload.itemsize
    pages = weights / _PAGE if weights > _KEPT and workload.device == "cpu" else 0.0
    return Cost(
        flops={"matmul": 4.0 * found * workload.width * times, "elementwise": _PASSES * found * times},
        bytes=2.0 * _PASSES * weights * times + 4.0 * workload.bytes * times,
        launches=int((_CALLS + _PASSES * pages) * times),
        workspace=weights * (_HELD + 2 * _HELD * workload.needs_gradient),
    )


def _saved(workload: Workload) -> float:
    """Return the bytes that are saved for the backward pass: queries, keys and values."""
    return float(workload.bytes + 2 * workload.rows * workload.exponentials * workload.width * workload.itemsize)


register(
    Kernel(ATTENTION, "torch", "torch", "dense", Attention.formula, Attention.pulled, cost=_cost_dense, saves=_saved)
)


BLOCK = 1 << 18  # weights: 1 MiB in float32; the best of 2**15 to 2**20 on a core with 2 MiB of second-level cache


def _run_blocks(attention: Attention, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    return averaged(blocks(attention, inputs), inputs, attention.needs_weights, attention.formula)


def _adjoint_blocks(
    attention: Attention, inputs: Inputs, grads: Sequence[Tensor | None], wanted: Sequence[bool]
) -> list[Tensor | None]:
    def pull(part: Inputs, some: Sequence[Tensor | None], first: int) -> list[Tensor | None]:
        return attention.pulled(part, some, wanted, first)

    return pulled(blocks(attention, inputs), inputs, grads, wanted, pull)


def blocks(attention: Attention, inputs: Inputs) -> Iterator[Place]:
    """Yield the places of the kernel's blocks: several items of the batch where they are short, else queries of one."""
    batch, heads, queries, _ = inputs.q.shape
    keys = inputs.k.shape[2]
    items = max(1, BLOCK // max(1, heads * queries * keys))
    rows = queries if items > 1 else max(1, min(queries, BLOCK // max(1, heads * keys)))
    for item in range(0, batch, items):
        for row in range(0, queries, rows):
            last = min(row + rows, queries)
            seen = min(last, keys) if attention.is_causal else keys
            yield slice(item, item + items), slice(row, last), slice(0, seen)


def _cost_blocks(workload: Workload) -> Cost:
    whole, gradient = _cost_dense(workload), workload.needs_gradient
    blocks = max(1.0, _pairs(workload) / BLOCK)
    # Of several blocks the weights stay in the cache; keys and values are read again by every block of their head.
    again = blocks * 2.0 * workload.exponentials * workload.width * workload.itemsize
    return Cost(
        flops=whole.flops,
        bytes=whole.bytes if blocks == 1 else whole.bytes / 3 + again,
        launches=int((_CALLS * (1 + _BACK * gradient) + 8 * (1 + gradient)) * blocks),
        workspace=min(whole.workspace, 12.0 * BLOCK * workload.itemsize),
    )


register(Kernel(ATTENTION, "torch", "torch", "blocks", _run_blocks, _adjoint_blocks, cost=_cost_blocks, saves=_saved))
