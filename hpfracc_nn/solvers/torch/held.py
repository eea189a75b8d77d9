"""What a right-hand side holds: the modules and tensors of its closure, arguments, attributes and globals."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
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


def _held(f: Any) -> Iterator[Any]:
    """Yield what f holds, each object once; functions of its own file and closure are looked into, and containers."""
    seen: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(f, True)]
    while waiting:
        one, is_called = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, nn.Module | Tensor):
            yield one
        elif isinstance(one, partial):
            waiting += [(each, True) for each in (one.func, *one.args, *one.keywords.values())]
        elif inspect.ismethod(one):
            waiting += [(one.__self__, True), (one.__func__, True)]
        elif inspect.isfunction(one):
            waiting += [(each, False) for each in _named(one)]
        elif isinstance(one, tuple | list | dict) and len(one) <= _FEW:
            waiting += [(each, False) for each in (one.values() if isinstance(one, dict) else one)]
        elif is_called and hasattr(one, "__dict__"):
            waiting += [(each, False) for each in vars(one).values()]


def _named(f: FunctionType) -> Iterator[Any]:
    """Yield what a function has in its closure and defaults, and what it names of its file, but no file's others."""
    yield from (cell.cell_contents for cell in f.__closure__ or () if cell != _EMPTY)
    yield from f.__defaults__ or ()
    yield from (f.__kwdefaults__ or {}).values()
    for name in f.__code__.co_names:
        each = f.__globals__.get(name)
        if not inspect.isfunction(each) or each.__globals__ is f.__globals__:
            yield each
