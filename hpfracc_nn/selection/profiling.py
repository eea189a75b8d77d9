"""The time of a block of the caller's own code, and of its parts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hpfracc_nn.selection.workload import Measurement, Workload


class Block:
    """What `BackendManager.profile` hands out: it has begun when it is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._compiling = self._transferring = 0.0

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Count what happens inside as compilation."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._compiling += time.perf_counter() - began

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Count what happens inside as moving data between devices."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._transferring += time.perf_counter() - began

    def measured(self, workload: Workload, succeeded: bool) -> Measurement:
        """Return what was measured until now."""
        return Measurement(
            workload,
            "block",
            time.perf_counter() - self._began,
            "forward",
            succeeded=succeeded,
            compile_seconds=self._compiling,
            transfer_seconds=self._transferring,
        )
