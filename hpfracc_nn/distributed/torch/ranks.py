"""Operators on series whose time axis lies over the processes of a group, for PyTorch.

The processes exchange two things in a call. First a description of it, 584 bytes: shape, dtype and operator, so that a
slice that does not fit is an error on every process. Then the payload of each slice, which `Slices.given` in
`fractional/torch/slices.py` makes (first and last samples, and states of the exponentials), in one all-gather that goes
on while the product inside of the slice is computed. The backward pass is the mirror image: every process sends to each
other one the gradient of that one's payload, and differentiates the product meanwhile. Last, alpha's gradient is added
up.

Where samples are summed up before the product, and where x(0) is subtracted without differences, two more numbers for
each signal go first: a slice's first sample and its sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.streaming import HORIZON, Convolution, begun
from hpfracc_nn.fractional.torch.eager import check_alpha, check_dense, computed, computed_in
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.slices import Slices, once_differentiable
from hpfracc_nn.fractional.torch.tracing import uncompiled
from hpfracc_nn.selection import Site

Group = dist.ProcessGroup | None
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST_AXES = 64  # of a tensor


def applied(
    owner: str, x: Tensor, definition: Callable[[], Definition], dt: float, dim: int, site: Site, group: Group
) -> Tensor:
    """Return this process's slice of the operator's result, with the plans of `site`; see `operators.derivative`.

    `definition` returns the operator, and raises TypeError or ValueError where `x` does not fit it.
    """
    if torch.is_inference_mode_enabled():  # weights are kept, and autograd refuses tensors that inference mode made
        with torch.inference_mode(False), torch.no_grad():
            return applied(owner, x, definition, dt, dim, site, group)
    ranks = Ranks.of(owner, group)
    call, refused = None, None
    try:
        call = _Call.of(owner, x, definition(), dt, dim)
    except (TypeError, ValueError) as error:
        refused = error
    met = ranks.met(call, x if isinstance(x, Tensor) else torch.empty(0))
    if refused is not None:
        raise refused
    assert call is not None, "what is refused was raised"
    if sum(met.lengths) == 0 or 0 in call.shape:
        return x.clone()
    with torch.autocast(x.device.type, enabled=False):
        return _on_sides(owner, replace(call, x=x.to(computed_in(owner, x))), dt, site, met).to(x.dtype)


uncompiled(applied, "processes exchange parts of their slices where the call is made; it runs outside the graph")


class TimeSplit:
    """The process group over which a layer's time axis is cut.

    Copies of the layer share the TimeSplit; like a process group it cannot be pickled.
    """

    def __init__(self, owner: str, group: Group) -> None:
        Ranks.of(owner, group)  # raises
        self.group = group

    def __call__(
        self, owner: str, x: Tensor, definition: Callable[[], Definition], dt: float, dim: int, site: Site
    ) -> Tensor:
        """Return this process's slice of the operator's result; see `applied`."""
        return applied(owner, x, definition, dt, dim, site, self.group)

    def __deepcopy__(self, memo: dict[int, Any]) -> TimeSplit:
        """Return this TimeSplit itself: copies of a layer share the group."""
        return self

    def __reduce__(self) -> Any:
        """Raise TypeError: another process has other groups."""
        raise TypeError(
            "TimeSplit: needs the process group of its process, and cannot be pickled; save layer.state_dict(), or "
            "call split_time after the layer was loaded."
        )


@dataclass(frozen=True)
class _Call:
    """A process's own part of a call: its slice, and what must be equal on all processes.

    Attributes:
        x: The slice.
        axis: The time axis of x.
        definition: The operator.
        text: The operator and dt in words, equal on all processes.
    """

    x: Tensor
    axis: int
    definition: Definition
    text: str

    @classmethod
    def of(cls, owner: str, x: Tensor, definition: Definition, dt: float, dim: int) -> _Call:
        """Return this process's part of a call; raise TypeError or ValueError where its own arguments are wrong."""
        check_dense(owner, "x", x)
        computed_in(owner, x)
        dt, axis = errors.positive_step(owner, dt), errors.axis(owner, dim, x.ndim)
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        left = definition.to_the_left
        begun(owner, left, shape, dt, HORIZON, None, _checked_alpha, knows_start=True)  # raises without exponentials
        alpha = definition.alpha if definition.is_fixed else f"tensor {tuple(definition.alpha.shape)}"
        text = (
            f"{type(definition).__name__}(alpha={alpha}, scheme={definition.scheme!r}, bounds={definition.bounds}, "
            f"side={definition.side!r}), dt={dt}"
        )
        return cls(x, axis, definition, text)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time slice: x without its time axis."""
        return (*self.x.shape[: self.axis], *self.x.shape[self.axis + 1 :])

    @property
    def learns(self) -> bool:
        """Whether this process wants a gradient in alpha."""
        return not self.definition.is_fixed and self.definition.alpha.requires_grad


def _checked_alpha(owner: str, definition: Definition) -> Tensor:
    check_alpha(owner, definition)
    return definition.alpha.to(torch.float64)  # type: ignore[no-any-return]


class _Met(NamedTuple):
    """What the descriptions of all processes of a group say of one call.

    Attributes:
        ranks: The processes.
        lengths: Samples of each process's slice, by rank.
        needs: Whether any process wants a gradient in x.
        learns: Whether any process wants a gradient in alpha.
    """

    ranks: Ranks
    lengths: tuple[int, ...]
    needs: bool
    learns: bool


@dataclass(frozen=True)
class Ranks:
    """The processes of a group, as one of them sees them.

    Attributes:
        owner: The public function, for messages.
        group: The group; None is the default one.
        rank: The number of this process in the group.
        size: How many processes there are.
    """

    owner: str
    group: Group
    rank: int
    size: int

    @classmethod
    def of(cls, owner: str, group: Group) -> Ranks:
        """Return the processes of a group.

        Raises:
            RuntimeError: torch.distributed is not initialised.
            TypeError: `group` is no process group.
            ValueError: This process is not in the group.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                f"{owner}: needs a process group; start the program by torchrun and call "
                "torch.distributed.init_process_group first."
            )
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"{owner}(group of type {type(group).__name__}): needs a process group of torch.distributed; "
                "pass what new_group or DeviceMesh.get_group returned, or None for all processes."
            )
        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError(f"{owner}(group): needs a group that this process is in; call it on the group's ranks.")
        return cls(owner, group, rank, dist.get_world_size(group))

    def met(self, call: _Call | None, like: Tensor) -> _Met:
        """Exchange the descriptions of a call, and return what they say; raise ValueError where they do not fit.

        Args:
            call: This process's part; None where this process refuses the call, and raises afterwards. The others raise
                here.
            like: A tensor on the device that the group communicates on.
        """
        said = self._gathered(torch.tensor(_header(call), device=like.device)).tolist()
        lengths = tuple(each[_LENGTH] for each in said)
        if call is None:
            return _Met(self, lengths, False, False)
        refusing = [rank for rank, each in enumerate(said) if not each[_TAKEN]]
        if refusing:
            raise ValueError(
                f"{self._named(lengths)}: needs a call that every rank takes; rank {refusing[0]} refuses its own, see "
                "the error there."
            )
        self._check_equal(said, lengths, call)
        needs, learns = any(each[_NEEDS] for each in said), any(each[_LEARNS] for each in said)
        records = [bool(each[_RECORDS]) for each in said]
        if (needs or learns) and not all(records):
            raise ValueError(
                f"{self._named(lengths)}: needs gradients on all ranks or on none; rank {records.index(False)} is "
                f"under no_grad, and rank {records.index(True)} is not."
            )
        return _Met(self, lengths, needs, learns)

    def _check_equal(self, said: list[list[int]], lengths: tuple[int, ...], call: _Call) -> None:
        """Raise ValueError where the description from a process differs from this one's in what must be equal.

        `said` has the description of each process, by rank.
        """
        for rank, each in enumerate(said):
            for what, part, shown in _EQUAL:
                mine, other = said[self.rank][part], each[part]
                if mine != other:
                    raise ValueError(
                        f"{self._named(lengths)}: needs the same {what} on all ranks; "
                        f"rank {self.rank} has {shown(mine)}, and rank {rank} {shown(other)}."
                        + (f" Here it is {call.text}." if what == "operator" else "")
                    )

    def _named(self, lengths: Sequence[int]) -> str:
        slices = ", ".join(map(str, lengths))
        return f"{self.owner}(rank {self.rank} of {self.size}, slices of {slices} samples)"

    def exchanged(self, payload: Tensor, alpha: Tensor | None, met: _Met) -> tuple[Tensor, Tensor | None, _Exchange]:
        """Begin to gather a payload from all processes; return the gathered payloads, alpha and the exchange.

        The payloads, [size, *payload], are complete only in what `_Exchange.ended` returns for them. The gradient of
        the returned alpha is summed over the processes.
        """
        exchange = _Exchange(self, met.lengths)
        token = torch.empty(0, device=payload.device, requires_grad=met.needs)  # where only others want a gradient
        if alpha is None or not met.learns:
            return _Gathered.apply(exchange, payload, token, None), alpha, exchange
        gathered, alpha = _Gathered.apply(exchange, payload, token, alpha)
        return gathered, alpha, exchange

    def _gathered(self, payload: Tensor) -> Tensor:
        found = payload.new_empty(self.size * payload.numel())
        with self.named():
            dist.all_gather(list(found.chunk(self.size)), payload, group=self.group)
        return found.reshape(self.size, -1)

    @contextmanager
    def named(self, lengths: Sequence[int] | None = None) -> Iterator[None]:
        """Raise a RuntimeError of the block, a failed exchange, again with a text that names this rank.

        The text also has the lengths of all slices, where they are known.
        """
        try:
            yield
        except RuntimeError as error:
            who = f"{self.owner}(rank {self.rank} of {self.size})" if lengths is None else self._named(lengths)
            raise RuntimeError(
                f"{who}: the exchange with the other ranks failed: {error} All ranks of the group must make the same "
                "calls, and go backward through the same ones; look for the first error of the others."
            ) from error


