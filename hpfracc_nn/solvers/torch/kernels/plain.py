"""The kernels of a history in torch's own operations: `dense`, `fft` and `recurrence`.

- `dense`: sums added up directly, one matrix product for each block of steps; for any weights.
- `fft`: square blocks of doubling size, the large ones by FFT, O(n log(n)**2) in all. When step k L has been reached, L
  a power of two times the block and k odd, the last L values are added to the sums of the next L steps. Every pair of
  steps that do not share a block is in exactly one of these squares.
- `recurrence`: decaying exponentials, two matrix products for each block of steps, O(n) in all. With states
  S_q = sum over j < m of exp(-s_q (m - 1 - j)) x_j of the values x_j, m = first - (lag where exponentials begin) + 1,

      far sum of step first + i: sum_q c_q exp(-s_q i) S_q,       S_q <- exp(-s_q block) S_q + the block's values' part.

  The coefficients c_q are applied where the sets of weights are: on the way out of the states in the forward pass, on
  the way in for the adjoint.

Hairer, Lubich & Schlichte, SIAM J. Sci. Stat. Comput. 6 (1985) 532, for the squares.

Shapes: a orders, `ins` values a step, `outs` sums a step, r numbers of a value for each order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.solvers.torch.memory import OPS, PastSum, Toeplitz, WeightMatrix, add_product, block_length, run, saves


class DenseSum(PastSum):
    """The `PastSum` (see `memory`) of the kernel `dense`, which keeps nothing but the weights."""

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """Add to `out` the weighted values of all steps before the block, by one matrix product: see `PastSum.far`."""
        if not first:
            return
        if isinstance(self.matrix, Toeplitz):  # copying rows is faster upwards; the result is small
            a, outs, rows, width = out.shape
            begin, ins = max(0, first - self.matrix.reach), self.matrix.ins
            weights = self.matrix.upside_down(first, last, begin, first).reshape(a, outs * rows, -1)
            past = values[:, begin * ins : first * ins]
            out += torch.bmm(weights, past).view(a, outs, rows, width).flip(2)
        else:
            past = values[:, : first * self.matrix.ins]
            add_product(self.matrix.rectangle(first, last, 0, first), past, out)


def _dense_cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, size = workload.rows * workload.width, workload.itemsize
    blocks = workload.n / block_length(numbers)
    pairs = workload.n**2 / 2
    return Cost(
        flops={"matmul": 3.0 * pairs * numbers * passes},
        bytes=passes * size * (blocks * workload.n / 2 * numbers + 3.0 * pairs * workload.rows),
        launches=int(4 * blocks * passes),
        workspace=3.0 * size * block_length(numbers) * workload.n * workload.rows,
    )


for op in (OPS["auto"], OPS["full"], OPS["window"], OPS["mesh"]):
    register(Kernel(op, "torch", "torch", "dense", run, run, DenseSum.prepare, _dense_cost, saves=saves))


_BY_PRODUCT = 256  # steps of a square up to which a matrix product is faster
_AT_ONCE = 1 << 20  # numbers that are transformed together


class FFTSum(PastSum):
    """The `PastSum` (see `memory`) of the kernel `fft`: square blocks, the large ones by FFT."""

    def __init__(self, matrix: WeightMatrix):
        super().__init__(matrix)
        assert isinstance(matrix, Toeplitz), "the mesh is uniform"
        self.columns = matrix.columns
        self._block = 0  # the length of a block: the step at which the second block begins
        self._pending: Tensor | None = None
        self._squares: dict[int, Tensor] = {}

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """Add the newest square to the sums of later steps, and those of the block to `out`: see `PastSum.far`."""
        if not first:
            return
        ins, steps = self.matrix.ins, self.matrix.steps
        if self._pending is None:
            self._pending = values.new_zeros(values.shape[0], self.matrix.outs, steps + 1, values.shape[-1])
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
        found, steps = self._squares.get(length), self.matrix.steps + 1
        if found is None:
            found = self._squares[length] = self.matrix.rectangle(
                length, min(2 * length, steps), 0, length
            ).contiguous()
        return found

    def _add_by_fft(self, recent: Tensor, target: Tensor, length: int) -> None:
        """Add the part of one square: the sums over the last `length` values in the next steps, as a product of FFTs.

        The part is the second half of a circular convolution of twice the length. `recent` holds the values,
        `[a, length * ins, r]`; `target`, which is added to, the sums of the next steps, [a, outs, rows, r] with at most
        `length` rows.
        """
        a, _, width = recent.shape
        spectrum = self._squares.get(length)
        if spectrum is None:
            lags = self.columns[..., : 2 * length].clone()
            spectrum = self._squares[length] = torch.fft.rfft(lags, 2 * length)[..., None]  # [a, outs, ins, f, 1]
        recent = recent.view(a, length, self.matrix.ins, width)
        rows = target.shape[2]
        part = max(1, _AT_ONCE // (2 * length * self.matrix.ins))
        for begin in range(0, width, part):
            some = slice(begin, begin + part)
            transformed = torch.fft.rfft(recent[..., some].permute(0, 2, 1, 3), 2 * length, dim=2)
            products = (
                (spectrum * transformed[:, None]).sum(2) if self.matrix.ins > 1 else spectrum[:, :, 0] * transformed
            )
            target[..., some] += torch.fft.irfft(products, 2 * length, dim=2)[:, :, length : length + rows]


def _fft_cost(workload: Workload) -> Cost:
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
    register(Kernel(op, "torch", "torch", "fft", run, run, FFTSum.prepare, _fft_cost, saves=saves))


class Matrices(NamedTuple):
    """The matrices of a recurrence: from new values into the states, the states' decay, and from states to sums.

    Shapes: q exponentials; with one value a step the coefficients are in `out_of`, else in `into`.
    """

    into: Tensor  # from new values to states, [a, q, values]
    decay: Tensor  # the factors by which the states decay meanwhile, [q, 1]
    out_of: Tensor  # from states to the sums of a block's steps, [a, outs or 1, rows, q]


class RecurrenceSum(PastSum):
    """The `PastSum` (see `memory`) of the kernel `recurrence`: the older past as states of decaying exponentials."""

    def __init__(self, matrix: WeightMatrix):
        super().__init__(matrix)
        assert isinstance(matrix, Toeplitz), "the mesh is uniform"
        self.toeplitz = matrix
        if matrix.nodes is None or matrix.coefficients is None:  # so few steps that no exponentials were fitted
            self.overlap = matrix.steps
            return
        self.coefficients = matrix.coefficients
        self.overlap = matrix.nodes.first - 1
        self.rates = torch.as_tensor(matrix.nodes.rates)
        self._states: Tensor | None = None
        self._seen = 0  # steps whose values are in the states
        self._matrices: dict[tuple[str, int], Tensor] = {}

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """Bring new values into the states, and add the states' part to the block's sums `out`: see `PastSum.far`."""
        end = first - self.overlap
        if end <= 0:
            return
        if self._states is None:
            self._states = values.new_zeros(values.shape[0], self.rates.numel(), values.shape[-1])
        ins, taken = self.matrix.ins, end - self._seen
        matrices = Matrices(self._into(taken), self._decay(taken), self._out(last - first))
        self.advance(values, self._states, slice(self._seen * ins, end * ins), matrices, out)
        self._seen = end

    def advance(self, values: Tensor, states: Tensor, fresh: slice, matrices: Matrices, out: Tensor) -> None:
        """Update the states of the exponentials with new values, and add their part to the sums of a block.

        Args:
            values: The values of all steps, [a, (steps + 1) * ins, r].
            states: The states of the exponentials, [a, q, r], which are overwritten.
            fresh: Which of the values are new.
            matrices: The matrices for so many new values and for the block's steps.
            out: The block's sums, which are added to, [a, outs, rows, r].
        """
        torch.baddbmm(states * matrices.decay, matrices.into, values[:, fresh], out=states)
        add_product(matrices.out_of, states, out)

    def _rectangle(self, before: int, last: int) -> Tensor:
        """Return the weights of steps `before` to last - 1 for values 0 to last - 1, [a, outs, rows, last * ins].

        From the lag on that exponentials stand for, the weights are those of the exponentials, so that all weights
        depend on the lag alone.
        """
        toeplitz = self.toeplitz
        if toeplitz.nodes is None:
            return toeplitz.rectangle(before, last, 0, last)
        first, reach = toeplitz.nodes.first, toeplitz.columns.shape[-1]
        near = toeplitz.columns[..., :last].clone()
        if last > first and reach > first:
            decays = torch.exp(-torch.outer(self.rates, torch.arange(min(last, reach) - first)))
            near[..., first:] = torch.matmul(self.coefficients, decays.to(near))
        return Toeplitz(near).rectangle(before, last, 0, last)

    def _decay(self, taken: int) -> Tensor:
        return self._made("decay", taken, lambda: torch.exp(-self.rates * taken)[:, None])

    def _into(self, taken: int) -> Tensor:
        def made() -> Tensor:
            powers = torch.exp(-torch.outer(self.rates, torch.arange(taken - 1, -1, -1)))[None]
            if self.matrix.ins == 1:
                return powers.expand(self.coefficients.shape[0], -1, -1)
            c = self.coefficients[:, 0].double().cpu()  # [a, ins, q]
            return (powers[..., None] * c.permute(0, 2, 1)[:, :, None]).flatten(2)

        return self._made("into", taken, made)

    def _out(self, rows: int) -> Tensor:
        def made() -> Tensor:
            powers = torch.exp(-torch.outer(torch.arange(rows), self.rates))
            if self.matrix.ins > 1:
                return powers.expand(self.coefficients.shape[0], 1, -1, -1)
            return self.coefficients[:, :, 0, None].double().cpu() * powers

        return self._made("out", rows, made)

    def _made(self, name: str, length: int, make: Callable[[], Tensor]) -> Tensor:
        found = self._matrices.get((name, length))
        if found is None:
            found = self._matrices[name, length] = make().to(self.coefficients).contiguous()
        return found


def recurrence_refuses(workload: Workload) -> str | None:
    """Return the reason why a recurrence cannot compute the workload, or None if it can."""
    if workload.exponentials == 0:
        return f"the weights are no sum of exponentials to {workload.dtype} tolerance"
    return None


def recurrence_cost(workload: Workload) -> Cost:
    passes = 1 + workload.needs_gradient
    numbers, size = workload.rows * workload.width, workload.itemsize
    blocks = workload.n / block_length(numbers)
    states = workload.exponentials
    return Cost(
        flops={"matmul": 6.0 * workload.n * numbers * states * passes},
        bytes=passes * size * numbers * (4.0 * workload.n + 3.0 * blocks * states),
        launches=int(6 * blocks * passes),
        workspace=2.0 * states * numbers * size,
    )


for op in (OPS["auto"], OPS["exponentials"]):
    register(
        Kernel(
            op,
            "torch",
            "torch",
            "recurrence",
            run,
            run,
            RecurrenceSum.prepare,
            recurrence_cost,
            recurrence_refuses,
            saves,
        )
    )
