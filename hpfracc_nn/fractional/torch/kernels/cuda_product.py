"""Causal Toeplitz products in CUDA: the operator in one pass over the data, differences and boundary columns with it.

Here are operands, the problem as a structure, segments, cost and refusals. A signal that is too long for the signals
there are is cut into segments, whose states are found first by a pass that reads only. Cumulative sums before the
product (m = -1) are torch's, and the boundary columns then too.

- The chunked scan takes time last (cuda_chunked_scan.cu). Chunks have 16 samples and not the 128 that suit matrix
  units: products are plain, 16 + 4 K operations a sample with K states, which is what the memory of a large device
  allows in the time of reading and writing.
- The recurrence takes time in the middle: a thread has a signal, its states in registers (cuda_recurrence.cu). The
  number of states is compiled in, rounded up to a multiple of eight.
- The dense product takes short signals, time last, any weights: blocks of 8 x 8 weights, no matrix (cuda_dense.cu).

Data are [batch, channels, n, width], and a `shape` is these four sizes; C channels have weights of their own. A model
is a StateSpace of `fractional/linear.py`, and b the Boundary: differences before and columns after the product. A block
is one of CUDA's thread blocks. A Call has the arguments of one launch and of those that follow it.

A Workload describes a call by its sizes, dtype and the gradients that it wants; a Cost is what a kernel's time is
estimated from: operations, bytes moved, launches and working memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import Boundary
from hpfracc_nn.fractional.linear import Column, StateSpace, refuses_long, saves
from hpfracc_nn.fractional.torch import tiles
from hpfracc_nn.fractional.torch.kernels import cuda_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Source
from hpfracc_nn.fractional.torch.tiles import Shape, multiplied
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register

CHUNK = 16
THREADS = 64  # of a block
RECORD = 13  # numbers that a segment leaves for `finish`
SPLIT_BELOW, SPLIT_INTO = 4, 8  # blocks per multiprocessor: if there are fewer than 4, signals are cut for about 8

_FINISHED_BY = 32  # threads that finish a signal of several segments
_LAUNCHES = 2  # small calls of torch that take as long as one launch here

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
    """The matrices that one direction multiplies with; K states, filled up to a multiple that the kernel wants."""

    inward: Tensor  # [C or 1, K, 16]
    outward: Tensor  # [C or 1, K, 16]
    near: Tensor  # [C, 16]
    decay: Tensor  # [K] in float64


@dataclass(frozen=True)
class Arrangement:
    """How operands are made of a state space model: for a direction, with states filled up to a multiple.

    Attributes:
        backward: Whether for the transpose, whose positions count from the end.
        multiple: States are padded with zeros to a multiple of it.
    """

    backward: bool
    multiple: int

    def operands(self, model: StateSpace) -> Operands:
        """Return the Operands of a model for this direction."""
        inward, outward = model.B.t()[None], model.C
        if self.backward:
            inward, outward = model.C.flip(2), model.B.t()[None].flip(2)
        more = -model.A[0].shape[0] % self.multiple
        filled = [torch.nn.functional.pad(each, (0, 0, 0, more)).contiguous() for each in (inward, outward)]
        decay = torch.nn.functional.pad(model.A[0], (0, more)).contiguous()
        return Operands(filled[0], filled[1], model.intra[:, 0].contiguous(), decay)


@dataclass(frozen=True)
class Cut:
    """How a call is spread over a device.

    Attributes:
        blocks: Thread blocks for one segment of all signals.
        side: Chunks of one signal that a block works on at once.
        segment: Chunks of a segment.
        segments: How many segments a signal has.
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
        chunks: How many a signal has.
        blocks: Thread blocks for one segment of all signals.
        least: Chunks that a block works on at once.
        device: The CUDA device.
    """
    processors = cuda_launch.facts(str(device)).processors
    if blocks >= SPLIT_BELOW * processors or chunks < 2 * least:
        return -(-chunks // least) * least, 1
    wanted = min(-(-SPLIT_INTO * processors // blocks), chunks // least)
    segment = -(-chunks // (wanted * least)) * least
    return segment, -(-chunks // segment)


def problem(b: Boundary | None, shape: Shape, x: Tensor) -> np.ndarray:
    """Return the structure that a kernel takes as its argument, without operands; for b None, of the bare product."""
    batch, channels, n, width = shape
    found = np.zeros(1, PROBLEM)
    found["x"] = x.data_ptr()
    found["batch"], found["channels"], found["n"], found["width"] = batch, channels, n, width
    found["segments"] = found["side"] = 1
    found["start"] = -1
    if b is not None:
        found["m"], found["subtract"], found["taylor"], found["start"] = b.differences, b.subtract, b.taylor, b.start
        if b.columns is not None:
            found["columns"], found["terms"] = b.columns.data_ptr(), b.columns.shape[0]
    return found


@dataclass(frozen=True)
class Call:
    """One call of a kernel: where it runs, its argument, and the tensors behind the addresses in that argument.

    The tensors stay alive until all is launched.
    """

    source: Source
    device: torch.device
    blocks: int
    threads: int
    shared: int
    given: np.ndarray
    kept: list[Tensor]

    def launch(self, function: str) -> None:
        """Launch the kernel of the source that is called `function`, on all blocks."""
        cuda_launch.launch(self.source, function, self.device, self.blocks, self.threads, self.shared, self.given)

    def room(self, name: str, *sizes: int) -> Tensor:
        """Return a workspace in float64, whose address goes into the field `name` of the argument."""
        found = torch.empty(sizes, dtype=torch.float64, device=self.device)
        self.given[name] = found.data_ptr()
        self.kept.append(found)
        return found

    def inner(self, g: Tensor) -> Tensor:
        """Launch `inner`; return for each channel the sum of the results times g.

        Every thread of a block adds up a sum of its own; neighbouring blocks belong to neighbouring channels.
        """
        sums = self.room("products", self.blocks, self.threads)
        self.given["against"] = g.data_ptr()
        self.launch("inner")
        return sums.view(-1, int(self.given["channels"][0]), self.threads).sum(dim=(0, 2))


def apply(scan: Scan, model: StateSpace, b: Boundary, shape: Shape, x: Tensor, y: Tensor, backward: bool) -> None:
    """Write the operator on x, or its transpose, into y."""
    if b.differences >= 0:
        _whole(scan, model, b, shape, x, y, backward)
        return

    def multiply(data: Tensor, result: Tensor) -> None:
        _whole(scan, model, None, shape, data.contiguous(), result, backward)

    (tiles.backward if backward else tiles.forward)(multiply, b, x.view(shape), y.view(shape), 1)


def inner(scan: Scan, model: StateSpace, b: Boundary, shape: Shape, x: Tensor, g: Tensor) -> Tensor:
    """Return for each channel the sum of the operator's results for x times g, in float64."""
    if b.differences < 0:
        return multiplied(partial(apply, scan, backward=False), model, b, shape, x, g)
    return _begun(scan, model, b, shape, x, backward=False).inner(g)


