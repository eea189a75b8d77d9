"""Recurrences inside torch.compile and torch.export: one opaque operation, whatever the number of steps.

A compiler that followed the loop would unroll it, which takes minutes at some hundred steps. It sees the shapes and the
operation of the backward pass instead; both ask the manager when they run. They take tensors, numbers and names only,
so that an exported graph holds no address. Where an exported graph runs, the operation is the plain call; where a
transform or forward mode looks at a graph, it is the plain formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.torch.tracing import has_tangent, is_watched, plainly, uncompiled
from hpfracc_nn.layers.torch.recurrent.cells import CELLS, Given, Made
from hpfracc_nn.layers.torch.recurrent.memory import Memory, operation
from hpfracc_nn.layers.torch.recurrent.run import Recurrence, gradients_by_loop
from hpfracc_nn.selection import default_manager, is_process_wide

_GIVEN = (
    "Tensor projected, Tensor h, Tensor value, Tensor alpha, Tensor weight, Tensor? bias, Tensor? projection, "
    "str cell, int window, float[] orders, float[] bounds"
)
_LIBRARY = torch.library.Library("hpfracc_nn", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
# traced: whether a compiler's graph calls
_LIBRARY.define(f"recurrence({_GIVEN}, bool traced=False) -> (Tensor, Tensor)", tags=_TAGS)
_LIBRARY.define(f"recurrence_kept({_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", tags=_TAGS)
_LIBRARY.define(
    f"recurrence_backward({_GIVEN}, Tensor[] made, Tensor out, Tensor values, bool learns) -> Tensor[]", tags=_TAGS
)
FORWARD = torch.ops.hpfracc_nn.recurrence.default
KEPT = torch.ops.hpfracc_nn.recurrence_kept.default
BACKWARD = torch.ops.hpfracc_nn.recurrence_backward.default

_INPUTS = len(Given._fields)
_ALPHA = Given._fields.index("alpha")
_KEPT = 3  # tensors at most
_ROWS = torch.contiguous_format
_WHOLE = 0  # in place of a window: all of the past

Found = tuple[Tensor, ...]


class Names(NamedTuple):
    """What an operation knows of a recurrence beside its tensors."""

    cell: str
    window: int
    orders: Sequence[float]
    bounds: Sequence[float]


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
    return FORWARD(*given, recurrence.cell.name, window, orders, bounds)  # type: ignore[no-any-return]


def _outside(recurrence: Recurrence, given: Given) -> tuple[Tensor, Tensor]:
    return recurrence(given)


uncompiled(_outside, "a graph cannot name a BackendManager of the caller's own; it runs outside")


# Forward


def _run(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Return the outputs and what is remembered of each step."""
    out, values, *_ = _made(arguments, keeps=False)
    return out, values


def _run_kept(*arguments: Any) -> Found:
    """Return the same, and what the backward pass needs besides."""
    return _made(arguments, keeps=True)


def _made(arguments: Sequence[Any], *, keeps: bool) -> Found:
    given, names, _ = _read(arguments)
    if not given.projected.numel():
        return _fake_kept(*arguments)
    recurrence = _recurrence(names)
    with plainly():
        sums = recurrence.sums(given, needs_gradient=keeps)
        made = recurrence.cell.run(given, sums, keeps=keeps)
        values = sums.packing.viewed(made.values)[1:, 0]
        nothing = [given.projected.new_empty(0) for _ in range(_KEPT - len(made.kept))]
        return _own(made.out), _own(values), *made.kept, *nothing


def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    out, values, *_ = _fake_kept(*arguments)
    return out, values


def _fake_kept(*arguments: Any) -> Found:
    """Return tensors of the same shapes."""
    given, names, _ = _read(arguments)
    x, cell = given.projected, CELLS[names.cell]
    n, batch, width = x.shape
    units = width // cell.gates
    widths = [given.h.shape[-1], units, *(units * each for each in cell.keeps)]
    nothing = [x.new_empty(0) for _ in range(_KEPT - len(cell.keeps))]
    return *(x.new_empty(n, batch, each) for each in widths), *nothing


