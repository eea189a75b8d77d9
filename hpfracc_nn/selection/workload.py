"""What is to be computed, what it costs, how long it took.

The words are FFTW's: a workload is the problem, a plan the way, a measurement the proof.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
UNITS = ("matmul", "fft", "scan", "elementwise")

_ITEMSIZES = {"bfloat16": 2}  # what numpy has no name for


@dataclass(frozen=True, slots=True)
class Workload:
    """One problem, described by static facts only: nothing here reads an array's values.

    Args:
        op: The operation that the kernels were registered for.
        framework: Whose arrays they are.
        device: The framework's own name for it, with its index.
        dtype: Name of the samples' dtype.
        rows: Independent signals: batch times channels.
        n: Samples of one signal.
        width: Samples that lie side by side at each time step; 1 when time is the last axis.
        channels: Distinct weight columns; 1 when all signals share one.
        exponentials: States of the recurrence that can stand for the weights, exponentials and exact lags; 0 where none
            can.
        needs_gradient: A gradient in the input is wanted.
        learns_weights: A gradient in the weights is wanted.
        threads: Threads that the framework may use.
        in_place: The results go where the caller has room already, so that they take no more memory.

    Raises:
        ValueError: A count is negative, or the dtype is unknown.
    """

    op: str
    framework: str
    device: str = "cpu"
    dtype: str = "float32"
    rows: int = 1
    n: int = 1
    width: int = 1
    channels: int = 1
    exponentials: int = 0
    needs_gradient: bool = False
    learns_weights: bool = False
    threads: int = 1
    in_place: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"Workload({name}={getattr(self, name)}): needs {name} >= {least}.")
        if self.dtype not in _ITEMSIZES:
            try:
                np.dtype(self.dtype)
            except TypeError:
                raise ValueError(
                    f"Workload(dtype={self.dtype!r}): needs the name of a dtype, such as 'float32'."
                ) from None

    @property
    def shares_weights(self) -> bool:
        return self.channels == 1

    @property
    def layout(self) -> str:
        return "time_last" if self.width == 1 else "time_middle"

    @property
    def samples(self) -> int:
        return self.rows * self.n * self.width

    @property
    def itemsize(self) -> int:
        return _ITEMSIZES.get(self.dtype) or np.dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        """Bytes of the input."""
        return self.samples * self.itemsize

    @property
    def place(self) -> str:
        return f"{self.framework}/{self.device}/{self.dtype}"

    def __str__(self) -> str:
        return f"{self.op} on {self.place}"


_LEAST = {"rows": 0, "n": 0, "width": 0, "channels": 1, "exponentials": 0, "threads": 1}


@dataclass(frozen=True, slots=True)
class Cost:
    """The facts of an algorithm at one workload, forward and the backward that goes with it.

    Args:
        flops: Operations by unit of work: "matmul", "fft", "scan" or "elementwise".
        bytes: Bytes that pass through memory.
        launches: Dispatches of library calls.
        workspace: Bytes held beyond input and output while it runs.
    """

    flops: Mapping[str, float]
    bytes: float
    launches: int
    workspace: float = 0.0

    def __post_init__(self) -> None:
        for unit in self.flops:
            if unit not in UNITS:
                raise ValueError(f"Cost(flops={{{unit!r}: ...}}): needs a unit among {', '.join(UNITS)}.")
        numbers = (*self.flops.values(), self.bytes, self.launches, self.workspace)
        if not (min(numbers) >= 0 and math.isfinite(sum(numbers))):  # one that is not a number makes the sum none
            raise ValueError(f"{self!r}: needs every number finite and not negative.")


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long one kernel took in one direction of a workload.

    Args:
        workload: What was computed.
        kernel: "backend/algorithm", or "block" for what `BackendManager.profile` timed.
        seconds: All of it; not a number where a kernel failed.
        direction: Of the pass.
        succeeded: Whether it ended without an exception.
        error: The class of what the kernel raised instead.
        compile_seconds: The part of it that compiled or loaded code.
        transfer_seconds: The part that moved data between devices.
        peak_bytes: The most that it held beyond its input, None where nobody measured it.
    """

    workload: Workload
    kernel: str
    seconds: float
    direction: Direction
    succeeded: bool = True
    error: str | None = None
    compile_seconds: float = 0.0
    transfer_seconds: float = 0.0
    peak_bytes: float | None = None

    @property
    def execute_seconds(self) -> float:
        """What is left of the time without compiling and moving."""
        return max(self.seconds - self.compile_seconds - self.transfer_seconds, 0.0)  # in this order NaN stays

    @property
    def cache_hit(self) -> bool:
        """Whether its code was there already."""
        return self.compile_seconds == 0

    @property
    def throughput(self) -> float:
        """Samples per second of execution; infinite where that is below the clock's resolution."""
        return self.workload.samples / self.execute_seconds if self.execute_seconds else math.inf

    @property
    def efficiency(self) -> float:
        """The part of the time that was execution."""
        return self.execute_seconds / self.seconds if self.seconds else 1.0
