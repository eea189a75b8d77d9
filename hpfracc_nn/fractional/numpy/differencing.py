"""Differences of any order of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.differencing import OWNER, WindowedDifference, is_exact, order_of, split, warm_up
from hpfracc_nn.fractional.numpy import operator
from hpfracc_nn.selection import BackendManager


def fdiff(
    a: np.ndarray, n: Any, axis: int, window: int | None, mode: str, manager: BackendManager | None
) -> np.ndarray:
    """Return the difference of order `n`; see `fractional.fdiff`."""
    if a.dtype.kind not in "biufc":
        raise TypeError(f"{OWNER}(a of dtype {a.dtype}): needs numbers; pass a.astype(numpy.float64).")
    order = order_of(n)
    axis = errors.axis(OWNER, axis, a.ndim, argument="axis", array="a")
    left_out = warm_up(order, window, mode)
    found = _whole(a, int(order), axis) if is_exact(order, window) else _any(a, order, axis, window, manager)
    return found if left_out == 0 else np.ascontiguousarray(_after(found, left_out, axis))


def _after(a: np.ndarray, count: int, axis: int) -> np.ndarray:
    return a[(slice(None),) * axis + (slice(count, None),)]


def _whole(a: np.ndarray, order: int, axis: int) -> np.ndarray:
    """The differences after so many zeros, or the sums, in the dtype of the samples."""
    if order == 0:
        return a.copy()
    if order > 0:
        shape = (*a.shape[:axis], order, *a.shape[axis + 1 :])
        return np.diff(a, order, axis, prepend=np.zeros(shape, a.dtype))
    for _ in range(-order):
        a = np.cumsum(a, axis, dtype=None if a.dtype == np.bool_ else a.dtype)
    return a


def _any(a: np.ndarray, order: float, axis: int, window: int | None, manager: BackendManager | None) -> np.ndarray:
    if a.dtype.kind == "c":
        both = _any(np.stack([a.real, a.imag]), order, axis + 1, window, manager)
        found = both.astype(np.result_type(both, np.complex64))
        return (found[0] + 1j * found[1]).astype(a.dtype)
    x = a if a.dtype.kind == "f" else a.astype(np.float64)
    if window is not None and window < a.shape[axis]:
        cut = WindowedDifference(order, window=float(window), value=order)
        return operator.apply(OWNER, x, cut, 1.0, axis, manager)
    whole, rest = split(order)
    if whole == 0:
        return operator.apply(OWNER, x, GrunwaldLetnikov(rest), 1.0, axis, manager)
    operator.computed_in(OWNER, x, GrunwaldLetnikov(rest))  # refuses what float64 could not hold
    wide = x.astype(np.float64)
    if whole > 0:
        wide = _whole(wide, whole, axis)
    if rest:  # whole sums come here where a window is longer than the series
        wide = operator.apply(OWNER, wide, GrunwaldLetnikov(rest), 1.0, axis, manager)
    return (_whole(wide, whole, axis) if whole < 0 else wide).astype(x.dtype, copy=False)
