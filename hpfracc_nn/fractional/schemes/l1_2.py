"""The L1-2 scheme: a quadratic through the last three samples on every cell but the first.

Gao, Sun & Zhang, J. Comput. Phys. 259 (2014) 33. Order 3 - alpha; above alpha = 1 order 2. The quadratic correction
of cell k has weight q_k; the first cell has no third sample, so the starting column takes its correction back (above
alpha = 1 it also mends the first slope, as in `l1`).
"""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.schemes import l1
from hpfracc_nn.fractional.schemes.powers import differences, multiply, power_weights


def left(alpha: Array, taylor: int, order: int, lags: np.ndarray, xp: Namespace) -> Array:
    """Return `l1.left` with b + q (1-z) in place of b; arguments as there."""
    slope = l1.bdf2_slope if taylor == 2 else (1,)
    moments = multiply(differences(taylor + 1 - order), slope)
    return power_weights(taylor - xp.asarray(alpha), lags, xp, l1.cells(taylor, order), moments)


def start(alpha: Array, taylor: int, order: int, rows: np.ndarray, xp: Namespace) -> Array:
    """Return the column that acts on d[1], at the given rows: -q_(k-1) at sample k.

    Above alpha = 1 it is `l1.start` with b + q (1-z) in place of b, less 2 q_(k-1).

    Shapes: rows [k], increasing; result [*c, k].
    """
    if taylor == 1:
        return l1.from_first(alpha, taylor, rows, xp, (0,), (-1,))
    powers = multiply(differences(1), l1.first_slope)
    return l1.from_first(alpha, taylor, rows, xp, powers, (powers[0] - 2, *powers[1:]))


def pieces(samples: Array, steps: Array, xp: Namespace) -> list[Array]:
    """Return the mean slope on each cell of any times and half its increase, 0 on the first; shapes as in `l1.pieces`.

    The increase is that of the quadratic through the cell's samples and the one before.
    """
    (slope,) = l1.pieces(samples, steps, xp)
    bend = (slope[..., 1:] - slope[..., :-1]) * (steps[..., 1:] / (steps[..., 1:] + steps[..., :-1]))
    return [slope, xp.concat([0 * slope[..., :1], bend], axis=-1)]


power = l1.power


def start_index(taylor: int) -> int:
    """The column acts on d[1]."""
    return 1


def rate(alpha: float) -> float:
    """Order of convergence on smooth data, at a fixed time."""
    return 3 - alpha if alpha <= 1 else 2.0


uniform_rate = l1.uniform_rate  # the slope is linear on the first cell: t**2, above alpha = 1 t**3, is not met there
