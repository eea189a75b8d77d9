"""What a right-hand side held when it was solved, put back while the adjoint evaluates it again.

Attributes of modules and objects, entries of containers, cells of closures and names of files are put back by identity,
and afterwards all is as it was before. Numbers that were written into a tensor cannot be put back: they are refused.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn.solvers.torch.held import FEW, OWN, PLAIN, cells_of, names_of, own_attributes, visited

_TABLES = (dict, OrderedDict, defaultdict)
_TORCHS = tuple(name for name, value in vars(nn.Module()).items() if isinstance(value, dict))
_WITHOUT = (nn.Module, ModuleType, FunctionType, type)  # are not looked into for a graph
_GONE = object()  # for a name that is there no more
_DEPTH = 3  # of values within values that are looked at for a graph

Undo = Callable[[], None]


class Tenure:
    """What functions hold now, for a time when they hold something else.

    Args:
        functions: That are evaluated again.
        read: The tensors that they read.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], read: Sequence[Tensor]):
        self._versions = [(each, each._version) for each in read]
        known = {id(each) for each in read}
        self._places = [place for f in functions for place in _places(f, known)]

    @contextmanager
    def renewed(self, wanted: Sequence[Tensor] = ()) -> Iterator[None]:
        """Let the functions hold it once more; what they store meanwhile goes.

        Args:
            wanted: Tensors whose gradients are taken; they required one then, and do again.

        Raises:
            RuntimeError: A tensor that they read holds other numbers.
        """
        self._check()
        frozen = [each for each in wanted if not each.requires_grad]
        undo: list[Undo] = []
        try:
            for place in self._places:
                undo.append(place())
            for each in frozen:
                each.requires_grad_(True)
            yield
            self._versions = [(each, each._version) for each, _ in self._versions]  # what f itself wrote
        finally:
            for each in frozen:
                each.requires_grad_(False)
            for one in reversed(undo):
                one()

    def _check(self) -> None:
        for each, version in self._versions:
            if each._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"a tensor of shape {tuple(each.shape)} that a right-hand side reads is at version "
                    f"{each._version}; expected version {version} instead; clone it before it is changed, or change "
                    "it after the backward pass."
                )


def _places(f: Any, read: set[int]) -> Iterator[Callable[[], Undo]]:
    """Yield for every place where f holds something what puts that back there, and returns what undoes it."""
    for one in visited(f):
        if isinstance(one, nn.Module):
            for each in one.modules():
                if isinstance(each, torch.jit.ScriptModule):  # its attributes are not Python's
                    yield _scripted(each)
                else:
                    yield from _of_module(each, read)
        elif isinstance(one, FunctionType):
            yield from (_cell(cell) for cell in cells_of(one) if not _is_loose(cell.cell_contents, read))
            yield _names(one, read)
        elif isinstance(one, Tensor | tuple):
            continue
        elif isinstance(one, list | dict):
            yield from _of_container(one, read)
        elif hasattr(one, "__dict__"):
            yield from _of_attributes(vars(one), read)


def _of_module(module: nn.Module, read: set[int]) -> Iterator[Callable[[], Undo]]:
    attributes = vars(module)
    yield _tables([attributes[name] for name in _TORCHS if name in attributes])
    yield _table(attributes, read)
    for each in own_attributes(module):
        if isinstance(each, list | dict) and len(each) <= FEW:
            yield from _of_container(each, read)


def _of_attributes(attributes: dict[str, Any], read: set[int]) -> Iterator[Callable[[], Undo]]:
    yield _table(attributes, read)
    for each in attributes.values():
        if isinstance(each, list | dict) and len(each) <= FEW:
            yield from _of_container(each, read)


def _of_container(container: list[Any] | dict[Any, Any], read: set[int]) -> Iterator[Callable[[], Undo]]:
    if _is_loose(container, read):  # it would be kept with all that it holds
        return
    if type(container) in _TABLES:
        yield _table(container, read)  # type: ignore[arg-type]
    elif type(container) is list:
        yield _list(container)


