"""What is to be computed, what it costs, how long it took, and which workloads share their times.

The words are FFTW's: a workload is the problem, a plan the way, a measurement the proof.
"""

import hashlib
import json
import math
import operator
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from hpfracc_nn.errors import as_float

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
UNITS = ("matmul", "fft", "scan", "elementwise")
_UNITS, _NUMBERS, _LARGEST = frozenset(UNITS), frozenset((float, int)), 1e300


@cache  # a first decision asks some fifty times
def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize  # numpy has no name for it


@dataclass(frozen=True, slots=True)
class Workload:
    """One problem, described by static facts only: nothing here reads an array's values.

    Args:
        op: The operation that the kernels were registered for.
        framework: Framework of the arrays.
        device: The framework's own name for the device, with its index.
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
        converts_to: The dtype that the caller converts samples to, and results from, for kernels that do not take them
            as they are stored (`Kernel.as_stored`); empty where it converts nothing.

    Raises:
        ValueError: A count is negative, or the dtype is unknown.
        TypeError: A name is no text, a count no whole number or a claim neither True nor False. Those of NumPy are
            taken and kept as Python's own.

    Examples:
        >>> work = Workload("toeplitz", "torch", rows=256, n=1024, needs_gradient=True)
        >>> work.samples, work.bytes, str(work)
        (262144, 1048576, 'toeplitz on torch/cpu/float32')
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
    converts_to: str = ""

    def __post_init__(self) -> None:
        if tuple(map(type, _values(self))) != _PYTHON:
            for name, take in _TAKEN.items():
                object.__setattr__(self, name, take(name, getattr(self, name)))
        if min(self.rows, self.n, self.width, self.exponentials, self.channels - 1, self.threads - 1) < 0:
            name = next(name for name, least in _LEAST.items() if getattr(self, name) < least)
            raise ValueError(f"Workload({name}={getattr(self, name)}): needs {name} >= {_LEAST[name]}.")
        if max(self.rows, self.n, self.width, self.exponentials, self.channels, self.threads) > sys.maxsize:
            name = max(_LEAST, key=lambda name: getattr(self, name))
            raise ValueError(f"Workload({name}={getattr(self, name)}): needs {name} < 2**63.")
        for name in ("dtype", "converts_to") if self.converts_to else ("dtype",):
            try:
                _itemsize(getattr(self, name))
            except TypeError:
                raise ValueError(
                    f"Workload({name}={getattr(self, name)!r}): needs the name of a dtype, such as 'float32'."
                ) from None

    def changed(self, **changes: Any) -> "Workload":
        """Return a copy with other values of some fields, in a fourth of the time of `dataclasses.replace`."""
        return Workload(**dict(zip(_NAMES, _values(self), strict=True), **changes))

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
        return _itemsize(self.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of the input."""
        return self.rows * self.n * self.width * _itemsize(self.dtype)

    @property
    def converted(self) -> "Workload":
        """The workload with samples in `converts_to`; itself where the caller converts nothing."""
        return self.changed(dtype=self.converts_to, converts_to="") if self.converts_to else self

    @property
    def place(self) -> str:
        return f"{self.framework}/{self.device}/{self.dtype}"

    def __str__(self) -> str:
        return f"{self.op} on {self.place}"


_NAMES, _PYTHON = zip(*((each.name, each.type) for each in fields(Workload)), strict=True)
_values = operator.attrgetter(*_NAMES)
_LEAST = {"rows": 0, "n": 0, "width": 0, "channels": 1, "exponentials": 0, "threads": 1}


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"Workload({name}={value!r}): needs a name as text, such as 'cpu' or 'float32'.")
    return str(value)


def _count(name: str, value: object) -> int:
    try:
        return int(operator.index(value))  # type: ignore[arg-type]  # it says what it cannot take
    except TypeError:
        raise TypeError(f"Workload({name}={value!r}): needs a whole number; int({name}) makes one.") from None


def _claim(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"Workload({name}={value!r}): needs True or False.")
    return bool(value)


