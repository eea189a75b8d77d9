"""The weights of a history as matrices: rows of steps, columns of values that were pushed, any rectangle of them.

Two ways round. Forward, one value goes in per step and one memory for each set of weights comes out; in the adjoint one
goes in for each set and one comes out, with time reversed. Values lie side by side by step, [a, steps * ins, r], so
that both are one matrix product.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cache import Charge, cached_property
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.solvers.history import Kept
from hpfracc_nn.solvers.schemes import Scheme

_AT_ONCE = 32  # steps whose own weights are computed together
_KEPT = 1 << 26  # bytes of one matrix


class Operand(Protocol):
    """Matrices of weights.

    Attributes:
        outs: Memories that come out per step.
        ins: Values that go in per step.
        steps: From 0 to this one.
    """

    outs: int
    ins: int
    steps: int

    def rectangle(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """Return the weights of steps first to last - 1 for values begin to end - 1, [a, outs, rows, columns * ins].

        A value has none at its own step and before it: 0 there.
        """
        ...


class Toeplitz:
    """Weights by lag, those of a uniform mesh.

    Args:
        columns: [a, outs, ins, steps + 1], float64 or the values' dtype; lag 0 is left out.
        nodes: Of exponentials that stand for lags from `nodes.first` on, or None.
        coefficients: Theirs, [a, outs, ins, q].
        reach: The largest lag that has a weight, or None where all may have one.

    Attributes:
        backwards: From the largest lag down to lag 1, then 0s, [a, outs, ins, 2 steps + 1].
    """

    def __init__(
        self,
        columns: Tensor,
        nodes: Nodes | None = None,
        coefficients: Tensor | None = None,
        *,
        reach: int | None = None,
    ):
        self.columns, self.nodes, self.coefficients = columns, nodes, coefficients
        self.outs, self.ins = columns.shape[1], columns.shape[2]
        self.steps = columns.shape[-1] - 1
        self.reach = self.steps if reach is None else reach
        self.backwards = torch.cat([columns[..., 1:].flip(-1), columns.new_zeros(columns.shape)], -1).contiguous()

    def rectangle(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """See `Operand`."""
        return self.upside_down(first, last, begin, end).flip(-2)

    def upside_down(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """Return the rectangle with its rows in the opposite order: a view where one value goes in per step."""
        start = self.steps - last + 1 + begin  # where the lag of (last - 1, begin) stands
        windows = self.backwards.unfold(-1, end - begin, 1)[..., start : start + last - first, :]
        if self.ins == 1:
            return windows[:, :, 0]
        return windows.permute(0, 1, 3, 4, 2).reshape(windows.shape[0], self.outs, last - first, -1)


class Matrix:
    """A scheme's weights on any mesh, in float64 by NumPy; those that were asked for are kept up to a number of bytes.

    Args:
        scheme: Whose.
        alpha: [a].
        times: The mesh.
        charge: Told of what is kept.
    """

    def __init__(self, scheme: Scheme, alpha: np.ndarray, times: np.ndarray, charge: Charge):
        self.scheme, self.alpha, self.times = scheme, alpha, times
        self._charge, self._room = charge, _KEPT
        self._blocks: dict[tuple[int, int, int, int], np.ndarray] = {}

    def block(self, first: int, last: int, begin: int, end: int) -> np.ndarray:
        """Return the weights of steps first to last - 1 for values begin to end - 1, [a, sets, rows, columns].

        A value has none at its own step and before it: 0 there.
        """
        key = (first, last, begin, end)
        found = self._blocks.get(key)
        if found is None:
            found = self.scheme.block(self.alpha, self.times, range(first, last), range(begin, end), NUMPY)
            if end > first:
                found = found * (np.arange(first, last)[:, None] > np.arange(begin, end))
            if found.nbytes <= self._room:
                self._room -= found.nbytes
                self._blocks[key] = self._charge(found)
        return found

    @cached_property
    def diagonal(self) -> np.ndarray:
        """What f_n gets at step n, [a, sets, steps + 1]."""
        return self._charge(self._diagonal())  # type: ignore[no-any-return]

    def _diagonal(self) -> np.ndarray:
        n = self.times.size
        found = np.zeros((self.alpha.size, self.scheme.sets, n))
        for first in range(1, n, _AT_ONCE):
            some = range(first, min(first + _AT_ONCE, n))
            block = self.scheme.block(self.alpha, self.times, some, some, NUMPY)
            found[..., some.start : some.stop] = np.diagonal(block, axis1=-2, axis2=-1)
        return found


class Forward:
    """A matrix as the history of a forward pass.

    Args:
        matrix: The weights.
        like: A tensor of the values' dtype and device.
    """

    ins = 1

    def __init__(self, matrix: Matrix, like: Tensor):
        self.matrix, self._like = matrix, like
        self.outs, self.steps = matrix.scheme.sets, matrix.times.size - 1

    def rectangle(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """See `Operand`."""
        return torch.from_numpy(self.matrix.block(first, last, begin, end)).to(self._like)


class Reversed:
    """The transpose of another with time reversed: step k of this one is step n - k of that one.

    Args:
        forward: The other.
    """

    outs = 1

    def __init__(self, forward: Forward):
        self.forward, self.ins, self.steps = forward, forward.outs, forward.steps

    def rectangle(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """See `Operand`."""
        top = self.steps + 1
        found = self.forward.rectangle(top - end, top - begin, top - last, top - first)  # [a, sets, values, steps]
        turned = found.flip(-1, -2).permute(0, 3, 2, 1)
        return turned.reshape(found.shape[0], 1, last - first, -1)


def toeplitz(kept: Kept, like: Tensor, *, backward: bool = False) -> Toeplitz:
    """Return the weights that a history keeps, for the forward pass or, transposed, for the adjoint."""

    def placed(part: object) -> Tensor:
        tensor = torch.as_tensor(part).detach().to(like)
        return tensor[:, None] if backward else tensor[:, :, None]

    c = None if kept.coefficients is None else placed(kept.coefficients)
    return Toeplitz(placed(kept.columns), kept.nodes, c)