# Positions in the description of a call; the operator is 8 bytes of a hash of its text, and the sizes follow last.
_TAKEN, _RECORDS, _NEEDS, _LEARNS, _LENGTH, _DTYPE, _AXIS, _OPERATOR, _NDIM = range(9)
_SIZES = slice(_NDIM, None)
_EQUAL: tuple[tuple[str, Any, Callable[[Any], str]], ...] = (
    ("dtype", _DTYPE, lambda code: str(_DTYPES[code])),
    ("sizes beside time", _SIZES, lambda sizes: str(tuple(sizes[1 : sizes[0]]))),
    ("time axis", _AXIS, str),
    ("operator", _OPERATOR, lambda code: f"{code & 0xFFFFFF:06x}"),
)


def _header(call: _Call | None) -> list[int]:
    """Return the description of a call, integers to exchange; zeros where this process refuses the call."""
    if call is None:
        return [0] * (_NDIM + 1 + _MOST_AXES)
    x, records = call.x, torch.is_grad_enabled()
    operator = int.from_bytes(hashlib.blake2b(call.text.encode(), digest_size=8).digest(), "big", signed=True)
    needs, learns = records and x.requires_grad, records and call.learns
    dtype = _DTYPES.index(x.dtype)
    begin = [1, records, needs, learns, x.shape[call.axis], dtype, call.axis, operator, x.ndim]
    return [*map(int, begin), *call.shape, *[0] * (_MOST_AXES - len(call.shape))]


