"""Differences of any order of JAX arrays, differentiable in the samples and in an order that is traced."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.differencing import (
    OWNER,
    WindowedDifference,
    finite,
    is_exact,
    order_of,
    split,
    warm_up,
)
from hpfracc_nn.fractional.jax import operator
from hpfracc_nn.fractional.jax.arrays import Array, computed_in, widest
from hpfracc_nn.selection import BackendManager

_HALVES = (jnp.float16, jnp.bfloat16)


def fdiff(a: Array, n: Any, axis: int, window: int | None, mode: str, manager: BackendManager | None) -> Array:
    """Return the difference of order `n`; see `fractional.fdiff`."""
    is_array = isinstance(n, jax.Array)
    order = _read(n) if is_array else order_of(n)
    left_out = warm_up(None if is_array else order, window, mode)
    if order is not None and not is_array and is_exact(order, window):
        found = _whole(a, int(order), axis)
    else:
        found = _any(a, n if order is None else order, axis, window, manager)
    return lax.slice_in_dim(found, min(left_out, found.shape[axis]), None, axis=axis)


def as_part(a: Array, part: Any, axis: int) -> Array:
    """Return samples that stand before or after `a`, as `jax.numpy.diff` takes them; a number is one sample."""
    found = jnp.asarray(part)
    return found if found.ndim else jnp.broadcast_to(found, (*a.shape[:axis], 1, *a.shape[axis + 1 :]))


concatenate = jnp.concatenate


def _read(n: Array) -> float | None:
    """Return the value of an order in an array, None where it is traced, or raise."""
    if n.ndim != 0 or not jnp.issubdtype(n.dtype, jnp.floating):
        raise TypeError(
            f"{OWNER}(n: {n.dtype} array of shape {n.shape}): needs a floating array of no axes; pass n[0], "
            "or a layer such as FractionalDifference for an order per channel."
        )
    return None if isinstance(n, jax.core.Tracer) else finite(float(n))


def _whole(a: Array, order: int, axis: int) -> Array:
    """The differences after so many zeros, in the dtype of the samples, or the sums, which widen short integers."""
    if order == 0:
        return a
    if order > 0:
        return jnp.diff(jnp.pad(a, [(order if each == axis else 0, 0) for each in range(a.ndim)]), order, axis)
    sums = a.astype(jnp.float32) if a.dtype in _HALVES else _unwrapped(a)  # float16 stands still at 2048
    for _ in range(-order):
        sums = jnp.cumsum(sums, axis)
    return sums.astype(a.dtype) if a.dtype in _HALVES else sums


def _unwrapped(a: Array) -> Array:
    """Return integers as the default ones, in which short sums do not wrap round."""
    is_short = a.dtype.kind in "biu" and a.dtype.itemsize < jnp.dtype(jnp.result_type(int)).itemsize
    return a.astype(jnp.result_type(int)) if is_short else a


def _any(a: Array, n: Array | float, axis: int, window: int | None, manager: BackendManager | None) -> Array:
    """The difference of order `n`, a number or traced."""
    if jnp.iscomplexobj(a):
        parts = _any(jnp.stack([a.real, a.imag]), n, axis + 1, window, manager)
        return lax.complex(parts[0], parts[1])  # not real + 1j * imaginary, where a NaN would spoil both
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return _of_floats(a.astype(jnp.result_type(float)), n, axis, window, manager)
    gaps = ~jnp.isfinite(a)  # an FFT would spread them over all samples
    found = _of_floats(jnp.where(gaps, 0, a), n, axis, window, manager)
    return jnp.where(_reached(gaps, axis, window), jnp.nan, found)


def _reached(gaps: Array, axis: int, window: int | None) -> Array:
    """Return which samples of the result have one of `gaps` in their window."""
    count = jnp.cumsum(gaps, axis, dtype=jnp.int32)
    if window is None or window >= gaps.shape[axis]:
        return count > 0
    kept = gaps.shape[axis] - window
    before = [(window if i == axis else 0, 0) for i in range(gaps.ndim)]
    return count > jnp.pad(lax.slice_in_dim(count, 0, kept, axis=axis), before)


def _of_floats(x: Array, n: Array | float, axis: int, window: int | None, manager: BackendManager | None) -> Array:
    lags = x.shape[axis] if window is None else min(window, x.shape[axis])
    if isinstance(n, jax.Array):
        # How many whole differences there are cannot be read of it: one product, with weights that hold for any order.
        return operator.apply(OWNER, x, WindowedDifference(n, window=float(lags), value=math.inf), 1.0, axis, manager)
    if lags < x.shape[axis]:
        return operator.apply(OWNER, x, WindowedDifference(n, window=float(lags), value=n), 1.0, axis, manager)
    whole, rest = split(n)
    if whole == 0:
        return operator.apply(OWNER, x, GrunwaldLetnikov(rest), 1.0, axis, manager)
    computed_in(OWNER, x)  # refuses what float64 could not hold
    wide = x.astype(widest())
    if whole > 0:
        wide = _whole(wide, whole, axis)
    if rest:  # whole sums come here where a window is longer than the series
        wide = operator.apply(OWNER, wide, GrunwaldLetnikov(rest), 1.0, axis, manager)
    return (_whole(wide, whole, axis) if whole < 0 else wide).astype(x.dtype)
