"""Differences of any order of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.differencing import OWNER, WindowedDifference, is_exact, order_of, split, warm_up
from hpfracc_nn.fractional.numpy import operator
from hpfracc_nn.selection import BackendManager

_WIDEST = 8  # bytes of a float that the kernels take


def fdiff(
    a: np.ndarray, n: Any, axis: int, window: int | None, mode: str, manager: BackendManager | None
) -> np.ndarray:
    """Return the difference of order `n`; see `fractional.fdiff`."""
    if a.dtype.kind not in "biufc":
        raise TypeError(f"{OWNER}(a of dtype {a.dtype}): needs numbers; pass a.astype(numpy.float64).")
    a = a.astype(a.dtype.newbyteorder("="), copy=False)
    order = order_of(n)
    left_out = warm_up(order, window, mode)
    found = _whole(a, int(order), axis) if is_exact(order, window) else _any(a, order, axis, window, manager)
    return found if left_out == 0 else np.ascontiguousarray(_after(found, left_out, axis))


def as_part(a: np.ndarray, part: Any, axis: int) -> np.ndarray:
    """Return samples that stand before or after `a`; a number is one sample, in the dtype that `numpy.diff` takes."""
    found = np.asanyarray(part)
    return found if found.ndim else np.broadcast_to(found, (*a.shape[:axis], 1, *a.shape[axis + 1 :]))


concatenate = np.concatenate


def _after(a: np.ndarray, count: int, axis: int) -> np.ndarray:
    return a[(slice(None),) * axis + (slice(count, None),)]


def _whole(a: np.ndarray, order: int, axis: int) -> np.ndarray:
    """The differences after so many zeros, in the dtype of the samples, or the sums, in that of `numpy.cumsum`."""
    if order == 0:
        return a.copy()
    if order > 0:
        shape = (*a.shape[:axis], order, *a.shape[axis + 1 :])
        return np.diff(a, order, axis, prepend=np.zeros(shape, a.dtype))
    sums = a.astype(np.float32) if a.dtype == np.float16 else a  # half precision stands still at 2048
    for _ in range(-order):
        sums = np.cumsum(sums, axis)
    return sums.astype(a.dtype) if a.dtype == np.float16 else sums


def _any(a: np.ndarray, order: float, axis: int, window: int | None, manager: BackendManager | None) -> np.ndarray:
    if a.dtype.kind == "c":
        real, imaginary = _any(np.stack([a.real, a.imag]), order, axis + 1, window, manager)
        found = np.empty(a.shape, a.dtype)
        found.real, found.imag = real, imaginary  # not real + 1j * imaginary, where a NaN would spoil both
        return found
    x = a if a.dtype.kind == "f" else a.astype(np.float64)
    if x.dtype.itemsize > _WIDEST:
        raise TypeError(
            f"{OWNER}(a of dtype {a.dtype}): needs float64 or narrower where n is not whole or the window cuts; pass "
            "a.astype(numpy.float64)."
        )
    found = _of_floats(x, order, axis, window, manager)
    if found.size == 0 or np.isfinite(found.sum()):
        return found
    gaps = ~np.isfinite(x)
    if gaps.any():  # an FFT spreads them over all samples
        found = _of_floats(np.where(gaps, x.dtype.type(0), x), order, axis, window, manager)
        found[_reached(gaps, axis, window)] = np.nan
    return found


def _reached(gaps: np.ndarray, axis: int, window: int | None) -> np.ndarray:
    """Return which samples of the result have one of `gaps` in their window."""
    count = np.cumsum(gaps, axis)
    if window is not None and window < gaps.shape[axis]:
        earlier = (slice(None),) * axis
        count[(*earlier, slice(window, None))] -= count[(*earlier, slice(None, -window))].copy()
    return count > 0


def _of_floats(
    x: np.ndarray, order: float, axis: int, window: int | None, manager: BackendManager | None
) -> np.ndarray:
    if window is not None and window < x.shape[axis]:
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