def _autograd(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Choose who differentiates: for a compiler the pair of operations, for all others what they always do."""
    given, names, traced = _read(arguments)
    tensors = [each for each in given if each is not None]
    moves, watched = has_tangent(*tensors), is_watched(given.projected)
    tracks = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
    if torch._C._are_functorch_transforms_active() or (moves and not traced):
        return _recurrence(names).formula(given)
    if moves:
        raise RuntimeError(
            "a recurrent layer (x with a tangent): a compiled graph loses the tangents of its inputs; "
            "take forward mode inside the compiled function, or call it without torch.compile."
        )
    if tracks and not watched:
        return _recurrence(names)(given)
    if tracks:
        return _Opaque.apply(names, *given)  # type: ignore[no-any-return]
    with torch._C._AutoDispatchBelowAutograd():
        return FORWARD(*given, *names, watched or traced)  # type: ignore[no-any-return]


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, names: Names, *given: Tensor | None) -> tuple[Tensor, Tensor]:
        found: Found = KEPT(*given, *names)
        ctx.names = names
        ctx.save_for_backward(*given, *found)
        return found[0], found[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, learns = ctx.saved_tensors, ctx.needs_input_grad[1 + _ALPHA]
        given, made = saved[:_INPUTS], saved[_INPUTS:]
        found = iter(BACKWARD(*given, *ctx.names, list(made), grads[0], grads[1], learns))
        return None, *(None if each is None else next(found) for each in given)


# Backward


def _run_backward(*arguments: Any) -> list[Tensor]:
    """Return the gradients of all tensors that were given and are there, alpha's 0 where none is wanted."""
    given, names, made, out, values, learns = _read_backward(arguments)
    if not given.projected.numel():
        return [torch.zeros_like(each, memory_format=_ROWS) for each in given if each is not None]
    recurrence = _recurrence(names)
    with plainly():
        sums = recurrence.sums(given, needs_gradient=True, direction="backward")
        remembered = sums.packing.matrix(torch.cat([given.value[None], made[1]]))[:, :, None]
        kept = Made(made[0], remembered, tuple(made[2 : 2 + len(recurrence.cell.keeps)]))
        found = gradients_by_loop(recurrence, given, kept, sums, out, values, learns=learns)
    return [
        torch.zeros_like(each, memory_format=_ROWS) if one is None else _own(one)
        for one, each in zip(found, given, strict=True)
        if each is not None
    ]


def _fake_backward(*arguments: Any) -> list[Tensor]:
    given, *_ = _read_backward(arguments)
    return [torch.empty_like(each, memory_format=_ROWS) for each in given if each is not None]


def _autograd_backward(*arguments: Any) -> list[Tensor]:
    """Take the plain formula where the gradients are themselves differentiated."""
    given, names, _, out, values, _ = _read_backward(arguments)
    tensors = [each for each in (*given, out, values) if each is not None]
    if (
        torch._C._are_functorch_transforms_active()
        or has_tangent(*tensors)
        or (torch.is_grad_enabled() and any(each.requires_grad for each in tensors))
    ):
        return _formula_backward(_recurrence(names), given, out, values)
    with torch._C._AutoDispatchBelowAutograd():
        return BACKWARD(*arguments)  # type: ignore[no-any-return]


def _formula_backward(recurrence: Recurrence, given: Given, out: Tensor, values: Tensor) -> list[Tensor]:
    """Return the gradients, themselves differentiable."""
    is_there = [each is not None for each in given]

    def formula(*present: Tensor) -> tuple[Tensor, Tensor]:
        each = iter(present)
        return recurrence.formula(Given(*(next(each) if there else None for there in is_there)))  # type: ignore[arg-type]

    pull = torch.func.vjp(formula, *(each for each in given if each is not None))[1]
    return list(pull((out, values)))


# Batches of calls, one after another


def _vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    return _one_by_one(FORWARD, info.batch_size, in_dims, arguments)


def _vmap_backward(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
    return _one_by_one(BACKWARD, info.batch_size, in_dims, arguments)


def _one_by_one(operation: Any, count: int, in_dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, Any]:
    def taken(value: Any, dim: Any, k: int) -> Any:
        if isinstance(dim, list | tuple):
            return [taken(each, its, k) for each, its in zip(value, dim, strict=True)]
        return value if dim is None else value.select(dim, k)

    found = [
        operation(*(taken(value, dim, k) for value, dim in zip(arguments, in_dims, strict=False))) for k in range(count)
    ]
    stacked = [torch.stack(each) for each in zip(*found, strict=True)]
    kind = type(found[0])
    return kind(stacked), kind([0] * len(stacked))


# What all of them share


def _read(arguments: Sequence[Any]) -> tuple[Given, Names, bool]:
    """Return what stands behind the arguments; the dispatcher leaves out what has its default value."""
    last = _INPUTS + len(Names._fields)
    (traced,) = (*arguments[last:], False)[:1]
    return Given(*arguments[:_INPUTS]), _names(arguments[_INPUTS:last]), traced


def _read_backward(arguments: Sequence[Any]) -> tuple[Given, Names, list[Tensor], Tensor, Tensor, bool]:
    last = _INPUTS + len(Names._fields)
    made, out, values, learns = arguments[last:]
    return Given(*arguments[:_INPUTS]), _names(arguments[_INPUTS:last]), made, out, values, learns


def _names(given: Sequence[Any]) -> Names:
    """A program of AOTInductor hands over None where a list is empty."""
    known: list[Any] = [() if each is None else each for each in given]
    return Names(*known)


def _recurrence(names: Names) -> Recurrence:
    """Return the recurrence of an operation's names."""
    within = None if names.window == _WHOLE else names.window
    site = default_manager().shared_site(operation(within), "torch", "compiled")
    return Recurrence(CELLS[names.cell], Memory(site, within, _definition(tuple(names.orders), tuple(names.bounds))))


@lru_cache(maxsize=64)
def _definition(orders: tuple[float, ...], bounds: tuple[float, ...]) -> GrunwaldLetnikov:
    if bounds:
        return GrunwaldLetnikov(bounds[1], bounds=(bounds[0], bounds[1]))
    return GrunwaldLetnikov(orders[0] if len(orders) == 1 else orders)


def _own(x: Tensor) -> Tensor:
    """Return a copy in row order: the results of an operation must be as its fake has them, and share nothing."""
    return x.clone(memory_format=_ROWS)


for _name, _key, _kernel in (
    ("recurrence", "CompositeExplicitAutograd", _run),
    ("recurrence_kept", "CompositeExplicitAutograd", _run_kept),
    ("recurrence_backward", "CompositeExplicitAutograd", _run_backward),
    ("recurrence", "Autograd", _autograd),
    ("recurrence_backward", "Autograd", _autograd_backward),
):
    _LIBRARY.impl(_name, uncompiled(_kernel), _key)
torch.library.register_fake(FORWARD, _fake, lib=_LIBRARY)
torch.library.register_fake(KEPT, _fake_kept, lib=_LIBRARY)
torch.library.register_fake(BACKWARD, _fake_backward, lib=_LIBRARY)
torch.library.register_vmap(FORWARD, _vmap, lib=_LIBRARY)
torch.library.register_vmap(BACKWARD, _vmap_backward, lib=_LIBRARY)
