"""Explosions of explicit schemes: how to distinguish a decay too fast for a scheme from a solution that grows.

Beyond the scheme's stability limit a step overshoots zero by more than the state: the state grows although f points
back towards zero. An entry y of the state is exploding where, over the last `WINDOW` steps, at each of them

    f has the sign opposite to y,    |f| dt**alpha > limit |y|,    and |y| is larger after the step than before,

and where |y| is now above `GROWTH` times the largest number that the solution began with, at least half of its own
largest so far, and at least 1 / `GROWTH` of the largest of all entries so far. An exploding entry is soon the largest
of all, while an entry that comes back to zero, or consists of rounding, may look like an explosion near zero. An entry
that the scheme follows is changed by a small part of itself where it is largest, and f that points back makes it
smaller. Above alpha = 1 unstable steps may change sign as they grow, so that there the later half of the window need
only be larger than the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers import checks

WINDOW = 8  # steps: noise about the kink of a drift passes the test by chance in 1 of 1e9 windows of this length
GROWTH = 1e2
SMALLEST = 1.0  # lower bound of the limits: where a scheme's own limit is smaller, its error grows slowly


@dataclass(frozen=True, eq=False)
class Limits:
    """The stability limits of an explicit scheme on the mesh of a solve, and the test for explosions by them.

    Attributes:
        owner: Name of the public function that solves, for messages.
        scheme: The scheme's name.
        decay: Returns, for an order alpha, the largest dt**alpha * rate with which the scheme is stable for
            D^alpha y = -rate y; 0 where it is stable with none.
        orders: alpha's values, [a].
        times: The mesh, as time since the start, [n_steps + 1].
        first: The time at which the mesh begins, for messages.
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
            n: The step's index, at least `WINDOW`.
            is_exact: Whether the limit is the scheme's own, but at least `SMALLEST`; else `SMALLEST`, which takes no
                time to find.
        """
        powers = np.diff(self.times[n - WINDOW : n + 1])[:, None] ** self.orders
        return powers / np.maximum([self.decay(alpha) for alpha in self.orders], SMALLEST) if is_exact else powers

    def are_exploding(self, states: Array, values: Array, reach: Array, start: Array | float, most: Array) -> Array:
        """Return which entries of a state explode, [...].

        Args:
            states: The last `WINDOW` + 1 states, [WINDOW + 1, ...].
            values: The right-hand sides f at the first `WINDOW` of `states`, [WINDOW, ...].
            reach: What the method `reach` returns, in a shape that broadcasts to that of `values`.
            start: The largest absolute value that the solution began with.
            most: The largest absolute value of each entry up to now, over all steps or over those at hand, [...].
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
        """Return the FloatingPointError for an explosion, with the number of steps that would be stable.

        Args:
            n: The step's index.
            size: The absolute value of the entry that explodes.
            start: The largest absolute value that the solution began with.
            rate: The rate of the decay, |f| / |y|.
            order: The index in `orders` of the entry's order.
        """
        alpha, n_steps = float(self.orders[order]), self.times.size - 1
        limit = self.decay(alpha)
        decay = rate * float(np.diff(self.times).max()) ** alpha  # at the longest step
        steps = math.inf
        if limit > 0:
            steps = math.exp(min(math.log(decay / limit) / alpha + math.log(n_steps), 700.0))
        t = self.first + float(self.times[n])
        return checks.exploded(self.owner, self.scheme, n, t, size, start, limit, decay, steps)
