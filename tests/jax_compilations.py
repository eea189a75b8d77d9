"""How often XLA compiles something, as `jax.monitoring` tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations() -> Iterator[Callable[[], int]]:
    """Give a function that returns how many programs were compiled within."""
    seen: list[str] = []

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield lambda: seen.count(_EVENT)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
