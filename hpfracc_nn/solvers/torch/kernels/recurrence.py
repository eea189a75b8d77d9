"""A history as decaying exponentials: two matrix products for each block of steps, O(n) in all.

With S_q = sum over j < m of exp(-s_q (m - 1 - j)) x_j, where m = first - (lag from which exponentials stand) + 1,

    memory of step first + i: sum_q c_q exp(-s_q i) S_q,        S_q <- exp(-s_q block) S_q + what the block brings.

The coefficients stand where the sets of weights are: on the way out forward, on the way in for the adjoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hpfracc_nn.selection import Cost, Kernel, Workload, register
from hpfracc_nn.solvers.torch.memory import OPS, Blocks, Operand, Toeplitz, add_product, block_length, run, saves


class Matrices(NamedTuple):
    """What a block's step multiplies with."""

    into: Tensor  # [a, q, values]
    decay: Tensor  # [q, 1]
    out_of: Tensor  # [a, outs or 1, rows, q]


class RecurrenceForm(Blocks):
    """The past of one solve as the states of decaying exponentials; see `memory.Form`."""

    def __init__(self, operand: Operand):
        super().__init__(operand)
        assert isinstance(operand, Toeplitz), "the mesh is uniform"
        self.toeplitz = operand
        if operand.nodes is None or operand.coefficients is None:  # so few steps that all lags are exact
            self.overlap = operand.steps
            return
        self.coefficients = operand.coefficients
        self.overlap = operand.nodes.first - 1
        self.rates = torch.as_tensor(operand.nodes.rates)
        self._states: Tensor | None = None
        self._seen = 0  # values that the states hold
        self._matrices: dict[tuple[str, int], Tensor] = {}

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """See `memory.Form.far`."""
        end = first - self.overlap
        if end <= 0:
            return
        if self._states is None:
            self._states = values.new_zeros(values.shape[0], self.rates.numel(), values.shape[-1])
        ins, taken = self.operand.ins, end - self._seen
        matrices = Matrices(self._into(taken), self._decay(taken), self._out(last - first))
        self.advance(values, self._states, slice(self._seen * ins, end * ins), matrices, out)
        self._seen = end

    def advance(self, values: Tensor, states: Tensor, fresh: slice, matrices: Matrices, out: Tensor) -> None:
        """Bring values into the states, and add what those give the block.

        Args:
            values: All that were pushed, [a, (steps + 1) * ins, r].
            states: [a, q, r], which are replaced.
            fresh: The values that are new.
            matrices: Of their number, and of the block's steps.
            out: [a, outs, rows, r].
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
            if self.operand.ins == 1:
                return powers.expand(self.coefficients.shape[0], -1, -1)
            c = self.coefficients[:, 0].double().cpu()  # [a, ins, q]
            return (powers[..., None] * c.permute(0, 2, 1)[:, :, None]).flatten(2)

        return self._made("into", taken, made)

    def _out(self, rows: int) -> Tensor:
        def made() -> Tensor:
            powers = torch.exp(-torch.outer(torch.arange(rows), self.rates))
            if self.operand.ins > 1:
                return powers.expand(self.coefficients.shape[0], 1, -1, -1)
            return self.coefficients[:, :, 0, None].double().cpu() * powers

        return self._made("out", rows, made)

    def _made(self, name: str, length: int, make: Callable[[], Tensor]) -> Tensor:
        found = self._matrices.get((name, length))
        if found is None:
            found = self._matrices[name, length] = make().to(self.coefficients).contiguous()
        return found


def prepare(operand: Operand, workload: Workload) -> RecurrenceForm:
    return RecurrenceForm(operand)


def refuses(workload: Workload) -> str | None:
    """Return why the workload cannot be taken, or None."""
    if workload.exponentials == 0:
        return f"the weights are no sum of exponentials to {workload.dtype} tolerance"
    return None


def cost(workload: Workload) -> Cost:
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
    register(Kernel(op, "torch", "torch", "recurrence", run, run, prepare, cost, refuses, saves))
