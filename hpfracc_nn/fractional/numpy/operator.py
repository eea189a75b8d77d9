"""The operators on NumPy arrays.

A call picks a plan, which names the kernel, and runs that kernel on data [batch, channels, n, width], n samples of each
signal (`fractional/layout.py`). A `Site` keeps the plans of one caller. `owner` is the name of the public function, for
messages; `dt` is the spacing of the samples and `dim` their time axis. A fault of a result is a text that says what is
wrong with it, and a `Doubt` is a fault that the data may explain: the kernel is to blame only where another one does
better.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.fft import irfftn, rfftn

from hpfracc_nn import errors
from hpfracc_nn.fractional.boundary import Boundary
from hpfracc_nn.fractional.definitions import Definition, FourierMultiplier
from hpfracc_nn.fractional.dispatch import on_other_sides
from hpfracc_nn.fractional.gaps import carried_forward, is_clear
from hpfracc_nn.fractional.layout import Layout, layout_of
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numpy import kernels, probe  # noqa: F401  registered on import
from hpfracc_nn.fractional.numpy.weights import Weights, weights_of
from hpfracc_nn.fractional.weights import CACHE
from hpfracc_nn.selection import BackendManager, Doubt, Kernel, Plan, Site, Work, Workload, carried_out, given_manager

_COMPUTED_IN: dict[np.dtype, np.dtype] = {
    np.dtype(np.float16): np.dtype(np.float32),
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(np.float64): np.dtype(np.float64),
}
_MOST_KEPT = 64  # shapes of one operator

ARRAYS = (np.ndarray,)  # the classes that need no further look
HALVES = (np.float16,)


def parts(x: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """Return the float arrays that an operator is applied to in place of `x`; None where `x` needs no conversion.

    They are the real and the imaginary part of complex numbers, integers as float64, and floats in another byte order
    in this machine's.
    """
    if x.dtype in _COMPUTED_IN:
        return None
    if x.dtype.kind == "c":
        return x.real, x.imag
    if x.dtype.kind in "biu":
        return (x.astype(np.float64),)
    return None if x.dtype.isnative else (x.astype(x.dtype.newbyteorder("=")),)


def whole(parts: list[np.ndarray]) -> np.ndarray:
    """Return the results for the arrays of `parts` as one array: complex, the real part first, if there are two."""
    if len(parts) == 1:
        return parts[0]
    found = np.empty(parts[0].shape, np.result_type(parts[0], np.complex64))
    found.real, found.imag = parts  # not real + 1j * imaginary, where a NaN would spoil both
    return found


broadcast_to = np.broadcast_to


def check_samples(owner: str, name: str, x: np.ndarray, definition: Definition | FourierMultiplier) -> np.dtype:
    """Return the dtype that an operator on `x` is computed in; raise TypeError as `computed_in` does."""
    return computed_in(owner, x, definition)


def is_hollow(x: np.ndarray) -> bool:
    """Return whether the array has no values, so that there is nothing to compute."""
    return x.size == 0


def may_keep(x: np.ndarray) -> bool:
    """Return True: a multiplier's factors for fixed orders may be kept for later calls."""
    return True


def kept(key: tuple[Hashable, ...], build: Callable[[], tuple[np.ndarray, ...]], like: np.ndarray) -> Any:
    """Return what `build` returned at the first call with this key, from the cache; else call it."""
    return CACHE.get(key, build)


def compiled_once(function: Callable[..., np.ndarray], arguments: tuple[Any, ...], x: np.ndarray, alpha: None) -> Any:
    """Return function(x, alpha, *arguments); NumPy compiles nothing."""
    return function(x, alpha, *arguments)


