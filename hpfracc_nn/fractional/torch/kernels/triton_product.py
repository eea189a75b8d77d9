"""The chunked scan in Triton as a kernel of the product: operands, segments, cost, refusals. See triton_scan.py.

Chunks have 16 samples: products are plain, 16 + 2 K multiplications and additions a sample with K states. A signal that
is too long for the signals there are is cut into segments, which take the place of rows. Cumulative sums before the
product are torch's, and the boundary columns then too.

The letters are those of `fractional/linear.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hpfracc_nn.fractional.boundary import Boundary
from hpfracc_nn.fractional.linear import StateSpace, refuses_long, saves
from hpfracc_nn.fractional.torch import tiles
from hpfracc_nn.fractional.torch.kernels import cuda_launch, triton_launch
from hpfracc_nn.fractional.torch.tiles import Shape, multiplied
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register

CHUNK = 16
ROWS, WARPS = 32, 4  # of a program: fewer rows read the matrices more often, more rows do not fit in registers
LEAST_STATES = 16
RECORD = 10  # numbers that a segment of the transpose leaves, as in triton_scan.py
SPLIT_BELOW, SPLIT_INTO = 4, 8  # programs per multiprocessor: if there are fewer than 4, signals are cut for about 8
LEAST = 16  # chunks of a segment, of which the transpose computes one more

_FLAT = 128  # numbers of a program of the small kernels
_LAUNCHES = 3  # small calls of torch that take as long as one launch here


class Around(NamedTuple):
    """What a kernel is told of a `Boundary`: how the data are differenced before the product.

    Attributes:
        differences: How often the data are differenced, 0 to 2.
        subtract: Whether the Taylor polynomial of the data at 0 is subtracted before they are differenced.
        taylor: Number of terms of that polynomial; 1 where nothing is subtracted.
        start: Index of the entry of the differenced data that the starting column, the first of the boundary columns,
            multiplies; -1 without such a column.
    """

    differences: int
    subtract: bool
    taylor: int
    start: int


PLAIN = Around(0, False, 1, -1)

Wrap = Callable[[Any], Any]  # of a kernel


@dataclass(frozen=True)
class Scan:
    """One call: the model's tensors, the boundary, how the data are cut, and who launches the kernels.

    Attributes:
        model: intra [C or 1, 16, 16], B [16, k], C [C or 1, k, 16] and A [k], contiguous.
        columns: [terms, channels, n], or None.
        around: The boundary's numbers.
        shape: Of the data: batch, channels, n, width.
        segment: Chunks of a segment; all of them where a signal is not cut.
        wrap: Returns, for a kernel in Triton, what launches it.
    """

    model: tuple[Tensor, Tensor, Tensor, Tensor]
    columns: Tensor | None
    around: Around
    shape: Shape
    segment: int
    wrap: Wrap = triton_launch.Plainly

    @property
    def segments(self) -> int:
        """How many segments a signal has."""
        return -(-self.shape[2] // (CHUNK * self.segment))

    @property
    def rows(self) -> int:
        """How many rows a channel has: one for each segment of each of its signals."""
        return self.shape[0] * self.segments * self.shape[3]

    @property
    def programs(self) -> int:
        """How many programs a channel has, each of ROWS rows."""
        return -(-self.rows // ROWS)

    @property
    def states(self) -> int:
        """K: the states that the kernels are compiled for, at least those of the model."""
        return states_for(self.model[1].shape[1])

    @property
    def terms(self) -> int:
        """How many boundary columns there are."""
        return 0 if self.columns is None else self.columns.shape[0]

    def forward(self, x: Tensor, y: Tensor) -> None:
        """Write the operator on x into y; both contiguous."""
        states = self._states_before(x, "forward") if self.segments > 1 else None
        self._pass("forward", states, False, x_ptr=x, y_ptr=y, against_ptr=None, products_ptr=None)

    def inner(self, x: Tensor, g: Tensor) -> Tensor:
        """Return for each channel the sum of the operator's results for x times g, in float64."""
        states = self._states_before(x, "forward") if self.segments > 1 else None
        products = torch.empty(self.shape[1], self.programs, dtype=torch.float64, device=x.device)
        self._pass("forward", states, False, x_ptr=x, y_ptr=None, against_ptr=g, products_ptr=products)
        return products.sum(1)

    def backward(self, g: Tensor, gx: Tensor) -> None:
        """Write the operator's transpose on g into gx; both contiguous."""
        states = self._states_before(g, "backward") if self.segments > 1 else None
        batch, channels, n, width = self.shape
        records = torch.empty(channels, self.rows, RECORD, dtype=torch.float64, device=g.device)
        self._pass("backward", states, False, x_ptr=g, y_ptr=gx, records_ptr=records)
        if self.around.subtract or self.terms:
            signals = batch * channels * width
            self._kernel("finish")[(-(-signals // _FLAT),)](
                records,
                gx,
                signals,
                batch,
                channels,
                n,
                width,
                self.segments,
                *map(int, self.around),
                self.terms,
                SIZE=_FLAT,
            )

    def _states_before(self, x: Tensor, name: str) -> Tensor:
        """Return the states before each segment, [channels, rows, K], for the pass `name`, "forward" or "backward"."""
        batch, channels, _, width = self.shape
        states = torch.empty(channels, self.rows, self.states, dtype=torch.float64, device=x.device)
        others: dict[str, Any] = {
            "forward": {"against_ptr": None, "products_ptr": None},
            "backward": {"records_ptr": None},
        }
        self._pass(name, states, True, x_ptr=x, y_ptr=None, **others[name])
        signals, over = batch * channels * width, self.model[3] ** self.segment
        self._kernel("chain")[(-(-signals * self.states // _FLAT),)](
            states, over, signals, width, self.segments, over.shape[0],
            K=self.states, BACKWARD=name == "backward", SIZE=_FLAT,
        )  # fmt: skip
        return states

    def _pass(self, name: str, states: Tensor | None, ends: bool, **given: Tensor | None) -> None:
        intra, B, C, A = self.model
        _, channels, n, width = self.shape
        differences, subtract, taylor, start = map(int, self.around)
        self._kernel(name)[(self.programs, channels)](
            **given,
            intra_ptr=intra, b_ptr=B, c_ptr=C, a_ptr=A, states_ptr=states,
            columns_ptr=intra if self.columns is None else self.columns,
            rows=self.rows, channels=channels, n=n, width=width, segments=self.segments, segment=self.segment,
            count=B.shape[1], own=int(intra.shape[0] > 1), terms=self.terms,
            **({} if name == "backward" else {"subtract": subtract, "taylor": taylor, "start": start}),
            DIFFERENCES=differences, ENDS=ends, SPLIT=states is not None, MIDDLE=width > 1,
            ROWS=ROWS, CHUNK=CHUNK, K=self.states, PRECISION="ieee", num_warps=WARPS, num_stages=1,
        )  # fmt: skip

    def _kernel(self, name: str) -> Any:
        from hpfracc_nn.fractional.torch.kernels import triton_scan

        return self.wrap(getattr(triton_scan, name))


def states_for(count: int) -> int:
    """Return how many states kernels are compiled for where a model has `count`: the next power of two, at least 16."""
    return max(LEAST_STATES, 1 << (count - 1).bit_length())


def segment_of(shape: Shape, device: str) -> int:
    """Return the chunks of a segment: all of a signal's, or fewer where there are few signals for a device."""
    batch, channels, n, width = shape
    chunks, signals = -(-n // CHUNK), batch * channels * width
    processors = cuda_launch.facts(device).processors
    if -(-batch * width // ROWS) * channels >= SPLIT_BELOW * processors or chunks < 2 * LEAST:
        return chunks
    segments = min(-(-SPLIT_INTO * processors * ROWS // signals), chunks // LEAST)
    return -(-chunks // segments)


def operands(model: StateSpace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the tensors of a model as the kernels read them: intra, B, C and the decay over one chunk."""
    return model.intra.contiguous(), model.B.contiguous(), model.C.contiguous(), model.A[0].contiguous()


def _scan(model: StateSpace, b: Boundary | None, shape: Shape, device: torch.device) -> Scan:
    columns, around = None, PLAIN
    if b is not None:
        columns, around = b.columns, Around(b.differences, b.subtract, b.taylor, b.start)
    return Scan(operands(model), columns, around, shape, segment_of(shape, str(device)))


def _is_fused(b: Boundary) -> bool:
    """Return whether the kernels themselves compute the differences and columns around the product.

    The kernels take no cumulative sums, and subtract no multiple of time from samples that are not differenced.
    """
    return b.differences > 0 or (b.differences == 0 and not (b.subtract and b.taylor == 2))


def _apply(model: StateSpace, b: Boundary, shape: Shape, x: Tensor, y: Tensor, backward: bool) -> None:
    with triton_launch.on(x.device):
        if _is_fused(b):
            scan = _scan(model, b, shape, x.device)
            (scan.backward if backward else scan.forward)(x, y)
        else:
            bare = _scan(model, None, shape, x.device)
            multiply = bare.backward if backward else bare.forward
            around = tiles.backward if backward else tiles.forward
            around(lambda data, result: multiply(data.contiguous(), result), b, x.view(shape), y.view(shape), 1)
    triton_launch.ran(x.device, _code(str(x.dtype).removeprefix("torch."), b.dtype, model.B.shape[1], shape, x.device))


def run(model: StateSpace, b: Boundary, shape: Shape, x: Tensor, y: Tensor) -> None:
    _apply(model, b, shape, x, y, backward=False)


def adjoint(model: StateSpace, b: Boundary, shape: Shape, g: Tensor, gx: Tensor) -> None:
    _apply(model, b, shape, g, gx, backward=True)


def inner(model: StateSpace, b: Boundary, shape: Shape, x: Tensor, g: Tensor) -> Tensor:
    """Return for each channel the sum of the operator's results for x times g, in float64."""
    if not _is_fused(b):
        return multiplied(run, model, b, shape, x, g)
    with triton_launch.on(x.device):
        return _scan(model, b, shape, x.device).inner(x, g)


def prepare(weights: Weights, workload: Workload) -> StateSpace:
    return weights.chunks(CHUNK)


# Instructions of a sample, counted in compiled code: see benchmarks/triton_code.py, and its test.
_INSTRUCTIONS, _EACH_STATE = 44.0, 2.8
_PER_FMA = 2.0  # operations in the time of one instruction, as rates count them


def cost(workload: Workload) -> Cost:
    """Return the cost by instructions, each in the time of a multiplication and addition.

    In an estimate by operations loads from shared memory and addresses would be free, and they are a third. The data
    are read twice where they are cut.
    """
    shape = workload.rows // workload.channels, workload.channels, workload.n, workload.width
    states = states_for(workload.exponentials if workload.n > CHUNK else 1)
    is_split = segment_of(shape, workload.device) < -(-workload.n // CHUNK)
    samples = workload.rows * workload.width * -(-workload.n // CHUNK) * CHUNK
    passes = 1 + workload.needs_gradient + workload.learns_weights
    instructions = _INSTRUCTIONS + _EACH_STATE * states * (1.0 + 0.5 * is_split)
    segments = -(-workload.n // (CHUNK * segment_of(shape, workload.device)))
    each = 8.0 * workload.rows * workload.width * segments
    return Cost(
        flops={"matmul": passes * samples * instructions * _PER_FMA},
        bytes=passes * workload.bytes * (2.0 + is_split),
        launches=_LAUNCHES * (passes * (1 + 2 * is_split) + workload.needs_gradient),
        workspace=each * (states * is_split + RECORD * workload.needs_gradient),
    )


def refuses(workload: Workload) -> str | None:
    """Return why the kernel cannot take a workload, by its device, its dtype or its weights; or None."""
    return triton_launch.refusal(workload) or refuses_long(workload, CHUNK)


def compiles(workload: Workload) -> Compilation | None:
    shape = workload.rows // workload.channels, workload.channels, workload.n, workload.width
    count = workload.exponentials if workload.n > CHUNK else 1
    wide = getattr(torch, workload.converted.dtype)
    device = torch.device(workload.device)
    return triton_launch.compilation(workload.device, _code(workload.dtype, wide, count, shape, device))


def _code(stored: str, dtype: torch.dtype, count: int, shape: Shape, device: torch.device) -> Hashable:
    """Return what is compiled for a call, but for its differences: a rehearsal compiles for all of them."""
    _, _, n, width = shape
    is_split = segment_of(shape, str(device)) < -(-n // CHUNK)
    return "chunked_scan", stored, dtype, states_for(count), width > 1, is_split, n == 1, n % 16 == 0


register(
    Kernel(
        "toeplitz",
        "torch",
        "triton",
        "chunked_scan",
        run,
        adjoint,
        prepare,
        cost,
        refuses,
        saves,
        compiles,
        as_stored=True,
        inner=inner,
    )
)
