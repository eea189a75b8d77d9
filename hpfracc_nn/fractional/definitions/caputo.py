"""Caputo's derivative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpfracc_nn.fractional.definitions.definition import Definition


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class Caputo(Definition):
    """Caputo's derivative D^alpha x = I^(c - alpha) x^(c), c = max(1, ceil(alpha)), for 0 <= alpha <= 2.

    A constant has derivative zero; alpha = 0 gives x - x(0), alpha = 1 and 2 the scheme's ordinary differences. Above
    alpha = 1 the first samples are read to estimate x'(0).

    The default scheme `l1_2` has order 3 - alpha on smooth data for alpha <= 1 and 2 above, at the cost of `l1`.
    `bdf2` has order 2 for every alpha, `l1` order 2 - alpha (3 - alpha above 1) and positive weights, `grunwald` order
    1. These hold at a fixed time. The largest error of all samples is one of the first and falls like
    `dt**(2 - alpha)`, above alpha = 1 like `dt**(3 - alpha)`, of `grunwald` by one order less. On data like `t**alpha`,
    which are not smooth at 0, every scheme is of first order at a fixed time, above alpha = 1 of order alpha - 1.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Examples:
        >>> import numpy as np
        >>> t = np.linspace(0, 1, 101)
        >>> float(Caputo(0.5)(t**2, dt=0.01)[-1].round(4))
        1.5045

    Source: Diethelm, The Analysis of Fractional Differential Equations (2010), definition 3.2.
    """

    scheme: str = "l1_2"

    schemes: ClassVar[tuple[str, ...]] = ("l1", "l1_2", "bdf2", "grunwald")