def filtered(x: np.ndarray, symbol: np.ndarray, sizes: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """Return the inverse transform of a symbol times the transform of `x`."""
    return irfftn(rfftn(x, axes=axes) * symbol, sizes, axes=axes)


def exactly(x: np.ndarray) -> Any:
    """Return a context for formulas on samples: infinities that meet give no warning."""
    return np.errstate(invalid="ignore")


def as_array(values: Any, like: np.ndarray) -> np.ndarray:
    """Return any values as a NumPy array."""
    return np.asanyarray(values)


def apply(
    owner: str, x: np.ndarray, definition: Definition, dt: float, dim: int, manager: BackendManager | None
) -> np.ndarray:
    """Return the operator applied to `x` along `dim`; same shape and dtype. See `fractional.derivative`."""
    dtype = computed_in(owner, x, definition)
    if definition.side != "left":
        axis = errors.axis(owner, dim, x.ndim)
        return on_other_sides(  # type: ignore[no-any-return]
            x, dtype, definition, axis, NUMPY, lambda x, left, axis: apply(owner, x, left, dt, axis, manager)
        )
    dt = errors.positive_step(owner, dt)
    if type(dim) is not int:  # a key must not take True for 1
        dim = errors.axis(owner, dim, x.ndim)

    def weights() -> tuple[Layout, Weights]:
        layout = layout_of(owner, x.shape, errors.axis(owner, dim, x.ndim), np.shape(definition.alpha))
        return layout, weights_of(definition, layout.n, dt, dtype)

    if not x.size:
        layout_of(owner, x.shape, errors.axis(owner, dim, x.ndim), np.shape(definition.alpha))
        return np.zeros_like(x)
    manager = given_manager(owner, manager)
    site = manager.shared_site("toeplitz", "numpy", "numpy")
    plan = site.pick((definition, dt, dim, x.shape, x.dtype), lambda: _workload(*weights()))
    ready: _Ready | None = None if plan.usage.kept is None else plan.usage.kept()
    if ready is None:
        layout, found = weights()
        again = partial(weights_of, definition, layout.n, dt, found.dtype)
        plan, ready = carried_out(_PREPARED, site, plan, x.dtype, layout, found, again)
        plan.usage.kept = weakref.ref(ready)
    y = _applied(site, plan, ready, _arranged(x, ready))
    if ready.is_direct:
        return y
    inverse = ready.layout.inverse
    return np.ascontiguousarray(y if inverse is None else y.transpose(inverse), dtype=x.dtype)


def computed_in(owner: str, x: np.ndarray, definition: Definition | FourierMultiplier) -> np.dtype:
    """Return the dtype that an operator on `x` is computed in.

    Raise TypeError unless x is float16, float32 or float64 and alpha is fixed numbers.
    """
    dtype = _COMPUTED_IN.get(x.dtype)
    if dtype is None or not definition.is_fixed:
        raise _wrong_type(owner, x, definition)
    return np.dtype(np.float64) if definition.is_wide else dtype


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Ready:
    """What all calls of one operator on data of one shape and dtype need, cached with the weights.

    It has the layout, the weights as one kernel takes them, and the boundary columns.
    """

    layout: Layout
    dtype: np.dtype  # of the product
    is_direct: bool  # the samples need neither a permutation of axes nor another dtype
    operator: Any  # the weights, as the kernel takes them
    boundary: Boundary
    weights: Callable[[], Weights]  # returns the weights, also after the cache dropped them
    kernel: Kernel


def _prepared(
    plan: Plan, x_dtype: np.dtype, layout: Layout, weights: Weights, again: Callable[[], Weights]
) -> tuple[Plan, _Ready]:
    """Return the plan, unchanged, and the `_Ready` for its kernel, from `weights.kept` or new.

    `carried_out` calls it with the next best plan where a kernel fails, so that the returned plan is the one that
    worked. `x_dtype` is the dtype of the caller's samples, which may differ from that of the weights, in which the
    product is computed; `again()` returns the weights, also after they were dropped.
    """
    key = plan.kernel, x_dtype, layout
    ready = weights.kept.get(key)
    if ready is None:
        operator = plan.kernel.prepare(weights, plan.workload)
        is_direct = layout.order is None and x_dtype == weights.dtype
        ready = _Ready(layout, weights.dtype, is_direct, operator, weights.boundary, again, plan.kernel)
        if len(weights.kept) >= _MOST_KEPT:
            weights.kept.clear()
        weights.kept[key] = ready
    return plan, ready


def _arranged(x: np.ndarray, ready: _Ready) -> np.ndarray:
    """Return x with its axes in the order of the kernels' data, contiguous, in the dtype of the product.

    The axes that make up the batch, or the width, are not merged yet.
    """
    ordered = x if ready.layout.order is None else x.transpose(ready.layout.order)
    if ready.is_direct and x.flags.carray:
        return ordered
    # A copy of what is read-only or not aligned too: compiled code is made for arrays that are neither.
    return np.require(ordered, ready.dtype, ("C", "A", "W"))


def _applied(site: Site, plan: Plan, ready: _Ready, x: np.ndarray) -> np.ndarray:
    """Return the operator on x, in the shape of x, by the plan's kernel or, where it fails, by another.

    Samples of x that are not finite make NaN at the times that they reach, and nowhere else. x is in the kernels' order
    of axes, as `_arranged` returns it.
    """
    y, layout = carried_out(_PRODUCT, site, plan, ready, x), ready.layout
    if is_clear(y, layout.n, layout.width, layout.n - 1):
        return y
    shape = layout.canonical
    found = carried_forward(x.reshape(shape), ready.boundary.ahead)
    if found is None:
        return y
    finite, reached = found
    y = carried_out(_PRODUCT, site, plan, ready, finite.reshape(x.shape))
    y.reshape(shape)[reached] = np.nan
    return y


def _product(plan: Plan, ready: _Ready, x: np.ndarray) -> np.ndarray:
    """Return the operator applied to x, in the shape of x, by the plan's kernel; in parts if the plan has a `chunk`.

    `ready` may have been prepared for another kernel that has failed; the weights are then prepared again.
    """
    layout, kernel, operator = ready.layout, plan.kernel, ready.operator
    if kernel is not ready.kernel:
        operator = kernel.prepare(ready.weights(), plan.workload)
    y = np.empty(x.shape, ready.dtype)
    kernel.calls["run"] += 1
    data, result = x.reshape(layout.canonical), y.reshape(layout.canonical)
    count = layout.batch if plan.chunk is None else max(1, plan.chunk // layout.channels)
    for begin in range(0, layout.batch, count):
        kernel.run(operator, ready.boundary, data[begin : begin + count], result[begin : begin + count])
    return y


def _fault(y: np.ndarray, ready: _Ready, x: np.ndarray) -> str | None:
    """Return a Doubt if the result y of `_product` is not finite although x and the weights are, else None."""
    if _is_finite(y):
        return None
    columns = [] if ready.boundary.columns is None else [ready.boundary.columns]
    parts = [x, ready.weights().column().weights, *columns]
    return Doubt("not finite, though input and weights are") if all(map(_is_finite, parts)) else None


def _is_finite(x: np.ndarray) -> bool:
    """Return whether all numbers of `x` are finite, without a mask of its size."""
    return x.size == 0 or bool(np.isfinite(x.min()) and np.isfinite(x.max()))  # both are NaN where any number is


_PREPARED, _PRODUCT = Work(_prepared, is_timed=False), Work(_product, _fault)


def _workload(layout: Layout, weights: Weights) -> Workload:
    return Workload(
        op="toeplitz",
        framework="numpy",
        dtype=weights.dtype.name,
        rows=layout.batch * layout.channels,
        n=layout.n,
        width=layout.width,
        channels=layout.channels,
        exponentials=weights.states,
    )


def _wrong_type(owner: str, x: np.ndarray, definition: Definition | FourierMultiplier) -> TypeError:
    if x.dtype not in _COMPUTED_IN:
        return TypeError(
            f"{owner}(x of dtype {x.dtype}): needs float16, float32 or float64; "
            + ("pass x.real and x.imag apart." if x.dtype.kind == "c" else "pass x.astype(numpy.float64).")
        )
    return TypeError(
        f"{owner}(alpha of type {type(definition.alpha).__name__}): needs a float or an array of floats "
        "for a NumPy x; pass x as a tensor of the same framework as alpha."
    )