_TAKEN: dict[str, Callable[[str, object], str | int | bool]] = {
    **dict.fromkeys(("op", "framework", "device", "dtype", "converts_to"), _text),
    **dict.fromkeys(_LEAST, _count),
    **dict.fromkeys(("needs_gradient", "learns_weights", "in_place"), _claim),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """The facts of an algorithm at one workload, forward and the backward that goes with it.

    Args:
        flops: Operations by unit of work: "matmul", "fft", "scan" or "elementwise".
        bytes: Bytes that pass through memory.
        launches: Dispatches of library calls.
        workspace: Bytes held beyond input and output while it runs.

    Raises:
        ValueError: A unit is not known, or a number is negative or not finite.

    Examples:
        >>> cost = Cost({"elementwise": 2e6}, bytes=8e6, launches=1)
        >>> cost.intensity  # operations per byte: memory is what takes the time
        0.25
    """

    flops: Mapping[str, float]
    bytes: float
    launches: int
    workspace: float = 0.0

    def __post_init__(self) -> None:
        flops = self.flops
        if type(flops) is dict and flops.keys() <= _UNITS:  # without loops: a first decision makes a dozen costs
            numbers: tuple[float, ...] = (*flops.values(), self.bytes, self.launches, self.workspace)
            is_python = _NUMBERS.issuperset(map(type, numbers))
            # No sum with NaN is less than anything.
            if is_python and min(numbers) >= 0 and max(numbers) < _LARGEST and sum(numbers) < math.inf:
                return
        if not isinstance(self.flops, Mapping):
            raise TypeError(f"Cost(flops={self.flops!r}): needs operations by unit of work; pass a dict.")
        for unit in self.flops:
            if unit not in UNITS:
                raise ValueError(f"Cost(flops={{{unit!r}: ...}}): needs a unit among {', '.join(UNITS)}.")
        for number in (*self.flops.values(), self.bytes, self.launches, self.workspace):
            found = as_float(number)
            if found is None or not 0 <= found < math.inf:
                raise ValueError(f"{self!r}: needs every number finite and not negative.")

    @property
    def intensity(self) -> float:
        """Operations per byte: what stands on the axis of a roofline plot; infinite where nothing is moved."""
        return sum(self.flops.values()) / self.bytes if self.bytes else math.inf


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


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long one kernel took in one direction of a workload.

    Args:
        workload: What was computed.
        kernel: "backend/algorithm", or "block" for what `BackendManager.profile` timed.
        seconds: The whole time; not a number where a kernel failed.
        direction: Direction of the pass.
        succeeded: Whether it ended without an exception.
        error: The class of what the kernel raised instead.
        compile_seconds: The part of the time that compiled or loaded code.
        transfer_seconds: The part of the time that moved data between devices.
        peak_bytes: The most that the kernel held beyond its input, None where nobody measured it.

    Examples:
        >>> work = Workload("total", "numpy", n=4096)
        >>> first = Measurement(work, "numpy/pairwise", 4e-6, "forward", compile_seconds=3e-6)
        >>> first.cache_hit, first.efficiency  # it compiled for three quarters of the time
        (False, 0.25)
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
        """Whether the kernel's code was there already, so that nothing was compiled or loaded."""
        return self.compile_seconds == 0

    @property
    def throughput(self) -> float:
        """Samples per second of execution; infinite where that is below the clock's resolution."""
        return self.workload.samples / self.execute_seconds if self.execute_seconds else math.inf

    @property
    def efficiency(self) -> float:
        """The part of the time that was execution."""
        return self.execute_seconds / self.seconds if self.seconds else 1.0


LATEST = 9.2e9  # seconds since 1970, in the year 2261: dates and spans count nanoseconds in 64 bits


def wall_time() -> float:
    """Return the seconds since 1970, at least 0 and less than `LATEST`, whatever the clock is set to."""
    return min(max(time.time(), 0.0), LATEST - 1.0)


def is_host(device: str) -> bool:
    """Return whether `device` computes in the host's own memory."""
    return device.partition(":")[0] == "cpu"


EXACT = 32  # below it every size is a bucket of its own

Fact = str | int | bool


class Key(NamedTuple):
    """What workloads that share their times have in common.

    Args:
        group: Facts that must be equal before one key's times say anything about another's.
        features: log2 of each size; the distance of two keys of one group is in octaves.
    """

    group: tuple[Fact, ...]
    features: tuple[float, ...]

    def distance(self, other: "Key") -> float:
        """Return how many octaves of size lie between two keys of one group."""
        return math.dist(self.features, other.features)

    def text(self) -> str:
        """Return the key as JSON, which `parse` reads."""
        return json.dumps([self.group, self.features])

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Return the key whose `text()` is `text`.

        Raises:
            ValueError: `text` is no key's text.
        """
        try:
            group, features = json.loads(text)
            key = cls(tuple(group), tuple(float(size) for size in features))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"Key.parse({text!r}): needs what Key.text() wrote.") from error
        facts = isinstance(group, list) and bool(group) and all(isinstance(fact, Fact) for fact in group)
        if not facts or not all(map(math.isfinite, key.features)):
            raise ValueError(
                f"Key.parse({text!r}): needs at least one fact, a text or a whole number, and finite sizes."
            )
        return key


def bucket(size: int) -> int:
    """Return the least size of the bucket that holds `size`: four buckets to the octave, none below 32.

    Two sizes of one bucket differ by less than a quarter.
    """
    if size < EXACT:
        return size
    shift = size.bit_length() - 3
    return size >> shift << shift


def key_of(workload: Workload) -> Key:
    """Return the key of `workload`: its rows, length and width in buckets, everything else exactly.

    The number of exponentials is left out: it follows from dtype and length, and the estimate counts it.
    """
    group = (
        workload.op,
        workload.framework,
        workload.device,
        workload.dtype,
        workload.layout,
        workload.shares_weights,
        workload.needs_gradient,
        workload.learns_weights,
        workload.threads,
    )
    return Key(group, _features(workload.rows, workload.n, workload.width))


@lru_cache(256)
def _features(*sizes: int) -> tuple[float, ...]:
    return tuple(math.log2(max(1, bucket(size))) for size in sizes)


def known_key(text: str) -> Key:
    """Return the key of workloads whose `text()` is `text`.

    Raises:
        ValueError: `text` is no key's text, or that of a key with other facts or sizes than `key_of` returns.
    """
    key = Key.parse(text)
    if _kinds(key) != _KINDS:
        raise ValueError(f"known_key({text!r}): needs the text of a key that key_of(workload) returned.")
    Workload(*key.group[:4])  # type: ignore[arg-type]  # raises where the dtype is none
    return key


def _kinds(key: Key) -> tuple[list[type], int]:
    return [type(fact) for fact in key.group], len(key.features)


_KINDS = _kinds(key_of(Workload("op", "framework")))
