"""NumPy's rates on this machine and its memory, for selection."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import scipy
import scipy.fft

from hpfracc_nn.selection import Rates, register_probe
from hpfracc_nn.selection.memory import host_free

_REPEATS = 3  # the fastest counts: a busy machine only ever adds time
_MATMUL = (40, 64)  # so many products of squares: BLAS uses one thread for those
_FFT = (16, 4096)
_STREAM = 1 << 23  # bytes; beyond a core's own caches


class NumpyProbe:
    """The probe of NumPy and SciPy: threads, free memory and measured rates; see `selection.Probe`."""

    framework = "numpy"
    waits_to_be_asked = False

    def threads(self) -> int:
        """Number of threads: 1, that of `scipy.fft`; NumPy does not report how many BLAS uses."""
        return 1

    def free_memory(self, device: str) -> int | None:
        """Return the host's free memory in bytes, None where it is unknown."""
        return host_free()

    def release(self, device: str) -> None:
        """Do nothing: NumPy keeps no memory that it does not use."""

    def deterministic(self) -> bool:
        """False: NumPy has no switch for deterministic algorithms."""
        return False

    def calibrate(self, device: str, dtype: str) -> Rates:
        """Return NumPy's rates on this machine, measured in about ten milliseconds."""
        rng = np.random.default_rng(0)
        count, size = _MATMUL
        square = rng.standard_normal((size, size)).astype(dtype)
        out = np.empty_like(square)
        rows = rng.standard_normal(_FFT).astype(dtype)
        stream = np.ones(_STREAM // np.dtype(dtype).itemsize, dtype)
        target = np.empty_like(stream)
        flops = {
            # One thread, as `threads` says and as most kernels use. Several wait on each other: a busy machine slowed
            # large products forty times.
            "matmul": 2 * count * size**3 / _seconds(lambda: [np.matmul(square, square, out) for _ in range(count)]),
            "fft": 2.5 * rows.size * np.log2(_FFT[1]) / _seconds(lambda: scipy.fft.rfft(rows)),
            "scan": rows.size / _seconds(lambda: np.cumsum(rows, axis=-1)),
            "elementwise": rows.size / _seconds(lambda: rows * rows),
        }
        copying = _seconds(lambda: np.copyto(target, stream))
        launch = _seconds(lambda: [scipy.fft.rfft(rows[0, :8]) for _ in range(20)]) / 20
        return Rates(flops, bandwidth=2 * stream.nbytes / copying, launch=launch)


def _seconds(call: Callable[[], object], repeats: int = _REPEATS) -> float:
    call()  # page faults and FFT plans
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return max(best, 1e-9)  # a coarse clock may show nothing


register_probe(NumpyProbe())
