"""Differences of any order of an array, as `numpy.diff` takes those of whole order: `fdiff`, and its rules.

    y[t] = sum over k of w[k] a[t - k],    w[k] = (-1)**k binomial(n, k),

the coefficients of (1 - z)**n, with zeros before the first sample. An order outside of (-1, 1) is computed as whole
differences or sums and one difference of the rest of the order, in (-1, 1). A window that cuts the weights off does not
allow this: its weights are those of the order n itself.

In the code `a` is the data, `n` the order as the caller passes it, `order` the same as a float. `xp` is the namespace
of the data's framework, and `operator` its module of array functions, such as `fractional/torch/operator.py`.

Hosking, Fractional Differencing, Biometrika 68 (1981) 165; Lopez de Prado, Advances in Financial Machine Learning
(2018), chapter 5, for the window.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition, GrunwaldLetnikov
from hpfracc_nn.fractional.dispatch import Samples, backend, framework_of, placed
from hpfracc_nn.fractional.namespace import NAMESPACES, Array, Namespace
from hpfracc_nn.fractional.schemes.differences import binomial
from hpfracc_nn.fractional.stencil import Stencil, reciprocal
from hpfracc_nn.labelled.tables import is_table, joined, mapped
from hpfracc_nn.selection import BackendManager

OWNER = "fdiff"
MODES = ("same", "valid")

_WIDEST = 8  # bytes of a float that the kernels take
_fixed = lru_cache(maxsize=256)(GrunwaldLetnikov)
_BINOMIAL = 3.0  # orders that the series of `binomial` is made for


def fdiff(
    a: Samples,
    n: Any,
    axis: int | None = None,
    window: int | None = None,
    mode: str = "same",
    *,
    prepend: Samples | None = None,
    append: Samples | None = None,
    dim: Hashable | None = None,
    manager: BackendManager | None = None,
) -> Samples:
    """Return the difference of order `n` of `a` along `axis`: (1 - z)**n a, with zeros before the first sample.

    A negative order sums, and undoes the difference of the opposite order. At a whole n >= 0 it is `numpy.diff` or
    `torch.diff`, bit for bit: those of `a` itself in mode "valid", those of `a` after n zeros in mode "same"; n = -1
    is the cumulative sum. O(len log len) or less at any order and any window.

    A sample that is NaN or infinite leaves NaN where it has a weight, and the other samples as they would be without
    it: in the `window` samples from it on, or in all from it on. At a whole order it spreads as in `numpy.diff` and
    `numpy.cumsum`.

    Tables of pandas (Series, DataFrame), polars (Series, DataFrame) and xarray (DataArray, Dataset) come back as such,
    with their labels: those of time less the warm-up. Their times have to increase; labels that are names say nothing
    of it. Missing values are gaps, and come back as NaN. A polars frame keeps its column of times.

    Args:
        a: Samples, [..., len, ...]: a NumPy array, what NumPy makes one of, a torch tensor, a JAX array, or a table. It
            is never written to. Differences of whole order take any numbers; others make floats of integers, and take
            the real and the imaginary part apart.
        n: The order, a finite real number. For a tensor also one of no axes, whose gradient is then defined; its value
            is read, so that torch.compile breaks the graph there and torch.vmap cannot map over it. For a JAX array
            also one of no axes, which may be traced: then it is one product at any order, where otherwise whole
            differences are taken apart, which keeps more digits in single precision.
        axis: The time axis; None is the last one of an array, the rows of a table, and in xarray `dim`.
        window: Lags: each sample of the result is made of the last `window` samples of `a`, and the weights of older
            ones are zero. None is all samples since the first (the expanding window).
        mode: "same": as many samples as `a`. "valid": without those of the warm-up, which would need samples before
            the first: the first window - 1, or without a window the first n, where n is whole and not negative.
        prepend: Samples before `a` that count as its own, as in `numpy.diff`: of its shape but for `axis`, or a number,
            which is one sample; of a table the table of the rows just before it, whose columns have the same names.
        append: The same for samples after it.
        dim: Of an xarray object the dimension of time; None is the only one, or "time". Of a polars frame the column
            that holds the times; None is that of dates, if there is one.
        manager: Who chooses the kernel; None is the process-wide BackendManager.

    Returns:
        Same dtype as `a`, in this machine's byte order; same shape, in mode "valid" less the warm-up. Integers become
        float64, in torch and JAX the default dtype, unless n is whole and no weight is cut off: then differences keep
        their dtype, and sums have that of `numpy.cumsum` or `torch.cumsum`, which widens short integers; in JAX to the
        default integers. Half precision is computed in float32, but for whole differences, which are those of
        `numpy.diff`.

    Raises:
        TypeError: `a` holds no numbers, or texts for times, or an argument has the wrong type.
        ValueError: `n` is not finite, there is no such axis or mode, the window is not positive, or in mode "valid" it
            is missing where n is negative or not whole, or a tensor; the times of a table do not increase, or its rows
            belong to several series; `prepend` or `append` does not fit, or rows between are missing.
        LookupError: No registered kernel accepts this dtype and device.

    Source: Hosking, Biometrika 68 (1981) 165; the window is that of Lopez de Prado (2018), section 5.5.

    Examples:
        >>> import numpy as np
        >>> a = np.array([1.0, 4.0, 9.0, 16.0])
        >>> fdiff(a, 1, mode="valid")
        array([3., 5., 7.])
        >>> fdiff(a, 0.5)
        array([ 1.    ,  3.5   ,  6.875 , 10.9375])
        >>> fdiff(a, 0.5, window=2, mode="valid")
        array([ 3.5,  7. , 11.5])
    """
    errors.one_of(OWNER, "mode", mode, MODES)
    lags = None if window is None else errors.count(OWNER, "window", window)
    if is_table(a):
        whole = joined(OWNER, {"prepend": prepend, "a": a, "append": append}, axis, dim)
        return mapped(OWNER, "a", whole, lambda x, time: fdiff(x, n, time, lags, mode, manager=manager), axis, dim)
    if dim is not None:
        raise ValueError(f"{OWNER}(dim={dim!r}): needs an xarray object or a polars frame; leave dim out, pass axis.")
    a, framework = placed(OWNER, "a", a, manager, n)
    axis = errors.axis(OWNER, -1 if axis is None else axis, a.ndim, argument="axis", array="a")
    operator, xp = backend(framework).operator, NAMESPACES[framework]
    for name, part in (("prepend", prepend), ("append", append)):
        if part is not None:
            other = _fitted(name, part, a, axis, operator, xp)
            a = xp.concat([other, a] if name == "prepend" else [a, other], axis=axis)
    if framework == "numpy":
        a = _numbers(a)
    elif framework == "torch":
        operator.check_dense(OWNER, "a", a)
    is_array = framework != "numpy" and framework_of(type(n)) == framework
    order = _value(n, framework, operator) if is_array else _number(n)
    left_out = _warm_up(None if is_array else order, lags, mode)
    if not is_array and is_exact(order, lags):
        y = _whole(a, int(order), axis, operator, xp)
    else:
        y = _Difference(n if is_array else order, order, lags, manager, operator, xp).of(a, axis)
    if left_out == 0:
        return y
    return xp.contiguous(xp.part(y, min(left_out, y.shape[axis]), None, axis=axis))


def _fitted(name: str, part: Any, a: Array, axis: int, operator: Any, xp: Namespace) -> Array:
    """Return the samples to prepend or append, with the shape of `a` but for `axis`; raise if theirs is another.

    Args:
        name: "prepend" or "append", for the message.
        part: The caller's argument: samples, or a number, which is one sample of each series.
        a: The data that the samples are joined to.
        axis: The axis along which they are joined, not negative.
        operator: See the module's docstring.
        xp: The namespace of `a`.
    """
    part = operator.as_array(part, a)
    if not part.ndim:
        part = xp.astype(part, xp.result_type(a, part))
        return operator.broadcast_to(part, (*a.shape[:axis], 1, *a.shape[axis + 1 :]))
    if part.ndim != a.ndim or any(i != axis and size != a.shape[i] for i, size in enumerate(part.shape)):
        raise ValueError(
            f"{OWNER}({name} of shape {tuple(part.shape)}): needs the shape of a, {tuple(a.shape)}, but for axis "
            f"{axis}; pass samples of all its series, or a number."
        )
    return part


def _numbers(a: np.ndarray) -> np.ndarray:
    """Return the array in this machine's byte order; raise TypeError unless its dtype is numeric."""
    if a.dtype.kind not in "biufc":
        raise TypeError(f"{OWNER}(a of dtype {a.dtype}): needs numbers; pass a.astype(numpy.float64).")
    return a.astype(a.dtype.newbyteorder("="), copy=False)


