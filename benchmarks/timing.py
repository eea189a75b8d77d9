"""Time several calls side by side, and say on what machine.

The calls take turns, so that a change of the machine's load falls on all of them, and each is timed over so many
repeats that the clock's resolution does not matter. The median over the rounds is what is reported.
"""

from __future__ import annotations

import ctypes
import gc
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

Call = Callable[[], object]

FLOOR_ROUNDS = 15  # where a ratio is compared with a floor
_LEAST_ROUNDS = 3  # where one call takes so long that the budget allows no more
ALLOCATORS = ("cold", "warm")  # in the order in which a process may use them
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc


@dataclass(frozen=True)
class Times:
    """Median seconds of each call, and over how many rounds."""

    medians: Mapping[str, float]
    rounds: int

    def __getitem__(self, name: str) -> float:
        return self.medians[name]

    def best(self, prefix: str) -> float:
        """Return the least median of the calls whose names begin with `prefix`."""
        return min(seconds for name, seconds in self.medians.items() if name.startswith(prefix))


def interleaved(
    calls: Mapping[str, Call],
    rounds: int = FLOOR_ROUNDS,
    *,
    seconds: float = 0.02,
    budget: float = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Return the median seconds of each call over rounds in which all take turns.

    Args:
        calls: What to time, by name. Each runs twice before, so that what it plans or compiles is not timed.
        rounds: How many.
        seconds: About how long all calls of one round together take; a call that is faster than its share is repeated.
        budget: Seconds after which no new round begins, once there are three.
        clock: What tells the time of a call; `time.process_time` where other processes want the same core.
    """
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        repeats[name] = max(1, int(seconds / len(calls) / max(once, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    begin = time.perf_counter()
    done = 0
    while done < rounds and (done < _LEAST_ROUNDS or time.perf_counter() - begin < budget):
        for name, call in calls.items():
            start = clock()
            for _ in range(repeats[name]):
                call()
            times[name].append((clock() - start) / repeats[name])
        done += 1
    return Times({name: statistics.median(found) for name, found in times.items()}, done)


def set_allocator(name: str) -> None:
    """Let glibc keep freed memory ("warm"), or give every block from 64 KiB on back to the system ("cold").

    What malloc has once kept it hands out again: measure cold first. Without glibc this does nothing.

    Raises:
        OSError: glibc takes no such setting.
    """
    warm = name == "warm"
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        settings = {
            _M_MMAP_THRESHOLD: 1 << 30 if warm else 1 << 16,
            _M_TRIM_THRESHOLD: (1 << 31) - 1 if warm else 1 << 16,
        }
        for name_of, value in settings.items():
            if not libc.mallopt(name_of, value):
                raise OSError(f"set_allocator({name!r}): glibc refuses mallopt({name_of}, {value}).")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine() -> str:
    """Return the processor and the version of torch."""
    return f"{processor()}, torch {torch.__version__}"


def processor() -> str:
    """Return the model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
