"""The product rectangle rule, explicit: f is constant on each cell, its value on the left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.cells import constant_block
from hpfracc_nn.fractional.schemes.powers import differences, power_weights
from hpfracc_nn.solvers.schemes.scheme import Weights, lags, scaled


@dataclass(frozen=True)
class Rectangle:
    """y_n = P_n + dt**a sum_(j<n) b_(n-1-j) f_j, b_k = [(k + 1)**a - k**a] / Gamma(1 + a): Euler's method at a = 1.

    One evaluation a step, first order; unstable where dt**alpha times the size of the Jacobian is much above 1.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, equation (13).
    """

    name: ClassVar[str] = "rectangle"
    sets: ClassVar[int] = 1
    is_implicit: ClassVar[bool] = False
    needs_uniform: ClassVar[str | None] = None

    def order(self, alpha: float) -> float:
        """Return 1."""
        return 1.0

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """See `Scheme.weights`."""
        return Weights(xp.stack([predictor(alpha, n_steps, dt, xp)]), None)

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """See `Scheme.block`."""
        return constant_block(alpha, times, rows, columns, xp)[:, None]


def predictor(alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Array:
    """Return the column [a, n_steps + 1]: 0, b_0, b_1, ..."""
    alpha = xp.asarray(alpha)
    cells = power_weights(alpha, lags(n_steps - 1), xp, differences(1))
    return scaled(xp.concat([0 * alpha[..., None], cells]), alpha, dt, xp)
