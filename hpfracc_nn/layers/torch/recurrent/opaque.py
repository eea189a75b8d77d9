"""Recurrences inside torch.compile and torch.export: one opaque operation, whatever the number of steps.

A compiler that followed the loop would unroll it, which takes minutes at some hundred steps. It sees the shapes and the
operation of the backward pass instead; both ask the manager when they run. They take tensors, numbers and names only,
so that an exported graph holds no address.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.torch.probe import plainly, uncompiled
from hpfracc_nn.layers.torch.recurrent.cells import CELLS, Given, Made
from hpfracc_nn.layers.torch.recurrent.memory import Memory, operation
from hpfracc_nn.layers.torch.recurrent.run import Recurrence, gradients_by_loop
from hpfracc_nn.selection import default_manager, is_process_wide

_GIVEN = (
    "Tensor projected, Tensor h, Tensor value, Tensor alpha, Tensor weight, Tensor? bias, Tensor? projection, "
    "str cell, int window, float[] orders, float[] bounds"
)
_INPUTS = len(Given._fields)
_KEPT = 3  # tensors at most
_ROWS = torch.contiguous_format
_WHOLE = 0  # in place of a window: all of the past

Found = tuple[Tensor, ...]


def compiled(recurrence: Recurrence, given: Given) -> tuple[Tensor, Tensor]:
    """Return what the recurrence does, in a way that a compiler can follow.

    Raises:
        ValueError: In torch.export, where the manager is the caller's own.
    """
    memory = recurrence.memory
    if not is_process_wide(memory.site.manager):
        if torch.compiler.is_exporting():
            raise ValueError(
                "a recurrent layer: torch.export needs the process-wide BackendManager; leave manager=None and "
                "configure() that manager."
            )
        return _outside(recurrence, given)
    bounds = [] if memory.definition.bounds is None else list(memory.definition.bounds)
    orders = [] if bounds else list(memory.definition.orders)
    window = _WHOLE if memory.window is None else memory.window
    keeps = torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in given)
    found = _forward(*given, recurrence.cell.name, window, orders, bounds, keeps)
    return found[0], found[1]


def _outside(recurrence: Recurrence, given: Given) -> tuple[Tensor, Tensor]:
    return recurrence(given)


uncompiled(_outside, "a graph cannot name a BackendManager of the caller's own; it runs outside")


@torch.library.custom_op(
    "hpfracc_nn::recurrence",
    mutates_args=(),
    schema=f"({_GIVEN}, bool keeps) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _forward(*given: Any) -> Found:
    """Return the outputs, what is remembered of each step, and what the backward pass needs besides."""
    *named, keeps = given
    if not named[0].numel():
        return _like_forward(*given)
    recurrence, tensors = _read(named)
    with plainly():
        sums = recurrence.sums(tensors, needs_gradient=keeps)
        made = recurrence.cell.run(tensors, sums, keeps=keeps)
        values = sums.packing.viewed(made.values)[1:, 0]
        return _own(made.out), _own(values), *made.kept, *_nothing(tensors.projected, _KEPT - len(made.kept))


@_forward.register_fake
def _like_forward(*given: Any) -> Found:
    """Return tensors of the same shapes."""
    *named, keeps = given
    x, h, cell = named[0], named[1], CELLS[named[_INPUTS]]
    n, batch, width = x.shape
    units = width // cell.gates
    widths = [units * each for each in cell.keeps] if keeps else []
    found = [x.new_empty(n, batch, each) for each in (h.shape[-1], units, *widths)]
    return *found, *_nothing(x, _KEPT - len(widths))


@torch.library.custom_op(
    "hpfracc_nn::recurrence_backward",
    mutates_args=(),
    schema=f"({_GIVEN}, Tensor[] made, Tensor out, Tensor values, bool learns) -> Tensor[]",
)
def _backward(*given: Any) -> list[Tensor]:
    """Return the gradients of all tensors that were given and are there, alpha's 0 where none is wanted."""
    *named, made, out, values, learns = given
    if not named[0].numel():
        return [torch.zeros_like(each, memory_format=_ROWS) for each in named[:_INPUTS] if each is not None]
    recurrence, tensors = _read(named)
    with plainly():
        sums = recurrence.sums(tensors, needs_gradient=True, direction="backward")
        remembered = sums.packing.matrix(torch.cat([tensors.value[None], made[1]]))[:, :, None]
        kept = Made(made[0], remembered, tuple(made[2 : 2 + len(recurrence.cell.keeps)]))
        found = gradients_by_loop(recurrence, tensors, kept, sums, out, values, learns=learns)
    pairs = zip(found, tensors, strict=True)
    return [
        torch.zeros_like(each, memory_format=_ROWS) if one is None else _own(one)
        for one, each in pairs
        if each is not None
    ]


@_backward.register_fake
def _like_backward(*given: Any) -> list[Tensor]:
    return [torch.empty_like(each, memory_format=_ROWS) for each in given[:_INPUTS] if each is not None]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Found) -> None:
    ctx.save_for_backward(*inputs[:_INPUTS], *output)
    ctx.names = inputs[_INPUTS:-1]


def _differentiate(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    tensors, made = saved[:_INPUTS], saved[_INPUTS:]
    learns = ctx.needs_input_grad[Given._fields.index("alpha")]
    found = iter(_backward(*tensors, *ctx.names, list(made), grads[0], grads[1], learns))
    named = [None if each is None else next(found) for each in tensors]
    return *named, *(None for _ in ctx.names), None


torch.library.register_autograd("hpfracc_nn::recurrence", _differentiate, setup_context=_remember)


def _read(named: Sequence[Any]) -> tuple[Recurrence, Given]:
    """Return the recurrence of an operation's arguments, and its tensors."""
    *tensors, cell, window, orders, bounds = named
    within = None if window == _WHOLE else window
    site = default_manager().shared_site(operation(within), "torch", "compiled")
    memory = Memory(site, within, _definition(tuple(orders), tuple(bounds)))
    return Recurrence(CELLS[cell], memory), Given(*tensors)


@lru_cache(maxsize=64)
def _definition(orders: tuple[float, ...], bounds: tuple[float, ...]) -> GrunwaldLetnikov:
    if bounds:
        return GrunwaldLetnikov(bounds[1], bounds=(bounds[0], bounds[1]))
    return GrunwaldLetnikov(orders[0] if len(orders) == 1 else orders)


def _own(x: Tensor) -> Tensor:
    """Return a copy in row order: the results of an operation must be as its fake has them, and share nothing."""
    return x.clone(memory_format=_ROWS)


def _nothing(like: Tensor, count: int) -> list[Tensor]:
    return [like.new_empty(0) for _ in range(count)]