class _Exchange:
    """An exchange of payloads that overlaps with other computations, in the forward and in the backward pass."""

    def __init__(self, ranks: Ranks, lengths: tuple[int, ...]):
        self.ranks, self.lengths = ranks, lengths
        self._work: Any = None
        self._returned: tuple[Tensor, ...] = ()  # the sums to come, and what is sent, which must live as long

    def ended(self, gathered: Tensor) -> Tensor:
        """Wait for the payloads of all processes, and return them.

        In the backward pass their gradients are sent from here, before the operations that precede are differentiated.
        """
        return _Ended.apply(self, gathered)  # type: ignore[no-any-return]

    def gather(self, found: Tensor, payload: Tensor) -> None:
        """Begin to gather the payload of each process into a row of `found`."""
        with self.ranks.named(self.lengths):
            self._work = dist.all_gather(list(found.unbind()), payload, group=self.ranks.group, async_op=True)

    def give_back(self, g: Tensor) -> None:
        """Begin to send to each process its row of g, [size, *payload].

        The row is the gradient in the payload of that process, as far as it arose here.
        """
        self._returned = torch.empty_like(g), g
        with self.ranks.named(self.lengths):
            self._work = dist.all_to_all_single(*self._returned, group=self.ranks.group, async_op=True)

    def wait(self) -> None:
        """Wait until the exchange that was begun last is complete."""
        with self.ranks.named(self.lengths):
            self._work.wait()

    def summed_gradient(self) -> Tensor:
        """Wait for the gradients in this process's payload that arose on all processes, and return their sum."""
        self.wait()
        (found, _), self._returned = self._returned, ()
        return found.sum(0)

    def added(self, g: Tensor) -> Tensor:
        """Return the sum of g over the processes, added up in float64."""
        found = g.to(torch.float64, copy=True)
        with self.ranks.named(self.lengths):
            dist.all_reduce(found, group=self.ranks.group)
        return found.to(g)


class _Gathered(torch.autograd.Function):
    """Begin to gather the payloads of all processes.

    Backward, the gradients in this process's payload and in alpha, each summed over the processes, are returned.
    """

    @staticmethod
    def forward(ctx: Any, exchange: _Exchange, payload: Tensor, token: Tensor, alpha: Tensor | None) -> Any:
        ctx.exchange = exchange
        payload = payload.contiguous()
        found = payload.new_empty(exchange.ranks.size, *payload.shape)
        exchange.gather(found, payload)
        return found if alpha is None else (found, alpha.clone())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *of_alpha: Tensor) -> tuple[Tensor | None, ...]:
        exchange: _Exchange = ctx.exchange
        payload = exchange.summed_gradient()
        return None, payload, g.new_empty(0), exchange.added(of_alpha[0]) if of_alpha else None


