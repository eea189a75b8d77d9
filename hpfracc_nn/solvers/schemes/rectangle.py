"""The product rectangle rule, explicit: f is constant on each cell, its value on the left."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.cells import constant_block
from hpfracc_nn.fractional.schemes.powers import differences, power_weights
from hpfracc_nn.solvers.schemes.scheme import Weights, lags, scaled
from hpfracc_nn.solvers.schemes.stability import largest_decay


@dataclass(frozen=True)
class Rectangle:
    """`y_n = P_n + dt**a sum_(j<n) b_(n-1-j) f_j`, `b_k = [(k + 1)**a - k**a] / Gamma(1 + a)`: Euler's method at a = 1.

    One evaluation a step, first order; unstable where dt**alpha times the size of the Jacobian is much above 1.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, equation (13).

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 101),
        ...     0.5,
        ...     scheme=Rectangle(),
        ... )
        >>> y[-1] - mittag_leffler(-1.0, 0.5)
        tensor([-0.0008], dtype=torch.float64)
        >>> round(Rectangle().stability(1.0), 6)  # of Euler's method
        2.0
    """

    name: ClassVar[str] = "rectangle"
    sets: ClassVar[int] = 1
    is_implicit: ClassVar[bool] = False
    needs_uniform: ClassVar[str | None] = None

    def order(self, alpha: float) -> float:
        """Return 1."""
        return 1.0

    def stability(self, alpha: float) -> float:
        """Return the largest dt**alpha * rate with which a decay, D^alpha y = -rate y, is stable.

        Up to alpha = 1 it is where the characteristic function has its root at -1, where steps alternate: Gamma(1 +
        alpha) / (2 eta(-alpha)), eta Dirichlet's; 2 at alpha = 1, as of Euler's method, and 1 as alpha goes to 0. From
        1.4 on roots leave the unit circle elsewhere, and at 2 there is no such rate.

        Source: Lubich, IMA J. Numer. Anal. 6 (1986) 87.
        """
        if alpha > 1:
            return largest_decay(alpha, 0)
        alternating = cohen_sum(lambda k: (k + 1) ** alpha - k**alpha)
        return math.gamma(1 + alpha) / alternating

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """See `Scheme.weights`."""
        return Weights(xp.stack([predictor(alpha, n_steps, dt, xp)], axis=-2), None)

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """See `Scheme.block`."""
        return constant_block(alpha, times, rows, columns, xp)[:, None]


def cohen_sum(term: Callable[[int], float], count: int = 24) -> float:
    """Return the alternating sum of term(k), k from 0 on, of a totally monotone sequence; to 1e-15 with 24 terms.

    Source: Cohen, Rodriguez Villegas & Zagier, Exp. Math. 9 (2000) 3, algorithm 1.
    """
    d = (3 + math.sqrt(8)) ** count
    d = (d + 1 / d) / 2
    b, c, total = -1.0, -d, 0.0
    for k in range(count):
        c = b - c
        total += c * term(k)
        b *= (k + count) * (k - count) / ((k + 0.5) * (k + 1))
    return total / d


def predictor(alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Array:
    """Return the column [a, n_steps + 1]: 0, b_0, b_1, ..."""
    alpha = xp.asarray(alpha)
    cells = power_weights(alpha, lags(n_steps - 1), xp, differences(1))
    return scaled(xp.concat([0 * alpha[..., None], cells], axis=-1), alpha, dt, xp)
