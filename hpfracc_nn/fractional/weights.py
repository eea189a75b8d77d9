"""The weights of fixed orders are made once and kept by value: here lie the stencils, and the shelf of the rest."""

from __future__ import annotations

from functools import lru_cache

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.shelf import Shelf
from hpfracc_nn.fractional.stencil import Stencil

ROOM = 1 << 28  # bytes of all weights that are kept, in whatever form and framework

SHELF = Shelf(ROOM)

_NEGLIGIBLE = 1e-20  # parts of a row's largest entry that are zero: subnormal numbers slow a float32 product tenfold


def forget() -> None:
    """Drop all weights that are kept; who still uses some goes on, and the next call makes its own anew."""
    SHELF.clear()
    fixed_stencil.cache_clear()


@lru_cache(maxsize=64)
def fixed_stencil(definition: Definition, n: int, dt: float) -> Stencil:
    """Return the NumPy stencil of a definition whose alpha is a number or numbers: formulas, of no size.

    It is shared: ask it for `start_column(rows)` and not for `start`, which it would keep.
    """
    return definition.stencil(n, dt, NUMPY)


def without_negligible(values: Array, xp: Namespace) -> Array:
    """Return weights with 0 where they are negligible beside the largest of their row, the last axis.

    Beside that row alone: channels differ by dt to the power of the difference of their orders.
    """
    size = xp.abs(values)
    return xp.where(size < _NEGLIGIBLE * xp.max(size)[..., None], 0.0, values)
