"""Ranges of independent work on several threads, by threads of our own.

Compiled functions release the interpreter's lock, so plain Python threads run them side by side. Numba's own threads are
not used: its OpenMP layer ends a process that forks after using it, and its workqueue layer aborts when two Python
threads meet in it. The pool is made when it is first needed, and anew after a fork.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def spread(work: Callable[[int, int, int], object], count: int, parts: int) -> None:
    """Call work(part, begin, end) on `parts` ranges that make up `count`; the first here, the others on the pool.

    Whatever one of them raises is raised here, when all have ended.
    """
    if parts <= 1:
        work(0, 0, count)
        return
    edges = [count * part // parts for part in range(parts + 1)]
    pool = _threads()
    waiting = [pool.submit(work, part, *ends) for part, ends in enumerate(pairwise(edges[1:]), 1)]
    try:
        work(0, edges[0], edges[1])
    finally:
        errors = [future.exception() for future in waiting]
    for error in errors:
        if error is not None:
            raise error


def _threads() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="hpfracc_nn")
        return _pool


def _after_fork() -> None:
    """A child has the pool but not its threads, and perhaps a lock that nobody will release."""
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
