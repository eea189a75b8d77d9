"""What a right-hand side or a noise holds: modules and tensors of its closure, arguments, attributes and globals."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType
from typing import Any

from torch import Tensor, nn

_EMPTY = CellType()
_FEW = 1000  # entries of a container that is looked into


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


class Tenure:
    """The parameters and buffers that modules have now, for a time when they have others.

    Under `torch.func.functional_call` a module has them during the call alone, and the adjoint evaluates f later.

    Args:
        functions: What holds the modules.
    """

    def __init__(self, *functions: Callable[..., Any]):
        modules = (each for f in functions for module in modules_of(f) for each in module.modules())
        tables = (table for each in modules for table in (each._parameters, each._buffers))
        self._tables: list[tuple[dict[str, Any], dict[str, Any]]] = [(table, dict(table)) for table in tables if table]

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Let the modules have them once more."""
        others = [
            (table, name, table[name])
            for table, before in self._tables
            for name, tensor in before.items()
            if name in table and table[name] is not tensor
        ]
        try:
            for table, before in self._tables if others else ():
                table.update({name: tensor for name, tensor in before.items() if name in table})
            yield
        finally:
            for table, name, tensor in others:
                table[name] = tensor


def _held(f: Any, is_deep: bool = False) -> Iterator[Any]:
    """Yield the modules and tensors that f holds, each once.

    Functions of its own file and closure are looked into, and containers; attributes of f, and of a function's
    arguments. If it is deep, then the attributes of all values that f holds.
    """
    seen: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(f, True)]
    while waiting:
        one, is_called = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module | Tensor):
            yield one
            if is_deep and isinstance(one, nn.Module):  # tensors that are no parameters
                waiting += [(each, True) for each in vars(one).values()]
        elif isinstance(one, partial):
            waiting += [(each, True) for each in (one.func, *one.args, *one.keywords.values())]
        elif inspect.ismethod(one):
            waiting += [(one.__self__, True), (one.__func__, True)]
        elif inspect.isfunction(one):
            waiting += [(each, False) for each in _named(one)]
        elif isinstance(one, tuple | list | dict) and len(one) <= _FEW:
            waiting += [(each, is_deep) for each in (one.values() if isinstance(one, dict) else one)]
        elif is_called and not inspect.isclass(one) and not inspect.ismodule(one):
            waiting += [(each, is_deep) for each in _attributes(one)]


def _attributes(one: Any) -> Iterator[Any]:
    """Yield an object's own attributes; a dataclass may have them in slots."""
    yield from vars(one).values() if hasattr(one, "__dict__") else ()
    if dataclasses.is_dataclass(one):
        yield from (getattr(one, each.name, None) for each in dataclasses.fields(one))


def _named(f: FunctionType) -> Iterator[Any]:
    """Yield what a function has in its closure and defaults, and what it names of its file, but no file's others."""
    yield from (cell.cell_contents for cell in f.__closure__ or () if cell != _EMPTY)
    yield from f.__defaults__ or ()
    yield from (f.__kwdefaults__ or {}).values()
    for name in f.__code__.co_names:
        each = f.__globals__.get(name)
        if not inspect.isfunction(each) or each.__globals__ is f.__globals__:
            yield each
