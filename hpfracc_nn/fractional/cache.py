"""A cache of what is made once and kept by value, within a number of bytes; and properties that are computed once.

A value that makes things later, when they are first asked for, is handed an account when it is built and charges them:
`charge(array)` returns the array. Whoever still uses what the cache drops keeps it alive; the next `get` builds anew.

`cached_property` is that of functools without its lock, which it has up to Python 3.11. That lock is one for all
instances: a child that is forked while a thread computes any of them finds it held, for ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
Charge = Callable[[Any], Any]  # returns what it is given; see `Account`

_OBJECTS = 1 << 15  # bytes that every value counts for besides its arrays: Python's objects take about 10 KB


def free(made: T) -> T:
    """Charge nobody: for values that are on no shelf."""
    return made


class Account:
    """What one value takes. It is called with each array, or tuple of arrays, that the value comes to hold.

    A view counts as if it were a copy, so that the sum is a bound and no measurement.
    """

    __slots__ = ("_shelf", "is_held", "size", "used")

    def __init__(self, shelf: Shelf) -> None:
        self._shelf, self.is_held, self.size, self.used = shelf, False, _OBJECTS, 0

    def __call__(self, made: T) -> T:
        """Add the bytes of `made`, on whatever device they are, and return it."""
        self._shelf._grow(self, _bytes(made))
        return made


class Shelf:
    """Values by key; once they outgrow the room, the least recently used go first. Threads may share it.

    The newest value stays even if it alone is larger than the room. A value counts as used when `get` returns it and
    when it charges something, not when whoever got it goes on using it.

    Args:
        room: Bytes of everything that is kept.
    """

    def __init__(self, room: int) -> None:
        self._room, self._size = room, 0
        self._kept: dict[Hashable, tuple[Any, Account]] = {}  # no account knows its value: no cycle
        self._clock = count(1)
        # A finalizer may run, and ask for weights, wherever this one allocates.
        self._lock = threading.RLock()
        _shelves.add(self)

    def get(self, key: Hashable, build: Callable[[Account], T]) -> T:
        """Return the value of a key, built by `build(charge)` if it is not there.

        Nothing waits while it is built: two threads may both do it, and then both get the first.
        """
        found = self._kept.get(key)
        if found is None:
            found = self._put(key, build)
        value, account = found
        account.used = next(self._clock)
        return value

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            dropped = list(self._kept.values())
            self._kept.clear()
            self._size = 0
            for _, account in dropped:
                account.is_held = False

    @property
    def size(self) -> int:
        """Bytes of everything that is kept."""
        return self._size

    def __len__(self) -> int:
        return len(self._kept)

    def _put(self, key: Hashable, build: Callable[[Account], T]) -> tuple[T, Account]:
        account = Account(self)
        value = build(account)
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                found = self._kept[key] = value, account
                account.is_held, account.used = True, next(self._clock)
                self._size += account.size
            dropped = self._overflow()
        del dropped  # freed here, where no lock is held
        return found

    def _grow(self, account: Account, size: int) -> None:
        dropped: list[Any] = []
        with self._lock:
            account.size += size
            if account.is_held:
                account.used = next(self._clock)
                self._size += size
                dropped = self._overflow()
        del dropped

    def _overflow(self) -> list[Any]:
        """Take values down until the others fit, and return them."""
        dropped = []
        while self._size > self._room and len(self._kept) > 1:
            oldest = min(list(self._kept.items()), key=lambda item: item[1][1].used)[0]
            value, account = self._kept.pop(oldest)
            account.is_held = False
            self._size -= account.size
            dropped.append(value)
        return dropped

    def renew(self) -> None:
        """Make the lock anew, in a child process: a thread that the child does not have may hold it, half way."""
        self._lock, self._size = threading.RLock(), 0
        for _, account in self._kept.values():
            account.is_held = True
            self._size += account.size


_shelves: weakref.WeakSet[Shelf] = weakref.WeakSet()


def _bytes(made: Any) -> int:
    return sum(map(_bytes, made)) if isinstance(made, tuple) else made.nbytes


def _after_fork() -> None:
    for shelf in _shelves:
        shelf.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
