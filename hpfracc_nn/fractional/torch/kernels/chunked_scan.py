"""Causal Toeplitz product by chunks: matrix products inside the chunks, a small sequential scan between them.

State space duality; Dao & Gu, arXiv 2405.21060. Chunks have L samples, and a model (intra, B, C, A) has k states, in
the letters of `fractional/linear.py`: B takes a chunk to the states, C the states to a chunk, A is their decay. Data
are tiles [batch, channels, chunks * L, width].

The steps serve every kernel that brings its own scan between chunks. A scan is bound once to its arrays: scan(states,
rows, chunks, model, reverse) returns a function that replaces the states, seen as [rows, chunks, k], in place by the
state before each chunk, S[m] = A * S[m-1] + states[m-1], S[0] = 0, in float64; with `reverse`, from the last chunk to
the first. With time in the middle k counts every state `width` times, states first. Torch's own scan, registered here,
is blocked, so that few calls do it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from hpfracc_nn.fractional.linear import StateSpace, refuses_long, saves
from hpfracc_nn.fractional.torch.tiles import by_tiles, is_narrow, scratch, tile_bytes
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Cost, Kernel, Workload, register

Scan = Callable[[Tensor, int, int, StateSpace, bool], Callable[[], None]]


def chunk_length(workload: Workload) -> int:
    """Return the samples of a chunk: the longest that is not slower, because the scan between chunks is what costs.

    Measured on a CPU from 16 to 256: 128 is the fastest, or as fast, from 256 x 256 to 1 x 65536 samples in both
    precisions, 2 to 4 times as fast as 32; with time in the middle, where a chunk is multiplied from the left, 64.
    """
    return 128 if workload.width == 1 or is_narrow(workload.samples, workload.width) else 64


def prepare(weights: Weights, workload: Workload) -> StateSpace:
    return weights.chunks(chunk_length(workload))


class Operands(NamedTuple):
    """The matrices of one direction: inside a chunk, from a chunk to the states, and from the states to a chunk."""

    intra: Tensor
    inward: Tensor
    outward: Tensor


class Both(NamedTuple):
    """The operands of the product and of its adjoint."""

    forward: Operands
    backward: Operands


class Product:
    """The product with whole chunks, or its transpose: called with a tile [batch, channels, chunks * L, width].

    Args:
        model: The weights.
        scan: The scan between the chunks; see the module.
        reverse: Whether it is the transpose.
    """

    def __init__(self, model: StateSpace, scan: Scan, reverse: bool):
        self._model, self._scan, self._reverse = model, scan, reverse
        self._bound: Tensor | None = None

    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Write the product of x into `out`."""
        if x is not self._bound:  # most tiles come in the same buffer: what does not change is bound once
            self._bind(x)
        kind, length = self._kind, self._model.multiple
        result = kind.room(out, length)
        kind.multiply(self._data, self._intra, result)
        if x.shape[2] > length:
            kind.multiply(self._data, self._inward, self._states)
            self._step()
            kind.accumulate(result, self._states, self._outward)
        kind.give(result, out)

    def _bind(self, x: Tensor) -> None:
        model, (batch, channels, n, _) = self._model, x.shape
        self._kind = kind = _arranged(x)
        both = model.cached(kind)
        self._intra, self._inward, self._outward = both.backward if self._reverse else both.forward
        self._data = kind.take(x, model.multiple)
        if n > model.multiple:
            self._states = kind.states(self._data, model)
            self._step = self._scan(self._states, batch * channels, n // model.multiple, model, self._reverse)
        self._bound = x if kind.is_view else None


class _Shared:
    """Layout of a tile with time last and one set of weights: a matrix [batch * channels * chunks, L].

    Its rows are multiplied from the right, by L x L and L x k matrices.
    """

    is_view = True  # what `take` returns follows the array it was taken from
    multiply = staticmethod(lambda data, matrix, out=None: torch.mm(data, matrix, out=out))
    accumulate = staticmethod(lambda result, states, matrix: result.addmm_(states, matrix))

    @staticmethod
    def operands(model: StateSpace) -> Both:
        intra, C, B = model.intra[0], model.C[0], model.B
        return Both(Operands(intra, B, C), Operands(intra.t(), C.t(), B.t()))

    @staticmethod
    def take(x: Tensor, length: int) -> Tensor:
        return x.view(-1, length)

    room = take

    @staticmethod
    def states(data: Tensor, model: StateSpace) -> Tensor:
        return scratch("states", (*data.shape[:-1], model.A[0].shape[0]), data)

    @staticmethod
    def give(result: Tensor, out: Tensor) -> None:
        pass  # the result is a view of `out`


class _PerChannel(_Shared):
    """Layout of a tile with time last and weights for each channel: [channels, batch * chunks, L].

    One product for each channel multiplies the rows from the right.
    """

    is_view = False
    multiply = staticmethod(lambda data, matrix, out=None: torch.bmm(data, matrix, out=out))
    accumulate = staticmethod(lambda result, states, matrix: result.baddbmm_(states, matrix))

    @staticmethod
    def operands(model: StateSpace) -> Both:
        intra, C = model.intra, model.C
        B = model.B.expand(intra.shape[0], -1, -1)
        return Both(Operands(intra, B, C), Operands(intra.mT, C.mT, B.mT))

    @staticmethod
    def take(x: Tensor, length: int) -> Tensor:
        batch, channels, n, _ = x.shape
        return x.view(batch, channels, n).transpose(0, 1).reshape(channels, -1, length)

    @staticmethod
    def room(out: Tensor, length: int) -> Tensor:
        batch, channels, n, _ = out.shape
        return out.view(channels, -1, length) if batch == 1 else out.new_empty(channels, batch * n // length, length)

    @staticmethod
    def give(result: Tensor, out: Tensor) -> None:
        batch, channels, n, _ = out.shape
        if batch > 1:
            out.view(batch, channels, n).copy_(result.view(channels, batch, n).transpose(0, 1))


class _Middle(_Shared):
    """Layout of a tile with time in the middle, of one channel: [batch * chunks, L, width].

    Chunks [L, width] are multiplied from the left.
    """

    is_view = True
    multiply = staticmethod(
        lambda data, matrix, out=None: torch.bmm(matrix.expand(data.shape[0], -1, -1), data, out=out)
    )
    accumulate = staticmethod(
        lambda result, states, matrix: result.baddbmm_(matrix.expand(result.shape[0], -1, -1), states)
    )

    @staticmethod
    def operands(model: StateSpace) -> Both:
        intra, C, B = model.intra, model.C, model.B[None]
        return Both(Operands(intra.mT, B.mT, C.mT), Operands(intra, C, B))

    @staticmethod
    def take(x: Tensor, length: int) -> Tensor:
        return x.view(-1, length, x.shape[3])

    room = take

    @staticmethod
    def states(data: Tensor, model: StateSpace) -> Tensor:
        return scratch("states", (data.shape[0], model.A[0].shape[0], data.shape[2]), data)


def _arranged(x: Tensor) -> type[_Shared]:
    if x.shape[3] > 1:
        return _Middle
    return _Shared if x.shape[1] == 1 else _PerChannel


_COPIES = 13  # copies of a tile's states while they are scanned: one, and six in float64, which count twice (measured)


# Measured on one core: the blocked scan takes as long as this many operations a state, and this many calls a pass. One
# chunk has none, and takes the calls around the product.
_OPERATIONS, _CALLS, _CALLS_OF_ONE = 100, 60, 8


def cost(workload: Workload) -> Cost:
    """Return the cost: a product inside the chunks, one into and one out of the states, for each pass."""
    chunks = -(-workload.n // chunk_length(workload))
    launches = _CALLS if chunks > 1 else _CALLS_OF_ONE
    return cost_of(workload, workload.rows, chunks, launches=launches, operations=_OPERATIONS)


def cost_of(workload: Workload, rows: int, chunks: int, *, launches: int, operations: int, tiles: int = 0) -> Cost:
    """Return the cost of a workload where `rows` rows of `chunks` chunks are computed in place of its own.

    Args:
        workload: What is to be computed.
        rows: Batch times channels.
        chunks: How many chunks of each row.
        launches: Small calls of a pass.
        operations: Of one state in the scan.
        tiles: Further copies of a tile's data that are held.
    """
    length = chunk_length(workload)
    k = workload.exponentials if chunks > 1 else 0
    samples = rows * workload.width * chunks * length
    passes = 1 + workload.needs_gradient + workload.learns_weights
    scans = passes * samples / length * k
    size, turned = workload.itemsize, is_narrow(workload.samples, workload.width)
    return Cost(
        flops={"matmul": passes * samples * (2.0 * length + 4.0 * k), "scan": operations * scans},
        bytes=passes * samples * size * (3.0 + 8.0 * turned + 2.0 * k / length),
        launches=passes * launches,
        workspace=tile_bytes(workload) * (1 + tiles + 2 * (workload.channels > 1) + 2 * turned + _COPIES * k / length),
    )


def refuses(workload: Workload) -> str | None:
    return refuses_long(workload, chunk_length(workload))


_BLOCK = 16  # chunks that are summed by one product; longer runs are scanned block by block


def scan(states: Tensor, rows: int, count: int, model: StateSpace, reverse: bool) -> Callable[[], None]:
    """Return a function that replaces the states in place by the state before each chunk, computed in float64.

    Arguments are those of a scan in the module's docstring, with `count` the number of chunks.
    """
    decay = model.A[0]
    view = states.view(rows, count, decay.shape[0], -1)

    def step() -> None:
        added = view.to(torch.float64)
        before = _blocked(added.flip(1) if reverse else added, decay)
        view.copy_(before.flip(1) if reverse else before)

    return step


def _blocked(added: Tensor, decay: Tensor) -> Tensor:
    """Return S [rows, chunks, k, width] with S[m] = decay * S[m-1] + added[m-1] and S[0] = 0, m counting chunks.

    `added` has this shape, and `decay` is [k]. Matrix products scan blocks of some chunks, and a scan over the blocks
    follows.
    """
    rows, count, k, width = added.shape
    length = min(count, _BLOCK)
    blocks = -(-count // length)
    if blocks * length > count:
        added = torch.nn.functional.pad(added, (0, 0, 0, 0, 0, blocks * length - count))
    power = torch.arange(length + 1, dtype=torch.float64, device=decay.device)
    # decay**0 is 1 also where decay is 0
    powers = torch.where(power == 0, 1.0, decay[:, None] ** power)
    lag = power[:, None] - power[None, :] - 1
    weights = torch.where(lag >= 0, powers[:, lag.clamp(min=0).long()], 0.0)  # [k, length + 1, length + 1]
    grouped = added.reshape(rows, blocks, length, k, width).permute(3, 2, 0, 1, 4).reshape(k, length, -1)
    summed = (
        torch.bmm(weights[:, :, :length], grouped).reshape(k, length + 1, rows, blocks, width).permute(2, 3, 1, 0, 4)
    )
    local = summed[:, :, :length]
    if blocks > 1:
        carried = _blocked(summed[:, :, length], powers[:, length])
        local = local + powers[:, :length].t()[None, None, :, :, None] * carried[:, :, None]
    return local.reshape(rows, blocks * length, k, width)[:, :count]


register(
    Kernel(
        "toeplitz",
        "torch",
        "torch",
        "chunked_scan",
        *by_tiles(
            partial(Product, scan=scan, reverse=False), partial(Product, scan=scan, reverse=True), turns_narrow=True
        ),
        prepare,
        cost,
        refuses,
        saves,
    )
)
