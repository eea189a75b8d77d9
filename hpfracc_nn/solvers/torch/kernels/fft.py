"""A history by square blocks of doubling size: the large ones by FFT, O(n log(n)**2) in all.

When step k L has been reached, L a power of two times the block and k odd, the last L values go to the next L steps.
Every pair of steps that do not share a block is in exactly one of these squares.

Hairer, Lubich & Schlichte, SIAM J. Sci. Stat. Comput. 6 (1985) 532.

Shapes: a orders, `ins` values a step, `outs` sums a step, r numbers of a value for each order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.solvers.torch.memory import OPS, Blocks, Operand, Toeplitz, add_product, block_length, run, saves

_BY_PRODUCT = 256  # steps of a square up to which a matrix product is faster
_AT_ONCE = 1 << 20  # numbers that are transformed together


class FFTForm(Blocks):
    """The past of one solve, added up by square blocks, the large ones by FFT; see `memory.Form`."""

    def __init__(self, operand: Operand):
        super().__init__(operand)
        assert isinstance(operand, Toeplitz), "the mesh is uniform"
        self.columns = operand.columns
        self._block = 0  # where the second one begins
        self._pending: Tensor | None = None
        self._squares: dict[int, Tensor] = {}

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """See `memory.Form.far`."""
        if not first:
            return
        ins, steps = self.operand.ins, self.operand.steps
        if self._pending is None:
            self._pending = values.new_zeros(values.shape[0], self.operand.outs, steps + 1, values.shape[-1])
        self._block = self._block or first
        number = first // self._block
        length = self._block * (number & -number)
        end = min(first + length, steps + 1)
        recent = values[:, (first - length) * ins : first * ins]
        target = self._pending[:, :, first:end]
        if length <= _BY_PRODUCT:
            found = torch.zeros_like(target, memory_format=torch.contiguous_format)
            add_product(self._square(length)[:, :, : end - first], recent, found)
            target += found
        else:
            self._add_by_fft(recent, target, length)
        out += self._pending[:, :, first:last]

    def _square(self, length: int) -> Tensor:
        found, steps = self._squares.get(length), self.operand.steps + 1
        if found is None:
            found = self._squares[length] = self.operand.rectangle(
                length, min(2 * length, steps), 0, length
            ).contiguous()
        return found

    def _add_by_fft(self, recent: Tensor, target: Tensor, length: int) -> None:
        """Add the part of one square: the sums over the last `length` values in the next steps, as a product of FFTs.

        It is the second half of a circular convolution of twice the length. `recent` holds these values,
        `[a, length * ins, r]`; `target`, which is added to, the sums of the next steps, [a, outs, rows, r] with at most
        `length` rows.
        """
        a, _, width = recent.shape
        spectrum = self._squares.get(length)
        if spectrum is None:
            lags = self.columns[..., : 2 * length].clone()
            spectrum = self._squares[length] = torch.fft.rfft(lags, 2 * length)[..., None]  # [a, outs, ins, f, 1]
        recent = recent.view(a, length, self.operand.ins, width)
        rows = target.shape[2]
        part = max(1, _AT_ONCE // (2 * length * self.operand.ins))
        for begin in range(0, width, part):
            some = slice(begin, begin + part)
            transformed = torch.fft.rfft(recent[..., some].permute(0, 2, 1, 3), 2 * length, dim=2)
            products = (
                (spectrum * transformed[:, None]).sum(2) if self.operand.ins > 1 else spectrum[:, :, 0] * transformed
            )
            target[..., some] += torch.fft.irfft(products, 2 * length, dim=2)[:, :, length : length + rows]


def prepare(operand: Operand, workload: Workload) -> FFTForm:
    return FFTForm(operand)


def cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, size = workload.rows * workload.width, workload.itemsize
    block = block_length(numbers)
    blocks = workload.n / block
    levels = max(1.0, math.log2(max(2.0, blocks)))
    squares = max(0.0, math.log2(min(_BY_PRODUCT, workload.n) / block)) + 1
    by_fft = max(0.0, math.log2(workload.n / _BY_PRODUCT))
    points = workload.n * numbers
    return Cost(
        flops={
            "matmul": 2.0 * passes * points * block * (2**squares - 1),
            "fft": passes * points * 5.0 * sum(math.log2(2 * _BY_PRODUCT * 2**k) for k in range(int(by_fft))),
        },
        bytes=passes * 6.0 * points * size * levels,
        launches=int(8 * blocks * passes),
        workspace=2.0 * points * size,
    )


for op in (OPS["auto"], OPS["fft"]):
    register(Kernel(op, "torch", "torch", "fft", run, run, prepare, cost, saves=saves))
