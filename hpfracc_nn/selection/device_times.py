"""How long calls take on a device that computes while the host goes on.

A call that is to be timed is put between two marks in the device's own order of work. Later calls look whether the
device has passed them; nobody ever waits for it. What a framework marks with is its own affair: it registers a marker,
as CUDA events are for torch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.workload import Direction

MOST_PENDING = 64  # calls; of more the oldest are given up


class Mark(Protocol):
    """A point in the work of a device."""

    def passed(self) -> bool:
        """Return whether the device has come so far, without waiting for it; False where it must not be asked now."""

    def seconds_since(self, earlier: Any) -> float:
        """Return the device's time between an earlier mark and this one; both are passed."""


Marker = Callable[[str], Mark | None]

_markers: dict[str, Marker] = {}


def register_marker(framework: str, marker: Marker) -> None:
    """Let `marker(device)` mark the present point of a device's work for `framework`, or return None if it cannot.

    Args:
        framework: Whose calls are timed so.
        marker: Of a device's name; what it returns has `passed()` and `seconds_since(earlier)`, which must not wait.

    Examples:
        >>> import time
        >>> class Now:  # of a device that is never behind
        ...     def __init__(self, device):
        ...         self.time = time.perf_counter()
        ...
        ...     def passed(self):
        ...         return True
        ...
        ...     def seconds_since(self, earlier):
        ...         return self.time - earlier.time
        >>> register_marker("mine", Now)
        >>> unregister_marker("mine")
    """
    _markers[framework] = marker


def unregister_marker(framework: str) -> None:
    """Forget the marker of `framework`.

    Raises:
        LookupError: None is registered.

    Examples:
        >>> register_marker("mine", lambda device: None)  # no device of it can be marked
        >>> unregister_marker("mine")
    """
    if framework not in _markers:
        raise LookupError(f"no marker for framework {framework!r}: registered are {', '.join(_markers) or 'none'}.")
    del _markers[framework]


class Timed(NamedTuple):
    """A call that a device has finished."""

    plan: Plan
    direction: Direction
    seconds: float


class _Pending(NamedTuple):
    plan: Plan
    direction: Direction
    begin: Mark
    end: Mark


class DeviceTimes:
    """Calls between two marks, until the device has passed the second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: deque[_Pending] = deque(maxlen=MOST_PENDING)

    def begin(self, plan: Plan) -> Mark | None:
        """Return a mark before a call of `plan`, None where its framework has none for the device."""
        marker = _markers.get(plan.workload.framework)
        return None if marker is None else marker(plan.workload.device)

    def end(self, plan: Plan, direction: Direction, begin: Mark) -> None:
        """Mark the end of a call."""
        marker = _markers.get(plan.workload.framework)
        end = None if marker is None else marker(plan.workload.device)
        if end is not None:
            with self._lock:
                self._pending.append(_Pending(plan, direction, begin, end))

    def finished(self) -> list[Timed]:
        """Return the calls that the device has finished since the last time, oldest first, each once."""
        if not self._pending:
            return []
        with self._lock:
            done = [each for each in self._pending if each.end.passed()]
            self._pending = deque((each for each in self._pending if each not in done), MOST_PENDING)
        return [Timed(each.plan, each.direction, each.end.seconds_since(each.begin)) for each in done]

    def clear(self) -> None:
        """Give up all of them, in a child process, which has no device; another thread may hold the lock."""
        self._lock = threading.Lock()
        self._pending = deque(maxlen=MOST_PENDING)
