"""A recurrence over a series: its cell's hand-written loops forward and backward, or plain torch under transforms.

A plain call runs the cell's loop inside one custom autograd function, which keeps the gates, the memories and the cell
states; the loop back is the transpose, with the memory run backwards in time. Calls under functorch or forward mode,
backward passes that are differentiated again and batched gradients take the same formula in plain torch, which adds up
the past by all of its exact weights.

A series has the steps 1 to n, which are rows 0 to n - 1 of tensors [n, batch, ...]. At each step a cell has a state,
[n, batch, units] in all steps (c of an LSTM, h of a GRU), and an output, [n, batch, outputs] (h). Its memory m is the
sum of the past cell states times the weights of their lags. Step 0 is the start. The code calls cell states `value`,
one step's, and `values`.

The input's part of the gates is computed for all steps before the loop. In both loops a step is a few operations that
write into rows of buffers; what does not depend on the previous step is computed for a block of steps at once. The past
is added up by a solver's history (`solvers/torch/memory.py`): the same operation, the same kernels, forward and
backward.

Inside torch.compile and torch.export a recurrence is one custom operation, whatever the number of steps: a compiler
that followed the loop would unroll it, which takes minutes at some hundred steps. The compiler sees the shapes and the
operation of the backward pass instead; both operations ask the manager for a plan when they run. They take tensors,
numbers and names only, so that an exported graph holds no address: the fields of `Inputs`, then those of `Names`. Where
an exported graph runs, the operation is the plain call; under a transform or forward mode it is the plain formula.
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

_BLOCK = 32  # steps of the plain formula that share one product with the steps before them
_KEPT_LAGS = 1 << 15  # weights of fixed orders are cached for further series, up to this many steps times orders


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A cell whose memory is a weighted sum of its past states, to be run over a series.

    Attributes:
        cell: The LSTM's or the GRU's formulas.
        site: The call site whose plan names the kernel that adds up the past.
        window: The largest lag that counts, or None.
        definition: The difference whose weights the memory has; where alpha is learned, a placeholder order and the
            bounds.
    """

    cell: Cell
    site: Site
    window: int | None
    definition: GrunwaldLetnikov

    def __call__(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Return the outputs, [n, batch, outputs], and the cell states of steps 1 to n, [n, batch, units]."""
        present = [each for each in inputs if each is not None]
        if torch.is_inference_mode_enabled():
            # The kernels keep workspaces from call to call, and autograd refuses tensors that inference mode made.
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
        """Return the outputs and cell states of a call, computed in plain torch, which every transform can follow."""
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
                    m = sums.following(k - first, values[k], m)
        return torch.stack(out), torch.stack(values[1:])


def _remembered(sums: Sums, record: Record) -> Tensor:
    """Return the cell states of steps 1 to n, [n, batch, units], detached.

    They are a view of the loop's buffer, which is saved for the backward pass; autograd must not track that view.

    Args:
        sums: The weights of the series' past, with the layout of a cell state.
        record: What the loop has returned.
    """
    return sums.layout.as_state(record.values)[1:, 0].detach()


def _far(weights: Tensor, values: list[Tensor], like: Tensor, rows: int) -> Tensor:
    """Return what past cell states add to the memories of the next `rows` steps, [rows, batch, units].

    Args:
        weights: By lag, [n + 1] or [units, n + 1].
        values: The past cell states, the newest last, [batch, units] each.
        like: A tensor of the shape and dtype of a cell state.
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
        saved = ctx.saved_tensors  # read once: a checkpoint recomputes the tensors at each access
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
    """Return the gradients of the fields of `Inputs`, in their order, None where there is none, by the loop back.

    Args:
        recurrence: The cell and its memory.
        inputs: The inputs of the forward pass.
        record: What the forward loop returned.
        sums: The weights and the plan of the series' past.
        out: Cotangents of the outputs, [n, batch, outputs], or None.
        values: Cotangents of the cell states of steps 1 to n, [n, batch, units], or None.
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
        value: The cell state at the start, [batch, units].
        alpha: The orders, [] or [units], float64.
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
    """What a cell's loop over the steps returns, and keeps for the loop back.

    Attributes:
        out: The outputs, [n, batch, outputs].
        values: The cell states of steps 0 to n, as `Memory.values`: [orders, n + 1, 1, numbers of an order].
        kept: Further tensors for the loop back, such as the gates; empty where none follows.
    """

    out: Tensor
    values: Tensor
    kept: tuple[Tensor, ...]


class Cotangents(NamedTuple):
    """Cotangents of the fields of `Inputs` except alpha, and of the memories.

    `memories` has them from the last step to the first, as `Memory.values`: [orders, n + 1, 1, numbers of an order].
    """

    projected: Tensor
    h: Tensor
    value: Tensor
    weight: Tensor
    bias: Tensor | None
    projection: Tensor | None
    memories: Tensor


class Cell(Protocol):
    """What distinguishes an LSTM from a GRU: the number of gates, and how a step makes output and cell state from them.

    Attributes:
        name: The cell's name in compiled graphs.
        gates: How many gates a unit has.
        keeps: For each tensor that is kept for the loop back, how many numbers per unit and step.
    """

    name: ClassVar[str]
    gates: ClassVar[int]
    keeps: ClassVar[tuple[int, ...]]

    def step(self, inputs: Inputs, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output, [batch, outputs], and the cell state, [batch, units], of one step, in plain torch.

        Args:
            inputs: The weights.
            x: The input's part of the gates, [batch, gates * units].
            h: The output of the previous step, [batch, outputs].
            m: The memory, [batch, units].
        """
        ...

    def run(self, inputs: Inputs, sums: Sums, *, keeps: bool) -> Record:
        """Return the Record of all steps, computed without a graph; `keeps` says whether the loop back will follow."""
        ...

    def pull(self, inputs: Inputs, record: Record, sums: Sums, out: Tensor, values: Tensor | None) -> Cotangents:
        """Return the cotangents of the inputs and memories: the loop back over all steps.

        Args:
            inputs: The inputs of the forward pass.
            record: What the forward loop returned.
            sums: The weights and the plan of the series' past.
            out: Cotangents of the outputs, [n, batch, outputs].
            values: Cotangents of the cell states of steps 1 to n, [n, batch, units], or None.
        """
        ...


class LSTMCell:
    """An LSTM: c = f * m + i * g and h = o * tanh(c), with gates i, f, g, o as in `torch.nn.LSTM` and the memory m."""

    name: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4
    keeps: ClassVar[tuple[int, ...]] = (4, 1)

    def step(self, inputs: Inputs, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and c of one step, in plain torch; see `Cell.step`."""
        i, f, g, o = (x + F.linear(h, inputs.weight)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * m + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return (h if inputs.projection is None else F.linear(h, inputs.projection)), c

    def run(self, inputs: Inputs, sums: Sums, *, keeps: bool) -> Record:
        """Return the outputs and c of all steps and, if `keeps`, the gates and memories; see `Cell.run`."""
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
        """Return the cotangents of the inputs and memories of an LSTM; see `Cell.pull`."""
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
    """A GRU: h = (1 - z) * n + z * m, with gates r, z, n as in `torch.nn.GRU` and the memory m; h is its cell state."""

    name: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3
    keeps: ClassVar[tuple[int, ...]] = (3, 1, 1)

    def step(self, inputs: Inputs, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """Return h of one step twice, as output and as cell state, in plain torch; see `Cell.step`."""
        of_r, of_z, of_n = x.chunk(3, dim=-1)
        r, z, q = F.linear(h, inputs.weight, inputs.bias).chunk(3, dim=-1)
        r, z = torch.sigmoid(of_r + r), torch.sigmoid(of_z + z)
        n = torch.tanh(of_n + r * q)
        h = n + z * (m - n)
        return h, h

    def run(self, inputs: Inputs, sums: Sums, *, keeps: bool) -> Record:
        """Return h of all steps and, if `keeps`, the gates, candidates and memories; see `Cell.run`."""
        x, steps = inputs.projected, inputs.projected.shape[0]
        units = x.shape[-1] // 3
        past = sums.past("forward")
        past.views[0] = inputs.value
        results = past.views[1:].unbind()
        gates = _rows(x, steps if keeps else 1, 3 * units)  # r, z, and the part of n's gate that r multiplies
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
        """Return the cotangents of the inputs and memories of a GRU; see `Cell.pull`."""
        gates, news, memories = record.kept
        steps, batch, width = gates.shape
        units = width // 3
        past = sums.past("backward")
        slots = past.views.unbind()
        # Four gradients: of r, of z, of the part of n's gate that r multiplies, and of n. The first three pass through
        # weight_hh; those of x are r, z and n.
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
    """Yield the rows of a forward loop, 0 to n - 1, as one range per block; begin the block of `past` before each."""
    for first in range(0, n + 1, past.block):
        end = past.begin(first)
        yield range(max(first, 1) - 1, end - 1)


def _back(past: Memory, n: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of a backward loop as pairs (first, last), the latest rows first; `last` is not included.

    Before each pair the next block of `past` is begun, a history that runs backwards in time over n steps.
    """
    for first in range(0, n + 1, past.block):
        end = past.begin(first)
        if first < n:
            yield max(n - end, 0), n - first


def _of_weight(pulled: Tensor, h: Tensor, out: Tensor) -> Tensor:
    """Return the gradient of `weight_hh`, which multiplies the output of the previous step.

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
    """Return the name of the operation that adds up the past: the whole past, or for a window its last lags."""
    return Automatic.op if window is None else Window.op


def lag_weights(alpha: Tensor, count: int, window: int | None = None) -> Tensor:
    """Return the weights of a memory by lag, a_0 = 0, a_1, a_2, ..., [*c, count], for orders alpha, [*c] in float64.

    They are 0 from lag `window` + 1 on. a_k = -w_k with w_k = w_(k-1) (k - 1 - alpha) / k, in operations that compilers
    and transforms follow.
    """
    lag = torch.arange(1, count, dtype=torch.float64, device=alpha.device)
    weights = -torch.cumprod((lag - 1 - alpha[..., None]) / lag, dim=-1)
    if window is not None:
        weights = weights * (lag <= window)
    return F.pad(weights, (1, 0))


class Weights(NamedTuple):
    """The weights of a memory over n steps.

    Attributes:
        layout: The layout of a cell state, [batch, units], by orders.
        nodes: The exponentials that replace the weights at old lags, or None.
        toeplitz: The weights by lag, and the coefficients of the exponentials.
    """

    layout: Layout
    nodes: Nodes | None
    toeplitz: Toeplitz


def weights_of(
    definition: GrunwaldLetnikov, alpha: Tensor, shape: torch.Size, like: Tensor, n: int, window: int | None
) -> Weights:
    """Return the Weights of a memory over n steps.

    Args:
        definition: The difference whose weights they are.
        alpha: The present orders, [orders], float64.
        shape: The shape of a cell state, [batch, units].
        like: A tensor of a cell state's dtype and device.
        n: Steps of the series.
        window: The largest lag that counts, or None.
    """
    orders = alpha.numel()
    if definition.bounds is not None:  # the exponentials are certified once for the bounds, not for each alpha
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
    """Return the Weights of fixed orders, from a cache.

    Args:
        alpha: One order, or one for each unit.
        shape: The shape of a cell state, [batch, units].
        dtype: The cell states' dtype.
        device: The cell states' device.
        n: Steps of the series.
        window: The largest lag that counts, or None.
    """
    like = torch.empty(0, dtype=dtype, device=device)
    orders = torch.tensor(alpha, dtype=torch.float64, device=device).reshape(-1)
    return weights_of(GrunwaldLetnikov(alpha), orders, shape, like, n, window)


class Sums:
    """The weights and the plan by which both passes over one series, steps 0 to n, add up its past.

    Args:
        recurrence: The cell and its memory.
        inputs: The inputs of the recurrence.
        needs_gradient: Whether there will be a backward pass.
        direction: The pass that asks for a plan: "backward" only for a backward pass that has no forward pass's plan.
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
        """Return an empty Memory for one pass; step k of a backward pass's is step n - k of the series."""
        return Memory(self._weights, self.recurrence.site, self.plan, direction, self.layout, self._like)

    def order_gradient(self, values: Tensor, cotangents: Tensor) -> Tensor:
        """Return the gradient in alpha, [orders] in float64: cotangents of memories times the memories' derivatives.

        The derivatives add up the same past, with the weights' derivatives in place of the weights.

        Args:
            values: The cell states of steps 0 to n, as `Record.values`.
            cotangents: Cotangents of the memories, the last step first, as `Cotangents.memories`.
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
        """Return the derivatives in alpha of the weights and of the exponentials' coefficients."""
        count, window = _count(self.n, self._nodes), self.recurrence.window
        (found,) = derivatives(lambda alpha: [lag_weights(alpha, count, window)], self._alpha)
        return _toeplitz(found, self._nodes, self._like, self.n, window)


def _count(n: int, nodes: Nodes | None) -> int:
    """Return for how many lags, lag 0 included, weights are computed.

    Args:
        n: Steps of the series.
        nodes: The exponentials that replace the weights at old lags, with the lags that they are fitted at, or None.
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
# traced: whether the operation is called from a compiler's graph
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
_KEPT = 3  # tensors that a cell keeps for the loop back, at most
_ROWS = torch.contiguous_format
_WHOLE = 0  # in place of a window: all of the past

Found = tuple[Tensor, ...]


class Names(NamedTuple):
    """The arguments of the custom operation that are no tensors.

    Attributes:
        cell: "lstm" or "gru".
        window: The largest lag that counts; 0 for the whole past.
        orders: The fixed orders; empty where they are learned.
        bounds: The bounds of learned orders; empty where they are fixed.
    """

    cell: str
    window: int
    orders: Sequence[float]
    bounds: Sequence[float]


def compiled(recurrence: Recurrence, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return a recurrence's outputs and cell states while a compiler traces the call: as one custom operation.

    With a manager of the caller's own, which a graph cannot name, the recurrence runs outside the graph.

    Raises:
        ValueError: torch.export traces the call, and the manager is the caller's own.
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
    """Return outputs, cell states and three tensors for the backward pass, empty ones where the cell keeps fewer."""
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
    """Return uninitialised tensors with the shapes and strides of those that `_run` returns, for a compiler."""
    inputs, names, _ = _read(arguments)
    x, cell = inputs.projected, CELLS[names.cell]
    n, batch, width = x.shape
    units = width // cell.gates
    widths = [inputs.h.shape[-1], units, *(units * each for each in cell.keeps)]
    nothing = [x.new_empty(0) for _ in range(_KEPT - len(cell.keeps))]
    return *(x.new_empty(n, batch, each) for each in widths), *nothing


def _autograd(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Return outputs and cell states, as the forward operation does under autograd.

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
    """Return a gradient for every input that is a tensor, zeros where there is none: the backward operation.

    `arguments` are those of the forward operation, the tensors that it kept, the gradients of outputs and cell states,
    and whether alpha needs a gradient.
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
    """Return the gradients of `_run_backward`, as the backward operation does under autograd.

    Gradients that are differentiated themselves are those of the plain formula.
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
        inputs: The inputs of the forward pass.
        out: The gradient of the outputs.
        values: The gradient of the cell states of steps 1 to n.
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


# What the operations share


def _read(arguments: Sequence[Any]) -> tuple[Inputs, Names, Sequence[Any]]:
    """Return an operation's arguments as `Inputs`, `Names` and the rest; None, AOTInductor's empty list, becomes ()."""
    last = _INPUTS + len(Names._fields)
    known: list[Any] = [() if each is None else each for each in arguments[_INPUTS:last]]
    return Inputs(*arguments[:_INPUTS]), Names(*known), arguments[last:]


def _recurrence(names: Names) -> Recurrence:
    """Return the Recurrence that `names` describes, planned by the process-wide manager."""
    within = None if names.window == _WHOLE else names.window
    site = default_manager().shared_site(operation(within), "torch", "compiled")
    return Recurrence(CELLS[names.cell], site, within, _definition(tuple(names.orders), tuple(names.bounds)))


@lru_cache(maxsize=64)
def _definition(orders: tuple[float, ...], bounds: tuple[float, ...]) -> GrunwaldLetnikov:
    if bounds:
        return GrunwaldLetnikov(bounds[1], bounds=(bounds[0], bounds[1]))
    return GrunwaldLetnikov(orders[0] if len(orders) == 1 else orders)


def _own(x: Tensor) -> Tensor:
    """Return a contiguous copy of x: a custom operation's results have the strides of its fake, and share no memory."""
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
