"""How fast this machine is: rates measured once through a framework's probe."""

import functools
import hashlib
import json
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from hpfracc_nn.errors import as_float
from hpfracc_nn.selection.probe import probe
from hpfracc_nn.selection.workload import UNITS, is_host

Calibration = Literal["measured", "shipped"]


@dataclass(frozen=True)
class Rates:
    """The slopes of a roofline, for one framework, device and dtype.

    Args:
        flops: Operations per second for each unit of work.
        bandwidth: Bytes per second through memory.
        launch: Seconds that one library call costs before it computes.

    Raises:
        ValueError: A unit of work has no rate, or a number is not finite and positive.

    Examples:
        >>> rates = Rates(
        ...     {"matmul": 50e9, "fft": 3e9, "scan": 1e9, "elementwise": 2e9},
        ...     bandwidth=4e9,
        ...     launch=5e-6,
        ... )
        >>> 8e6 / rates.bandwidth  # seconds that 8 MB take
        0.002
    """

    flops: Mapping[str, float]
    bandwidth: float
    launch: float

    def __post_init__(self) -> None:
        if not isinstance(self.flops, Mapping):
            raise TypeError(f"Rates(flops={self.flops!r}): needs rates by unit of work; pass a dict.")
        missing = [unit for unit in UNITS if unit not in self.flops]
        if missing:
            raise ValueError(f"Rates(flops=...): needs a rate for {', '.join(missing)} too.")
        numbers = [as_float(number) for number in (*self.flops.values(), self.bandwidth, self.launch)]
        if not all(number is not None and 0 < number < math.inf for number in numbers):
            raise ValueError(f"{self!r}: needs every number finite and positive.")

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that differ where the rates do."""
        numbers = sorted(self.flops.items()), self.bandwidth, self.launch
        return hashlib.sha256(json.dumps(numbers, default=float).encode()).hexdigest()[:16]


class Place(NamedTuple):
    """Where rates hold.

    Attributes:
        framework: Whose arrays.
        device: The framework's name for it.
        dtype: The one that is computed in, float32 or float64.
        threads: That a call may use.

    Examples:
        >>> here = Place("numpy", "cpu", "float32", threads=2)
        >>> machine = Machine()
        >>> # nothing was measured there
        >>> machine.basis(here, "measured") == machine.basis(here, "shipped")
        True
    """

    framework: str
    device: str
    dtype: str
    threads: int


# Wrong elsewhere, but wrong alike for all kernels, and the same on every machine: the plans that follow from them do
# not depend on where they are made. On a CPU: one core of a 2.5 GHz AVX-512 Xeon, measured.
SHIPPED = {
    "float32": Rates({"matmul": 50e9, "fft": 3e9, "scan": 1.5e9, "elementwise": 2e9}, bandwidth=4e9, launch=4e-6),
    "float64": Rates({"matmul": 22e9, "fft": 2e9, "scan": 1.2e9, "elementwise": 2e9}, bandwidth=4e9, launch=4e-6),
}
# On every other device: half of what the data sheet of an A100 says of products, and what its bandwidth leaves for
# the rest; not measured.
SHIPPED_ELSEWHERE = {
    "float32": Rates(
        {"matmul": 10e12, "fft": 1e12, "scan": 100e9, "elementwise": 150e9}, bandwidth=1.5e12, launch=1e-5
    ),
    "float64": Rates({"matmul": 5e12, "fft": 500e9, "scan": 50e9, "elementwise": 75e9}, bandwidth=1.5e12, launch=1e-5),
}


class Machine:
    """Rates by framework, device, dtype and threads, each calibrated when first asked for.

    Examples:
        >>> machine = Machine()
        >>> both = [
        ...     machine.rates("numpy", "cpu", each, calibration="shipped")
        ...     for each in ("float16", "float32")
        ... ]
        >>> # half precision runs in float32; constants are no measurement
        >>> both[0] == both[1], machine.calibrated()
        (True, {})
    """

    def __init__(self) -> None:
        self._measured: dict[Place, Rates] = {}
        self._restored: dict[Place, Rates] = {}
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """Make the lock anew, in a child process."""
        self._lock = threading.Lock()

    def rates(self, framework: str, device: str, dtype: str, *, calibration: Calibration = "measured") -> Rates:
        """Return the rates for what `dtype` is computed in: half precision runs in float32.

        The first question about a framework, device and number of threads takes the milliseconds of
        its calibration, unless they were restored; the answer is kept as long as the process lives. A framework whose
        calibration compiles is not measured unasked (`calibrate`): until then its rates are those that are shipped.

        Raises:
            LookupError: The framework has no probe.
        """
        computed = computed_in(dtype)
        if calibration == "shipped":
            return _shipped(device, computed)
        asked = probe(framework)
        place = Place(framework, device, computed, asked.threads())
        with self._lock:  # two calibrations at once would measure each other
            found = self._measured.get(place) or self._restored.get(place)
            if found is None and asked.waits_to_be_asked:
                return _shipped(device, computed)
            if found is None:
                found = self._measured[place] = asked.calibrate(device, computed)
            return found

    def calibrate(self, framework: str, device: str, dtype: str) -> Rates:
        """Measure the rates for what `dtype` is computed in, now, and keep them.

        Raises:
            LookupError: The framework has no probe.
        """
        asked, computed = probe(framework), computed_in(dtype)
        place = Place(framework, device, computed, asked.threads())
        with self._lock:
            found = self._measured[place] = asked.calibrate(device, computed)
        return found

    def basis(self, place: Place, calibration: Calibration) -> str:
        """Return a text that is another one where estimates at `place` are: they rest on other rates. Nothing is timed.

        Where that number of threads was never calibrated, those that were stand for it; where none was, the constants
        that are shipped.
        """
        found: list[Rates] = []
        if calibration == "measured":
            with self._lock:
                known = {**self._restored, **self._measured}
            alike = sorted(each for each in known if each[:3] == place[:3])
            found = [known[each] for each in ([place] if place in known else alike)]
        return " ".join(rates.digest for rates in found or [_shipped(place.device, place.dtype)])

    def calibrated(self) -> dict[Place, Rates]:
        """Return the rates that this process has measured itself."""
        with self._lock:
            return dict(self._measured)

    def restore(self, rates: Mapping[Place, Rates]) -> None:
        """Start from rates that another process has measured.

        What this one has measured itself stays, and what it was told before: estimates were made with it.
        """
        with self._lock:
            self._restored = {**rates, **self._restored}


@functools.cache
def this_machine() -> Machine:
    """Return the one Machine that the managers of this process share.

    Examples:
        >>> this_machine() is this_machine()
        True
    """
    return Machine()


def computed_in(dtype: str) -> str:
    """Return float32 or float64: half precision is computed in float32, and a complex number in that of its parts."""
    if dtype == "bfloat16":
        return "float32"
    kind = np.dtype(dtype)
    return "float64" if kind.itemsize >= (16 if kind.kind == "c" else 8) else "float32"


def _shipped(device: str, dtype: str) -> Rates:
    return (SHIPPED if is_host(device) else SHIPPED_ELSEWHERE)[dtype]
