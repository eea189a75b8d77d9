"""Predict by the rectangle rule, correct by the trapezoid rule: the fractional Adams-Bashforth-Moulton method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes.cells import constant_block, linear_block
from hpfracc_nn.solvers.schemes.rectangle import predictor
from hpfracc_nn.solvers.schemes.scheme import Weights
from hpfracc_nn.solvers.schemes.stability import largest_decay
from hpfracc_nn.solvers.schemes.trapezoid import corrector


@dataclass(frozen=True)
class PredictorCorrector:
    """PECE: y_n by the rectangle rule, then `corrections` times the trapezoid rule with what was found.

    Both are sums over all of the past, also at a = 1: the predictor begins at y_0 there and not at y_(n-1), so that
    only the first step is Heun's.

    Order min(2, 1 + alpha) with one correction. Where alpha is small, ceil(1 / alpha) of them keep the predictor's
    error below the corrector's on a graded mesh too (Garrappa, Int. J. Comput. Math. 87 (2010) 2281).

    Args:
        corrections: How often a step is corrected; each costs one evaluation.

    Raises:
        ValueError: `corrections` is not positive.
        TypeError: `corrections` is no whole number.

    Source: Diethelm, Ford & Freed, Numer. Algorithms 36 (2004) 31.

    Examples:
        >>> ts = np.linspace(0, 1, 101)
        >>> y = fdeint(
        ...     lambda t, y: -y, torch.ones(1).double(), ts, 0.5, scheme=PredictorCorrector()
        ... )
        >>> y[-1] - mittag_leffler(-1.0, 0.5)
        tensor([2.9e-05], dtype=torch.float64)
    """

    corrections: int = 1
    name: ClassVar[str] = "predictor_corrector"
    sets: ClassVar[int] = 2
    is_implicit: ClassVar[bool] = False
    needs_uniform: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        errors.count("PredictorCorrector", "corrections", self.corrections)

    def order(self, alpha: float) -> float:
        """Return min(2, 1 + alpha)."""
        return min(2.0, 1 + alpha)

    def stability(self, alpha: float) -> float:
        """Return the largest dt**alpha * rate with which a decay, D^alpha y = -rate y, is stable.

        With an odd number of corrections it is Gamma(2 + alpha) up to alpha = 1.6, where the characteristic function
        has its root at 1: what is unstable grows without alternating.
        """
        return largest_decay(alpha, self.corrections)

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """See `Scheme.weights`: the predictor's, then the corrector's."""
        column, start = corrector(alpha, n_steps, dt, xp)
        columns = xp.stack([predictor(alpha, n_steps, dt, xp), column], axis=-2)
        return Weights(columns, xp.stack([0 * start, start], axis=-2)[..., None])

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """See `Scheme.block`."""
        parts = [rule(alpha, times, rows, columns, xp) for rule in (constant_block, linear_block)]
        shape = parts[0].shape
        flat = [part.reshape(shape[0], -1) for part in parts]
        return xp.stack(flat, axis=-2).reshape(shape[0], 2, *shape[1:])