def _scripted(module: torch.jit.ScriptModule) -> Callable[[], Undo]:
    """As `_table`, for the parameters and buffers of a scripted module, which cannot be others in number."""

    def held() -> list[tuple[Any, str, Tensor]]:
        tables: tuple[Any, ...] = (module._parameters, module._buffers)
        return [(table, name, tensor) for table in tables for name, tensor in table.items()]

    before, was_training = held(), module.training

    def put_back() -> Undo:
        now, trains = held(), module.training
        changed = [new for new, old in zip(now, before, strict=True) if new[2] is not old[2]]

        def fill(values: list[tuple[Any, str, Tensor]], training: bool) -> None:
            for table, name, tensor in values if changed else ():
                table[name] = tensor
            if module.training != training:
                module.training = training

        fill(before, was_training)
        return lambda: fill(now, trains)

    return put_back


def _tables(tables: Sequence[dict[str, Any]]) -> Callable[[], Undo]:
    """As `_table`, for those that every module has: most are empty, now and then."""
    filled = [(table, dict(table)) for table in tables if table]
    empty = [table for table in tables if not table]

    def put_back() -> Undo:
        begun: list[tuple[dict[str, Any], dict[str, Any]]] = [(table, {}) for table in empty if table]
        now = [(table, dict(table)) for table, _ in (*filled, *begun)]

        def undo() -> None:
            for table, values in now:
                _fill(table, values)
            for table in empty:
                if table and all(table is not each for each, _ in begun):
                    table.clear()

        for table, values in (*filled, *begun):
            _fill(table, values)
        return undo

    return put_back


def _table(table: dict[Any, Any], read: set[int]) -> Callable[[], Undo]:
    loose = {name for name, value in table.items() if name not in OWN and _is_loose(value, read)}
    before = {name: value for name, value in table.items() if name not in loose} if loose else dict(table)

    def put_back() -> Undo:
        now = dict(table)
        _fill(table, {**before, **{name: now[name] for name in loose if name in now}} if loose else before)
        return lambda: _fill(table, now)

    return put_back


def _fill(table: dict[Any, Any], values: dict[Any, Any]) -> None:
    """Let a table hold these values, in their order."""
    if list(table) != list(values):
        table.clear()
        table.update(values)
    elif not all(map(is_, table.values(), values.values())):
        table.update(values)


def _list(entries: list[Any]) -> Callable[[], Undo]:
    before = list(entries)

    def fill(values: list[Any]) -> None:
        if len(entries) != len(values) or not all(map(is_, entries, values)):
            entries[:] = values

    def put_back() -> Undo:
        now = list(entries)
        fill(before)
        return lambda: fill(now)

    return put_back


def _cell(cell: CellType) -> Callable[[], Undo]:
    """As `_table`, for a name of a closure; a name that has not changed is left to what f makes of it."""
    before = cell.cell_contents

    def put_back() -> Undo:
        if cell == CellType():  # the name has been deleted

            def empty() -> None:
                del cell.cell_contents

            cell.cell_contents = before
            return empty
        now = cell.cell_contents

        def undo() -> None:
            if now is not before:
                cell.cell_contents = now

        if now is not before:
            cell.cell_contents = before
        return undo

    return put_back


def _names(f: FunctionType, read: set[int]) -> Callable[[], Undo]:
    """As `_cell`, for the names of its file that a function reads and no others."""
    table = f.__globals__
    before = {name: table[name] for name in names_of(f) if not _is_loose(table[name], read)}

    def put_back() -> Undo:
        changed = [name for name, value in before.items() if table.get(name, _GONE) is not value]
        now = {name: table[name] for name in changed if name in table}
        table.update({name: before[name] for name in changed})

        def undo() -> None:
            table.update(now)
            for name in changed:
                if name not in now:
                    del table[name]

        return undo

    return put_back


def _is_loose(value: Any, read: set[int], depth: int = _DEPTH) -> bool:
    """Whether a value has a graph that f does not read: keeping the last one would keep all graphs before it."""
    if depth == 0 or type(value) in PLAIN:
        return False
    if isinstance(value, Tensor):
        return value.grad_fn is not None and id(value) not in read
    if isinstance(value, _WITHOUT):
        return False
    if isinstance(value, tuple | list | dict):
        parts = value.values() if isinstance(value, dict) else value
        return len(value) <= FEW and any(_is_loose(each, read, depth - 1) for each in parts)
    return any(_is_loose(each, read, depth - 1) for each in getattr(value, "__dict__", {}).values())