def _number(n: Any) -> float:
    """Return the order n as a float; raise unless it is one real number, and finite."""
    if type(n) in (float, int):  # all that torch.compile can follow
        return _finite(float(n))
    value = n.item() if isinstance(n, np.ndarray | np.generic) and n.ndim == 0 else n
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{OWNER}(n of type {type(n).__name__}): needs a real number; pass for example n=0.5, or a layer such as "
            "FractionalDifference for an order per channel."
        )
    return _finite(float(value))


def _value(n: Array, framework: str, operator: Any) -> float:
    """Return the value of a torch order n without axes, or infinity for any JAX order, which may be traced.

    Raise unless n is floating and has no axes, and its value, where it is known, is finite.
    """
    kind = "tensor" if framework == "torch" else "array"
    if n.ndim != 0 or operator.parts(n) is not None:
        raise TypeError(
            f"{OWNER}(n: {n.dtype} {kind} of shape {tuple(n.shape)}): needs a floating {kind} of no axes; pass n[0], "
            "or a layer such as FractionalDifference for an order per channel."
        )
    value = operator.value_of(n)
    if value is not None:
        _finite(value)
    return value if framework == "torch" else math.inf


def _finite(order: float) -> float:
    if not math.isfinite(order):
        raise ValueError(f"{OWNER}(n={order}): needs a finite n; pass for example n=0.5.")
    return order


