"""Explosions of explicit schemes: what tells a decay that a scheme cannot follow from a solution that grows.

Beyond the scheme's limit a step undoes the state more than once: the state grows although f points back from where it
is. An entry is exploding where, over the last `WINDOW` steps, at each of them

    f has the sign opposite to y,    |f| dt**alpha > limit |y|,    and |y| is larger after the step than before,

y is `GROWTH` times all that the solution began with, and has hardly been larger, nor has another entry been `GROWTH`
times larger: an explosion is soon the largest of all, while what comes back to zero, or is rounding, may look like one
there. One that the scheme follows is moved by a small part of itself
where it is largest, and f that points back makes it smaller. Above alpha = 1 unstable steps may turn as they grow, so
that there the later half of the window need only be larger than the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers import checks

WINDOW = 8  # steps: noise about the kink of a drift passes for so many by chance in 1 of 1e9 windows
GROWTH = 1e2
SMALLEST = 1.0  # of the limits: where a scheme's own is smaller, what it does wrong grows slowly


@dataclass(frozen=True, eq=False)
class Limits:
    """How fast a decay a solve can follow.

    Attributes:
        owner: What solves.
        scheme: By its name.
        decay: Returns the largest dt**alpha * rate that the scheme is stable with, for an order; 0 where there is none.
        orders: alpha's values, [a].
        times: The mesh, as time since the start, [n_steps + 1].
        first: Where the mesh begins, for messages.
    """

    owner: str
    scheme: str
    decay: Callable[[float], float]
    orders: np.ndarray
    times: np.ndarray
    first: float = 0.0

    def reach(self, n: int, is_exact: bool = True) -> np.ndarray:
        """Return dt**alpha over the limit for the `WINDOW` steps that led to step n, [WINDOW, a].

        Args:
            n: The step.
            is_exact: Whether the limit is the scheme's own; else the smallest, which costs nothing.
        """
        powers = np.diff(self.times[n - WINDOW : n + 1])[:, None] ** self.orders
        return powers / np.maximum([self.decay(alpha) for alpha in self.orders], SMALLEST) if is_exact else powers

    def are_exploding(self, states: Array, values: Array, reach: Array, start: Array | float, most: Array) -> Array:
        """Return which entries of a state explode, [...].

        Args:
            states: Those of `WINDOW` steps and of the one after, [WINDOW + 1, ...].
            values: The right-hand sides of the first `WINDOW` of them.
            reach: As of `reach`, in a shape that broadcasts to that of the values.
            start: The largest number that the solution began with.
            most: The largest absolute values of the states up to now, of all steps or of those that are known, [...].
        """
        sizes = abs(states)
        before, after = sizes[:-1], sizes[1:]
        is_undone = ((values < 0) == (states[:-1] > 0)) & (abs(values) * reach > before)
        half = WINDOW // 2
        is_steady = self.orders.max() <= 1
        grows = (after > before).all(0) if is_steady else after[half:].sum(0) > after[:half].sum(0)
        is_largest = (2 * after[-1] >= most) & (GROWTH * after[-1] >= most.max())
        return is_undone.all(0) & grows & is_largest & (after[-1] > GROWTH * start)

    def error(self, n: int, size: float, start: float, rate: float, order: int) -> FloatingPointError:
        """Return what is said of an explosion.

        Args:
            n: The step.
            size: Of the state.
            start: The largest number that the solution began with.
            rate: Of the decay, |f| / |y|.
            order: Which one the entry has.
        """
        alpha, n_steps = float(self.orders[order]), self.times.size - 1
        limit = self.decay(alpha)
        decay = rate * float(np.diff(self.times).max()) ** alpha  # at the longest step
        steps = math.inf
        if limit > 0:
            steps = math.exp(min(math.log(decay / limit) / alpha + math.log(n_steps), 700.0))
        t = self.first + float(self.times[n])
        return checks.exploded(self.owner, self.scheme, n, t, size, start, limit, decay, steps)
