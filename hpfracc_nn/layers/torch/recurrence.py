"""A recurrence over a series: by the loops of its cell, with their gradients, or in plain torch for what traces it.

A plain call runs the cell's loop inside one custom autograd function, which keeps the gates, the memories and what was
remembered; the loop back is the transpose, with the memory run backwards in time. A call that functorch or forward mode
looks at, a backward pass that is differentiated again and batched gradients take the same formula in plain torch, which
adds up the past by all of its exact weights.

A series has the steps 1 to n, which are rows 0 to n - 1 of tensors [n, batch, ...]. At each step a cell has a value of
every unit, which is remembered, [n, batch, units] in all (c of an LSTM), and an output, [n, batch, outputs]; its memory
is the sum of the past values by the weights of their lags. Step 0 is the start.

The input's part of the gates is computed for all steps before. In both loops a step is a few operations that write into
rows of buffers; what does not depend on the step before is computed for a block of steps at once. The past is added up
by a solver's history (`solvers/torch/memory.py`): the same operation, the same kernels, forward and backward.

Inside torch.compile and torch.export a recurrence is one custom operation, whatever the number of steps: a compiler
that followed the loop would unroll it, which takes minutes at some hundred steps. It sees the shapes and the operation
of the backward pass instead; both ask the manager when they run. They take tensors, numbers and names only, so that an
exported graph holds no address: the fields of `Inputs`, then those of `Names`. Where an exported graph runs, the
operation is the plain call; where a transform or forward mode looks at a graph, it is the plain formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.torch.derivatives import derivatives
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import (
    PLAIN,
    has_tangent,
    is_batched,
    is_plain,
    is_watched,
    plainly,
    uncompiled,
)
from hpfracc_nn.layers.order import memory_nodes
from hpfracc_nn.selection import Site, default_manager, is_process_wide
from hpfracc_nn.selection.workload import Direction
from hpfracc_nn.solvers.history import Automatic, Window
from hpfracc_nn.solvers.torch import kernels  # noqa: F401  registered on import
from hpfracc_nn.solvers.torch.memory import Memory, Toeplitz, TrackedSums, picked
from hpfracc_nn.solvers.torch.state import NAMES, Layout

_BLOCK = 32  # steps of the plain formula that share one product with what is older
_KEPT_LAGS = 1 << 15  # weights of fixed orders are kept for another series up to so many of all units


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A cell with a memory.

    Attributes:
        cell: One step.
        site: Picks the kernel that adds up the past.
        window: The largest lag that counts, or None.
        definition: The difference whose weights the memory has; where alpha is learned, of any order within its bounds.
    """

    cell: Cell
    site: Site
    window: int | None
    definition: GrunwaldLetnikov

    def __call__(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the outputs [n, batch, outputs] and what is remembered of steps 1 to n, [n, batch, units]."""
        present = [each for each in inputs if each is not None]
        if torch.is_inference_mode_enabled():
            # The kernels keep working memory, and autograd refuses tensors that inference mode made.
            with torch.inference_mode(False), torch.no_grad():
                return self(inputs)
        is_usual = is_plain(inputs.projected) and {type(each) for each in present}.issubset(PLAIN)
        if not is_usual or inputs.projected.is_meta or not inputs.projected.numel():
            return self.formula(inputs)
        if torch.is_grad_enabled() and True in [each.requires_grad for each in present]:
            return _Recorded.apply(self, *inputs)
        sums = Sums(self, inputs, needs_gradient=False)
        record = self.cell.run(inputs, sums, keeps=False)
        return record.out.contiguous(), _remembered(sums, record)

    def formula(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the same in plain torch."""
        n, window = inputs.projected.shape[0], self.window
        weights = lag_weights(inputs.alpha, n + 1, window).to(inputs.value.dtype)
        by_lag = weights.reshape(-1, n + 1).t()[:, None, None]  # [n + 1, one set, 1, orders], like [batch, units]
        h, values, out = inputs.h, [inputs.value], []
        for first in range(0, n + 1, _BLOCK):
            end = min(first + _BLOCK, n + 1)
            older = 0 if window is None else max(0, first - window)
            sums = TrackedSums(_far(weights, values[older:first], inputs.value, end - first), by_lag)
            m = sums.first
            for k in range(first, end):
                if k:
                    h, value = self.cell.step(inputs, inputs.projected[k - 1], h, m)
                    out.append(h)
                    values.append(value)
                if k + 1 < end:
                    m = sums.following(k - first, values[k])
        return torch.stack(out), torch.stack(values[1:])


def _remembered(sums: Sums, record: Record) -> Tensor:
    """Return the values of all steps, [n, batch, units], without their graph.

    They are a view of the memory that is an output too, which autograd must not see.

    Args:
        sums: The past of the series, which has its layout.
        record: What the loop has kept.
    """
    return sums.layout.as_state(record.values)[1:, 0].detach()


def _far(weights: Tensor, values: list[Tensor], like: Tensor, rows: int) -> Tensor:
    """Return what past values add to the memories of the next steps, [rows, batch, units].

    Args:
        weights: By lag, [n + 1] or [units, n + 1].
        values: The latest ones, the newest last, [batch, units] each.
        like: A tensor of that shape and dtype.
        rows: How many steps come next.
    """
    if not values:
        return like.new_zeros(rows, *like.shape)
    past, count = torch.stack(values), len(values)
    steps = torch.arange(count, count + rows, device=like.device)
    lags = steps[:, None] - torch.arange(count, device=like.device)
    if weights.ndim == 1:
        return torch.tensordot(weights[lags], past, 1)
    return torch.einsum("urj,jbu->rbu", weights[:, lags], past)


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recurrence: Recurrence, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs = Inputs(*tensors)  # type: ignore[arg-type]
        sums = Sums(recurrence, inputs, needs_gradient=True)
        record = recurrence.cell.run(inputs, sums, keeps=True)
        ctx.recurrence, ctx.sums = recurrence, sums
        ctx.save_for_backward(*inputs, record.out, record.values, *record.kept)
        ctx.set_materialize_grads(False)
        out = record.out.clone(memory_format=torch.contiguous_format)  # the caller may change the outputs in place
        return out, _remembered(sums, record)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        count = len(Inputs._fields)
        saved = ctx.saved_tensors  # once: a checkpoint recomputes them when they are asked for
        inputs, kept = Inputs(*saved[:count]), saved[count:]
        out, values = grads
        needs = ctx.needs_input_grad[1:]
        if out is None and values is None:
            return (None,) * (1 + count)
        present = [each for each in grads if each is not None]
        if torch.is_grad_enabled() or any(is_batched(each) or has_tangent(each) for each in present):
            out = torch.zeros_like(kept[0]) if out is None else out
            values = inputs.value.new_zeros(len(out), *inputs.value.shape) if values is None else values
            found = iter(_formula_backward(ctx.recurrence, inputs, out, values))
            return None, *(None if each is None else next(found) for each in inputs)
        sums: Sums = ctx.sums
        ctx.recurrence.site.again(sums.plan)
        record, learns = Record(kept[0], kept[1], kept[2:]), needs[Inputs._fields.index("alpha")]
        with torch.autocast(inputs.value.device.type, enabled=False):
            return None, *gradients_by_loop(ctx.recurrence, inputs, record, sums, out, values, learns=learns)


def gradients_by_loop(
    recurrence: Recurrence,
    inputs: Inputs,
    record: Record,
    sums: Sums,
    out: Tensor | None,
    values: Tensor | None,
    *,
    learns: bool,
) -> tuple[Tensor | None, ...]:
    """Return the gradients in the inputs, in their order.

    Args:
        recurrence: The cell and its memory.
        inputs: Those of the forward pass.
        record: What the forward loop kept.
        sums: With the plan of the pass.
        out: Cotangents of the outputs, or None.
        values: Of what is remembered of steps 1 to n, or None.
        learns: Whether alpha's gradient is wanted.
    """
    pulled = recurrence.cell.pull(inputs, record, sums, torch.zeros_like(record.out) if out is None else out, values)
    alpha = None
    if learns:
        alpha = sums.order_gradient(record.values, pulled.memories).reshape(inputs.alpha.shape)
    return pulled.projected, pulled.h, pulled.value, alpha, pulled.weight, pulled.bias, pulled.projection


class Inputs(NamedTuple):
    """The tensors that a recurrence over n steps takes, all but alpha of one dtype.

    Attributes:
        projected: The input's part of the gates, [n, batch, gates * units].
        h: The output at the start, [batch, outputs].
        value: What is remembered of the start, [batch, units].
        alpha: [] or [units], float64.
        weight: `weight_hh`, [gates * units, outputs].
        bias: `bias_hh` where it is not in `projected`, or None.
        projection: `weight_hr`, [outputs, units], or None.
    """

    projected: Tensor
    h: Tensor
    value: Tensor
    alpha: Tensor
    weight: Tensor
    bias: Tensor | None
    projection: Tensor | None


class Record(NamedTuple):
    """What the loop over the steps returns, and keeps for the loop back.

    Attributes:
        out: The outputs, [n, batch, outputs].
        values: What is remembered of all steps from the start on, as a past has them.
        kept: What the loop back needs besides.
    """

    out: Tensor
    values: Tensor
    kept: tuple[Tensor, ...]


class Cotangents(NamedTuple):
    """Cotangents of the inputs, and of the memories of all steps, the last step first."""

    projected: Tensor
    h: Tensor
    value: Tensor
    weight: Tensor
    bias: Tensor | None
    projection: Tensor | None
    memories: Tensor


class Cell(Protocol):
    """A kind of cell.

    Attributes:
        name: By which graphs know it.
        gates: How many gates a unit has.
        keeps: The sizes of what is kept for the loop back, in numbers per unit and step.
    """

    name: ClassVar[str]
    gates: ClassVar[int]
    keeps: ClassVar[tuple[int, ...]]

    def step(self, inputs: Inputs, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and what is remembered, in plain torch.

        Args:
            inputs: The weights.
            x: The input's part of the gates.
            h: The output before.
            m: The memory.
        """
        ...

    def run(self, inputs: Inputs, sums: Sums, *, keeps: bool) -> Record:
        """Take all steps, without a graph; `keeps` is whether the loop back follows."""
        ...

    def pull(self, inputs: Inputs, record: Record, sums: Sums, out: Tensor, values: Tensor | None) -> Cotangents:
        """Return the cotangents for those of the outputs and, after the start, of what is remembered."""
        ...


class LSTMCell:
    """c = f * m + i * g and h = o * tanh(c), with gates i, f, g, o as in `torch.nn.LSTM`."""

    name: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4
    keeps: ClassVar[tuple[int, ...]] = (4, 1)

    def step(self, inputs: Inputs, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cell`."""
        i, f, g, o = (x + F.linear(h, inputs.weight)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * m + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return (h if inputs.projection is None else F.linear(h, inputs.projection)), c

    def run(self, inputs: Inputs, sums: Sums, *, keeps: bool) -> Record:
        """See `Cell`."""
        x, n = inputs.projected, inputs.projected.shape[0]
        units = x.shape[-1] // 4
        past = sums.past("forward")
        past.views[0] = inputs.value
        cells, out = past.views[1:].unbind(), torch.empty_like(x[..., : inputs.h.shape[-1]]).contiguous()
        gates = _rows(x, n if keeps else 1, 4 * units)
        memories = _rows(x, n if keeps else 0, units)
        both, others = gates[..., : 2 * units].unbind(), gates.chunk(4, dim=-1)
        i, f, g, o = [each.unbind() for each in others]
        all_gates, held, results = gates.unbind(), memories.unbind(), out.unbind()
        shown = x.new_empty(x.shape[1], units)
        weight, h = inputs.weight.t().contiguous(), inputs.h
        for rows in _blocks(past, n):
            for k in rows:
                j = k if keeps else 0
                torch.addmm(x[k], h, weight, out=all_gates[j])
                both[j].sigmoid_()
                g[j].tanh_()
                o[j].sigmoid_()
                m = past.memory(k + 1)
                c = torch.mul(f[j], m, out=cells[k]).addcmul_(i[j], g[j])
                if keeps:
                    held[k].copy_(m)
                torch.tanh(c, out=shown)
                h = results[k]
                if inputs.projection is None:
                    torch.mul(o[j], shown, out=h)
                else:
                    torch.mm(shown.mul_(o[j]), inputs.projection.t(), out=h)
        past.tell()
        return Record(out, past.values, (gates, memories) if keeps else ())

    def pull(self, inputs: Inputs, record: Record, sums: Sums, out: Tensor, values: Tensor | None) -> Cotangents:
        """See `Cell`."""
        gates, memories = record.kept
        n, batch, width = gates.shape
        units, projection = width // 4, inputs.projection
        past, cells = sums.past("backward"), sums.layout.as_state(record.values)[1:, 0]
        slots = past.views.unbind()
        pulled = torch.empty_like(gates)
        inner, outer, rows = pulled.view(n, batch, 4, units)[:, :, :3].unbind(), pulled[..., 3 * units :].unbind(), None
        outputs = torch.empty_like(out, memory_format=torch.contiguous_format)
        for first, last in _back(past, n):
            i, f, g, o = gates[first:last].chunk(4, dim=-1)
            shown = torch.tanh(cells[first:last])
            through = torch.addcmul(o, o, shown.square(), value=-1)
            of_o = shown * o * (1 - o)
            parts = (g * i * (1 - i), memories[first:last] * f * (1 - f), i * (1 - g * g))
            of_c = torch.stack(parts, dim=2)
            for k in reversed(range(first, last)):
                j = k - first
                gh = outputs[k]
                if rows is None:
                    gh.copy_(out[k])
                else:
                    torch.addmm(out[k], rows, inputs.weight, out=gh)
                if projection is not None:
                    gh = gh @ projection
                gc = torch.addcmul(past.memory(n - 1 - k), gh, through[j])
                if values is not None:
                    gc = gc + values[k]
                torch.mul(of_c[j], gc[:, None], out=inner[k])
                torch.mul(of_o[j], gh, out=outer[k])
                torch.mul(gc, f[j], out=slots[n - 1 - k])
                rows = pulled[k]
        assert rows is not None, "there is a step"
        value = past.memory(n)
        past.tell()
        of_projection = None
        if projection is not None:
            raw = gates[..., 3 * units :] * torch.tanh(cells)
            of_projection = outputs.flatten(0, 1).t() @ raw.flatten(0, 1)
        of_weight = _of_weight(pulled, inputs.h, record.out)
        return Cotangents(pulled, rows @ inputs.weight, value, of_weight, None, of_projection, past.values)


class GRUCell:
    """h = (1 - z) * n + z * m, with gates r, z, n as in `torch.nn.GRU`."""

    name: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3
    keeps: ClassVar[tuple[int, ...]] = (3, 1, 1)

    def step(self, inputs: Inputs, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cell`."""
        of_r, of_z, of_n = x.chunk(3, dim=-1)
        r, z, q = F.linear(h, inputs.weight, inputs.bias).chunk(3, dim=-1)
        r, z = torch.sigmoid(of_r + r), torch.sigmoid(of_z + z)
        n = torch.tanh(of_n + r * q)
        h = n + z * (m - n)
        return h, h

    def run(self, inputs: Inputs, sums: Sums, *, keeps: bool) -> Record:
        """See `Cell`."""
        x, steps = inputs.projected, inputs.projected.shape[0]
        units = x.shape[-1] // 3
        past = sums.past("forward")
        past.views[0] = inputs.value
        results = past.views[1:].unbind()
        gates = _rows(x, steps if keeps else 1, 3 * units)  # r, z, and what r multiplies
        news, memories = [_rows(x, steps if keeps else 1, units) for _ in range(2)]
        both, (_, z, q) = gates[..., : 2 * units].unbind(), [each.unbind() for each in gates.chunk(3, dim=-1)]
        r = gates[..., :units].unbind()
        x_both, x_new = x[..., : 2 * units].unbind(), x[..., 2 * units :].unbind()
        all_gates, new, held = gates.unbind(), news.unbind(), memories.unbind()
        weight, h = inputs.weight.t().contiguous(), inputs.h
        for rows in _blocks(past, steps):
            for k in rows:
                j = k if keeps else 0
                if inputs.bias is None:
                    torch.mm(h, weight, out=all_gates[j])
                else:
                    torch.addmm(inputs.bias, h, weight, out=all_gates[j])
                both[j].add_(x_both[k]).sigmoid_()
                n = torch.addcmul(x_new[k], r[j], q[j], out=new[j]).tanh_()
                m = held[j].copy_(past.memory(k + 1))
                h = torch.lerp(n, m, z[j], out=results[k])
        past.tell()
        return Record(past.views[1:], past.values, (gates, news, memories) if keeps else ())

    def pull(self, inputs: Inputs, record: Record, sums: Sums, out: Tensor, values: Tensor | None) -> Cotangents:
        """See `Cell`."""
        gates, news, memories = record.kept
        steps, batch, width = gates.shape
        units = width // 3
        past = sums.past("backward")
        slots = past.views.unbind()
        # The first three are what passes through weight_hh: r, z, what r multiplies. With n last, x has r, z, n.
        pulled = gates.new_empty(steps, batch, 4, units)
        hidden = pulled.view(steps, batch, -1)[..., :width]
        each, through, rows = pulled.unbind(), hidden.unbind(), None
        for first, last in _back(past, steps):
            r, z, q = gates[first:last].chunk(3, dim=-1)
            n = news[first:last]
            of_n = (1 - z) * (1 - n * n)
            of_r = of_n * q * r * (1 - r)
            of_z = (memories[first:last] - n) * z * (1 - z)
            parts = torch.stack((of_r, of_z, of_n * r, of_n), dim=2)
            for k in reversed(range(first, last)):
                j = k - first
                g = past.memory(steps - 1 - k) + out[k]
                if rows is not None:
                    g = torch.addmm(g, rows, inputs.weight)
                if values is not None:
                    g = g + values[k]
                torch.mul(parts[j], g[:, None], out=each[k])
                torch.mul(g, z[j], out=slots[steps - 1 - k])
                rows = through[k]
        assert rows is not None, "there is a step"
        value = past.memory(steps)
        past.tell()
        of_x = torch.cat([pulled[:, :, :2].flatten(2), pulled[:, :, 3]], dim=-1)
        of_bias = None if inputs.bias is None else hidden.sum((0, 1))
        of_weight = _of_weight(hidden, inputs.h, record.out)
        return Cotangents(of_x, rows @ inputs.weight, value, of_weight, of_bias, None, past.values)


CELLS: dict[str, Cell] = {cell.name: cell for cell in (LSTMCell(), GRUCell())}


def _rows(like: Tensor, count: int, width: int) -> Tensor:
    return like.new_empty(count, like.shape[1], width)


def _blocks(past: Memory, n: int) -> Iterator[range]:
    """Yield the rows of a forward loop, 0 to n - 1, block by block; each begins the next block of the past."""
    for first in range(0, n + 1, past.block):
        end = past.begin(first)
        yield range(max(first, 1) - 1, end - 1)


def _back(past: Memory, n: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of a backward loop as pairs (first, last), the latest rows first; `last` is not included.

    Each begins the next block of `past`, a history that runs backwards in time over n steps.
    """
    for first in range(0, n + 1, past.block):
        end = past.begin(first)
        if first < n:
            yield max(n - end, 0), n - first


def _of_weight(pulled: Tensor, h: Tensor, out: Tensor) -> Tensor:
    """Return the gradient of `weight_hh`, which multiplies the output of the step before.

    Args:
        pulled: Gradients of the gates before their nonlinearity, [n, batch, gates * units].
        h: The output at the start, [batch, outputs].
        out: The outputs of the steps, [n, batch, outputs].
    """
    found = pulled[0].t() @ h
    if pulled.shape[0] > 1:
        found = found.addmm_(pulled[1:].flatten(0, 1).t(), out[:-1].flatten(0, 1))
    return found


def operation(window: int | None) -> str:
    """Return the operation that adds up the past: all of it, or a window."""
    return Automatic.op if window is None else Window.op


def lag_weights(alpha: Tensor, count: int, window: int | None = None) -> Tensor:
    """Return a_0 = 0, a_1, a_2, ..., for alpha [*c] float64: [*c, count]; 0 from lag `window` + 1 on.

    By the recurrence w_k = w_(k-1) (k - 1 - alpha) / k, in operations that compilers and transforms follow.
    """
    lag = torch.arange(1, count, dtype=torch.float64, device=alpha.device)
    weights = -torch.cumprod((lag - 1 - alpha[..., None]) / lag, dim=-1)
    if window is not None:
        weights = weights * (lag <= window)
    return F.pad(weights, (1, 0))


class Weights(NamedTuple):
    """The weights of a memory over n steps.

    Attributes:
        layout: How a value is laid out.
        nodes: The exponentials that stand for the weights, or None.
        toeplitz: The weights by lag, and the coefficients of the exponentials.
    """

    layout: Layout
    nodes: Nodes | None
    toeplitz: Toeplitz


def weights_of(
    definition: GrunwaldLetnikov, alpha: Tensor, shape: torch.Size, like: Tensor, n: int, window: int | None
) -> Weights:
    """Return the weights of orders alpha, [orders] in float64, for values [batch, units] in the dtype of `like`."""
    orders = alpha.numel()
    if definition.bounds is not None:  # certified once between them, not for each alpha
        definition = replace(definition, alpha=alpha)
    nodes = memory_nodes(definition, n, NAMES[like.dtype], window)
    column = lag_weights(alpha, _count(n, nodes), window)
    layout = Layout((shape,), False, (1, orders) if orders > 1 else (1, 1))
    return Weights(layout, nodes, _toeplitz(column, nodes, like, n, window))


@lru_cache(maxsize=32)
def _fixed(
    alpha: float | tuple[float, ...],
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
    n: int,
    window: int | None,
) -> Weights:
    """Return the weights of a fixed order, from a cache.

    Args:
        alpha: One order, or one for each unit.
        shape: Of a value, [batch, units].
        dtype: Of the values.
        device: Theirs.
        n: Steps of the series.
        window: How many lags are remembered; None: all.
    """
    like = torch.empty(0, dtype=dtype, device=device)
    orders = torch.tensor(alpha, dtype=torch.float64, device=device).reshape(-1)
    return weights_of(GrunwaldLetnikov(alpha), orders, shape, like, n, window)


class Sums:
    """The past of one series added up: its weights, the plan, and what both passes put in.

    Steps go from 0, the start, to n.

    Args:
        recurrence: Whose memory it is.
        inputs: What the recurrence is computed from.
        needs_gradient: Whether there will be a backward pass.
        direction: Of the pass that asks for a plan; a backward pass without a forward pass before asks itself.
    """

    def __init__(
        self, recurrence: Recurrence, inputs: Inputs, *, needs_gradient: bool, direction: Direction = "forward"
    ):
        self.recurrence, self.n, self._like = recurrence, inputs.projected.shape[0], inputs.value
        self._alpha = inputs.alpha.detach().reshape(-1)
        definition, like, n, window = recurrence.definition, self._like, self.n, recurrence.window
        if definition.bounds is None and n * self._alpha.numel() <= _KEPT_LAGS:
            weights = _fixed(definition.alpha, like.shape, like.dtype, like.device, n, window)
        else:
            weights = weights_of(definition, self._alpha, like.shape, like, n, window)
        self.layout, self._nodes, self._weights = weights
        states = 0 if self._nodes is None else self._nodes.rates.size
        self.plan = picked(self.recurrence.site, self.layout, self._like, self.n, states, needs_gradient, direction)

    def past(self, direction: Direction) -> Memory:
        """Return an empty past; in the backward one step k is step n - k of the series, which is the transpose."""
        return Memory(self._weights, self.recurrence.site, self.plan, direction, self.layout, self._like)

    def order_gradient(self, values: Tensor, cotangents: Tensor) -> Tensor:
        """Return the gradient in alpha, [orders] in float64: the weights' derivatives add up the same past.

        Args:
            values: What was remembered, as a past has them.
            cotangents: Of the memories of all steps, in the order of a backward past.
        """
        past = Memory(self._slopes(), self.recurrence.site, self.plan, "backward", self.layout, self._like)
        past.values.copy_(values)
        pulled = cotangents.flip(1)
        found = torch.zeros(self.layout.orders, dtype=torch.float64, device=values.device)
        for first in range(0, self.n + 1, past.block):
            end = past.begin(first)
            moved = self.layout.as_matrix(past.memories(first, end)[0])
            found += (moved * pulled[:, first:end, 0]).sum((1, 2), dtype=torch.float64)
        return found

    def _slopes(self) -> Toeplitz:
        """Return the derivatives of the weights in alpha; those of the exponentials follow, being linear in them."""
        count, window = _count(self.n, self._nodes), self.recurrence.window
        (found,) = derivatives(lambda alpha: [lag_weights(alpha, count, window)], self._alpha)
        return _toeplitz(found, self._nodes, self._like, self.n, window)


def _count(n: int, nodes: Nodes | None) -> int:
    """Return how many lags, lag 0 included, have their weights computed.

    Args:
        n: Steps of the series.
        nodes: The exponentials that stand for old lags, and the lags that they are fitted to; None: there are none.
    """
    return n + 1 if nodes is None else max(n, int(nodes.lags[-1])) + 1


def _toeplitz(weights: Tensor, nodes: Nodes | None, like: Tensor, n: int, window: int | None) -> Toeplitz:
    columns = weights[:, : n + 1].to(like)[:, None, None]
    if nodes is None:
        return Toeplitz(columns, reach=window)
    fitted = nodes.fit(TORCH.take(weights, nodes.lags, axis=-1), TORCH)
    return Toeplitz(columns, nodes, fitted.to(like)[:, None, None])


_SCHEMA = (
    "Tensor projected, Tensor h, Tensor value, Tensor alpha, Tensor weight, Tensor? bias, Tensor? projection, "
    "str cell, int window, float[] orders, float[] bounds"
)
_LIBRARY = torch.library.Library("hpfracc_nn", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
# traced: whether a compiler's graph calls
_LIBRARY.define(f"recurrence({_SCHEMA}, bool traced=False) -> (Tensor, Tensor)", tags=_TAGS)
_LIBRARY.define(f"recurrence_kept({_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", tags=_TAGS)
_LIBRARY.define(
    f"recurrence_backward({_SCHEMA}, Tensor[] made, Tensor out, Tensor values, bool learns) -> Tensor[]", tags=_TAGS
)
FORWARD = torch.ops.hpfracc_nn.recurrence.default
KEPT = torch.ops.hpfracc_nn.recurrence_kept.default
BACKWARD = torch.ops.hpfracc_nn.recurrence_backward.default

_INPUTS = len(Inputs._fields)
_ALPHA = Inputs._fields.index("alpha")
_KEPT = 3  # tensors at most
_ROWS = torch.contiguous_format
_WHOLE = 0  # in place of a window: all of the past

Found = tuple[Tensor, ...]


class Names(NamedTuple):
    """The arguments of the operation that are no tensors."""

    cell: str
    window: int
    orders: Sequence[float]
    bounds: Sequence[float]


def compiled(recurrence: Recurrence, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return what the recurrence does, in a way that a compiler can follow.

    Raises:
        ValueError: In torch.export, where the manager is the caller's own.
    """
    definition = recurrence.definition
    if not is_process_wide(recurrence.site.manager):
        if torch.compiler.is_exporting():
            raise ValueError(
                "a recurrent layer: torch.export needs the process-wide BackendManager; leave manager=None and "
                "configure() that manager."
            )
        return _outside(recurrence, inputs)
    bounds = [] if definition.bounds is None else list(definition.bounds)
    orders = [] if bounds else list(definition.orders)
    window = _WHOLE if recurrence.window is None else recurrence.window
    return FORWARD(*inputs, recurrence.cell.name, window, orders, bounds)  # type: ignore[no-any-return]


def _outside(recurrence: Recurrence, inputs: Inputs) -> tuple[Tensor, Tensor]:
    return recurrence(inputs)


uncompiled(_outside, "a graph cannot name a BackendManager of the caller's own; it runs outside")


# Forward


def _run(arguments: Sequence[Any], *, keeps: bool) -> Found:
    """Return outputs, values and three tensors that the backward pass needs, empty where nothing is kept for one."""
    inputs, names, _ = _read(arguments)
    if not inputs.projected.numel():
        return _fake_kept(*arguments)
    recurrence = _recurrence(names)
    with plainly():
        sums = Sums(recurrence, inputs, needs_gradient=keeps)
        record = recurrence.cell.run(inputs, sums, keeps=keeps)
        values = sums.layout.as_state(record.values)[1:, 0]
        nothing = [inputs.projected.new_empty(0) for _ in range(_KEPT - len(record.kept))]
        return _own(record.out), _own(values), *record.kept, *nothing


def _fake_kept(*arguments: Any) -> Found:
    """Return uninitialised tensors of the shapes and strides of what `_run` returns, for a compiler."""
    inputs, names, _ = _read(arguments)
    x, cell = inputs.projected, CELLS[names.cell]
    n, batch, width = x.shape
    units = width // cell.gates
    widths = [inputs.h.shape[-1], units, *(units * each for each in cell.keeps)]
    nothing = [x.new_empty(0) for _ in range(_KEPT - len(cell.keeps))]
    return *(x.new_empty(n, batch, each) for each in widths), *nothing


def _autograd(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Run the operation under autograd.

    A compiler's graph gets the operations forward and backward; a transform, or forward mode, the plain formula.
    """
    inputs, names, rest = _read(arguments)
    traced = (*rest, False)[0]  # the dispatcher leaves out trailing arguments that have their default
    tensors = [each for each in inputs if each is not None]
    moves, watched = has_tangent(*tensors), is_watched(inputs.projected)
    tracks = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    if torch._C._are_functorch_transforms_active() or (moves and not traced):
        return _recurrence(names).formula(inputs)
    if moves:
        raise RuntimeError(
            "a recurrent layer (x with a tangent): a compiled graph loses the tangents of its inputs; "
            "take forward mode inside the compiled function, or call it without torch.compile."
        )
    if tracks and not watched:
        return _recurrence(names)(inputs)
    if tracks:
        return _Opaque.apply(names, *inputs)  # type: ignore[no-any-return]
    with torch._C._AutoDispatchBelowAutograd():
        return FORWARD(*inputs, *names, watched or traced)  # type: ignore[no-any-return]


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, names: Names, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        found: Found = KEPT(*inputs, *names)
        ctx.names = names
        ctx.save_for_backward(*inputs, *found)
        return found[0], found[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, learns = ctx.saved_tensors, ctx.needs_input_grad[1 + _ALPHA]
        inputs, record = saved[:_INPUTS], saved[_INPUTS:]
        found = iter(BACKWARD(*inputs, *ctx.names, list(record), grads[0], grads[1], learns))
        return None, *(None if each is None else next(found) for each in inputs)


# Backward


def _run_backward(*arguments: Any) -> list[Tensor]:
    """Run the operation of the backward pass: return a gradient for every input that is a tensor, if only zeros.

    `arguments` are those of the forward operation, the tensors that it kept, the gradients of outputs and values, and
    whether alpha needs one.
    """
    inputs, names, (record, out, values, learns) = _read(arguments)
    if not inputs.projected.numel():
        return [torch.zeros_like(each, memory_format=_ROWS) for each in inputs if each is not None]
    recurrence = _recurrence(names)
    with plainly():
        sums = Sums(recurrence, inputs, needs_gradient=True, direction="backward")
        remembered = sums.layout.as_matrix(torch.cat([inputs.value[None], record[1]]))[:, :, None]
        kept = Record(record[0], remembered, tuple(record[2 : 2 + len(recurrence.cell.keeps)]))
        found = gradients_by_loop(recurrence, inputs, kept, sums, out, values, learns=learns)
    return [
        torch.zeros_like(each, memory_format=_ROWS) if one is None else _own(one)
        for one, each in zip(found, inputs, strict=True)
        if each is not None
    ]


def _fake_backward(*arguments: Any) -> list[Tensor]:
    inputs, *_ = _read(arguments)
    return [torch.empty_like(each, memory_format=_ROWS) for each in inputs if each is not None]


def _autograd_backward(*arguments: Any) -> list[Tensor]:
    """Run the backward operation under autograd, see `_run_backward`.

    The plain formula is taken where the gradients are differentiated themselves.
    """
    inputs, names, (_, out, values, _) = _read(arguments)
    tensors = [each for each in (*inputs, out, values) if each is not None]
    if (
        torch._C._are_functorch_transforms_active()
        or has_tangent(*tensors)
        or (torch.is_grad_enabled() and any(each.requires_grad for each in tensors))
    ):
        return _formula_backward(_recurrence(names), inputs, out, values)
    with torch._C._AutoDispatchBelowAutograd():
        return BACKWARD(*arguments)  # type: ignore[no-any-return]


def _formula_backward(recurrence: Recurrence, inputs: Inputs, out: Tensor, values: Tensor) -> list[Tensor]:
    """Return a differentiable gradient for every input that is a tensor, by `torch.func.vjp` of the plain formula.

    Args:
        recurrence: The cell and its memory.
        inputs: Its tensors.
        out: The gradient of the outputs.
        values: That of the values.
    """
    is_there = [each is not None for each in inputs]

    def formula(*present: Tensor) -> tuple[Tensor, Tensor]:
        each = iter(present)
        return recurrence.formula(Inputs(*(next(each) if there else None for there in is_there)))  # type: ignore[arg-type]

    pull = torch.func.vjp(formula, *(each for each in inputs if each is not None))[1]
    return list(pull((out, values)))


# Batches of calls, one after another


def _one_by_one(operation: Any, info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
    def taken(value: Any, dim: Any, k: int) -> Any:
        if isinstance(dim, list | tuple):
            return [taken(each, its, k) for each, its in zip(value, dim, strict=True)]
        return value if dim is None else value.select(dim, k)

    found = [
        operation(*(taken(value, dim, k) for value, dim in zip(arguments, in_dims, strict=False)))
        for k in range(info.batch_size)
    ]
    stacked = [torch.stack(each) for each in zip(*found, strict=True)]
    kind = type(found[0])
    return kind(stacked), kind([0] * len(stacked))


# What all of them share


def _read(arguments: Sequence[Any]) -> tuple[Inputs, Names, Sequence[Any]]:
    """Return an operation's arguments as `Inputs`, `Names`, and the rest; AOTInductor passes None for an empty list."""
    last = _INPUTS + len(Names._fields)
    known: list[Any] = [() if each is None else each for each in arguments[_INPUTS:last]]
    return Inputs(*arguments[:_INPUTS]), Names(*known), arguments[last:]


def _recurrence(names: Names) -> Recurrence:
    """Return the recurrence that the names stand for, planned by the process-wide manager."""
    within = None if names.window == _WHOLE else names.window
    site = default_manager().shared_site(operation(within), "torch", "compiled")
    return Recurrence(CELLS[names.cell], site, within, _definition(tuple(names.orders), tuple(names.bounds)))


@lru_cache(maxsize=64)
def _definition(orders: tuple[float, ...], bounds: tuple[float, ...]) -> GrunwaldLetnikov:
    if bounds:
        return GrunwaldLetnikov(bounds[1], bounds=(bounds[0], bounds[1]))
    return GrunwaldLetnikov(orders[0] if len(orders) == 1 else orders)


def _own(x: Tensor) -> Tensor:
    """Return a contiguous copy: an operation's results must have the strides of its fake, and share no memory."""
    return x.clone(memory_format=_ROWS)


for _name, _key, _kernel in (
    ("recurrence", "CompositeExplicitAutograd", lambda *given: _run(given, keeps=False)[:2]),
    ("recurrence_kept", "CompositeExplicitAutograd", lambda *given: _run(given, keeps=True)),
    ("recurrence_backward", "CompositeExplicitAutograd", _run_backward),
    ("recurrence", "Autograd", _autograd),
    ("recurrence_backward", "Autograd", _autograd_backward),
):
    _LIBRARY.impl(_name, uncompiled(_kernel), _key)
torch.library.register_fake(FORWARD, lambda *given: _fake_kept(*given)[:2], lib=_LIBRARY)
torch.library.register_fake(KEPT, _fake_kept, lib=_LIBRARY)
torch.library.register_fake(BACKWARD, _fake_backward, lib=_LIBRARY)
torch.library.register_vmap(FORWARD, partial(_one_by_one, FORWARD), lib=_LIBRARY)
torch.library.register_vmap(BACKWARD, partial(_one_by_one, BACKWARD), lib=_LIBRARY)
