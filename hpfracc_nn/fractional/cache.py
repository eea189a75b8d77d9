"""A cache of values by key that is limited in bytes, and properties that are computed once.

`cached_property` is that of functools without the lock that functools takes up to Python 3.11. That lock is one for all
instances: a child process that is forked while a thread computes any of them finds the lock held for ever.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from itertools import count
from operator import attrgetter
from typing import Any, Generic, TypeVar, overload

from hpfracc_nn.forks import in_children

T = TypeVar("T")

_OBJECTS = 1 << 15  # bytes that every value counts for besides its arrays: Python's objects take about 10 KB
_MEASURED = 32  # values, or some more, that are measured again, in turn, whenever one is inserted


def nbytes(value: Any) -> int:
    """Return the bytes of a value: its `nbytes`, or the sum over a tuple, a list or a dict's values; 0 for any other.

    A view counts as if it were a copy, so that the sum is a bound.
    """
    if isinstance(value, dict):
        value = list(value.values())  # another thread may add to it
    return sum(map(nbytes, value)) if isinstance(value, tuple | list) else getattr(value, "nbytes", 0)


class _Entry:
    __slots__ = ("measured", "size", "used", "value")

    def __init__(self, value: Any, now: int):
        self.value, self.size, self.used, self.measured = value, _OBJECTS + nbytes(value), now, now


class ByteCache:
    """Values by key; once their bytes exceed a limit, the least recently used are dropped. Threads may share it.

    The size of a value is what the function `nbytes` finds in it. A value may grow while it is used: whenever another
    one is inserted, all that were used since they were last measured are measured again, and a few of the others in
    turn. A value counts as used when `get` returns it, and when it is found to have grown.

    The newest value stays even if it alone exceeds the limit. A dropped value lives on as long as a caller holds it;
    the next `get` of its key builds it anew.

    Args:
        limit: The most bytes of all values together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: dict[Hashable, _Entry] = {}
        self._clock = count(1)
        # A finalizer may run, and call `get`, wherever this cache allocates: a running sum of sizes would go wrong.
        self._lock = threading.RLock()
        _caches.add(self)

    def get(self, key: Hashable, build: Callable[[], T]) -> T:
        """Return the value of a key; if there is none, insert `build()` and return it.

        No lock is held during `build`: two threads may both call it, and then both get the value inserted first.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._insert(key, build())
        entry.used = next(self._clock)
        return entry.value

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            dropped = list(self._entries.values())
            self._entries.clear()
        del dropped  # freed here, where no lock is held

    @property
    def size(self) -> int:
        """Bytes of all values as they were last measured."""
        return sum(map(attrgetter("size"), list(self._entries.values())))

    def __len__(self) -> int:
        return len(self._entries)

    def _insert(self, key: Hashable, value: Any) -> _Entry:
        with self._lock:
            self._measure()
            entry = self._entries.setdefault(key, _Entry(value, next(self._clock)))
            dropped = self._overflow()
        del dropped  # freed here, where no lock is held
        return entry

    def _measure(self) -> None:
        entries, now = list(self._entries.values()), next(self._clock)
        step = 1 + len(entries) // _MEASURED
        for entry in [*entries[now % step :: step], *(each for each in entries if each.used > each.measured)]:
            if entry.measured < now:
                size, entry.measured = _OBJECTS + nbytes(entry.value), now
                if size > entry.size:
                    entry.used = now
                entry.size = size

    def _overflow(self) -> list[_Entry]:
        """Remove the least recently used entries until the others are within the limit, and return the removed ones."""
        dropped, size = [], self.size
        while size > self.limit and len(self._entries) > 1:
            oldest = min(list(self._entries.items()), key=lambda item: item[1].used)[0]
            dropped.append(self._entries.pop(oldest))
            size -= dropped[-1].size
        return dropped

    def renew_lock(self) -> None:
        """Replace the lock, in a child process: a thread that the child does not have may hold it."""
        self._lock = threading.RLock()


_caches: weakref.WeakSet[ByteCache] = weakref.WeakSet()


@in_children
def _after_fork() -> None:
    for cache in _caches:
        cache.renew_lock()


class cached_property(Generic[T]):
    """A property that is computed once for each instance.

    Threads that read it at the same time may each compute a value, but all get the same one.

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
        return instance.__dict__.setdefault(self.name, self.compute(instance))