def _warm_up(order: float | None, window: int | None, mode: str) -> int:
    """Return how many leading results are left out: none in mode "same", in "valid" those that need earlier samples.

    The order is None where it is in a tensor; `mode` is "same" or "valid". Raise ValueError where mode is "valid" and
    every result needs earlier samples.
    """
    if mode == "same":
        return 0
    if window is not None:
        return window - 1
    if order is None or order < 0 or not order.is_integer():
        given = "tensor" if order is None else f"{order:g}"
        raise ValueError(
            f"{OWNER}(n={given}, mode='valid'): needs a window, because without one every sample counts in all that "
            "follow; pass for example window=100, or mode='same'."
        )
    return int(order)


def is_exact(order: float, window: int | None) -> bool:
    """Return whether whole differences or sums are all: the order is whole, and no window cuts its weights off."""
    return order.is_integer() and (window is None or 0 <= order < window)


def _whole(a: Array, order: int, axis: int, operator: Any, xp: Namespace) -> Array:
    """Return the backward difference of whole order of `a`, with zeros before its first sample, of the shape of `a`.

    For a negative order it is the cumulative sum, taken -order times.
    """
    if order >= 0:
        return xp.diff(xp.pad(a, order, axis=axis), n=order, axis=axis)
    is_half = a.dtype in operator.HALVES
    sums = xp.astype(a, xp.float32) if is_half else a  # float16 stands still at 2048
    for _ in range(-order):
        sums = xp.cumulative_sum(sums, axis=axis)
    return xp.astype(sums, a.dtype) if is_half else sums


@dataclass(frozen=True, eq=False)
class _Difference:
    """The difference of an order that is not whole, is an array, or whose weights a window cuts off.

    Attributes:
        n: The order, a number or an array of no axes.
        value: The order as a float; infinity where `n` is a JAX array, which may be traced.
        window: How many weights there are; None for as many as samples.
        manager: Who chooses the kernel; None is the process-wide BackendManager.
        operator: See the module's docstring.
        xp: The namespace of the data.
    """

    n: Any
    value: float
    window: int | None
    manager: BackendManager | None
    operator: Any
    xp: Namespace

    def of(self, a: Array, axis: int) -> Array:
        """Return the difference of `a` along `axis`.

        The samples may be real or complex numbers or integers; those that are NaN or infinite are gaps.
        """
        xp, parts = self.xp, self.operator.parts(a)
        if parts is not None and len(parts) == 1:  # integers have no gaps
            return self._of_finite(parts[0], axis)
        if parts is not None:
            both = self.of(xp.stack(parts, axis=0), axis + 1)
            return self.operator.whole([both[0], both[1]])
        if isinstance(a, np.ndarray) and a.dtype.itemsize > _WIDEST:
            raise TypeError(
                f"{OWNER}(a of dtype {a.dtype}): needs float64 or narrower where n is not whole or the window cuts; "
                "pass a.astype(numpy.float64)."
            )
        # An FFT would spread gaps over all samples. NumPy's values are read; a device or a compiler would wait.
        if isinstance(a, np.ndarray) and np.isfinite(a).all():
            return self._of_finite(a, axis)
        filled = xp.nan_to_num(a, nan=0.0, posinf=0.0, neginf=0.0)
        before, count = 0, xp.cumulative_sum(filled != a, axis=axis)
        if self.window is not None and self.window < a.shape[axis]:
            before = xp.pad(xp.part(count, 0, a.shape[axis] - self.window, axis=axis), self.window, axis=axis)
        return xp.where(count > before, math.nan, self._of_finite(filled, axis))

    def _of_finite(self, x: Array, axis: int) -> Array:
        xp, operator, length = self.xp, self.operator, x.shape[axis]
        lags = length if self.window is None else min(self.window, length)
        if lags < length or math.isinf(self.value):
            return self._product(x, WindowedDifference(self.n, window=float(lags), value=self.value), axis)
        whole = math.trunc(self.value)
        rest = self.n - whole
        bounds = None if isinstance(rest, float) else (0.0, 1.0) if self.value >= 0 else (-1.0, 0.0)
        is_kept = isinstance(x, np.ndarray)  # torch.compile follows no cache
        definition = _fixed(rest) if is_kept else GrunwaldLetnikov(rest, bounds=bounds)
        if whole == 0:
            return self._product(x, definition, axis)
        operator.computed_in(OWNER, x, definition)  # refuses what float64 could not hold
        wide = xp.asarray(x)
        if whole > 0:
            wide = _whole(wide, whole, axis, operator, xp)
        if bounds is not None or rest:  # whole sums come here where a window is longer than the series
            wide = self._product(wide, definition, axis)
        return xp.astype(_whole(wide, whole, axis, operator, xp) if whole < 0 else wide, x.dtype)

    def _product(self, x: Array, definition: Definition, axis: int) -> Array:
        return self.operator.apply(OWNER, x, definition, 1.0, axis, self.manager)


