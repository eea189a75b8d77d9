"""A look at how far a solution has grown, once for each block of steps; see `solvers.explosions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import is_watched
from hpfracc_nn.solvers.explosions import GROWTH, WINDOW, Limits
from hpfracc_nn.solvers.torch.packing import Packing
from hpfracc_nn.solvers.torch.wrapped import bare

_FURTHER = 10.0  # times larger: when a solution that was looked at is looked at again


class Watch:
    """What a solve has grown from, and when it is looked at.

    Args:
        limits: How fast a decay the solve can follow.
        packing: How its states are laid out.
        z0: The state at the start.
    """

    def __init__(self, limits: Limits, packing: Packing, z0: Tensor):
        self.limits, self.packing = limits, packing
        self._start = largest(z0)
        self._bound = max(GROWTH * self._start, torch.finfo(z0.dtype).tiny)

    def is_due(self, size: float) -> bool:
        """Whether a state of that size calls for a look; not where it is no number."""
        return size > self._bound

    def look(
        self,
        n: int,
        size: float,
        states: Sequence[Tensor],
        value: Callable[[int], Tensor],
        most: Callable[[], Tensor] | None = None,
    ) -> None:
        """Raise where the solution explodes.

        Args:
            n: The step.
            size: Of its state.
            states: Those of `WINDOW` steps and of step n; fewer where there are not so many.
            value: Returns the right-hand side at one of the former by its place.
            most: Returns the largest absolute values of the states of all steps; None is of those that are given.

        Raises:
            FloatingPointError: It explodes.
        """
        self._bound = _FURTHER * size
        if n < WINDOW or not self._undoes(n, bare(states[-2]), bare(value(WINDOW - 1))):
            return
        every = [bare(value(k)) for k in range(WINDOW)]
        if any(each.shape != every[0].shape for each in (*map(bare, states), *every)):
            return  # one of them is the same for a batch of vmap
        rows, values = torch.stack([bare(each) for each in states]), torch.stack(every)
        largest_yet = rows.abs().amax(0) if most is None else bare(most())
        for is_exact in (False, True):  # the scheme's own limit takes some time to find
            reach = self._spread(self.limits.reach(n, is_exact), rows)
            found = self.limits.are_exploding(rows, values, reach, self._start, largest_yet)
            if not bool(found.any()):
                return
        last = rows[-1].abs()
        entry = int(torch.where(found, last, torch.zeros_like(last)).argmax())
        rate = float(values[-1].abs().reshape(-1)[entry] / rows[-2].abs().reshape(-1)[entry])
        raise self.limits.error(n, float(last.reshape(-1)[entry]), self._start, rate, self._order(entry, last.shape))

    def _undoes(self, n: int, y: Tensor, f: Tensor) -> bool:
        """Whether f undoes an entry of the state before step n in this step: where it does not, nothing explodes."""
        times = self.limits.times
        longest = max(float(times[n] - times[n - 1]) ** alpha for alpha in self.limits.orders.tolist())
        return y.shape == f.shape and float((torch.add(y, f, alpha=longest) * y).min()) < 0

    def _spread(self, reach: np.ndarray, like: Tensor) -> Tensor:
        """Return a number for each step and order in a shape that broadcasts to that of states."""
        if like.shape[1:] != self.packing.shape:  # a batch of vmap lies in some place
            return torch.from_numpy(reach.min(1)).to(like).view(-1, *[1] * (like.ndim - 1))
        return torch.from_numpy(reach).to(like).view(-1, *self.packing.varying)

    def _order(self, entry: int, shape: torch.Size) -> int:
        """Return which of the orders an entry has; the first where a batch of vmap is in the way."""
        if shape != self.packing.shape:
            return 0
        each = torch.arange(self.packing.orders).view(self.packing.varying)
        return int(each.expand(shape).reshape(-1)[entry])


def largest(z: Tensor) -> float:
    """Return the largest absolute value, NaN where there is one; 0 of a tracer's, which has no numbers."""
    plain = bare(z)
    return 0.0 if is_watched(plain) else float(plain.abs().max())
