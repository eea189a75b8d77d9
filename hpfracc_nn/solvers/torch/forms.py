"""What a kernel makes of the weights before a solve begins: the base of the forms."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hpfracc_nn.solvers.torch.operand import Operand, Toeplitz


class Form(Protocol):
    """The past of one solve in a kernel's own way.

    The values of a block's own steps are added up by whoever takes the steps, with the rows that `near` gives; a form
    brings what is older than `near` reaches.

    Attributes:
        overlap: Values before a block that `near` covers too.
    """

    overlap: int

    def near(self, first: int, last: int) -> Tensor:
        """Return the weights of steps first to last - 1 for values max(first - overlap, 0) to last - 1.

        [a, outs, rows, columns * ins]; 0 where a value is not past yet.
        """
        ...

    def far(self, values: Tensor, first: int, last: int, out: Tensor) -> None:
        """Add to the memories of steps first to last - 1 what they have of values before max(first - overlap, 0).

        Called for one block after the other, from the first on.

        Args:
            values: All that were pushed, [a, (steps + 1) * ins, r].
            first: Of the block.
            last: After the block.
            out: [a, outs, rows, r].
        """
        ...


class Blocks:
    """What forms share whose weights are Toeplitz: the near weights of all blocks of one length are the same."""

    overlap = 0

    def __init__(self, operand: Operand):
        self.operand = operand
        self._near: dict[tuple[int, int], Tensor] = {}

    def near(self, first: int, last: int) -> Tensor:
        """See `Form.near`."""
        before = min(first, self.overlap)
        if not isinstance(self.operand, Toeplitz):
            return self.operand.rectangle(first, last, first - before, last)
        key = (before, last - first)
        found = self._near.get(key)
        if found is None:
            found = self._near[key] = self._rectangle(before, before + last - first).contiguous()
        return found

    def _rectangle(self, before: int, last: int) -> Tensor:
        return self.operand.rectangle(before, last, 0, last)


def add_product(weights: Tensor, values: Tensor, out: Tensor) -> None:
    """Add weights [a, outs, rows, k] times values [a, k, r] to out [a, outs, rows, r], which is contiguous."""
    a, outs, rows, k = weights.shape
    torch.baddbmm(
        out.view(a, outs * rows, -1), weights.reshape(a, outs * rows, k), values, out=out.view(a, outs * rows, -1)
    )
