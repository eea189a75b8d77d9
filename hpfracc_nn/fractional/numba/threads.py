"""Ranges of independent work on several threads, by threads of our own.

Compiled functions release the interpreter's lock, so plain Python threads run them side by side. Numba's own threads
are not used: its OpenMP layer ends a process that forks after using it, and its workqueue layer aborts when two Python
threads meet in it. The pool is made when it is first needed, and anew after a fork.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from queue import SimpleQueue

from hpfracc_nn.forks import in_children

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def spread(work: Callable[[int, int, int], object], count: int, parts: int) -> None:
    """Call work(part, begin, end) once for each of `parts` ranges that make up the range from 0 to `count`.

    The calling thread takes one range after another, and so does every free thread of the pool. Where none is free,
    because others call too or because the process may start no more, the calling thread does all ranges. Once all have
    ended, an exception that `work` raised is raised here.
    """
    if parts <= 1:
        work(0, 0, count)
        return
    edges = [count * part // parts for part in range(parts + 1)]
    ranges = deque(enumerate(pairwise(edges)))
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def take() -> None:
        while ranges:
            try:
                part, ends = ranges.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                work(part, *ends)
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

    with suppress(RuntimeError):  # the interpreter is about to end, or there may be no more threads
        for _ in range(parts - 1):
            _threads().submit(take)
    take()
    errors = [ended.get() for _ in range(parts)]
    for error in errors:
        if error is not None:
            raise error


def _threads() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="hpfracc_nn")
        return _pool


@in_children
def _after_fork() -> None:
    """Replace the lock and forget the pool, in a child process.

    The child has none of the pool's threads, nor the thread that may have held the lock.
    """
    global _lock, _pool
    _lock, _pool = threading.Lock(), None
