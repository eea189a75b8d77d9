"""`functools.cached_property` without its lock, which it has up to Python 3.11.

That lock is one for all instances: a child that is forked while a thread computes any of them finds it held, for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that is computed once for each instance. Threads that ask at once compute it each, and get the same.

    Args:
        compute: The method that returns the value; the instance needs a `__dict__`.

    Examples:
        >>> class Square:
        ...     def __init__(self, side):
        ...         self.side = side
        ...
        ...     @cached_property
        ...     def area(self):
        ...         return self.side**2
        >>> square = Square(3)
        >>> square.area, vars(square)["area"]
        (9, 9)
    """

    def __init__(self, compute: Callable[[Any], T]):
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        return instance.__dict__.setdefault(self.name, self.compute(instance))  # type: ignore[no-any-return]
