"""Derivatives of 1 / Gamma, which is entire: finite where Gamma has its poles."""

from __future__ import annotations

from math import comb
from typing import Any

from hpfracc_nn.fractional.namespace import Namespace

_SHIFT = 4


def reciprocal_gamma(x: Any, n: int, xp: Namespace) -> Any:
    """Return the n-th derivative of 1 / Gamma at real x > -4, exactly zero at 0, -1, -2, -3 for n = 0.

    From x + 4 it goes down by 1 / Gamma(x) = x / Gamma(x + 1), which keeps the relative accuracy near the zeros.
    """
    values = _derivatives(x + _SHIFT, n, xp)
    for step in reversed(range(_SHIFT)):
        values = [(x + step) * g + (i * values[i - 1] if i else 0.0) for i, g in enumerate(values)]
    return values[n]


def _derivatives(x: Any, n: int, xp: Namespace) -> list[Any]:
    """Return the derivatives 0 to n at x > 0, from (1 / Gamma)' = -psi / Gamma."""
    psi = [xp.polygamma(j, x) for j in range(n)]
    values = [xp.exp(-xp.lgamma(x))]
    for i in range(n):
        values.append(-sum(comb(i, j) * psi[j] * values[i - j] for j in range(i + 1)))
    return values
