"""Differences of any order of an array, as `numpy.diff` takes those of whole order: the door, and what its rooms share.

    y[t] = sum over k of w[k] a[t - k],    w[k] = (-1)**k binomial(n, k),

the coefficients of (1 - z)**n, with zeros before the first sample. An order beyond (-1, 1) is a whole number of
differences or sums and one of a rest in (-1, 1), which a window that cuts the weights off does not allow: there the
weights are those of the whole order.

Hosking, Fractional Differencing, Biometrika 68 (1981) 165; Lopez de Prado, Advances in Financial Machine Learning
(2018), chapter 5, for the window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.operator import Samples, placed
from hpfracc_nn.fractional.schemes.grunwald import binomial
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.selection import BackendManager

OWNER = "fdiff"
MODES = ("same", "valid")

_BINOMIAL = 3.0  # orders that the series of `binomial` is made for


def fdiff(
    a: Samples,
    n: Any,
    axis: int = -1,
    window: int | None = None,
    mode: str = "same",
    *,
    manager: BackendManager | None = None,
) -> Samples:
    """Return the difference of order `n` of `a` along `axis`: (1 - z)**n a, with zeros before the first sample.

    A negative order sums, and undoes the difference of the opposite order. At a whole n >= 0 it is `numpy.diff` or
    `torch.diff`, bit for bit: those of `a` itself in mode "valid", those of `a` after n zeros in mode "same"; n = -1
    is the cumulative sum. O(len log len) or less at any order and any window.

    A sample that is NaN or infinite leaves NaN where it has a weight, and the other samples as they would be without
    it: in the `window` samples from it on, or in all from it on. At a whole order it spreads as in `numpy.diff` and
    `numpy.cumsum`.

    Args:
        a: Samples, [..., len, ...]: a NumPy array, what NumPy makes one of, a torch tensor or a JAX array. It is never
            written to. Differences of whole order take any numbers; others make floats of integers, and take the real
            and the imaginary part apart.
        n: The order, a finite real number. For a tensor also one of no axes, whose gradient is then defined; its value
            is read, so that torch.compile breaks the graph there and torch.vmap cannot map over it. For a JAX array
            also one of no axes, which may be traced: then it is one product at any order, where otherwise whole
            differences are taken apart, which keeps more digits in single precision.
        axis: The time axis.
        window: Lags: each sample of the result is made of the last `window` samples of `a`, and the weights of older
            ones are zero. None is all samples since the first (the expanding window).
        mode: "same": as many samples as `a`. "valid": without those of the warm-up, which would need samples before
            the first: the first window - 1, or without a window the first n, where n is whole and not negative.
        manager: Who chooses the kernel; None is the process-wide BackendManager.

    Returns:
        Same dtype as `a`, in this machine's byte order; same shape, in mode "valid" less the warm-up. Integers become
        float64, in torch and JAX the default dtype, unless n is whole and no weight is cut off: then differences keep
        their dtype, and sums have that of `numpy.cumsum` or `torch.cumsum`, which widens short integers; in JAX to the
        default integers. Half precision is computed in float32, but for whole differences, which are those of
        `numpy.diff`.

    Raises:
        TypeError: `a` holds no numbers, or an argument has the wrong type.
        ValueError: `n` is not finite, there is no such axis or mode, the window is not positive, or in mode "valid" it
            is missing where n is negative or not whole, or a tensor.
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
    a, framework = placed(OWNER, "a", a, manager)
    errors.one_of(OWNER, "mode", mode, MODES)
    lags = None if window is None else errors.count(OWNER, "window", window)
    return _room(framework).fdiff(a, n, axis, lags, mode, manager)


def _room(framework: str) -> Any:
    """Return the module whose `fdiff` takes the framework's arrays."""
    room: Any
    if framework == "torch":
        import hpfracc_nn.fractional.torch.differencing as room
    elif framework == "jax":
        import hpfracc_nn.fractional.jax.differencing as room
    else:
        import hpfracc_nn.fractional.numpy.differencing as room
    return room


def order_of(n: Any) -> float:
    """Return the order as a float, or raise."""
    if type(n) in (float, int):  # all that torch.compile can follow
        return finite(float(n))
    value = n.item() if isinstance(n, np.ndarray | np.generic) and n.ndim == 0 else n
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(
            f"{OWNER}(n of type {type(n).__name__}): needs a real number; pass for example n=0.5, or a layer such as "
            "FractionalDifference for an order per channel."
        )
    return finite(float(value))


def finite(order: float) -> float:
    """Return the order, or raise."""
    if not math.isfinite(order):
        raise ValueError(f"{OWNER}(n={order}): needs a finite n; pass for example n=0.5.")
    return order


def warm_up(order: float | None, window: int | None, mode: str) -> int:
    """Return how many samples at the start mode "valid" leaves out; the order is None where a gradient goes there."""
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
    """Whether all there is to do are whole differences or sums."""
    return order.is_integer() and (window is None or 0 <= order < window)


def split(order: float) -> tuple[int, float]:
    """Return a whole number of differences and the rest, in (-1, 1) and of the same sign."""
    whole = math.trunc(order)
    return whole, order - whole


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class WindowedDifference(Definition):
    """(1 - z)**alpha of any order, less its weights from lag `window` on.

    Attributes:
        window: How many weights there are.
        value: About what alpha is, also where it is a tensor: it says by which formula its weights are found.
    """

    window: float = 1.0
    value: float = 0.0

    subtracts: ClassVar[bool] = False
    is_tabulated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Nothing: `fdiff` has checked all."""

    @property
    def interval(self) -> tuple[float, float]:
        """Any order."""
        return -math.inf, math.inf

    @property
    def taylor(self) -> int:
        """One: nothing is subtracted."""
        return 1

    @property
    def differences(self) -> int:
        """None: what is cut off a product is not a product of what is cut off."""
        return 0

    @property
    def approximated(self) -> None:
        """Nothing: weights that end are no sum of exponentials."""
        return

    @property
    def is_wide(self) -> bool:
        """Always: the weights of a difference cancel."""
        return True

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the stencil of other orders; see `Definition`."""

        def column(lags: np.ndarray) -> Array:
            inside = xp.constant((lags < self.window).astype(np.float64), alpha)
            return difference_weights(alpha, self.value, lags, xp) * inside

        return Stencil(n=n, column=column, differences=0, subtract=False)


def difference_weights(order: Array, value: float, lags: np.ndarray, xp: Namespace) -> Array:
    """Return the coefficients of (1 - z)**order at increasing lags, float64 [*c, lags]; `value` is what `order` is."""
    if abs(value) <= _BINOMIAL:
        return binomial(order, lags, xp)
    k = np.arange(1.0, lags[-1] + 1)
    ratios = (xp.constant(k - 1, order) - order[..., None]) / xp.constant(k, order)
    return xp.take(xp.concat([0 * order[..., None] + 1, xp.cumprod(ratios)]), lags)
