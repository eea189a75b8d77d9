"""What the steps of a block bring those of the same block that follow: x_i = row_i + sum over j < i of w_(i-j) Z_j."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class OwnSums(Protocol):
    """The sums of one block, made as its steps are taken."""

    @property
    def first(self) -> Tensor:
        """x_0."""
        ...

    def room(self, i: int) -> Tensor | None:
        """Return where Z_i may be made, or None."""
        ...

    def following(self, i: int, value: Tensor) -> Tensor:
        """Return x_(i+1), [*shape], after Z_i, of that shape or [sets, *shape]; asked for in turn, from 0 on."""
        ...


class TrackedSums:
    """See `OwnSums`: plain torch, for every kind of derivative. Each Z is added to all rows that follow.

    Args:
        rows: [steps, *shape].
        weights: By lag from 0 on, [steps, sets, *varying], which broadcast to rows.
    """

    def __init__(self, rows: Tensor, weights: Tensor):
        self._rows, self._weights = rows, weights

    @property
    def first(self) -> Tensor:
        """See `OwnSums`."""
        return self._rows[0]

    def room(self, i: int) -> Tensor | None:
        """See `OwnSums`."""
        return None

    def following(self, i: int, value: Tensor) -> Tensor:
        """See `OwnSums`."""
        rows = self._rows[1:]
        for k, part in enumerate(value.unbind() if self._weights.shape[1] > 1 else (value,)):
            rows = torch.addcmul(rows, self._weights[1 : 1 + rows.shape[0], k], part)
        self._rows = rows
        return rows[0]


class BufferedSums:
    """See `OwnSums`: without a graph. The values lie in one buffer, and a sum over them is one product.

    Made once for all blocks of one length, of which one is in use at a time.

    Args:
        rows: [steps, *shape].
        weights: By lag from 0 on, [steps, sets, *varying].
    """

    def __init__(self, rows: Tensor, weights: Tensor):
        count, sets = weights.shape[:2]
        self._shape = rows.shape[1:]
        self._is_one = weights[0, 0].numel() == 1
        values, each = rows.new_empty(sets, count, *self._shape), _by_set(weights, self._is_one)
        self._slots = values.unbind(1) if sets > 1 else values[0].unbind()
        # By i: Z_0 to Z_i with lags i + 1 to 1 for x_(i+1).
        up, steps = each.flip(1), range(count - 1)
        self._past = [
            [(_sides(values[k, : i + 1], self._is_one), up[k, count - 2 - i : -1]) for k in range(sets)] for i in steps
        ]
        self.begin(rows)

    def begin(self, rows: Tensor) -> None:
        """Begin the next block."""
        self._rows = (rows.reshape(rows.shape[0], -1) if self._is_one else rows).unbind()

    @property
    def first(self) -> Tensor:
        """See `OwnSums`."""
        return self._rows[0].view(self._shape)

    def room(self, i: int) -> Tensor | None:
        """See `OwnSums`."""
        return self._slots[i]

    def following(self, i: int, value: Tensor) -> Tensor:
        """See `OwnSums`."""
        if value is not self._slots[i]:
            self._slots[i].copy_(value)
        row = self._rows[i + 1]
        for values, weights in self._past[i]:
            row = torch.addmv(row, values, weights) if self._is_one else row + (weights * values).sum(0)
        return row.view(self._shape)


class KnownSums:
    """See `OwnSums`: with a graph, for sums that were made before. What brings a value its cotangent is one product.

    Made once for all blocks of one length, of which one is in use at a time.

    Args:
        rows: The sums themselves, [steps, *shape]; a leaf, which gets their cotangents.
        weights: By lag from 0 on, [steps, sets, *varying]; no gradient is taken of them.
    """

    def __init__(self, rows: Tensor, weights: Tensor):
        count, sets = weights.shape[:2]
        self._shape = rows.shape[1:]
        self._is_one = weights[0, 0].numel() == 1
        cotangents, each = torch.empty_like(rows), _by_set(weights, self._is_one)
        self._slots = cotangents.unbind()
        # By i: the cotangents of x_(i+1) and after with lags 1 on.
        self._later = [
            [(_sides(cotangents[i + 1 :], self._is_one), each[k, 1 : count - i]) for k in range(sets)]
            for i in range(count - 1)
        ]
        self.begin(rows)

    def begin(self, rows: Tensor) -> None:
        """Begin the next block."""
        self._rows, self._known = rows.unbind(), rows.detach().unbind()
        self._last: Tensor | None = None  # ties each step to the one before: their cotangents come in turn

    @property
    def first(self) -> Tensor:
        """See `OwnSums`."""
        return self._rows[0]

    def room(self, i: int) -> Tensor | None:
        """See `OwnSums`."""
        return None

    def following(self, i: int, value: Tensor) -> Tensor:
        """See `OwnSums`."""
        self._last = found = _Following.apply(self, i, value, self._last, self._rows[i + 1])
        return found

    def known(self, i: int) -> Tensor:
        """Return x_i."""
        return self._known[i]

    def pulled(self, i: int, g: Tensor) -> Tensor:
        """Return the sums' cotangent of Z_i, where x_(i+1) has cotangent g and those after it have been here."""
        self._slots[i + 1].copy_(g)
        if self._is_one:
            found = [torch.mv(values, weights).view(self._shape) for values, weights in self._later[i]]
        else:
            found = [(weights * values).sum(0) for values, weights in self._later[i]]
        return found[0] if len(found) == 1 else torch.stack(found)


def _by_set(weights: Tensor, is_one: bool) -> Tensor:
    each = weights.transpose(0, 1)
    return each.reshape(each.shape[:2]) if is_one else each


def _sides(x: Tensor, is_one: bool) -> Tensor:
    return x.view(x.shape[0], -1).T if is_one else x


class _Following(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: KnownSums, i: int, value: Tensor, last: Tensor | None, row: Tensor) -> Tensor:
        ctx.given = sums, i
        return sums.known(i + 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sums, i = ctx.given
        (g,) = grads
        return None, None, sums.pulled(i, g), None, g
