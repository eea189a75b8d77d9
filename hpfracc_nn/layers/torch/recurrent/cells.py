"""One step of a cell, the loop over the steps without a graph, and the loop back.

The input's part of the gates is computed for all steps before. In both loops a step is a few operations that write into
rows of buffers; what does not depend on the step before is computed for a block of steps at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.layers.torch.recurrent.memory import Sums
from hpfracc_nn.solvers.torch.past import Past


class Given(NamedTuple):
    """What a recurrence over n steps is computed from, all but alpha of one dtype.

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


class Made(NamedTuple):
    """What a recurrence has made.

    Attributes:
        out: The outputs, [n, batch, outputs].
        values: What is remembered of all steps from the start on, as a past has them.
        kept: What the loop back needs besides.
    """

    out: Tensor
    values: Tensor
    kept: tuple[Tensor, ...]


class Pulled(NamedTuple):
    """Cotangents of what was given, and of the memories, in the order of a backward past."""

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

    def step(self, given: Given, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and what is remembered, in plain torch.

        Args:
            given: The weights.
            x: The input's part of the gates.
            h: The output before.
            m: The memory.
        """
        ...

    def run(self, given: Given, sums: Sums, *, keeps: bool) -> Made:
        """Take all steps, without a graph; `keeps` is whether the loop back follows."""
        ...

    def pull(self, given: Given, made: Made, sums: Sums, out: Tensor, values: Tensor | None) -> Pulled:
        """Return the cotangents for those of the outputs and, after the start, of what is remembered."""
        ...


class LSTMCell:
    """c = f * m + i * g and h = o * tanh(c), with gates i, f, g, o as in `torch.nn.LSTM`."""

    name: ClassVar[str] = "lstm"
    gates: ClassVar[int] = 4
    keeps: ClassVar[tuple[int, ...]] = (4, 1)

    def step(self, given: Given, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cell`."""
        i, f, g, o = (x + F.linear(h, given.weight)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * m + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return (h if given.projection is None else F.linear(h, given.projection)), c

    def run(self, given: Given, sums: Sums, *, keeps: bool) -> Made:
        """See `Cell`."""
        x, n = given.projected, given.projected.shape[0]
        units = x.shape[-1] // 4
        past = sums.past("forward")
        past.views[0] = given.value
        cells, out = past.views[1:].unbind(), torch.empty_like(x[..., : given.h.shape[-1]]).contiguous()
        gates = _rows(x, n if keeps else 1, 4 * units)
        memories = _rows(x, n if keeps else 0, units)
        both, others = gates[..., : 2 * units].unbind(), gates.chunk(4, dim=-1)
        i, f, g, o = (each.unbind() for each in others)
        all_gates, held, results = gates.unbind(), memories.unbind(), out.unbind()
        shown = x.new_empty(x.shape[1], units)
        weight, h = given.weight.t().contiguous(), given.h
        for k in _steps(past, n):
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
            if given.projection is None:
                torch.mul(o[j], shown, out=h)
            else:
                torch.mm(shown.mul_(o[j]), given.projection.t(), out=h)
        sums.tell(past)
        return Made(out, past.values, (gates, memories) if keeps else ())

    def pull(self, given: Given, made: Made, sums: Sums, out: Tensor, values: Tensor | None) -> Pulled:
        """See `Cell`."""
        gates, memories = made.kept
        n, batch, width = gates.shape
        units, projection = width // 4, given.projection
        past, cells = sums.past("backward"), sums.packing.viewed(made.values)[1:, 0]
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
                    torch.addmm(out[k], rows, given.weight, out=gh)
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
        sums.tell(past)
        of_projection = None
        if projection is not None:
            raw = gates[..., 3 * units :] * torch.tanh(cells)
            of_projection = outputs.flatten(0, 1).t() @ raw.flatten(0, 1)
        of_weight = _of_weight(pulled, given.h, made.out)
        return Pulled(pulled, rows @ given.weight, value, of_weight, None, of_projection, past.values)


class GRUCell:
    """h = (1 - z) * n + z * m, with gates r, z, n as in `torch.nn.GRU`."""

    name: ClassVar[str] = "gru"
    gates: ClassVar[int] = 3
    keeps: ClassVar[tuple[int, ...]] = (3, 1, 1)

    def step(self, given: Given, x: Tensor, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """See `Cell`."""
        of_r, of_z, of_n = x.chunk(3, dim=-1)
        r, z, q = F.linear(h, given.weight, given.bias).chunk(3, dim=-1)
        r, z = torch.sigmoid(of_r + r), torch.sigmoid(of_z + z)
        n = torch.tanh(of_n + r * q)
        h = n + z * (m - n)
        return h, h

    def run(self, given: Given, sums: Sums, *, keeps: bool) -> Made:
        """See `Cell`."""
        x, steps = given.projected, given.projected.shape[0]
        units = x.shape[-1] // 3
        past = sums.past("forward")
        past.views[0] = given.value
        results = past.views[1:].unbind()
        gates = _rows(x, steps if keeps else 1, 3 * units)  # r, z, and what r multiplies
        news, memories = (_rows(x, steps if keeps else 1, units) for _ in range(2))
        both, (_, z, q) = gates[..., : 2 * units].unbind(), (each.unbind() for each in gates.chunk(3, dim=-1))
        r = gates[..., :units].unbind()
        x_both, x_new = x[..., : 2 * units].unbind(), x[..., 2 * units :].unbind()
        all_gates, new, held = gates.unbind(), news.unbind(), memories.unbind()
        weight, h = given.weight.t().contiguous(), given.h
        for k in _steps(past, steps):
            j = k if keeps else 0
            if given.bias is None:
                torch.mm(h, weight, out=all_gates[j])
            else:
                torch.addmm(given.bias, h, weight, out=all_gates[j])
            both[j].add_(x_both[k]).sigmoid_()
            n = torch.addcmul(x_new[k], r[j], q[j], out=new[j]).tanh_()
            m = held[j].copy_(past.memory(k + 1))
            h = torch.lerp(n, m, z[j], out=results[k])
        sums.tell(past)
        return Made(past.views[1:], past.values, (gates, news, memories) if keeps else ())

    def pull(self, given: Given, made: Made, sums: Sums, out: Tensor, values: Tensor | None) -> Pulled:
        """See `Cell`."""
        gates, news, memories = made.kept
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
                    g = torch.addmm(g, rows, given.weight)
                if values is not None:
                    g = g + values[k]
                torch.mul(parts[j], g[:, None], out=each[k])
                torch.mul(g, z[j], out=slots[steps - 1 - k])
                rows = through[k]
        assert rows is not None, "there is a step"
        value = past.memory(steps)
        sums.tell(past)
        of_x = torch.cat([pulled[:, :, :2].flatten(2), pulled[:, :, 3]], dim=-1)
        of_bias = None if given.bias is None else hidden.sum((0, 1))
        of_weight = _of_weight(hidden, given.h, made.out)
        return Pulled(of_x, rows @ given.weight, value, of_weight, of_bias, None, past.values)


CELLS: dict[str, Cell] = {cell.name: cell for cell in (LSTMCell(), GRUCell())}


def _rows(like: Tensor, count: int, width: int) -> Tensor:
    return like.new_empty(count, like.shape[1], width)


def _steps(past: Past, n: int) -> Iterator[int]:
    """Yield the rows 0 to n - 1 of steps 1 to n, and begin the past's blocks on the way."""
    for first in range(0, n + 1, past.block):
        end = past.begin(first)
        yield from range(max(first, 1) - 1, end - 1)


def _back(past: Past, n: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last), blocks of rows from the last one down, whose steps are blocks of a backward past."""
    for first in range(0, n + 1, past.block):
        end = past.begin(first)
        if first < n:
            yield max(n - end, 0), n - first


def _of_weight(pulled: Tensor, h: Tensor, out: Tensor) -> Tensor:
    """Return the gradient of `weight_hh`, which multiplies the output of the step before."""
    found = pulled[0].t() @ h
    if pulled.shape[0] > 1:
        found = found.addmm_(pulled[1:].flatten(0, 1).t(), out[:-1].flatten(0, 1))
    return found
