"""Stencils of fixed orders, computed once: the only cache of weights, keyed by value."""

from __future__ import annotations

from functools import lru_cache

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import Stencil


@lru_cache(maxsize=64)
def fixed_stencil(definition: Definition, n: int, dt: float) -> Stencil:
    """Return the NumPy stencil of a definition whose alpha is a number or numbers."""
    return definition.stencil(n, dt, NUMPY)
