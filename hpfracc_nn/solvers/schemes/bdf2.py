"""Convolution quadrature by the two-step backward difference formula, implicit.

The weights are the coefficients of (3/2 - 2z + z**2/2)**-alpha. Two columns, on f_0 and f_1, make the rule exact where
f is constant or goes like t**alpha (above alpha = 1, like t), as the right-hand side of Caputo's problem begins; the
first step stays an equation for y_1 alone.

Lubich, SIAM J. Math. Anal. 17 (1986) 704; Garrappa, Math. Comput. Simul. 110 (2015) 96.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.differences import bdf2_left
from hpfracc_nn.solvers.roots import Newton, Roots
from hpfracc_nn.solvers.schemes.scheme import Weights, lags, scaled


@dataclass(frozen=True)
class BDF2:
    """y_n = P_n + dt**a (sum_(j<=n) omega_(n-j) f_j + w_n0 f_0 + w_n1 f_1): BDF2 after a trapezoid step at a = 1.

    For stiff problems: A-stable for alpha <= 1. Order min(2, 1 + 2 alpha) where y begins like t**alpha. Steps must be
    equal: another mesh is a ValueError of the solve.

    Args:
        roots: How the equation of a step is solved.

    Source: Lubich, SIAM J. Math. Anal. 17 (1986) 704; Garrappa, Math. Comput. Simul. 110 (2015) 96.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -100 * y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 101),
        ...     0.5,
        ...     scheme=BDF2(),
        ... )
        >>> # where the rectangle rule is stable up to a rate of 11
        >>> y[-1] - mittag_leffler(-100.0, 0.5)
        tensor([1.2e-05], dtype=torch.float64)
    """

    roots: Roots = field(default_factory=Newton)
    name: ClassVar[str] = "bdf2"
    sets: ClassVar[int] = 1
    is_implicit: ClassVar[bool] = True
    needs_uniform: ClassVar[str | None] = "a convolution quadrature knows equal steps only"

    def order(self, alpha: float) -> float:
        """Return min(2, 1 + 2 alpha)."""
        return min(2.0, 1 + 2 * alpha)

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """See `Scheme.weights`."""
        alpha = xp.asarray(alpha)
        omega = bdf2_left(-alpha, 1, 0, lags(n_steps), xp)
        starts = _starts(alpha, omega, n_steps, xp)
        columns = scaled(omega, alpha, dt, xp)
        flat = scaled(starts, alpha, dt, xp).reshape(columns.shape[0], 1, 2, n_steps + 1)
        return Weights(xp.stack([columns], axis=-2), flat.swapaxes(2, 3))

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """Never asked for: the mesh is uniform."""
        raise NotImplementedError(f"bdf2 on a mesh that is not uniform: {self.needs_uniform}.")


def _starts(alpha: Array, omega: Array, n_steps: int, xp: Namespace) -> Array:
    """Return w_n0, then w_n1, one after the other: [a, 2 (n_steps + 1)]."""
    alpha = alpha[..., None]
    exponent = xp.where(alpha <= 1, alpha, 0 * alpha + 1)  # min(alpha, 1), with the slope from the left where they meet
    log_n = xp.constant(np.log(lags(n_steps)[1:]), alpha)
    powers = xp.concat([0 * alpha, xp.exp(exponent * log_n)], axis=-1)  # n**exponent
    exact = xp.exp(xp.gammaln(1 + exponent) - xp.gammaln(1 + exponent + alpha) + (exponent + alpha) * log_n)
    second = xp.concat([0 * alpha, exact], axis=-1) - xp.convolve(omega, powers)
    constant = xp.concat([0 * alpha, xp.exp(alpha * log_n - xp.gammaln(1 + alpha))], axis=-1)
    ones = 0 * powers + 1
    first = constant - xp.convolve(omega, ones) - second
    after = xp.constant((lags(n_steps) > 0).astype(np.float64), alpha)  # nothing at step 0
    return xp.concat([first * after, second * after], axis=-1)
