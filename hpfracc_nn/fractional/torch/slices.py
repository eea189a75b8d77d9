"""A slice of a longer series: what later slices must know of it, and what earlier ones add to its result.

    y[t + k] = (T d)[k] + sum_(lag > k) w[lag] d[t + k - lag] + columns[t + k] values,        k = 0, ..., n - 1,

for the slice of n samples that begins at sample t, with T the product inside of the slice, d the m-th differences, and
the boundary columns of `fractional/boundary.py`. The second term is the past: the last `first` entries of d before the
slice, whose weights are exact, and the states of the exponentials of `fractional/streaming.py`, which stand for all
older entries.

A slice gives later ones its first samples, its last samples, and its own part of the states of the exponentials: how
many numbers these are does not depend on the slice's length. The parts of all slices add up, each faded by the time
since.

Inside of a slice, d is taken as if the samples before it equalled its first one, so that T is the product of an
ordinary call. What the first m entries of d lack by that counts among the past.

Shapes: time is first, [n, *shape]; `shape` is that of one time slice, and Q counts exponentials. Samples are float32 or
float64: half precision is converted before, since the gradients of a product and of what a slice gives cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import boundary_of, difference, values
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import Stencil, consecutive
from hpfracc_nn.fractional.streaming import (
    Block,
    Convolution,
    Increments,
    Past,
    Rules,
    differenced,
    recalled,
    remembered,
    rows_first,
    sums,
)
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.weights import CACHE

HEAD = 4  # first samples that the boundary columns and the differences read
_PIECE = 1024  # samples of a piece: exp(-s k) over a piece is one matrix
_FADED = 40.0  # exp(-40) is below the rounding of double precision
_TILE, _COPIED = 2**24, 2**20  # numbers that are worked on together: in place, and where they are copied first

Spans = dict[tuple[int, int, int], Tensor | None]  # what `_Window.spanned` found, by a column's number and its window


class Parts(NamedTuple):
    """What a slice gives later ones.

    Attributes:
        head: Its first samples, [HEAD, *shape]; zeros follow where it has fewer.
        tail: The last samples that are differenced, [first + m, *shape]; zeros precede them where it has fewer.
        carry: Its part of the states of the exponentials, [Q, *shape]: of all d but the last `first`, as seen from its
            end. Zeros where the slice is shorter than `tail`, which then has all of its samples.
    """

    head: Tensor
    tail: Tensor
    carry: Tensor


@dataclass(frozen=True)
class Slices:
    """A series that is cut into slices along time, as one of the slices sees it, and the operator on the whole series.

    Attributes:
        rules: Of the recurrence; its definition is a `Convolution` where what is given is differenced already.
        nodes: The exponentials of the recurrence.
        lengths: How many samples each slice has, in the order of time.
        place: Which of the slices is this one.
    """

    rules: Rules
    nodes: Nodes
    lengths: tuple[int, ...]
    place: int

    @property
    def rates(self) -> np.ndarray:
        """The decay rates s of the exponentials, [Q]."""
        return self.nodes.rates

    @property
    def n(self) -> int:
        """How many samples this slice has."""
        return self.lengths[self.place]

    @property
    def begin(self) -> int:
        """The number in the series of this slice's first sample."""
        return sum(self.lengths[: self.place])

    @property
    def reach(self) -> int:
        """How many last samples of a slice the later ones read, first + m; of a shorter slice they read all."""
        return self.rules.first + self.rules.differences

    @property
    def is_ordinary(self) -> bool:
        """Whether an ordinary call on this slice has its results: it is first and has all that the columns read."""
        return self.begin == 0 and self.n >= min(HEAD, sum(self.lengths))

    @property
    def inner(self) -> Definition:
        """The definition of the product inside of a slice, whose differences read no sample before the slice."""
        definition = self.rules.definition
        if isinstance(definition, Convolution):
            return definition
        return Increments.with_weights_of(definition)

    def given(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return z, for the product inside of the slice, and the packed `Parts` of the slice.

        The parts are [HEAD + first + m + Q, *shape], float64.

        Args:
            x: The samples, [n, *shape].
            z: What is differenced, [n, *shape]: the samples, or where the rules take no differences, d itself.
        """
        is_read = self.n >= self.reach and sum(self.lengths[self.place + 1 :]) > 0
        count = self.n - self.rules.first if is_read else 0
        given, packed = _Outgoing.apply(z, self.reach, count, self.rules.differences, self.rates)
        if x is not z:  # the head is that of the samples
            packed = torch.cat([x[:HEAD].to(torch.float64), packed[min(self.n, HEAD) :]])
        return given, packed

    def answered(
        self, y: Tensor | None, z: Tensor, axis: int, packed: Tensor, stencil: Stencil, alpha: Tensor | None
    ) -> Tensor:
        """Return the results for this slice, [..., n, ...] with time on `axis`.

        Args:
            y: The product inside of the slice, of that shape, which is written to; None where the slice has fewer than
                `reach` samples.
            z: As in `given`, with time first.
            axis: The time axis of y.
            packed: What `given` returned for every slice, [slices, HEAD + first + m + Q, *shape].
            stencil: The operator on all samples, at the orders `alpha`.
            alpha: The orders where they are in a tensor, else None.
        """
        taps, columns, spans = self._weights(stencil, alpha, z.device)
        parts = [self.parts(each) for each in packed]
        start = self._start(parts, stencil)
        past = self._past(parts, start)
        if y is None:
            d = self._differenced(z.to(torch.float64), self.begin, past, start).d
            found = self._response(d, past.memory, taps, self.n)
            for column, value in zip(columns, start.values, strict=True):
                found = found + column * value
            return found.movedim(0, axis)
        return self.added(y, axis, parts[self.place], past, start, taps, columns, spans)

    def parts(self, packed: Tensor) -> Parts:
        """Return the `Parts` of a slice from what `given` packed."""
        return Parts(*packed.split([HEAD, self.reach, self.rates.size]))

    def added(
        self,
        y: Tensor,
        axis: int,
        part: Parts,
        past: Past,
        start: Start,
        taps: Tensor,
        columns: list[Tensor],
        spans: Spans,
    ) -> Tensor:
        """Add to y, the product inside of the slice, what the past and the boundary columns contribute, and return y.

        Args:
            y: Of at least `reach` samples, with time on `axis`; written to.
            axis: The time axis.
            part: What the slice gives later ones.
            past: The past before the slice.
            start: What all results take from the first samples of the series.
            taps: The exact weights, then the coefficients of the exponentials, [first + Q, *c].
            columns: The boundary columns in the slice, [n, *c], in the order of `start.values`.
            spans: A cache of what `_Window.spanned` finds for these columns; entries are added.
        """
        first = self.rules.first
        d = self._left_out(part.head, self.begin, past, start)
        head = self._response(d, past.memory, taps, self.reach)
        memory = remembered(past.memory, _followed(d, first + 1), self.rates, TORCH)[first:]
        memory = taps[first:] * memory
        return _Added.apply(y, axis, self.rates, head, memory, spans, len(columns), *columns, *start.values)

    def _weights(
        self, stencil: Stencil, alpha: Tensor | None, device: torch.device
    ) -> tuple[Tensor, list[Tensor], Spans]:
        """Return the taps, the boundary columns in the slice, and the cache `spans` of these columns; see `added`.

        The taps are the exact weights, then the coefficients of the exponentials, [first + Q, *c]; the columns are
        [n, *c], in the order of `boundary.values`. All are kept for fixed orders.
        """

        def made() -> tuple[Tensor, list[Tensor], Spans]:
            xp, end = NUMPY if alpha is None else TORCH, self.begin + self.n
            taps = sums(stencil.column, self.nodes, xp)
            both = stencil.boundary_columns(lambda column: consecutive(column, self.begin, end, xp), xp)
            columns = [] if both is None else [both[..., j, :] for j in range(both.shape[-2])]
            found = [
                rows_first(torch.as_tensor(each, device=device), len(self.rules.shape), TORCH)
                for each in (taps, *columns)
            ]
            return found[0], found[1:], {}

        if alpha is not None:
            return made()
        return CACHE.get(("weights of a slice", self.rules, stencil.n, self.begin, self.n, device), made)

    def _start(self, parts: list[Parts], stencil: Stencil) -> Start:
        """Return the Start of the series, from the first samples of its slices."""
        heads = [part.head[: min(length, HEAD)] for part, length in zip(parts, self.lengths, strict=True)]
        x = torch.cat(heads)[:HEAD]
        boundary, shape = boundary_of(stencil), x.shape[1:]
        canonical = x.reshape(x.shape[0], -1).T[None, :, :, None]
        d = difference(canonical, boundary)
        second = None if boundary.second is None else d[0, :, 1].reshape(1, *shape)
        return Start([each.reshape(shape) for each in values(canonical, d, boundary)], second)

    def _past(self, parts: list[Parts], start: Start) -> Past:
        """Return the past before this slice, from the parts of those before it."""
        zeros = torch.zeros_like(parts[0].head)
        memory = zeros.new_zeros(self.rules.first + self.rates.size, *zeros.shape[1:])
        past, t = Past(memory, zeros[:2], zeros[:2]), 0
        for part, length in zip(parts[: self.place], self.lengths[: self.place], strict=True):
            if length:
                past = self.after(part, length, t, past, start)
            t += length
        return past

    def after(self, part: Parts, n: int, t: int, past: Past, start: Start) -> Past:
        """Return the past after a slice of n > 0 samples that begins at sample t."""
        first, rest = self.rules.first, n - self.reach
        if rest < 0:
            block = self._differenced(part.tail[-n:], t, past, start)
            return Past(remembered(past.memory, block.d, self.rates, TORCH), block.before, block.held)
        d = _followed(self._left_out(part.head, t, past, start), first)
        slow = remembered(past.memory, d, self.rates, TORCH)[first:]
        faded = torch.as_tensor(np.exp(-rest * self.rates), device=slow.device).reshape(-1, *(1,) * (slow.ndim - 1))
        block = self._differenced(part.tail, t + rest, past, start)
        memory = torch.cat([block.d[-first:].flip(0), slow * faded + part.carry])
        return Past(memory, block.before, block.held)

    def _differenced(self, z: Tensor, t: int, past: Past, start: Start) -> Block:
        """Return the Block of samples z that begin at sample t: their differences, of which m depend on the past."""
        block = differenced(z, t, past, self.rules, TORCH)
        if start.second is None or not t <= 1 < t + z.shape[0]:
            return block
        at = self.rules.first + 1 - t
        return block._replace(d=torch.cat([block.d[:at], start.second, block.d[at + 1 :]]))

    def _left_out(self, head: Tensor, t: int, past: Past, start: Start) -> Tensor:
        """Return d before a slice, and what the product inside of the slice leaves out of d, [first + m, *shape].

        `head` are the first samples of the slice, which begins at sample t.
        """
        m, first = self.rules.differences, self.rules.first
        d = self._differenced(head[:2], t, past, start).d
        inside = torch.stack([torch.zeros_like(head[0]), head[1] - head[0]])
        return torch.cat([d[:first], (d[first:] - inside)[:m]])

    def _response(self, d: Tensor, memory: Tensor, taps: Tensor, n: int) -> Tensor:
        """Return what the past adds to the first n <= first + m results of the slice, [n, *shape].

        Args:
            d: Before the slice, and entries at its beginning, [first + more, *shape].
            memory: Before the slice, [first + Q, *shape].
            taps: As in `added`.
            n: How many results.
        """
        first, rates = self.rules.first, self.rates
        lags = np.arange(first + n)
        far = torch.as_tensor(np.exp(-np.outer(lags[: n or None], rates)), device=d.device)
        weights = torch.cat([taps[:first], torch.tensordot(far, taps[first:], 1)])  # at increasing lags
        found = recalled(taps[first:] * memory[first:], n, rates, TORCH)
        for at in range(d.shape[0]):  # entry `at - first` of the slice
            skipped = max(0, at - first)
            w = weights[max(0, first - at) : first - at + n]
            found = found + torch.cat([d.new_zeros(skipped, *d.shape[1:]), w * d[at]])
        return found


class Start(NamedTuple):
    """What all results take from the first samples of the series.

    Attributes:
        values: What the boundary columns multiply, [*shape] each.
        second: d[1], [1, *shape], where it is no plain difference; else None.
    """

    values: list[Tensor]
    second: Tensor | None


def _followed(d: Tensor, count: int) -> Tensor:
    return torch.cat([d, d.new_zeros(count, *d.shape[1:])])


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backward pass that runs without autocast, and raises RuntimeError where it would be differentiated."""

    @wraps(backward)
    def first(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a slice of a longer series: needs create_graph=False, because the slices' second derivatives would be "
                "exchanged in another order on each process; take them of a whole series, on one process."
            )
        with torch.autocast(grads[0].device.type, enabled=False):
            return backward(ctx, *grads)

    return first


class _Outgoing(torch.autograd.Function):
    """Autograd function that returns a slice and its packed `Parts`: z [n, *shape] -> z, [HEAD + reach + Q, *shape].

    The states of the exponentials are sum over k < count of exp(-s (count - 1 - k)) d[k], with d the m-th differences
    of z, taken as if the samples before z equalled its first one. The backward pass adds the gradient from the parts to
    that of z in place: z's gradient is the result of the transposed product inside of the slice, which nothing else
    uses.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, reach: int, count: int, m: int, rates: np.ndarray) -> tuple[Tensor, Tensor]:
        n = z.shape[0]
        ctx.given = reach, count, m, rates
        packed = torch.zeros(HEAD + reach + rates.size, *z.shape[1:], dtype=torch.float64, device=z.device)
        packed[: min(n, HEAD)] = z[:HEAD]
        packed[HEAD + reach - min(n, reach) : HEAD + reach] = z[max(0, n - reach) :]
        if count:
            rows = z[:count].flatten(1).T if z.ndim > 1 else z[None, :count]
            carry, _ = _absorbed(rows, m, rates, {}, {}, backwards=True)
            packed[HEAD + reach :] = carry.T.reshape(rates.size, *z.shape[1:])
        return z.view_as(z), packed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        reach, count, m, rates = ctx.given
        found, (head, tail, carry) = grads[0], grads[1].split([HEAD, reach, rates.size])
        n = found.shape[0]
        if n < reach:  # so short a slice has no product inside, and its gradient is not ours to write to
            found = found.clone()
        rows = found.movedim(0, -1)
        if count > m:  # of shorter ones no difference is read
            g = carry.flatten(1).T if carry.ndim > 1 else carry[None]
            # The transposed differences of an exponential are the exponential times (1 - exp(s))**m, but at the ends.
            values = g * torch.as_tensor((-np.expm1(rates)) ** m, device=g.device)
            _recall(rows[..., :count], values, rates, {}, {}, backwards=True)
            if m:
                at, ends = _ends(count, m, rates)
                more = g @ torch.as_tensor(ends, device=g.device)
                rows[..., at] += more.reshape(*rows.shape[:-1], at.size).to(found.dtype)
        elif count == 2:
            total = carry.sum(0).to(found.dtype)
            found[1] += total
            found[0] -= total
        found[: min(n, HEAD)] += head[: min(n, HEAD)].to(found.dtype)
        found[max(0, n - reach) :] += tail[reach - min(n, reach) :].to(found.dtype)
        return found, None, None, None, None


def _ends(count: int, m: int, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what summation by parts leaves at the ends of `count` samples: their indices [k] and coefficients [Q, k].

        sum over i of exp(-s (count - 1 - i)) d[i] = (1 - exp(s))**m sum over i of exp(-s (count - 1 - i)) x[i] + more,

    where d are the m-th differences, of the samples before the first as if they equalled it.
    """
    at = np.unique([0, *range(max(0, count - m), count)])
    exact = np.zeros((rates.size, at.size))
    for column, i in enumerate(at):
        coefficients = [1, -1] if m == 1 else [1, -2, 1]
        if i == 0:  # x(0) is in d[1], and in d[2] where they are differenced twice
            coefficients = [0, -1] if m == 1 else [0, -1, 1]
        for j, coefficient in enumerate(coefficients):
            if i + j < count:
                exact[:, column] += coefficient * np.exp(-rates * (count - 1 - i - j))
    return at, exact - (-np.expm1(rates))[:, None] ** m * np.exp(-np.outer(rates, count - 1 - at))


class _Added(torch.autograd.Function):
    """Autograd function that adds the past and the boundary columns to the product inside of a slice, in place.

    The function is applied to the product y, its time axis, the rates, the first rows that are added [head, *shape],
    the states of the exponentials after them, times their coefficients [Q, *shape], the spans and the number of the
    columns, the columns [n, *c] and what they multiply [*shape].
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        axis: int,
        rates: np.ndarray,
        head: Tensor,
        values: Tensor,
        spans: Spans,
        count: int,
        *more: Tensor,
    ) -> Tensor:
        ctx.mark_dirty(y)
        ctx.given = axis, rates, head.shape[0], spans, count
        ctx.save_for_backward(*more)
        rows, begin, dtype = y.movedim(axis, -1), head.shape[0], y.dtype
        columns = [
            (column.movedim(0, -1), value[..., None]) for column, value in zip(more[:count], more[count:], strict=True)
        ]
        rows[..., :begin] += _with_columns(head.movedim(0, -1), columns, 0, begin).to(dtype)
        flat = values.flatten(1).T if values.ndim > 1 else values[None]
        columns = [(column[..., begin:], value) for column, value in columns]
        _recall(rows[..., begin:], flat, rates, dict(enumerate(columns)), spans, backwards=False)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (axis, rates, begin, spans, count), more = ctx.given, ctx.saved_tensors
        needed = ctx.needs_input_grad[7:]
        rows = grads[0].movedim(axis, -1)
        shape, n = rows.shape[:-1], rows.shape[-1]
        flat = rows.reshape(-1, n)
        # Columns of one order are summed with the exponentials.
        columns = {j: more[j].reshape(n) for j in range(count) if more[j].numel() == n and needed[count + j]}
        later = {j: each[begin:] for j, each in columns.items()}
        values, sums = _absorbed(flat[:, begin:], 0, rates, later, spans, backwards=False)
        head = flat[:, :begin].to(torch.float64)
        own = {j: sums[j] + head @ each[:begin].to(head) for j, each in columns.items()}
        found: list[Tensor | None] = []
        for j, each in enumerate(more):
            if not needed[j]:
                found.append(None)
            elif j < count:
                g = rows.to(torch.float64) * more[count + j][..., None]
                found.append(g.movedim(-1, 0).sum_to_size(each.shape))
            elif j - count in own:
                found.append(own[j - count].reshape(shape))
            else:
                found.append(torch.sum(rows * more[j - count].movedim(0, -1), -1))
        first, values = rows[..., :begin].movedim(-1, 0).to(torch.float64), values.T.reshape(-1, *shape)
        return grads[0], None, None, first, values, None, None, *found


def _with_columns(part: Tensor, columns: list[tuple[Tensor, Tensor]], begin: int, end: int) -> Tensor:
    """Return `part` [*shape, end - begin] plus the columns times their values at times from `begin` to before `end`."""
    for column, value in columns:
        part = torch.addcmul(part, column[..., begin:end], value)
    return part


def _weighted(rows: Tensor, column: Tensor) -> Tensor:
    """Return the sums of rows [rows, n] times a column [n], [rows], float64.

    Within a piece they are summed in the dtype of the rows.
    """
    pieces = zip(rows.split(_PIECE, 1), column.to(rows).split(_PIECE), strict=True)
    return torch.stack([each @ part for each, part in pieces]).sum(0, dtype=torch.float64)


def _absorbed(
    rows: Tensor, m: int, rates: np.ndarray, columns: dict[int, Tensor], spans: Spans, *, backwards: bool
) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the sums over k of exp(-s k) d[k], [rows, Q], and of columns times rows, [rows] each, float64.

    d are the m-th differences of samples [rows, n] as `_Outgoing` says; with `backwards` the last counts as d[0]. The
    columns are [n], by their numbers; there are none where there are differences, or `backwards`.

    Summation by parts would need no differences, but it costs rows far from zero the digits that all samples share.
    """
    n, room = rows.shape[1], rows.new_empty(0)  # one piece of memory for the differences of all windows
    found = torch.zeros(rows.shape[0], rates.size, dtype=torch.float64, device=rows.device)
    summed = {j: torch.zeros_like(found[:, 0]) for j in columns}
    for window in _windows(n, rates, rows, in_place=m == 0 and rows.stride(1) == 1):
        at = window.at(n, backwards)
        d = rows[:, max(0, at.start - m) : at.stop]
        if m:
            count = max(0, d.shape[1] - m)
            if room.numel() < count * d.shape[0]:
                room = d.new_empty(count * d.shape[0])
            d = torch.diff(d, n=m, dim=1, out=room[: count * d.shape[0]].view(d.shape[0], count))
        if at.start < m:
            head = rows[:, :2]
            first = torch.diff(head, dim=1, prepend=head[:, :1])
            d = torch.cat([first[:, at.start : min(m, at.stop)], d], 1)
        inner, outer = window.factors(backwards)
        # As the product of the transposed: BLAS takes half the time for few rows on the left.
        sums = torch.bmm(inner.expand(d.shape[0], -1, -1), window.in_pieces(d).mT)
        parts = sums.mT.flatten(1).to(torch.float64)  # [rows, pieces * rank]
        found[:, : window.q] += parts @ outer
        for j, column in columns.items():
            spanned = window.spanned(column[at], j, spans)
            summed[j] += _weighted(d, column[at]) if spanned is None else parts @ spanned
    return found, summed


def _recall(
    rows: Tensor,
    values: Tensor,
    rates: np.ndarray,
    columns: dict[int, tuple[Tensor, Tensor]],
    spans: Spans,
    *,
    backwards: bool,
) -> None:
    """Add the sum over q of exp(-s_q k) values[:, q] to the samples k of rows [*shape, n], in place.

    Args:
        rows: The samples, [*shape, n], which are written to.
        values: [rows, Q].
        rates: s, [Q].
        columns: What else is added: columns [*c, n] times values [*shape, 1], by their numbers.
        spans: A cache of what `_Window.spanned` finds for the columns; entries are added.
        backwards: Whether the last sample counts as the first; then there are no columns.
    """
    n, strides = rows.shape[-1], rows.stride()
    is_plain = (
        strides[-1] == 1
        and all(  # each row by itself, one after another
            stride == size * more for stride, size, more in zip(strides, rows.shape[1:-1], strides[1:-1], strict=False)
        )
    )
    like = values.new_empty(values.shape[0], 0, dtype=rows.dtype)
    for window in _windows(n, rates, like, in_place=is_plain):
        inner, outer = window.factors(backwards)
        between, at, others = values[:, : window.q] @ outer.T, window.at(n, backwards), []
        for j, (column, value) in columns.items():
            spanned = window.spanned(column[..., at], j, spans)
            if spanned is None:
                others.append((column[..., at], value))
            else:  # without another pass over the samples
                between = torch.addr(between, value.reshape(-1).to(between.dtype), spanned)
        between = between.to(inner.dtype).unflatten(1, (window.pieces, inner.shape[0]))
        part = rows[..., at]
        if is_plain:
            window.in_pieces(part.view(-1, part.shape[-1])).baddbmm_(between, inner.expand(len(between), -1, -1))
        else:
            part += (between @ inner).reshape(part.shape).to(part.dtype)
        for column, value in others:
            part.addcmul_(column.to(part.dtype), value.to(part.dtype))


@dataclass(frozen=True)
class _Window:
    """Times near <= k < far at which some exponentials have not faded.

    Attributes:
        near: The first time, a multiple of the length of a piece.
        far: The end: such a multiple too, or less than a piece beyond `near`.
        rates: s of the exponentials that count here, [q], the slowest ones.
        like: A tensor of the dtype and device that is computed with.
    """

    near: int
    far: int
    rates: np.ndarray
    like: Tensor

    @property
    def q(self) -> int:
        """How many exponentials count."""
        return self.rates.size

    @property
    def pieces(self) -> int:
        """How many pieces make up the window; one may be shorter than others."""
        return -(-(self.far - self.near) // _PIECE)

    def at(self, n: int, backwards: bool) -> slice:
        """Return the slice of this window among n samples; with `backwards` the last sample counts as the first."""
        return slice(n - self.far, n - self.near) if backwards else slice(self.near, self.far)

    def in_pieces(self, samples: Tensor) -> Tensor:
        """Return samples of the window [rows, far - near] as [rows, pieces, piece], a view."""
        return samples.unflatten(1, (self.pieces, -1))

    def spanned(self, column: Tensor, j: int, spans: Spans) -> Tensor | None:
        """Return c [pieces * rank] for which a column [far - near] is the sum over r of c[p r] V[r, i], or None.

        V are the factors of the window, and the sum must meet the column to half a rounding of single precision.
        Columns meet this where they fade as the exponentials do, as those of operators. The result for column number
        `j` is kept in `spans`.
        """
        n = self.far - self.near
        if self.like.dtype != torch.float32 or n % _PIECE or column.numel() != n:  # of several orders, or none
            return None
        key = j, self.near, self.far
        if key not in spans:
            spans[key] = self._spanned(column)
        return spans[key]

    def _spanned(self, column: Tensor) -> Tensor | None:
        basis = torch.as_tensor(_factorised(self.rates, True)[1], device=column.device)  # orthonormal
        pieces = column.detach().to(torch.float64).reshape(-1, _PIECE)
        found = pieces @ basis.T
        is_near = torch.dist(found @ basis, pieces, p=math.inf) <= 2**-25 * pieces.abs().max()
        return found.reshape(-1) if bool(is_near) else None

    def factors(self, backwards: bool) -> tuple[Tensor, Tensor]:
        """Return V [rank, piece] and W [pieces * rank, q]: exp(-s_q (near + piece p + i)) = sum_r W[p r, q] V[r, i].

        Exponentials that fade slowly along a piece are nearly polynomials there, and few of them span all. With
        `backwards` pieces, and what is in them, come last first.
        """
        is_single, device = self.like.dtype != torch.float64, self.like.device

        def made() -> tuple[Tensor, Tensor]:
            weights, basis = _factorised(self.rates, is_single)  # [q, rank], [rank, piece]
            basis = basis[:, : self.far - self.near]
            distances = self.near + _PIECE * np.arange(self.pieces)
            outer = np.exp(-np.outer(distances, self.rates))[:, None, :] * weights.T  # [pieces, rank, q]
            if backwards:
                basis, outer = basis[:, ::-1], outer[::-1]
            outer = np.ascontiguousarray(outer).reshape(self.pieces * basis.shape[0], self.q)
            dtype = torch.float32 if is_single else torch.float64
            inner = torch.as_tensor(np.ascontiguousarray(basis), dtype=dtype, device=device)
            return inner, torch.as_tensor(outer, device=device)

        key = "factors of a window", self.near, self.far, self.rates.tobytes(), is_single, device, backwards
        return CACHE.get(key, made)


def _windows(n: int, rates: np.ndarray, like: Tensor, *, in_place: bool) -> Iterator[_Window]:
    """Yield windows that cover n samples.

    The first is one piece, each of the next as long as all before it, up to a bound, and the last one the rest.

    Args:
        n: The number of samples.
        rates: The decay rates, which increase, [Q].
        like: [rows, ...], of the dtype and device that is computed with.
        in_place: Whether the samples are used as they lie, without a copy of a window's.
    """
    numbers = _TILE if in_place else _COPIED
    near, most = 0, max(1, numbers // (max(like.shape[0], 1) * _PIECE)) * _PIECE
    while near < n:
        far = min(n, near + max(_PIECE, min(most, near, (n - near) // _PIECE * _PIECE)))
        yield _Window(near, far, rates[: int(np.searchsorted(rates * near, _FADED, side="right"))], like)
        near = far


def _factorised(rates: np.ndarray, is_single: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return [q, rank] and [rank, _PIECE], whose product is exp(-s k) for rates s [q] to rounding."""
    key = "exponentials of a slice", rates.tobytes(), is_single

    def build() -> tuple[np.ndarray, np.ndarray]:
        u, s, v = np.linalg.svd(np.exp(-np.outer(rates, np.arange(_PIECE))), full_matrices=False)
        rank = int((s > s.max(initial=0.0) * (1e-9 if is_single else 1e-17)).sum())  # 0 where all have faded
        return u[:, :rank] * s[:rank], v[:rank]

    return CACHE.get(key, build)