def _whole(
    scan: Scan, model: StateSpace, b: Boundary | None, shape: Shape, x: Tensor, y: Tensor, backward: bool
) -> None:
    call = _begun(scan, model, b, shape, x, backward)
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


def _begun(scan: Scan, model: StateSpace, b: Boundary | None, shape: Shape, x: Tensor, backward: bool) -> Call:
    """Return the Call of a scan kernel on x, ready to launch the pass that writes the result.

    Where signals are cut into segments, the states before each segment have been computed. Without b the call computes
    the bare product; with `backward` it computes the transpose.
    """
    batch, channels, n, width = shape
    operands: Operands = model.cached(Arrangement(backward, scan.multiple))
    is_short = n <= CHUNK and scan.multiple == 1  # one chunk has no state
    count = 0 if is_short else operands.decay.shape[0]
    cut, source = scan.cut(shape, count, operands.near.element_size(), x.device), scan.source(x.dtype, count)
    given = problem(b, shape, x)
    given["inward"], given["outward"], given["near"], given["decay"] = (each.data_ptr() for each in operands)
    given["own_inward"] = 0 if operands.inward.shape[0] == 1 else count * CHUNK
    given["own_outward"] = 0 if operands.outward.shape[0] == 1 else count * CHUNK
    given["padded"] = -(-n // CHUNK) * CHUNK
    given["count"], given["side"] = count, cut.side
    given["segment"], given["segments"] = cut.segment, cut.segments
    kept = list(operands)  # nothing else keeps those that are made while a graph is captured
    call = Call(source, x.device, cut.blocks * cut.segments, THREADS, cut.shared, given, kept)
    if cut.segments > 1:
        signals = batch * channels * width
        call.room("states", signals * cut.segments * count)
        ends, before = "backward_ends" if backward else "forward_ends", cut.blocks * (cut.segments - 1)
        cuda_launch.launch(source, ends, x.device, before, THREADS, cut.shared, given)
        cuda_launch.launch(source, "chain", x.device, -(-signals * count // THREADS), THREADS, 0, given)
    return call


def prepare(weights: Weights, workload: Workload) -> StateSpace:
    return weights.chunks(CHUNK)


class Instructions(NamedTuple):
    """Instructions that nvcc makes for sm_90 for a sample: those without states, and those for each state.

    Instructions stand for flops in a cost. In an estimate by operations, what moves data and computes addresses would
    be free, and that is more than half.
    """

    fixed: float
    state: float


_PER_FMA = 2.0  # operations in the time of one instruction, as rates count them


def cost_of(workload: Workload, cut: Cut, instructions: Instructions) -> Cost:
    """Return the cost by instructions; the data are read twice where signals are cut into segments."""
    states = workload.exponentials if workload.n > CHUNK else 0
    passes = 1 + workload.needs_gradient + workload.learns_weights
    is_split = cut.segments > 1
    samples = workload.rows * workload.width * -(-workload.n // CHUNK) * CHUNK
    signals = workload.rows * workload.width
    operations = _PER_FMA * (instructions.fixed + instructions.state * states * (1.0 + 0.5 * is_split))
    return Cost(
        flops={"matmul": passes * samples * operations},
        bytes=passes * workload.bytes * (2.0 + is_split),
        launches=_LAUNCHES * (passes * (1 + 2 * is_split) + workload.needs_gradient),
        workspace=8.0 * signals * cut.segments * (states * is_split + RECORD * workload.needs_gradient)
        + 8.0 * THREADS * cut.blocks * cut.segments * workload.learns_weights,
    )


def refuses(workload: Workload) -> str | None:
    """Return why no scan here can take a workload, by its device, its dtype or its weights; or None."""
    return cuda_launch.refusal(workload) or refuses_long(workload, CHUNK)


def too_much_shared(shared: int, workload: Workload) -> str | None:
    """Return why a device has too little shared memory for a block, or None."""
    most = cuda_launch.facts(workload.device).shared
    return f"a block needs {shared} bytes of shared memory and {workload.device} has {most}" if shared > most else None


def shape_of(workload: Workload) -> Shape:
    """Return the shape of a workload's data."""
    return workload.rows // workload.channels, workload.channels, workload.n, workload.width


def _both(scan: Scan) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return run and adjoint, as a `Kernel` has them, of the kernel that a Scan describes."""
    return partial(apply, scan, backward=False), partial(apply, scan, backward=True)


_PIECE = 16  # chunks that one thread scans
_HEADS = {4: 32, 8: 48}  # bytes of `Head`


def chunked_source(dtype: torch.dtype, count: int = 0) -> Source:
    """Return the source of the chunked scan for samples of a dtype; the number of states is a kernel's argument."""
    return Source(__package__, "cuda_chunked_scan.cu", str(dtype).removeprefix("torch."))


def chunked_cut(shape: Shape, count: int, itemsize: int, device: torch.device) -> Cut:
    """Return the Cut of a call of the chunked scan.

    A block has whole signals, several where they are short, and segments of one where there are few.
    """
    batch, channels, n, _ = shape
    chunks, capacity = -(-n // CHUNK), THREADS * (2 if itemsize == 4 else 1)
    side = min(capacity, 1 << (chunks - 1).bit_length())
    group = capacity // side
    blocks = -(-batch // group) * channels
    segment, segments = segmented(chunks, blocks, side, device)
    return Cut(blocks, side, segment, segments, _chunked_shared(capacity, side, count, itemsize))


def _chunked_shared(chunks: int, side: int, count: int, itemsize: int) -> int:
    """Return the bytes of shared memory of a block of the chunked scan.

    The block works on `chunks` chunks at once, `side` of each of its signals; `count` is the number of states.
    """
    group, pieces, tile = chunks // side, chunks // min(side, _PIECE), side * CHUNK + 2
    parts = (
        (2 + pieces + group) * count * 8,
        group * _HEADS[itemsize],
        count * CHUNK * itemsize,
        count * CHUNK * itemsize,
        CHUNK * itemsize,
        count * (chunks + 1) * itemsize,
        2 * group * itemsize,
        group * (tile + tile // CHUNK + 1) * itemsize,
    )
    return sum(-(-part // 16) * 16 for part in parts)


CHUNKED = Scan(chunked_source, chunked_cut, multiple=1)


def _chunked_cost(workload: Workload) -> Cost:
    return cost_of(workload, _chunked_cut_of(workload), Instructions(fixed=170.0, state=3.4))


def _chunked_refuses(workload: Workload) -> str | None:
    if (found := refuses(workload)) is not None:
        return found
    if workload.width > 1:
        return f"it takes time as the last axis; {workload.width} samples lie side by side"
    return too_much_shared(_chunked_cut_of(workload).shared, workload)


def _chunked_compiles(workload: Workload) -> Compilation | None:
    return cuda_launch.compilation(workload, chunked_source(getattr(torch, workload.dtype)))


def _chunked_cut_of(workload: Workload) -> Cut:
    count = workload.exponentials if workload.n > CHUNK else 0
    return chunked_cut(shape_of(workload), count, workload.converted.itemsize, torch.device(workload.device))


register(
    Kernel(
        "toeplitz",
        "torch",
        "cuda",
        "chunked_scan",
        *_both(CHUNKED),
        prepare,
        _chunked_cost,
        _chunked_refuses,
        saves,
        _chunked_compiles,
        as_stored=True,
        inner=partial(inner, CHUNKED),
    )
)


LONGEST = 512  # samples: 64 threads of 8 positions each

_DENSE_THREADS = 128  # of a block
_WIDTH, _ROWS = 8, 4  # positions and signals of a thread


def _dense_prepare(weights: Weights, workload: Workload) -> Column:
    return weights.column()


def _dense(column: Column, b: Boundary, shape: Shape, x: Tensor, y: Tensor) -> None:
    _dense_apply(column, b, shape, x, y, backward=False)


def _dense_adjoint(column: Column, b: Boundary, shape: Shape, g: Tensor, gx: Tensor) -> None:
    _dense_apply(column, b, shape, g, gx, backward=True)


def _dense_inner(column: Column, b: Boundary, shape: Shape, x: Tensor, g: Tensor) -> Tensor:
    if b.differences < 0:
        return multiplied(_dense, column, b, shape, x, g)
    return _dense_call(column, problem(b, shape, x), shape, x).inner(g)


def _dense_apply(column: Column, b: Boundary, shape: Shape, x: Tensor, y: Tensor, backward: bool) -> None:
    if b.differences >= 0:
        _dense_launch(column, problem(b, shape, x), shape, x, y, backward)
        return

    def multiply(data: Tensor, result: Tensor) -> None:
        data = data.contiguous()
        _dense_launch(column, problem(None, shape, data), shape, data, result, backward)

    (tiles.backward if backward else tiles.forward)(multiply, b, x.view(shape), y.view(shape), 1)


def _dense_launch(column: Column, given: np.ndarray, shape: Shape, x: Tensor, y: Tensor, backward: bool) -> None:
    given["y"] = y.data_ptr()
    _dense_call(column, given, shape, x).launch("backward" if backward else "forward")


def _dense_call(column: Column, given: np.ndarray, shape: Shape, x: Tensor) -> Call:
    batch, channels, n, _ = shape
    weights = column.weights.contiguous()
    given["near"], given["padded"] = weights.data_ptr(), -(-n // _WIDTH) * _WIDTH
    blocks = -(-batch // _dense_group(n)) * channels
    shared = _dense_shared(n, weights.element_size())
    return Call(dense_source(x.dtype), x.device, blocks, _DENSE_THREADS, shared, given, [weights])


def dense_source(dtype: torch.dtype) -> Source:
    """Return the source of the dense product for samples of a dtype."""
    return Source(__package__, "cuda_dense.cu", str(dtype).removeprefix("torch."))


def _dense_group(n: int) -> int:
    """Return how many signals of n samples one block of the dense kernel computes."""
    return _DENSE_THREADS // -(-n // _WIDTH) * _ROWS


def _dense_shared(n: int, itemsize: int) -> int:
    """Return the bytes of shared memory of a block of the dense kernel, for signals of n samples.

    There lie partial sums, each signal's boundary values (`Head` in cuda_common.cuh), weights and data.
    """
    parts, group = -(-n // _WIDTH), _dense_group(n)
    length = parts * _WIDTH
    weights = (length + _WIDTH) * (_WIDTH + 1) // _WIDTH + 1
    row = (length + 1) + (length + 1) // _WIDTH + 1
    return 8 * 5 * group * parts + group * _HEADS[itemsize] + (weights + group * row) * itemsize


def _dense_cost(workload: Workload) -> Cost:
    """Return the cost of the dense kernel, as `Kernel.cost` does.

    Its products fill half of the matrix and are counted as all of it, since threads wait for the longest row.
    """
    passes = 1 + workload.needs_gradient + workload.learns_weights
    blocks = (
        -(-workload.rows // workload.channels // _dense_group(min(max(workload.n, 1), LONGEST))) * workload.channels
    )
    return Cost(
        flops={"matmul": passes * 2.0 * workload.samples * workload.n},
        bytes=passes * 2.0 * workload.bytes,
        launches=2 * passes,
        workspace=8.0 * _DENSE_THREADS * blocks * workload.learns_weights,
    )


def _dense_refuses(workload: Workload) -> str | None:
    if (found := cuda_launch.refusal(workload)) is not None:
        return found
    if workload.width > 1:
        return f"it takes time as the last axis; {workload.width} samples lie side by side"
    if workload.n > LONGEST:
        return f"n={workload.n} is longer than {LONGEST}"
    return too_much_shared(_dense_shared(max(workload.n, 1), workload.converted.itemsize), workload)


def _dense_compiles(workload: Workload) -> Compilation | None:
    return cuda_launch.compilation(workload, dense_source(getattr(torch, workload.dtype)))


register(
    Kernel(
        "toeplitz",
        "torch",
        "cuda",
        "dense",
        _dense,
        _dense_adjoint,
        _dense_prepare,
        _dense_cost,
        _dense_refuses,
        saves,
        _dense_compiles,
        as_stored=True,
        inner=_dense_inner,
    )
)


_FILLED = 8
_LEAST = 4  # chunks of a segment


def recurrence_source(dtype: torch.dtype, count: int) -> Source:
    """Return the source of the recurrence for samples of a dtype and a number of states."""
    return Source(__package__, "cuda_recurrence.cu", str(dtype).removeprefix("torch."), count)


def recurrence_cut(shape: Shape, count: int, itemsize: int, device: torch.device) -> Cut:
    """Return the Cut of a call of the recurrence: a thread has a signal, or a segment of one where there are few."""
    batch, _, n, width = shape
    blocks = -(-batch * width // THREADS)
    segment, segments = segmented(-(-n // CHUNK), blocks, _LEAST, device)
    return Cut(blocks, 1, segment, segments, 8 * count + (2 * count + 1) * CHUNK * itemsize)


RECURRENCE = Scan(recurrence_source, recurrence_cut, multiple=_FILLED)


def _recurrence_cost(workload: Workload) -> Cost:
    return cost_of(workload, _recurrence_cut_of(workload), Instructions(fixed=100.0, state=2.6))


def _recurrence_refuses(workload: Workload) -> str | None:
    if (found := refuses(workload)) is not None:
        return found
    if workload.width == 1:
        return "it takes time in the middle, and time is the last axis"
    return too_much_shared(_recurrence_cut_of(workload).shared, workload)


def _recurrence_compiles(workload: Workload) -> Compilation | None:
    return cuda_launch.compilation(workload, recurrence_source(getattr(torch, workload.dtype), states_of(workload)))


def states_of(workload: Workload) -> int:
    """Return how many states are compiled into the recurrence; a single chunk needs none and gets zeros."""
    states = workload.exponentials if workload.n > CHUNK else 1
    return -(-states // _FILLED) * _FILLED


def _recurrence_cut_of(workload: Workload) -> Cut:
    itemsize, device = workload.converted.itemsize, torch.device(workload.device)
    return recurrence_cut(shape_of(workload), states_of(workload), itemsize, device)


register(
    Kernel(
        "toeplitz",
        "torch",
        "cuda",
        "recurrence",
        *_both(RECURRENCE),
        prepare,
        _recurrence_cost,
        _recurrence_refuses,
        saves,
        _recurrence_compiles,
        as_stored=True,
        inner=partial(inner, RECURRENCE),
    )
)