def undone(y: np.ndarray, n: float, axis: int, window: int | None) -> np.ndarray:
    """Return the samples, zero before the first, of which `y` is the difference of order `n` with this window.

    With a window they are one product with the reciprocal of the weights' power series. The reciprocal decays where
    -1 < n < 1: the weights after the first one sum to less than the first, or fall; a window that cuts the weights of
    other orders off leaves a recursion that grows.

    Raises:
        ValueError: The window cuts, and `n` is not between -1 and 1.
    """
    if window is None or window >= y.shape[axis] or is_exact(n, window):
        return fdiff(y, -n, axis)
    if not -1 < n < 1:
        raise ValueError(
            f"{OWNER}(n={n:g}, window={window}): needs an order between -1 and 1 to be undone, because beyond it "
            "errors grow exponentially where a window cuts; take the differences with window=None."
        )
    return backend("numpy").operator.apply(OWNER, y, WindowedSum(n, window=float(window), value=n), 1.0, axis, None)


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class WindowedDifference(Definition):
    """The difference (1 - z)**alpha of any order, with weights of zero from lag `window` on.

    Attributes:
        window: How many weights there are.
        value: Alpha as a float, also where alpha is an array; it selects the formula of the weights.
    """

    window: float = 1.0
    value: float = 0.0

    subtracts: ClassVar[bool] = False
    is_tabulated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Skip validation; `fdiff` has checked all."""

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of alpha: all real numbers."""
        return -math.inf, math.inf

    @property
    def taylor(self) -> int:
        """The number of Taylor terms; 1 because no polynomial is subtracted."""
        return 1

    @property
    def differences(self) -> int:
        """0: the data are not differenced first, because weights that are cut off have no factor 1 - z."""
        return 0

    @property
    def approximated(self) -> None:
        """None: weights that end at a window are no sum of exponentials."""
        return

    @property
    def is_wide(self) -> bool:
        """True, computed in float64: sums with the weights of a difference cancel."""
        return True

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the stencil for orders `alpha`; see `Definition.stencil_at`."""

        def column(lags: np.ndarray) -> Array:
            inside = xp.constant((lags < self.window).astype(np.float64), alpha)
            return difference_weights(alpha, self.value, lags, xp) * inside

        return Stencil(n=n, column=column, differences=0, subtract=False)


class WindowedSum(WindowedDifference):
    """The inverse of a `WindowedDifference`: its weights are the coefficients of the reciprocal power series."""

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the stencil for orders `alpha`; see `Definition.stencil_at`."""
        of = super().stencil_at(alpha, n, dt, xp, differences)

        def column(lags: np.ndarray) -> Array:
            return xp.take(reciprocal(of.column(np.arange(lags.max() + 1)), xp), lags, axis=-1)

        return Stencil(n=n, column=column, differences=0, subtract=False)


def difference_weights(order: Array, value: float, lags: np.ndarray, xp: Namespace) -> Array:
    """Return the coefficients of (1 - z)**order at increasing lags, float64 [*c, lags].

    `value` is the order as a float, by which one of two formulas is chosen.
    """
    if abs(value) <= _BINOMIAL:
        return binomial(order, lags, xp)
    k = np.arange(1.0, lags[-1] + 1)
    ratios = (xp.constant(k - 1, order) - order[..., None]) / xp.constant(k, order)
    return xp.take(xp.concat([0 * order[..., None] + 1, xp.cumulative_prod(ratios, axis=-1)], axis=-1), lags, axis=-1)
