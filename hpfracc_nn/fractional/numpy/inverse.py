"""The inverse operators on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.inverse import check_given, inverse_of
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numpy import operator
from hpfracc_nn.fractional.stencil import Columns, columns, solved
from hpfracc_nn.fractional.weights import SHELF
from hpfracc_nn.selection import BackendManager


def solve(
    owner: str,
    y: np.ndarray,
    definition: Definition,
    dt: float,
    dim: int,
    start: tuple[Any, Any],
    manager: BackendManager | None,
) -> np.ndarray:
    """Return x with `definition`(x) = y; same shape and dtype. `start` is x(0) and x'(0) where they are given."""
    operator.computed_in(owner, y, definition)
    dt, axis = errors.positive_step(owner, dt), errors.axis(owner, dim, y.ndim)
    inverse = inverse_of(owner, definition)
    layout_of(owner, y.shape, axis, np.shape(definition.alpha))
    if not y.size:
        return np.zeros_like(y)
    data = np.moveaxis(y, axis, -1).astype(np.float64)
    first, slope = (_given(owner, name, value, data) for name, value in zip(("x0", "dx0"), start, strict=True))
    found = columns_of(definition, y.shape[axis], dt)
    with np.errstate(invalid="ignore"):  # infinities may meet
        x = solved(
            found,
            data,
            lambda z: operator.apply(owner, np.ascontiguousarray(z), inverse, dt, -1, manager),
            first,
            None if slope is None else slope * dt,
            NUMPY,
        )
    return np.ascontiguousarray(np.moveaxis(x, -1, axis), dtype=y.dtype)


def _given(owner: str, name: str, value: Any, data: np.ndarray) -> np.ndarray | None:
    if value is None:
        return None
    found = np.asarray(value, np.float64)
    check_given(owner, name, found.shape, data.shape[:-1])
    return found[..., None]


def columns_of(definition: Definition, n: int, dt: float) -> Columns:
    """Return the columns of a fixed definition: those that are kept, or new ones."""
    key = "inverse", definition, n, dt
    return SHELF.get(key, lambda charge: charge(columns(definition.stencil(n, dt, NUMPY), NUMPY)))
