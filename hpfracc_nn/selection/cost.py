"""The estimate before any measurement: a roofline over calibrated rates.

Williams, Waterman & Patterson, Roofline (2009), with a launch cost added.
"""

from typing import Literal

from hpfracc_nn.selection.machine import Calibration, Machine, Rates
from hpfracc_nn.selection.workload import Cost, Workload

Limit = Literal["launches", "arithmetic", "memory"]
LIMITS: tuple[Limit, ...] = ("launches", "arithmetic", "memory")

# A factor either way. Rates measured here are off by caches and by contention; those of
# another machine by its clock and its memory as well.
UNCERTAINTY: dict[Calibration, float] = {"measured": 2.0, "shipped": 4.0}


class CostModel:
    """Cost times rates gives seconds.

    Args:
        machine: Whose rates.
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
            LookupError: They are measured ones, and the framework has no probe.
        """
        return self.machine.rates(workload.framework, workload.device, workload.dtype, calibration=self.calibration)

    @staticmethod
    def seconds(cost: Cost, rates: Rates) -> float:
        """Return launches * launch + max(sum(flops / rate), bytes / bandwidth)."""
        launching, computing, moving = parts(cost, rates)
        return launching + max(computing, moving)


def parts(cost: Cost, rates: Rates) -> tuple[float, float, float]:
    """Return the seconds that go into launches, arithmetic and memory; the last two pass at the same time."""
    computing = sum(flops / rates.flops[unit] for unit, flops in cost.flops.items())
    return cost.launches * rates.launch, computing, cost.bytes / rates.bandwidth


def limit_of(cost: Cost, rates: Rates) -> Limit:
    """Return which of them takes the longest: what a faster kernel would have to save."""
    found = dict(zip(LIMITS, parts(cost, rates), strict=True))
    return max(found, key=found.__getitem__)