class _Ended(torch.autograd.Function):
    """Wait for the payloads that `_Gathered` began to gather.

    Backward, their gradients begin to be sent; `_Gathered` waits for those from other processes.
    """

    @staticmethod
    def forward(ctx: Any, exchange: _Exchange, gathered: Tensor) -> Tensor:
        ctx.exchange = exchange
        exchange.wait()
        return gathered.view_as(gathered)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.exchange.give_back(grads[0].contiguous())
        return None, grads[0]


def _on_sides(owner: str, call: _Call, dt: float, site: Site, met: _Met) -> Tensor:
    """Return this process's slice of the result, for an operator with memory to the left, to the right or to both."""
    left, side = call.definition.to_the_left, call.definition.side
    if side == "left":
        return _along(owner, call.x, call.axis, left, dt, site, met, backwards=False)
    backwards = _along(owner, call.x.flip(call.axis), call.axis, left, dt, site, met, backwards=True).flip(call.axis)
    if side == "right":
        return backwards
    return (_along(owner, call.x, call.axis, left, dt, site, met, backwards=False) + backwards) / 2


def _along(
    owner: str, x: Tensor, axis: int, definition: Definition, dt: float, site: Site, met: _Met, *, backwards: bool
) -> Tensor:
    """Return this process's slice of a left-sided result; with `backwards` the last rank has the first slice.

    Every process makes the same exchanges, and they follow one another in the graph, also where its slice is empty.
    """
    ranks, lengths = met.ranks, met.lengths[:: -1 if backwards else 1]
    place = ranks.size - 1 - ranks.rank if backwards else ranks.rank
    total, shape = sum(lengths), (*x.shape[:axis], *x.shape[axis + 1 :])
    if definition.differences == 1 and definition.subtracts and definition.taylor == 2:  # else x'(0) t were subtracted
        definition = replace(definition, bounds=(1, 2))
    horizon = max(HORIZON, 1 << (total - 1).bit_length())
    rules, nodes, alpha = begun(owner, definition, shape, dt, horizon, None, _checked_alpha, knows_start=True)
    summed = rules.differences < 0 or (rules.differences == 0 and rules.definition.subtracts)
    z = x
    if summed:
        z = _summed(x.movedim(axis, 0), lengths, place, rules.differences < 0, met, backwards).movedim(0, axis)
    kept = rules if rules.differences > 0 else replace(rules, definition=Convolution.with_weights_of(rules.definition))
    slices = Slices(kept, nodes, lengths, place)
    samples = x.movedim(axis, 0)
    given, packed = slices.given(samples, z.movedim(axis, 0) if summed else samples)
    z, (packed, alpha, exchange) = given.movedim(0, axis), ranks.exchanged(packed, alpha, met)
    inside = None
    if slices.is_ordinary:
        inside = computed(owner, x if summed else z, rules.definition, dt, axis, site, alpha)
    elif slices.n >= slices.reach:
        inside = computed(owner, z.to(computed_in(owner, x, slices.inner)), slices.inner, dt, axis, site, alpha)
    packed = exchange.ended(packed)
    packed = packed.flip(0) if backwards else packed
    y = x.clone() if inside is None else inside
    if slices.n and not slices.is_ordinary:
        stencil = replace(rules, horizon=total).stencil(alpha, TORCH)
        y = slices.answered(inside, given, axis, packed, stencil, alpha).to(x.dtype)
    return _Attached.apply(y, packed) if alpha is None else _Attached.apply(y, packed, alpha)


def _summed(x: Tensor, lengths: Sequence[int], place: int, sums: bool, met: _Met, backwards: bool) -> Tensor:
    """Return the running sums of the series, where `sums`, or its samples less the first; x and result [n, *shape].

    To do so the processes exchange the first sample and the sum of each slice.
    """
    x = x.to(torch.float64)
    first = x[:1] if x.shape[0] else x.new_zeros(1, *x.shape[1:])
    packed, _, exchange = met.ranks.exchanged(torch.cat([first, x.sum(0, keepdim=True)]), None, met)
    packed = exchange.ended(packed)
    packed = packed.flip(0) if backwards else packed
    if sums:
        return packed[:place, 1].sum(0) + x.cumsum(0)
    return x - packed[next(k for k, length in enumerate(lengths) if length), 0]


class _Attached(torch.autograd.Function):
    """The first argument, with the others in its graph: backward they get zeros, so that all exchanges take part.

    The result is marked as changed in place, because the caller could not change a view of the argument in place.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, *others: Tensor) -> Tensor:
        ctx.others = [(each.shape, each.dtype, each.device) for each in others]
        ctx.mark_dirty(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.others]
        return grads[0], *zeros
