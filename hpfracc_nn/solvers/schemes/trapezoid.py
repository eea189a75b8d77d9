"""The product trapezoid rule, implicit: f is linear on each cell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.cells import linear_block
from hpfracc_nn.fractional.schemes.powers import differences, power_weights
from hpfracc_nn.solvers.roots import Newton, Roots
from hpfracc_nn.solvers.schemes.scheme import Weights, lags, scaled


@dataclass(frozen=True)
class Trapezoid:
    """y_n = P_n + dt**a (a_0 f_n + sum_(0<j<n) a_(n-j) f_j + c_n f_0): the implicit trapezoid rule at a = 1.

    For stiff problems. Order min(2, 1 + alpha) on a uniform mesh where y begins like t**alpha, 2 on a graded one.

    Args:
        roots: How the equation of a step is solved.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, equation (8); Garrappa, Mathematics 6 (2018) 16.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -100 * y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 101),
        ...     0.5,
        ...     scheme=Trapezoid(),
        ... )
        >>> # where the rectangle rule is stable up to a rate of 11
        >>> y[-1] - mittag_leffler(-100.0, 0.5)
        tensor([-6.6e-05], dtype=torch.float64)
    """

    roots: Roots = field(default_factory=Newton)
    name: ClassVar[str] = "trapezoid"
    sets: ClassVar[int] = 1
    is_implicit: ClassVar[bool] = True
    needs_uniform: ClassVar[str | None] = None

    def order(self, alpha: float) -> float:
        """Return min(2, 1 + alpha)."""
        return min(2.0, 1 + alpha)

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """See `Scheme.weights`."""
        column, start = corrector(alpha, n_steps, dt, xp)
        return Weights(xp.stack([column], axis=-2), start[:, None, :, None])

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """See `Scheme.block`."""
        return linear_block(alpha, times, rows, columns, xp)[:, None]


def corrector(alpha: Array, n_steps: int, dt: float, xp: Namespace) -> tuple[Array, Array]:
    """Return the column a_k, [a, n_steps + 1], and what f_0 gets besides, so that constants are integrated exactly."""
    alpha = xp.asarray(alpha)
    column = power_weights(1 + alpha, lags(n_steps), xp, differences(2))
    return scaled(column, alpha, dt, xp), scaled(_start(alpha, n_steps, xp), alpha, dt, xp)


def _start(alpha: Array, n_steps: int, xp: Namespace) -> Array:
    """n**a / Gamma(1 + a) less a_0 + ... + a_n, [a, n_steps + 1]; nothing at step 0."""
    n = lags(n_steps)[1:]
    power = alpha[..., None]
    exact = xp.exp(power * xp.constant(np.log(n), power) - xp.gammaln(1 + power))
    sums = power_weights(1 + alpha, n, xp, differences(1))
    return xp.concat([0 * power, exact - sums], axis=-1)
