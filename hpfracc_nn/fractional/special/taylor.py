"""Arithmetic on truncated Taylor series: lists of coefficients, each an array, lowest order first.

Griewank & Walther, Evaluating Derivatives (2008), section 13.2.
"""

from __future__ import annotations

from typing import Any

from hpfracc_nn.fractional.namespace import Namespace

Series = list[Any]


def product(f: Series, g: Series) -> Series:
    """Return f g."""
    return [sum(f[j] * g[k - j] for j in range(k + 1)) for k in range(len(f))]


def exponential(f: Series, xp: Namespace) -> Series:
    """Return exp(f), from g' = f' g."""
    g = [xp.exp(f[0])]
    for k in range(1, len(f)):
        g.append(sum(j * f[j] * g[k - j] for j in range(1, k + 1)) / k)
    return g


def reciprocal(f: Series) -> Series:
    """Return 1 / f, from f g = 1."""
    g = [1 / f[0]]
    for k in range(1, len(f)):
        g.append(-g[0] * sum(f[j] * g[k - j] for j in range(1, k + 1)))
    return g
