"""Causal Toeplitz product of data on the host by CUDA devices: parts go through pinned buffers on two streams of each.

While a part is computed the next is on its way there and the one before on its way back. The kernel runs only where the
user allows that data leave the host (`configure(offload=True)`); the device is torch's current one, or those that the
user names. Each part goes to a stream that is free, so that a device which is busy, or slower, gets fewer of them.

Data are [batch, channels, n, width], width samples of as many signals side by side at each time; a part has some of the
batch, and its `shape` are these four sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import Boundary
from hpfracc_nn.fractional.linear import StateSpace, refuses_long, saves
from hpfracc_nn.fractional.torch.kernels import cuda_launch, cuda_product
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Source
from hpfracc_nn.fractional.torch.kernels.cuda_product import Arrangement, Scan
from hpfracc_nn.fractional.torch.streams import recorded, streams_on
from hpfracc_nn.fractional.torch.tiles import Shape, Step, parts
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register

_LANES = 2
_PART = 32 << 20  # bytes of a part: its way takes a millisecond, a launch a hundredth of that
_LAUNCHES = 20  # small calls of torch that a part takes
_LOOKED = 5e-5  # seconds between two looks at which lanes are free

Compute = Callable[[Shape, Tensor, Tensor], None]  # of the data and the array of the result, on the device


class Lane(Protocol):
    """A way to the device and back, for one part of the data at a time."""

    def begin(self, shape: Shape, data: Tensor, room: Tensor) -> None:
        """Send a part [batch, channels, n, width] to the device; its result will be written into `room`."""

    def is_free(self) -> bool:
        """Return whether the part has come back, or there is none, without waiting."""

    def finish(self) -> None:
        """Wait until the part has come back, if there is one, and write its result into its `room`."""


class Stream:
    """A lane of a CUDA device: a stream of its own, and buffers for a part on host and device, in both directions.

    Args:
        device: The CUDA device.
        count: The most samples of a part.
        dtype: Of the samples.
        compute: Writes the result of a part on the device.
    """

    def __init__(self, device: torch.device, count: int, dtype: torch.dtype, compute: Compute):
        self._compute = compute
        self._stream = torch.cuda.Stream(device)
        self._given, self._found = (torch.empty(count, dtype=dtype, pin_memory=True) for _ in range(2))
        with torch.cuda.stream(self._stream):
            self._data, self._result = (torch.empty(count, dtype=dtype, device=device) for _ in range(2))
        self._done = torch.cuda.Event()
        self._room: Tensor | None = None

    def begin(self, shape: Shape, data: Tensor, room: Tensor) -> None:
        """Copy a part into pinned memory, and queue its way to the device, its computation and the way back.

        `finish` will write the result into `room`.
        """
        count = data.numel()
        self._given[:count].copy_(data.reshape(-1))
        with torch.cuda.stream(self._stream):
            there, result = self._data[:count], self._result[:count]
            there.copy_(self._given[:count], non_blocking=True)
            self._compute(shape, there.view(shape), result.view(shape))
            self._found[:count].copy_(result, non_blocking=True)
            self._done.record(self._stream)
        self._room = room

    def is_free(self) -> bool:
        """Return whether the part has come back, or there is none, without waiting."""
        return self._room is None or self._done.query()

    def finish(self) -> None:
        """Wait until the part has come back, if there is one, and write its result into its `room`."""
        if self._room is not None:
            self._done.synchronize()
            self._room.view(-1).copy_(self._found[: self._room.numel()])
            self._room = None


@dataclass(frozen=True)
class There:
    """The arrangement of a state space model that is a copy on a device; see `StateSpace.cached`."""

    device: torch.device

    def operands(self, model: StateSpace) -> StateSpace:
        """Return a copy of the model on the device."""
        streams = streams_on(self.device)
        intra, C, B, *A = recorded(
            streams, tuple(part.to(self.device) for part in (model.intra, model.C, model.B, *model.A))
        )
        return StateSpace(intra, C, B, tuple(A), streams=streams)


def through(lanes: Sequence[Lane], shape: Shape, rows: int, x: Tensor, y: Tensor) -> None:
    """Send x through the lanes in parts of `rows` signals, and write the results into y before this returns.

    Each part goes to a lane that is free.
    """
    waiting = list(lanes)  # the one that began longest ago comes first
    for part, (data, room) in parts(shape, rows, x, y):
        lane = _free(waiting)
        lane.finish()
        lane.begin(part, data, room)
        waiting.remove(lane)
        waiting.append(lane)
    for lane in waiting:
        lane.finish()


def _free(lanes: Sequence[Lane]) -> Lane:
    """Return the first of the lanes that is free, waiting until one is."""
    while True:
        for lane in lanes:
            if lane.is_free():
                return lane
        time.sleep(_LOOKED)


def part_rows(shape: Shape, itemsize: int, lanes: int = _LANES) -> int:
    """Return the signals of a part: batch times channels, at least one of each channel.

    Several devices share the pinned memory too, and then there are two parts or more for each lane, as far as there are
    signals and they are not longer than a part.
    """
    batch, channels, n, width = shape
    most = batch if lanes <= _LANES else max(1, batch // (2 * lanes))
    return min(most, max(1, _PART * _LANES // lanes // (channels * n * width * itemsize))) * channels


def _apply(
    model: StateSpace, b: Boundary, shape: Shape, x: Tensor, y: Tensor, backward: bool, devices: Sequence[str] = ()
) -> None:
    places = [torch.device(each) for each in devices or (f"cuda:{torch.cuda.current_device()}",)]
    rows = part_rows(shape, x.element_size(), _LANES * len(places))
    count = rows * shape[2] * shape[3]
    steps = [_step_on(place, model, b, shape[3], backward) for place in places]
    each = [pair for _ in range(_LANES) for pair in zip(places, steps, strict=True)]
    lanes = [Stream(place, count, x.dtype, step) for place, step in each[: -(-shape[0] * shape[1] // rows)]]
    through(lanes, shape, rows, x, y)


def _step_on(device: torch.device, model: StateSpace, b: Boundary, width: int, backward: bool) -> Compute:
    """Return step(shape, x, y), which writes the operator on one part x into y, tensors on the device.

    Args:
        device: On which it computes; copies of the weights are made here, on it.
        model: The weights, on the host.
        b: The differences before and the boundary columns after the product.
        width: The last size of the data; above 1 the recurrence computes, else the chunked scan.
        backward: Whether it is the transpose of the operator.
    """
    there = model.cached(There(device))
    # Made on this stream and waited for: else the first lane would make them, and the second read them too early.
    there.cached(Arrangement(backward, _scan(width).multiple))
    around = b if b.columns is None else replace(b, columns=b.columns.to(device))
    step = _step(width, backward)
    torch.cuda.current_stream(device).synchronize()
    return partial(step, there, around)


def _scan(width: int) -> Scan:
    return cuda_product.CHUNKED if width == 1 else cuda_product.RECURRENCE


def _step(width: int, backward: bool) -> Step:
    return partial(cuda_product.apply, _scan(width), backward=backward)


run, adjoint = (partial(_apply, backward=backward) for backward in (False, True))


def cost(workload: Workload) -> Cost:
    """Return the cost: copies into and out of pinned memory, and to the device and back, by one device.

    All of them run at about the rate of the host's memory.
    """
    passes = 1 + workload.needs_gradient + workload.learns_weights
    count = -(-workload.bytes // _PART)
    batch = max(1, workload.rows // workload.channels)
    alone = min(batch, _LANES * max(1, torch.cuda.device_count())) * workload.bytes / batch  # a signal in each lane
    return Cost(
        flops={},
        bytes=passes * 6.0 * workload.bytes,
        launches=passes * _LAUNCHES * count,
        workspace=2.0 * max(_LANES * min(_PART, workload.bytes), alone)
        + 2.0 * workload.converted.bytes * (workload.learns_weights and workload.converted is not workload),
    )


def refuses(workload: Workload) -> str | None:
    if (found := cuda_launch.missing()) is not None:
        return found
    if workload.device != "cpu":
        return f"it takes data on the host, and they lie on {workload.device}"
    if (found := refuses_long(workload, cuda_product.CHUNK)) is not None:
        return found
    return cuda_launch.unusable(workload) if torch.cuda.is_available() else "torch finds no CUDA device that it can use"


def reaches(device: str) -> str | None:
    return cuda_launch.absent(device)


def compiles(workload: Workload) -> Compilation | None:
    """Return what a call must still compile, or None.

    Where half precision has a gradient in its order there are two sources: that gradient is computed in single
    precision.
    """
    found = cuda_launch.compilation_anywhere(_source(workload))
    return found or (cuda_launch.compilation_anywhere(_source(workload.converted)) if workload.learns_weights else None)


def _source(workload: Workload) -> Source:
    dtype, count = getattr(torch, workload.dtype), cuda_product.states_of(workload)
    return cuda_product.chunked_source(dtype) if workload.width == 1 else cuda_product.recurrence_source(dtype, count)


register(
    Kernel(
        "toeplitz",
        "torch",
        "cuda",
        "offload",
        run,
        adjoint,
        cuda_product.prepare,
        cost,
        refuses,
        saves,
        compiles,
        offloads=True,
        as_stored=True,
        reaches=reaches,
    )
)
