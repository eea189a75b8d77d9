"""How fast this machine is: rates, measured once by the probes of frameworks, and the estimate that follows.

The estimate is a roofline with a launch cost added: Williams, Waterman & Patterson, Roofline (2009).
"""

import functools
import threading
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from hpfracc_nn.selection.registry import probe
from hpfracc_nn.selection.workload import Cost, Rates, Workload, is_host

Calibration = Literal["measured", "shipped"]


class Place(NamedTuple):
    """Where rates hold: a framework, a device, a dtype and a number of threads.

    Attributes:
        framework: Framework of the arrays.
        device: The framework's name for the device.
        dtype: The dtype that is computed in, float32 or float64.
        threads: How many a call may use.

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
        """Return the rates of the dtype in which samples of `dtype` are computed: half precision runs in float32.

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
        """Measure now the rates of the dtype in which samples of `dtype` are computed; keep and return them.

        Raises:
            LookupError: The framework has no probe.
        """
        asked, computed = probe(framework), computed_in(dtype)
        place = Place(framework, device, computed, asked.threads())
        with self._lock:
            found = self._measured[place] = asked.calibrate(device, computed)
        return found

    def basis(self, place: Place, calibration: Calibration) -> str:
        """Return a text that differs wherever estimates at `place` may differ: a digest of the rates that they rest on.

        Nothing is timed. Where that number of threads was never calibrated, the rates of all other numbers count; where
        there are none, the shipped constants do.
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

        Rates that this process has measured itself or restored before stay: estimates were made with them.
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


Limit = Literal["launches", "arithmetic", "memory"]
LIMITS: tuple[Limit, ...] = ("launches", "arithmetic", "memory")

# A factor either way. Rates measured here are off by caches and by contention; those of
# another machine by its clock and its memory as well.
UNCERTAINTY: dict[Calibration, float] = {"measured": 2.0, "shipped": 4.0}


class CostModel:
    """Cost times rates gives seconds.

    Args:
        machine: The machine whose rates count.
        calibration: "measured", or "shipped" for constants that are the same everywhere.

    Source: Williams, Waterman & Patterson, Commun. ACM 52 (2009) 65.

    Examples:
        >>> rates = Rates(
        ...     {"matmul": 50e9, "fft": 3e9, "scan": 1e9, "elementwise": 2e9},
        ...     bandwidth=4e9,
        ...     launch=5e-6,
        ... )
        >>> # 2 ms for 8 MB, 10 us besides
        >>> CostModel.seconds(Cost({"elementwise": 2e6}, bytes=8e6, launches=2), rates)
        0.00201
        >>> CostModel(this_machine(), "shipped").uncertainty  # a factor either way
        4.0
    """

    def __init__(self, machine: Machine, calibration: Calibration = "measured"):
        self.machine = machine
        self.calibration = calibration

    @property
    def uncertainty(self) -> float:
        return UNCERTAINTY[self.calibration]

    def rates(self, workload: Workload) -> Rates:
        """Return the rates of the place where `workload` lies.

        Raises:
            LookupError: The calibration is "measured", and the framework has no probe.
        """
        return self.machine.rates(workload.framework, workload.device, workload.dtype, calibration=self.calibration)

    @staticmethod
    def seconds(cost: Cost, rates: Rates) -> float:
        """Return launches * launch + max(sum(flops / rate), bytes / bandwidth)."""
        launching, computing, moving = parts(cost, rates)
        return launching + max(computing, moving)


def parts(cost: Cost, rates: Rates) -> tuple[float, float, float]:
    """Return the seconds that go into launches, arithmetic and memory; the last two pass at the same time."""
    computing = 0.0
    for unit, flops in cost.flops.items():  # no generator: a first decision comes here twice for each kernel
        computing += flops / rates.flops[unit]
    return cost.launches * rates.launch, computing, cost.bytes / rates.bandwidth


def limit_of(cost: Cost, rates: Rates) -> Limit:
    """Return which of launches, arithmetic and memory takes the longest: what a faster kernel would have to save."""
    found = dict(zip(LIMITS, parts(cost, rates), strict=True))
    return max(found, key=found.__getitem__)
