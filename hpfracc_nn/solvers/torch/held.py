"""What a right-hand side or a noise holds: modules and tensors of its closure, arguments, attributes and globals."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType
from typing import Any

from torch import Tensor, nn

_EMPTY = CellType()
FEW = 1000  # entries of a container that is looked into
OWN = frozenset(vars(nn.Module()))  # attributes of torch's
PLAIN = frozenset({int, float, bool, str, type(None)})  # hold nothing
_LOOKED_AT = (Tensor, nn.Module, tuple, list, dict)


def modules_of(f: Any) -> list[nn.Module]:
    """Return the modules that f is, is bound to, or names."""
    return [each for each in _held(f) if isinstance(each, nn.Module)]


def tensors_of(f: Any) -> list[Tensor]:
    """Return the tensors that f is bound to or names, without those of modules."""
    return [each for each in _held(f) if isinstance(each, Tensor)]


def tensors_within(value: Any) -> list[Tensor]:
    """Return the tensors of a value and of all values that it holds: of its attributes, containers and modules."""
    found: list[Tensor] = []
    for each in _held(value, is_deep=True):
        found += [each] if isinstance(each, Tensor) else [*each.parameters(), *each.buffers()]
    return found


def visited(f: Any, is_deep: bool = False) -> Iterator[Any]:
    """Yield all that f holds, each once: functions, containers, objects that are called, modules and tensors.

    Functions of its own file and closure are looked into, and containers; attributes of f, and of a function's
    arguments; of modules tensors, modules and containers that are attributes. If it is deep, then the attributes of
    all values that f holds.
    """
    seen: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(f, True)]
    while waiting:
        one, is_called = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, nn.Module):
            yield one
            # Deep: tensors that are no parameters, wherever; else those that a module calls its own.
            held = vars(one).values() if is_deep else _plain_attributes(one)
            waiting += [(each, is_deep) for each in held]
        elif isinstance(one, partial):
            waiting += [(each, True) for each in (one.func, *one.args, *one.keywords.values())]
        elif inspect.ismethod(one):
            waiting += [(one.__self__, True), (one.__func__, True)]
        elif inspect.isfunction(one):
            yield one
            waiting += [(each, False) for each in _named(one)]
        elif isinstance(one, tuple | list | dict):
            if len(one) <= FEW:
                yield one
                waiting += [(each, is_deep) for each in (one.values() if isinstance(one, dict) else one)]
        elif is_called and not inspect.isclass(one) and not inspect.ismodule(one):
            yield one
            waiting += [(each, is_deep) for each in _attributes(one)]


def _held(f: Any, is_deep: bool = False) -> Iterator[Any]:
    return (each for each in visited(f, is_deep) if isinstance(each, nn.Module | Tensor))


def _plain_attributes(module: nn.Module) -> Iterator[Any]:
    """Yield the tensors, modules and containers that a module and those in it have as attributes."""
    for each in module.modules():
        for value in own_attributes(each):
            if isinstance(value, _LOOKED_AT):
                yield value


def own_attributes(module: nn.Module) -> list[Any]:
    """Return the values of a module's attributes, without torch's own and without numbers and strings."""
    return [each for name, each in vars(module).items() if name not in OWN and type(each) not in PLAIN]


def _attributes(one: Any) -> Iterator[Any]:
    """Yield an object's own attributes; a dataclass may have them in slots."""
    yield from vars(one).values() if hasattr(one, "__dict__") else ()
    if dataclasses.is_dataclass(one):
        yield from (getattr(one, each.name, None) for each in dataclasses.fields(one))


def names_of(f: FunctionType) -> tuple[str, ...]:
    """Return the names of its file that a function reads."""
    return tuple(name for name in f.__code__.co_names if name in f.__globals__)


def cells_of(f: FunctionType) -> tuple[CellType, ...]:
    """Return the cells of a function's closure that are not empty."""
    return tuple(cell for cell in f.__closure__ or () if cell != _EMPTY)


def _named(f: FunctionType) -> Iterator[Any]:
    """Yield what a function has in its closure and defaults, and what it names of its file, but no file's others."""
    yield from (cell.cell_contents for cell in cells_of(f))
    yield from f.__defaults__ or ()
    yield from (f.__kwdefaults__ or {}).values()
    for name in names_of(f):
        each = f.__globals__[name]
        if not inspect.isfunction(each) or each.__globals__ is f.__globals__:
            yield each
