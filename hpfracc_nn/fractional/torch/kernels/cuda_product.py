"""What the CUDA kernels of the causal product share: operands, the problem as a structure, segments, cost, refusals.

The whole operator is one pass over the data: differences, product and boundary columns. A signal that is too long for
the signals there are is cut into segments, whose states are found first by a pass that reads only. Cumulative sums
before the product (m = -1) are torch's, and the boundary columns then too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.kernels import cuda_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Source
from hpfracc_nn.fractional.torch.tiles import Frame, Shape, multiplied
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Cost, Workload

CHUNK = 16
THREADS = 64  # of a block
RECORD = 13  # numbers that a segment leaves for `finish`
SPLIT_BELOW, SPLIT_INTO = 4, 8  # blocks of a multiprocessor: fewer are too few, so many are wanted

_FINISHED_BY = 32  # threads that finish a signal of several segments
_LAUNCHES = 2  # small calls of torch that one of ours takes

# As `Problem` in cuda_common.cuh.
_POINTERS = ("x", "y", "inward", "outward", "near", "decay", "columns", "states", "records", "against", "products")
_INDICES = ("batch", "channels", "n", "width", "padded", "segment", "own_inward", "own_outward")
_NUMBERS = ("segments", "side", "count", "m", "subtract", "taylor", "start", "terms")
PROBLEM = np.dtype(
    [*((name, np.uint64) for name in _POINTERS), *((name, np.int64) for name in _INDICES)]
    + [(name, np.int32) for name in _NUMBERS],
    align=True,
)


class Operands(NamedTuple):
    """What one direction multiplies with; rows of states are as many as the kernel wants."""

    inward: Tensor  # [C or 1, K, 16]
    outward: Tensor  # [C or 1, K, 16]
    near: Tensor  # [C, 16]
    decay: Tensor  # [K] in float64


@dataclass(frozen=True)
class Arrangement:
    """How operands are made of a chunk form: for a direction, with states filled up to a multiple.

    Attributes:
        backward: Whether for the transpose, whose positions count from the end.
        multiple: States are padded with zeros to a multiple of it.
    """

    backward: bool
    multiple: int

    def operands(self, form: ChunkForm) -> Operands:
        """Return those of a form."""
        inward, outward = form.into.t()[None], form.far
        if self.backward:
            inward, outward = form.far.flip(2), form.into.t()[None].flip(2)
        more = -form.decay.shape[0] % self.multiple
        filled = [torch.nn.functional.pad(each, (0, 0, 0, more)).contiguous() for each in (inward, outward)]
        decay = torch.nn.functional.pad(form.decay, (0, more)).contiguous()
        return Operands(filled[0], filled[1], form.near[:, 0].contiguous(), decay)


@dataclass(frozen=True)
class Cut:
    """How a call is spread over a device.

    Attributes:
        blocks: Of one segment.
        side: Chunks of one signal that a block works on at once.
        segment: Chunks of a segment.
        segments: Of a signal.
        shared: Bytes of shared memory of a block.
    """

    blocks: int
    side: int
    segment: int
    segments: int
    shared: int


class Scan(NamedTuple):
    """A kernel: its source, how it is cut, and how many states it wants at a time."""

    source: Callable[[torch.dtype, int], Source]  # of a dtype and a number of states
    cut: Callable[[Shape, int, int, torch.device], Cut]  # of a shape, a number of states, an itemsize and a device
    multiple: int


def segmented(chunks: int, blocks: int, least: int, device: torch.device) -> tuple[int, int]:
    """Return the chunks of a segment, a multiple of `least`, and how many segments a signal has.

    Args:
        chunks: Of a signal.
        blocks: That there are of one segment.
        least: Chunks that a block works on at once.
        device: Which.
    """
    processors = cuda_launch.facts(str(device)).processors
    if blocks >= SPLIT_BELOW * processors or chunks < 2 * least:
        return -(-chunks // least) * least, 1
    wanted = min(-(-SPLIT_INTO * processors // blocks), chunks // least)
    segment = -(-chunks // (wanted * least)) * least
    return segment, -(-chunks // segment)


def problem(frame: Stencil | None, columns: Tensor | None, shape: Shape, x: Tensor) -> np.ndarray:
    """Return the structure that a kernel takes, without operands; of the bare product where there is no frame."""
    batch, channels, n, width = shape
    found = np.zeros(1, PROBLEM)
    found["x"] = x.data_ptr()
    found["batch"], found["channels"], found["n"], found["width"] = batch, channels, n, width
    found["segments"] = found["side"] = 1
    found["start"] = -1
    if frame is not None:
        found["m"], found["subtract"], found["taylor"] = frame.differences, frame.subtract, frame.taylor
        found["start"] = frame.start_index if frame.starts else -1
    if columns is not None:
        found["columns"], found["terms"] = columns.data_ptr(), columns.shape[0]
    return found


@dataclass(frozen=True)
class Call:
    """One call of a kernel: where it goes, the problem, and what lies behind it, alive until all is launched."""

    source: Source
    device: torch.device
    blocks: int
    threads: int
    shared: int
    given: np.ndarray
    kept: list[Tensor]

    def launch(self, function: str) -> None:
        """Launch a kernel of all blocks."""
        cuda_launch.launch(self.source, function, self.device, self.blocks, self.threads, self.shared, self.given)

    def room(self, name: str, *sizes: int) -> Tensor:
        """Return a workspace in float64, which the problem calls `name`."""
        found = torch.empty(sizes, dtype=torch.float64, device=self.device)
        self.given[name] = found.data_ptr()
        self.kept.append(found)
        return found

    def inner(self, g: Tensor) -> Tensor:
        """Launch `inner`; return for each channel the sum of the results times g.

        Every thread of a block adds up its own; blocks that are neighbours belong to channels that are.
        """
        sums = self.room("products", self.blocks, self.threads)
        self.given["against"] = g.data_ptr()
        self.launch("inner")
        return sums.view(-1, int(self.given["channels"][0]), self.threads).sum(dim=(0, 2))


def apply(scan: Scan, form: ChunkForm, frame: Frame, shape: Shape, x: Tensor, y: Tensor, backward: bool) -> None:
    """Write the operator on x, or its transpose, into y."""
    if frame.stencil.differences >= 0:
        _whole(scan, form, frame, shape, x, y, backward)
    else:
        for data, result in (frame.backward if backward else frame.forward)(x.view(shape), y.view(shape), 1):
            _whole(scan, form, None, shape, data.contiguous(), result, backward)


def inner(scan: Scan, form: ChunkForm, frame: Frame, shape: Shape, x: Tensor, g: Tensor) -> Tensor:
    """Return for each channel the sum of the operator on x, times g, of which nothing is written."""
    if frame.stencil.differences < 0:
        return multiplied(partial(apply, scan, backward=False), form, frame, shape, x, g)
    return _begun(scan, form, frame, shape, x, backward=False).inner(g)


def _whole(
    scan: Scan, form: ChunkForm, frame: Frame | None, shape: Shape, x: Tensor, y: Tensor, backward: bool
) -> None:
    call = _begun(scan, form, frame, shape, x, backward)
    given = call.given
    given["y"] = y.data_ptr()
    if not backward:
        call.launch("forward")
        return
    signals, segments = shape[0] * shape[1] * shape[3], int(given["segments"][0])
    call.room("records", signals * segments * RECORD)
    call.launch("backward")
    if given["subtract"] or given["terms"] or (segments > 1 and given["m"] > 0):
        given["side"] = lanes = 1 if segments == 1 else _FINISHED_BY
        shared, blocks = 5 * 8 * THREADS, -(-signals * lanes // THREADS)
        cuda_launch.launch(call.source, "finish", x.device, blocks, THREADS, shared, given)


def _begun(scan: Scan, form: ChunkForm, frame: Frame | None, shape: Shape, x: Tensor, backward: bool) -> Call:
    """Return a call that has its operands, and the states before each segment."""
    batch, channels, n, width = shape
    operands: Operands = form.cached(Arrangement(backward, scan.multiple))
    is_short = n <= CHUNK and scan.multiple == 1  # one chunk has no state
    count = 0 if is_short else operands.decay.shape[0]
    cut, source = scan.cut(shape, count, operands.near.element_size(), x.device), scan.source(x.dtype, count)
    given = problem(None, None, shape, x) if frame is None else problem(frame.stencil, frame.columns, shape, x)
    given["inward"], given["outward"], given["near"], given["decay"] = (each.data_ptr() for each in operands)
    given["own_inward"] = 0 if operands.inward.shape[0] == 1 else count * CHUNK
    given["own_outward"] = 0 if operands.outward.shape[0] == 1 else count * CHUNK
    given["padded"] = -(-n // CHUNK) * CHUNK
    given["count"], given["side"] = count, cut.side
    given["segment"], given["segments"] = cut.segment, cut.segments
    kept = list(operands)  # those that a graph's capture makes are nobody else's
    call = Call(source, x.device, cut.blocks * cut.segments, THREADS, cut.shared, given, kept)
    if cut.segments > 1:
        signals = batch * channels * width
        call.room("states", signals * cut.segments * count)
        ends, before = "backward_ends" if backward else "forward_ends", cut.blocks * (cut.segments - 1)
        cuda_launch.launch(source, ends, x.device, before, THREADS, cut.shared, given)
        cuda_launch.launch(source, "chain", x.device, -(-signals * count // THREADS), THREADS, 0, given)
    return call


def prepare(weights: Weights, workload: Workload) -> ChunkForm:
    return weights.chunks(CHUNK)


def cost_of(workload: Workload, cut: Cut) -> Cost:
    """A product inside the chunks, one into and one out of the states; the data are read twice where they are split."""
    states = workload.exponentials if workload.n > CHUNK else 0
    passes = 1 + workload.needs_gradient + workload.learns_weights
    is_split = cut.segments > 1
    samples = workload.rows * workload.width * -(-workload.n // CHUNK) * CHUNK
    signals = workload.rows * workload.width
    operations = CHUNK + 4.0 * states + 2.0 * states * is_split
    return Cost(
        flops={"matmul": passes * samples * operations},
        bytes=passes * workload.bytes * (2.0 + is_split),
        launches=_LAUNCHES * (passes * (1 + 2 * is_split) + workload.needs_gradient),
        workspace=8.0 * signals * cut.segments * (states * is_split + RECORD * workload.needs_gradient)
        + 8.0 * THREADS * cut.blocks * cut.segments * workload.learns_weights,
    )


def refuses(workload: Workload) -> str | None:
    """Return why no kernel of ours can take it: the place, or the weights."""
    refusal = cuda_launch.refusal(workload)
    if refusal is None and workload.exponentials == 0 and workload.n > CHUNK:
        return f"the weights are no sum of exponentials to {workload.dtype} tolerance"
    return refusal


def too_much_shared(shared: int, workload: Workload) -> str | None:
    """Return why a device's shared memory does not do, or None."""
    most = cuda_launch.facts(workload.device).shared
    return f"a block needs {shared} bytes of shared memory and {workload.device} has {most}" if shared > most else None


def saves(workload: Workload) -> float:
    """Return the bytes held for the backward pass: the data, where the weights are learned; nothing else."""
    return float(workload.bytes if workload.learns_weights else 0)


def shape_of(workload: Workload) -> Shape:
    """Return the shape of the data."""
    return workload.rows // workload.channels, workload.channels, workload.n, workload.width
